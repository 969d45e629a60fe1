"""The shell of one journal: a thread that writes its groups, one at a time. Loop only.

A bookie has one journal thread per journal directory. A ledger's records all go to the same
journal, by its id, so the threads know nothing of each other.
"""

import asyncio
import functools
from dataclasses import InitVar, dataclass
from time import perf_counter
from typing import Protocol

from magnetar.bookkeeper.bookie.journal.journal import Journal, JournalGroup, JournalWriter
from magnetar.bookkeeper.bookie.workers import Worker
from magnetar.bookkeeper.errors import JournalFullError


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
        self.worker = Worker(name, self._loop)
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

    def _submit(self, group: JournalGroup) -> None:
        write = functools.partial(self._write, group)
        self.worker.submit(write, functools.partial(self._on_written, group))

    def _write(self, group: JournalGroup) -> None:
        """On the journal's thread."""
        began_s = perf_counter()
        self._writer.write(group)
        group.write_s = perf_counter() - began_s

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
