"""The process that finds out what a compaction keeps: entries in, entries out, by one socket.

Keys and their messages are here, and nothing else: ledgers are the broker's. It ends with the
socket, or with the broker.
"""

import os
from collections.abc import Sequence
from typing import BinaryIO, Final

from magnetar.broker.compaction.compacted_entry import decode_compacted, encode_compacted
from magnetar.broker.compaction.two_passes import TwoPasses
from magnetar.broker.compaction.work_frames import (
    ANSWER,
    CHOOSE,
    COMPACTED,
    DONE,
    ENTRIES,
    FAILED,
    NOTE,
    QUESTION,
    decode_entries,
    encode_entries,
)
from magnetar.broker.cpu_scheduling import die_with_parent
from magnetar.broker.protocol.stored_entries import without_head
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position

_NICE: Final = 5
"""Of processors that are all busy it gets a third of what others get; with the lowest priority it
would be 1.5 %, and the backlog of what isn't compacted would grow."""


def serve(source: BinaryIO, partition: int, *, retains_keyless: bool) -> None:
    """Answer until the broker closes its end, or is no more.

    Args:
        source: of the socket, which is standard output, too.
        partition: of the topic; -1: none.
    """
    die_with_parent()
    os.nice(_NICE)
    work = CompactionWork(partition, retains_keyless=retains_keyless)
    with os.fdopen(1, "wb") as answers:
        while head := source.read(QUESTION.size):
            kind, ledger_id, first = QUESTION.unpack(head)
            count, size = ENTRIES.unpack(source.read(ENTRIES.size))
            entries = decode_entries(count, source.read(4 * count + size))
            try:
                kept = work.answer(kind, ledger_id, first, entries)
            except Exception as error:
                _write(answers, FAILED, 0, [f"{type(error).__name__}: {error}".encode()])
                raise
            if kept is not None:
                _write(answers, DONE, work.removed, kept)


def _write(answers: BinaryIO, status: int, removed: int, entries: Sequence[Buffer]) -> None:
    answers.write(ANSWER.pack(status, removed))
    answers.writelines(encode_entries(entries))
    answers.flush()


class CompactionWork:
    """Core: two passes over entries as they lie in their ledgers."""

    def __init__(self, partition: int, *, retains_keyless: bool) -> None:
        self._partition, self._passes = partition, TwoPasses(retains_keyless)

    @property
    def removed(self) -> int:
        """Messages; known between the passes."""
        return self._passes.removed

    def answer(
        self, kind: int, ledger_id: int, first: int, entries: Sequence[Buffer]
    ) -> list[Buffer] | None:
        """Entries of the new compacted ledger; None: the question has no answer.

        Raises:
            CompactedEntryError: an entry of a compacted ledger that is none.
            OSError: there is no room for temporary files.
        """
        if kind == CHOOSE:
            self._passes.choose()
            return []
        positions, stored = _stored(ledger_id, first, entries)
        if kind == NOTE:
            for entry in stored:
                self._passes.note(without_head(entry)[1])
            return None
        return self._take(positions, stored)

    def _take(self, positions: list[Position], stored: list[Buffer]) -> list[Buffer]:
        kept: list[Buffer] = []
        for position, entry in zip(positions, stored, strict=True):
            prefix, body = without_head(entry)
            if (left := self._passes.take(body)) is not None:
                kept.append(encode_compacted(position, self._partition, prefix, left))
        return kept


def _stored(
    ledger_id: int, first: int, entries: Sequence[Buffer]
) -> tuple[list[Position], list[Buffer]]:
    """Positions of the topic's entries, and they as they lie in its ledgers."""
    if ledger_id != COMPACTED:
        return [(ledger_id, first + at) for at in range(len(entries))], list(entries)
    pairs = [decode_compacted(entry) for entry in entries]
    return [position for position, _ in pairs], [stored for _, stored in pairs]
