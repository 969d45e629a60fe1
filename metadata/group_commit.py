"""Group commit: what is queued while one transaction commits goes into the next one.

The loop evaluates a group on the tree (``CommitBatch``), one dedicated thread writes its rows, and
one ``call_soon_threadsafe`` brings the answer for all of them. No timer: an idle store commits a
lone operation at once. Only after the commit does the tree change, are events delivered and do the
callers wake up, so no reader ever sees a change that a power cut could take back.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from magnetar.metadata.database import Database, is_refusal
from magnetar.metadata.errors import (
    MetadataError,
    MetadataWriteError,
    OutcomeUnknownError,
    StoreClosedError,
)
from magnetar.metadata.node_tree import CommitBatch, NodeTree
from magnetar.metadata.rows import CommitRows
from magnetar.metadata.store import MetadataEvent

T = TypeVar("T")

# Bounds how long evaluating one group holds the loop: about 1.5 ms.
OPERATIONS_MAX = 256


class _Operation:
    __slots__ = ("error", "future", "path", "result", "run")

    def __init__(
        self, path: str, run: Callable[[CommitBatch], Any], future: "asyncio.Future[Any]"
    ) -> None:
        self.path, self.run, self.future = path, run, future
        self.result: Any = None
        self.error: Exception | None = None


class GroupCommitter:
    """Owns the tree, the database and its thread. All methods are for the loop."""

    def __init__(
        self,
        database: Database,
        now_ms: Callable[[], int],
        deliver: Callable[[list[MetadataEvent]], None],
        on_fatal: Callable[[], None],
    ) -> None:
        """``deliver`` gets the events of each commit; ``on_fatal``: the store closed itself."""
        self.tree, self.groups = NodeTree(), 0
        database.load(self.tree)
        self.mark = database.mark  # of the tree: not of a commit that may be taken back
        self._database, self._now_ms = database, now_ms
        self._deliver, self._on_fatal = deliver, on_fatal
        self._queue: deque[_Operation] = deque()
        self._current: tuple[CommitBatch, list[_Operation]] | None = None
        self._busy = False  # a group is scheduled or under way
        self._one_by_one = 0  # operations to retry in groups of their own
        self._jobs: queue.SimpleQueue[CommitRows | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event | None = None  # exists once closing has begun
        self._thread_ended: asyncio.Future[None] | None = None
        self.closed_reason: str | None = None

    @property
    def place(self) -> str:
        return str(self._database.path or "in memory")

    def submit(self, path: str, run: Callable[[CommitBatch], T]) -> "asyncio.Future[T]":
        """Queues one operation; ``run`` gets the group, and raises before it changed anything.

        A caller that cancels its future before the group is formed takes the operation back.
        """
        if self.closed_reason is not None:
            raise StoreClosedError(self.closed_reason)
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append(_Operation(path, run, future))
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._start_group)
        return future

    async def close(self) -> None:
        """Commits what is queued, refuses the rest, closes the file."""
        if self._idle is not None:
            await self._idle.wait()
            return
        if self.closed_reason is None:
            self.closed_reason = "the metadata store is closed"
        self._idle = asyncio.Event()
        if self._busy:
            await self._idle.wait()
        self._idle.set()
        if self._thread is None:
            self._database.close()
            return
        self._thread_ended = asyncio.get_running_loop().create_future()
        self._jobs.put(None)
        await self._thread_ended
        self._thread.join()  # it has nothing left to do

    def _start_group(self) -> None:
        count = OPERATIONS_MAX
        if self._one_by_one:
            self._one_by_one -= 1
            count = 1
        group, operations = CommitBatch(self.tree, self._now_ms()), list[_Operation]()
        while self._queue and len(operations) < count:
            operation = self._queue.popleft()
            if operation.future.done():  # cancelled while it waited
                continue
            try:
                operation.result, operation.error = operation.run(group), None
            except Exception as error:
                operation.error = error
            operations.append(operation)
        self._current = group, operations
        change = group.to_change(with_old=self._database.path is not None)
        if not (change.puts or change.deletes or change.counters):
            self._finish(None)  # only ephemeral nodes, or only refusals: nothing to sync
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="metadata", daemon=True)
            self._thread.start()
        self._jobs.put(change)

    def _work(self) -> None:
        """The thread: commits jobs until it gets None."""
        while True:
            job = self._jobs.get()
            error: BaseException | None = None
            if job is not None:
                try:
                    self._database.commit(job)
                except BaseException as caught:
                    error = caught
            else:
                self._database.close()
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(
                    self._finish if job is not None else self._end, error
                )
            except RuntimeError:  # the loop was closed under us: no caller waits for the answer
                self._database.close()
                return
            if job is None:
                return

    def _end(self, _: BaseException | None) -> None:
        if self._thread_ended is not None and not self._thread_ended.done():
            self._thread_ended.set_result(None)

    def _finish(self, error: BaseException | None) -> None:
        assert self._current is not None
        group, operations = self._current
        self._current = None
        self.groups += 1
        if error is None:
            self.tree.apply(group)
            self.mark = self._database.mark
            self._deliver(group.events)
            for operation in operations:
                _answer(operation, operation.error)
        else:
            self._on_commit_failed(operations, error)
        if self._queue:
            assert self._loop is not None
            self._loop.call_soon(self._start_group)
        else:
            self._busy = False
            if self._idle is not None:
                self._idle.set()

    def _on_commit_failed(self, operations: list[_Operation], error: BaseException) -> None:
        # Errors of the members go too: they may rest on a neighbour that wasn't written.
        if is_refusal(error) and len(operations) > 1:
            self._queue.extendleft(reversed(operations))
            self._one_by_one += len(operations)
        elif is_refusal(error):
            for operation in operations:
                _answer(operation, MetadataWriteError(operation.path, error))
        else:
            self.closed_reason = f"the metadata store ({self.place}) closed itself: {error}"
            for operation in operations:
                _answer(operation, OutcomeUnknownError(operation.path, error))
            while self._queue:
                _answer(self._queue.popleft(), StoreClosedError(self.closed_reason))
            self._on_fatal()


def _answer(operation: _Operation, error: Exception | None) -> None:
    future = operation.future
    if future.done():  # the caller gave up waiting; what is done is done
        return
    if error is None:
        future.set_result(operation.result)
        return
    assert isinstance(error, MetadataError) or operation.error is error
    future.set_exception(error)
