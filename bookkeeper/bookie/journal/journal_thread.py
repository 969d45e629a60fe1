"""The shell of one journal: its groups are written by threads, one at a time. Loop only.

A group for which the segment's file has room is a single call of the kernel. Compiled code makes
it, where there is such code, on a thread that never waits for the interpreter's lock (decision
0131). All else, and each group elsewhere, is done by a Python thread.

A bookie has one journal thread per journal directory. A ledger's records all go to the same
journal, by its id, so the threads know nothing of each other.
"""

import asyncio
import errno
import functools
import os
from dataclasses import InitVar, dataclass
from time import perf_counter
from typing import Protocol

from magnetar.bookkeeper.bookie.journal.journal import Journal, JournalGroup, JournalWriter
from magnetar.bookkeeper.bookie.workers import Worker
from magnetar.bookkeeper.errors import JournalFullError

try:
    from magnetar.bookkeeper.storage.durable_writes import DurableWrites
except ImportError:  # there was no compiler, or the system has no such call
    DurableWrites = None  # type: ignore[assignment,misc]

# Nothing was written, and a Python thread may: OsFile syncs after the write, or is interrupted by
# no signal.
_NOTHING_WRITTEN = (-errno.EOPNOTSUPP, -errno.EINVAL, -errno.ENOSYS, -errno.EINTR)


class JournalListener(Protocol):
    """The bookie."""

    def may_write(self) -> bool:
        """Groups may leave; else they wait for the next ``dispatch``."""
        ...

    def on_group_durable(self, group: JournalGroup, *, was_stalled: bool) -> None:
        """The next group is on its way already."""
        ...

    def on_journal_full(self, error: JournalFullError, *, again: bool) -> None:
        """A thread is stalled, for the first time or still."""
        ...

    def give_up(self, error: BaseException) -> None:
        """Nobody knows what is on the disk."""
        ...


@dataclass(eq=False, repr=False)
class JournalThread:
    """Writes what ``journal`` forms.

    Attributes:
        stalled: the group in flight when there is no space for it.
    """

    journal: Journal
    _writer: JournalWriter
    _owner: JournalListener
    name: InitVar[str]
    _loop: asyncio.AbstractEventLoop

    def __post_init__(self, name: str) -> None:
        self.stalled: JournalGroup | None = None
        self._worker = Worker(name, self._loop)
        self._durable_writes: DurableWrites | None = None
        self._scheduled = self._writing_again = False

    def dispatch_soon(self) -> None:
        """Hand the next group over at the end of the tick: requests of many ledgers that arrive
        together share a group."""
        if not self._scheduled and self.journal.in_flight is None:
            self._scheduled = True
            self._loop.call_soon(self.dispatch)

    def dispatch(self) -> None:
        """Hand the next group over now, if none is under way."""
        self._scheduled = False
        if self._owner.may_write() and (group := self.journal.take_group()) is not None:
            self._submit(group)

    def write_again(self) -> None:
        """There may be space by now. A slow disk may take longer than the caller."""
        if self.stalled is not None and not self._writing_again:
            self._writing_again = True
            self._submit(self.stalled)

    @property
    def is_idle(self) -> bool:
        return self.journal.in_flight is None and self.journal.queued_bytes == 0

    def stop(self) -> None:
        """Let the threads end after what is queued; does not wait."""
        self._worker.stop()
        if self._durable_writes is not None:
            self._loop.remove_reader(self._durable_writes.fileno())
            self._durable_writes.stop()

    def join(self) -> None:
        self._worker.join()
        if self._durable_writes is not None:
            self._durable_writes.join()

    def _submit(self, group: JournalGroup) -> None:
        place = self._writer.place_for(group)
        if DurableWrites is None or place < 0:
            self._submit_to_worker(group)
            return
        try:
            if (writes := self._durable_writes) is None:
                writes = DurableWrites(b"journal")
                self._loop.add_reader(writes.fileno(), self._on_durable_write, writes)
                self._durable_writes = writes
            writes.submit(place, group.buffers, group.offset)
        except (OSError, MemoryError):  # no descriptor, thread or memory: the worker may do without
            self._submit_to_worker(group)

    def _submit_to_worker(self, group: JournalGroup) -> None:
        write = functools.partial(self._write, group)
        self._worker.submit(write, functools.partial(self._on_written, group))

    def _write(self, group: JournalGroup) -> None:
        """On the journal's thread."""
        began_s = perf_counter()
        self._writer.write(group)
        group.write_s = perf_counter() - began_s

    def _on_durable_write(self, writes: "DurableWrites") -> None:
        group = self.journal.in_flight
        assert group is not None, "it was submitted"
        written, group.write_s = writes.take()
        if written == group.size:
            self._on_written(group, None)
        elif written >= 0 or written in _NOTHING_WRITTEN:
            # What was written is durable, and will be the same.
            self._submit_to_worker(group)
        else:
            path = self._writer.path_of(group)
            self._on_written(group, OSError(-written, os.strerror(-written), path))

    def _on_written(self, group: JournalGroup, error: BaseException | None) -> None:
        self._writing_again = False
        if isinstance(error, JournalFullError):
            again, self.stalled = self.stalled is not None, group
            self._owner.on_journal_full(error, again=again)
        elif error is not None:
            self._owner.give_up(error)
        else:
            self.journal.on_durable(group)
            was_stalled, self.stalled = self.stalled is not None, None
            self.dispatch()  # first the disk, then the answers
            self._owner.on_group_durable(group, was_stalled=was_stalled)
