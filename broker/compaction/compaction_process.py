"""The process that finds out what a compaction keeps: entries in, entries out, by one socket.

Keys and their messages are here, and nothing else: ledgers are the broker's. It ends with the
socket, or with the broker.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from time import perf_counter, thread_time
from typing import BinaryIO, Final, TypeAlias

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
from magnetar.broker.cpu_scheduling import die_with_parent, run_behind_others
from magnetar.broker.protocol.stored_entries import without_head
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position

_NICE: Final = 5
"""Where the thread that gives way to all others gets no processor: a third of what others get."""
_STARVED_S: Final = 0.05
"""A piece takes a millisecond or less, unless it waits for a processor."""

Question: TypeAlias = tuple[int, int, int, Sequence[Buffer]]


def serve(source: BinaryIO, partition: int, *, retains_keyless: bool) -> None:
    """Answer until the broker closes its end, or is no more.

    Args:
        source: of the socket, which is standard output, too.
        partition: of the topic; -1: none.
    """
    die_with_parent()
    os.nice(_NICE)
    work = CompactionWork(partition, retains_keyless=retains_keyless)
    idle, turns = IdleWork(work), IdleTurns()
    with os.fdopen(1, "wb") as answers:
        while head := source.read(QUESTION.size):
            kind, ledger_id, first = QUESTION.unpack(head)
            count, size = ENTRIES.unpack(source.read(ENTRIES.size))
            entries = decode_entries(count, source.read(4 * count + size))
            began_s = perf_counter()
            try:
                if kind == CHOOSE or not turns.is_idle(began_s):  # to choose may take minutes
                    kept = work.answer(kind, ledger_id, first, entries)
                else:
                    kept, computed_s = idle.answer((kind, ledger_id, first, entries))
                    turns.on_answer(now_s := perf_counter(), now_s - began_s - computed_s)
            except Exception as error:
                _write(answers, FAILED, 0, [f"{type(error).__name__}: {error}".encode()])
                raise
            if kept is not None:
                _write(answers, DONE, work.removed, kept)


def _write(answers: BinaryIO, status: int, removed: int, entries: Sequence[Buffer]) -> None:
    answers.write(ANSWER.pack(status, removed))
    answers.writelines(encode_entries(entries))
    answers.flush()


@dataclass(slots=True)
class IdleTurns:
    """Core: which pieces are for the thread that gives way to all others.

    All of them, while there is a processor for it. What it has waited in vain is then the other
    thread's: on a machine that is always busy a run gets half of what `_NICE` gives it.
    """

    _idle_from_s: float = 0.0

    def is_idle(self, now_s: float) -> bool:
        return now_s >= self._idle_from_s

    def on_answer(self, now_s: float, waited_s: float) -> None:
        """It has answered, and was without a processor for so long."""
        if waited_s > _STARVED_S:
            self._idle_from_s = now_s + waited_s


class IdleWork:
    """A thread that gets a processor only while no other wants it. Without it, on two processors
    that aren't busy, messages of others took twice as long (decision 0074).
    """

    def __init__(self, work: "CompactionWork") -> None:
        self._work = work
        self._questions: SimpleQueue[Question] = SimpleQueue()
        self._answers: SimpleQueue[tuple[list[Buffer] | None, Exception | None, float]]
        self._answers = SimpleQueue()
        Thread(target=self._run, name="idle", daemon=True).start()

    def answer(self, question: Question) -> tuple[list[Buffer] | None, float]:
        """As `CompactionWork.answer`, and the processor time in seconds."""
        self._questions.put(question)
        kept, error, computed_s = self._answers.get()
        if error is not None:
            raise error
        return kept, computed_s

    def _run(self) -> None:
        run_behind_others(idle=True)
        while True:
            question, began_s = self._questions.get(), thread_time()
            try:
                kept, error = self._work.answer(*question), None
            except Exception as failed:  # the other thread tells the broker
                kept, error = None, failed
            self._answers.put((kept, error, thread_time() - began_s))


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
