"""The process that finds out what a compaction keeps: entries in, entries out, by one socket.

Keys and their messages are here, and nothing else: ledgers are the broker's. Of entries that lie in
files of this machine it is told the place only, and reads them itself. It ends with the socket, or
with the broker.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter, thread_time
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

from magnetar.bookkeeper.bookie.storage.run_reader import RunReader
from magnetar.bookkeeper.transport import StoredRun
from magnetar.broker.compaction.compacted_entry import decode_compacted, encode_compacted
from magnetar.broker.compaction.two_passes import TwoPasses
from magnetar.broker.compaction.work_frames import (
    ANSWER,
    CHOOSE,
    COMPACTED,
    DONE,
    ENTRIES,
    FAILED,
    MORE,
    NOTE,
    NOTE_STORED,
    QUESTION,
    TAKE,
    TAKE_STORED,
    decode_entries,
    decode_runs,
    encode_entries,
    portions,
)
from magnetar.broker.cpu_scheduling import die_with_parent, run_behind_others
from magnetar.broker.protocol.stored_entries import without_head
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position

_NICE: Final = 5
"""Where the thread that gives way to all others gets no processor: a third of what others get."""
_STARVED_S: Final = 0.05
"""A piece takes some milliseconds, unless it waits for a processor."""

Question: TypeAlias = tuple[int, int, int, Sequence[Buffer]]
Answer: TypeAlias = tuple[int, int, list[Buffer]]
"""Status, number, entries."""
T = TypeVar("T")
Do: TypeAlias = Callable[[Callable[[], T]], T]


def serve(source: BinaryIO, partition: int, *, retains_keyless: bool) -> None:
    """Answer until the broker closes its end, or is no more.

    Args:
        source: of the socket, which is standard output, too.
        partition: of the topic; -1: none.
    """
    die_with_parent()
    os.nice(_NICE)
    reader = RunReader()
    work = CompactionWork(partition, retains_keyless=retains_keyless, read=reader.read)
    threads = WorkThreads()
    with os.fdopen(1, "wb") as sink:
        while head := source.read(QUESTION.size):
            kind, ledger_id, first = QUESTION.unpack(head)
            count, size = ENTRIES.unpack(source.read(ENTRIES.size))
            entries = decode_entries(count, source.read(4 * count + size))
            try:
                for status, number, kept in answers(
                    work, (kind, ledger_id, first, entries), threads.do
                ):
                    *some, last = portions(kept)
                    for each in some:
                        _write(sink, MORE, number, each)
                    _write(sink, status, number, last)
            except Exception as error:
                _write(sink, FAILED, 0, [f"{type(error).__name__}: {error}".encode()])
                raise


def _write(sink: BinaryIO, status: int, number: int, entries: Sequence[Buffer]) -> None:
    sink.write(ANSWER.pack(status, number))
    sink.writelines(encode_entries(entries))
    sink.flush()


def answers(work: "CompactionWork", question: Question, do: "Do[Any]") -> Iterator[Answer]:
    """Work on a question; all answers but the last one are ``MORE``.

    Args:
        do: calls what takes some milliseconds.

    Raises:
        CompactedEntryError: an entry of a compacted ledger that is none.
        OSError: there is no room for temporary files.
    """
    kind, ledger_id, first, entries = question
    if kind == CHOOSE:  # may take minutes
        work.choose()
        yield DONE, work.removed, []
    elif kind == NOTE:
        do(partial(work.note, ledger_id, first, entries))
    elif kind == TAKE:
        yield DONE, 0, do(partial(work.take, ledger_id, first, entries))
    else:
        done, located = 0, decode_runs(entries)
        for run in located.runs:
            kept = do(partial(work.on_run, kind, ledger_id, run, located.bytes_per_s))
            if kept is None:
                break
            done += 1
            if kept:
                yield MORE, done, kept
        yield DONE, done, []


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


class WorkThreads:
    """The main thread, and one that gets a processor only while no other wants it. Without that, on
    two processors that aren't busy, messages of others took twice as long (decision 0074).
    """

    def __init__(self) -> None:
        self._turns = IdleTurns()
        self._jobs: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._results: SimpleQueue[tuple[Any, Exception | None, float]] = SimpleQueue()
        Thread(target=self._run, name="idle", daemon=True).start()

    def do(self, job: Callable[[], Any]) -> Any:
        """Call it in one of them; its result, or its error."""
        began_s = perf_counter()
        if not self._turns.is_idle(began_s):
            return job()
        self._jobs.put(job)
        result, error, computed_s = self._results.get()
        if error is not None:
            raise error
        now_s = perf_counter()
        self._turns.on_answer(now_s, now_s - began_s - computed_s)
        return result

    def _run(self) -> None:
        run_behind_others(idle=True)
        while True:
            job, began_s = self._jobs.get(), thread_time()
            result, error = None, None
            try:
                result = job()
            except Exception as failed:  # the other thread tells the broker
                error = failed
            self._results.put((result, error, thread_time() - began_s))


class CompactionWork:
    """Core: two passes over entries as they lie in their ledgers.

    Args:
        read: bodies of entries that lie in files of this machine, by so many bytes a second at
            most; None: they aren't there.
    """

    def __init__(
        self,
        partition: int,
        *,
        retains_keyless: bool,
        read: Callable[[StoredRun, int], Sequence[Buffer] | None],
    ) -> None:
        self._partition, self._passes, self._read = partition, TwoPasses(retains_keyless), read

    @property
    def removed(self) -> int:
        """Messages; known between the passes."""
        return self._passes.removed

    def choose(self) -> None:
        """Between the passes."""
        self._passes.choose()

    def on_run(
        self, kind: int, ledger_id: int, run: StoredRun, bytes_per_s: int
    ) -> list[Buffer] | None:
        """What `take` or `note` does; None: the entries aren't there, and nothing was done."""
        found = self._read(run, bytes_per_s)
        if found is None:
            return None
        if kind == TAKE_STORED:
            return self.take(ledger_id, run.first, found)
        assert kind == NOTE_STORED
        self.note(ledger_id, run.first, found)
        return []

    def note(self, ledger_id: int, first: int, entries: Sequence[Buffer]) -> None:
        for entry in _stored(ledger_id, first, entries)[1]:
            self._passes.note(without_head(entry)[1])

    def take(self, ledger_id: int, first: int, entries: Sequence[Buffer]) -> list[Buffer]:
        """Entries of the new compacted ledger."""
        kept: list[Buffer] = []
        for position, entry in zip(*_stored(ledger_id, first, entries), strict=True):
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
