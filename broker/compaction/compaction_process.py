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
    ENTRIES,
    NOTE,
    QUESTION,
    decode_entries,
    encode_entries,
)
from magnetar.broker.cpu_scheduling import die_with_parent
from magnetar.broker.protocol.stored_entries import PULSAR_ENTRIES
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
    passes = TwoPasses(retains_keyless)
    with os.fdopen(1, "wb") as answers:
        while head := source.read(QUESTION.size):
            kind, ledger_id, first = QUESTION.unpack(head)
            count, size = ENTRIES.unpack(source.read(ENTRIES.size))
            entries = decode_entries(count, source.read(4 * count + size))
            if kind == NOTE:
                for body in PULSAR_ENTRIES.split(_stored(ledger_id, first, entries)[1])[1]:
                    passes.note(body)
                continue
            kept: list[Buffer] = []
            if kind == CHOOSE:
                passes.choose()
            else:
                kept = _take(passes, partition, *_stored(ledger_id, first, entries))
            answers.write(ANSWER.pack(passes.removed))
            answers.writelines(encode_entries(kept))
            answers.flush()


def _stored(
    ledger_id: int, first: int, entries: Sequence[Buffer]
) -> tuple[list[Position], list[Buffer]]:
    """Positions of the topic's entries, and they as they lie in its ledgers."""
    if ledger_id != COMPACTED:
        return [(ledger_id, first + at) for at in range(len(entries))], list(entries)
    pairs = [decode_compacted(entry) for entry in entries]
    return [position for position, _ in pairs], [stored for _, stored in pairs]


def _take(
    passes: TwoPasses, partition: int, positions: list[Position], stored: list[Buffer]
) -> list[Buffer]:
    """Entries of the new compacted ledger."""
    heads, bodies = PULSAR_ENTRIES.split(stored)
    prefixes = PULSAR_ENTRIES.prefixes(heads)
    kept: list[Buffer] = []
    for position, prefix, body in zip(positions, prefixes, bodies, strict=True):
        if (left := passes.take(body)) is not None:
            kept.append(encode_compacted(position, partition, prefix, left))
    return kept
