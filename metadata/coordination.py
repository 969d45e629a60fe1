"""Nodes that one session at a time can have: a lock on a resource, the seat of a leader.

Both create an ephemeral node and watch it. The node found decides (spec, bundles 3.1 and 3.3):

    session | value  | meaning                              | answer
    own     | own    | ours, maybe by a create whose reply was lost | adopt
    own     | other  | ours, written under an older configuration   | delete, create again
    other   | own    | of a previous session or process of ours     | write, delete, create again
    other   | other  | another holder's                             | busy

So a value must name its holder: no two processes may use the same one, or they would take the node
from each other for ever. A holder that changes its value while it holds the node, or follows a
process that may still live, says what "own" means: ``IsOwn``. With it, a value that isn't own in a
node of this session is that of a successor, which is about to take the node: delete it, busy.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, TypeAlias

from magnetar.metadata.errors import (
    BadVersionError,
    LockBusyError,
    MetadataError,
    NotFoundError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
    ValueTooLargeError,
)
from magnetar.metadata.store import (
    CREATE_ONLY,
    VALUE_BYTES_MAX,
    EventType,
    MetadataEvent,
    MetadataStore,
    SessionEvent,
)

# A round fails only when another session changed the node between our read and our write.
_ROUNDS_MAX = 100
_RETRY_MIN_S, _RETRY_MAX_S = 0.1, 10.0

IsOwn: TypeAlias = Callable[[bytes], bool]
"""Tells whether this holder wrote a stored value, also under an older configuration."""


async def claim(store: MetadataStore, path: str, value: bytes, is_own: IsOwn | None = None) -> None:
    """Makes ``path`` an ephemeral node of this session with ``value``.

    Args:
        is_own: None: only ``value`` itself. A node of this session with an older own value is
            left as it is.
    Raises:
        LockBusyError: another session has it.
        MetadataError: the store couldn't tell; the node may be ours now.
    """
    own = is_own or value.__eq__
    for _ in range(_ROUNDS_MAX):
        found = await store.get(path)
        try:
            if found is None:
                await store.put(path, value, CREATE_ONLY, ephemeral=True)
                return
            if found.stat.created_by_self:
                if own(found.value):
                    return
            elif not own(found.value) or not found.stat.ephemeral:
                raise LockBusyError(path, found.value)
            elif found.value != value:
                # A former process that lives sees by this that it isn't to create the node again.
                await store.put(path, value, found.stat.version)
                continue
            await store.delete(path, found.stat.version)
            if found.stat.created_by_self and is_own is not None:
                raise LockBusyError(path, found.value)
        except (BadVersionError, NotFoundError, OutcomeUnknownError):
            continue  # the next read tells
    raise LockBusyError(path, None)


async def unclaim(
    store: MetadataStore, path: str, value: bytes, is_own: IsOwn | None = None
) -> None:
    """Deletes the node if this session created it with ``value``; another holder's node stays.

    The session is what makes it safe to delete after a read: only this session or its end can
    replace the node, and after its end the store refuses the delete.
    """
    own = is_own or value.__eq__
    for _ in range(_ROUNDS_MAX):
        found = await store.get(path)
        if found is None or not found.stat.created_by_self or not own(found.value):
            return
        try:
            await store.delete(path, found.stat.version)
            return
        except NotFoundError:
            return
        except (BadVersionError, OutcomeUnknownError):
            continue


class _NodeClaim(ABC):
    """Watches one node and checks it again whenever it may have changed hands."""

    def __init__(
        self, store: MetadataStore, path: str, value: bytes, is_own: IsOwn | None = None
    ) -> None:
        self.path, self.value, self._store = path, value, store
        self._is_own = is_own
        self._mutex = asyncio.Lock()  # one check or release at a time
        self._stopped = False  # set before a release waits: no check re-creates the node after it
        self._invalidations = 0  # session events and deletes; a claim they overtook proves nothing
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = _RETRY_MIN_S
        self._watches = (
            store.watch(path, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    @abstractmethod
    async def _check(self) -> None:
        """Claims the node and acts on the answer."""

    async def _claim(self) -> bool:
        """``claim``, repeated when something overtook it; False if that never ended."""
        for _ in range(_ROUNDS_MAX):
            invalidations = self._invalidations
            await claim(self._store, self.path, self.value, self._is_own)
            if invalidations == self._invalidations:
                return True
        return False

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type is EventType.DELETED and event.path == self.path:
            self._invalidations += 1
            self._check_soon()
        elif event.type is EventType.MODIFIED and event.path == self.path:
            self._check_soon()  # by a successor, or by ourselves

    def _on_session_event(self, event: SessionEvent) -> None:
        self._invalidations += 1
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self._check_soon()

    def _check_soon(self) -> None:
        self._spawn(self._check())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_later(self, error: MetadataError) -> None:
        """The store couldn't tell. A lost session comes back by its event, a closed store never."""
        if self._stopped or isinstance(error, SessionLostError | StoreClosedError):
            return
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(self._retry_s, self._check_soon)
        self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    def _stop(self) -> None:
        self._stopped = True
        for watch in self._watches:
            watch.close()
        if self._retry is not None:
            self._retry.cancel()

    async def _leave(self) -> None:
        """Stops, lets a check under way finish, then deletes the node if it is ours."""
        self._stop()
        async with self._mutex:
            try:
                await unclaim(self._store, self.path, self.value, self._is_own)
            except (SessionLostError, StoreClosedError):
                return  # the node ends with the session


class ResourceLock(_NodeClaim):
    """A node held by this session until it is released or provably another's.

    While the store can't tell (connection or session lost, write refused) the lock counts as held
    and ``proven`` is False: what it protects must be fenced by other means, as topics are by
    their bookies.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        value: bytes,
        on_lost: Callable[["ResourceLock"], None],
        is_own: IsOwn | None = None,
    ) -> None:
        """Use ``acquire``."""
        super().__init__(store, path, value, is_own)
        self._on_lost = on_lost
        self.holder: bytes | None = None  # the other one's value, once the lock is lost
        self.proven = False  # this session had the node when it was last looked at

    @classmethod
    async def acquire(
        cls,
        store: MetadataStore,
        path: str,
        value: bytes,
        on_lost: Callable[["ResourceLock"], None],
        is_own: IsOwn | None = None,
    ) -> "ResourceLock":
        """Takes the lock, or adopts it when this session has it already.

        Args:
            value: names the holder.
            on_lost: called once, on the loop, when another session has the node; not after release.
            is_own: whether a value names the same holder, for one that calls ``change``.
        Raises:
            LockBusyError: another session holds it.
        """
        lock = cls(store, path, value, on_lost, is_own)
        try:
            async with lock._mutex:
                lock.proven = await lock._claim()
        except BaseException:
            lock._stop()
            raise
        return lock

    @property
    def held(self) -> bool:
        return not self._stopped

    async def revalidate(self) -> bool:
        """Looks at the node and creates it again if it is gone; False when the lock is lost."""
        await self._check()
        return self.held

    async def change(self, value: bytes) -> bool:
        """Writes another value of the same holder.

        Returns:
            False: the node isn't this session's just now; it gets the value when it is created
            again.
        Raises:
            ValueTooLargeError: nothing has changed.
            MetadataError: the store couldn't tell; the next change writes what is due.
        """
        if len(value) > VALUE_BYTES_MAX:
            raise ValueTooLargeError(self.path, len(value), VALUE_BYTES_MAX)
        async with self._mutex:
            if self._stopped:
                return False
            self.value = value
            found = await self._store.get(self.path)
            if found is None or not found.stat.created_by_self:
                return False
            try:
                await self._store.put(self.path, value, found.stat.version)
            except BadVersionError:  # it is changing hands
                return False
            return True

    async def release(self) -> None:
        """Gives the lock up; a node of another session is left alone.

        Raises:
            MetadataWriteError: the node couldn't be deleted; it ends with the session.
        """
        self.proven = False
        await self._leave()

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type is EventType.DELETED:
            self.proven = False
        super()._on_event(event)

    def _on_session_event(self, event: SessionEvent) -> None:
        self.proven = False
        super()._on_session_event(event)

    async def _check(self) -> None:
        async with self._mutex:
            if self._stopped:
                return
            try:
                self.proven = await self._claim() and not self._stopped
                self._retry_s = _RETRY_MIN_S
            except LockBusyError as error:
                self.holder = error.holder
                self._lose()
            except MetadataError as error:
                self.proven = False
                self._check_later(error)

    def _lose(self) -> None:
        if not self._stopped:
            self.proven = False
            self._stop()
            self._on_lost(self)


class LeaderState(Enum):
    NO_LEADER = "no_leader"  # none known: not elected yet, or this session is lost
    FOLLOWING = "following"
    LEADING = "leading"


class LeaderElection(_NodeClaim):
    """One of the sessions that take part leads; when it ends, the others elect again."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        proposal: bytes,
        on_state: Callable[[LeaderState], None],
        is_own: IsOwn | None = None,
    ) -> None:
        """Takes part from the first ``elect`` on.

        Args:
            proposal: the node's value if this session wins; names the candidate.
            on_state: called on the loop at each change of ``state``.
            is_own: None: only the proposal itself.
        """
        super().__init__(store, path, proposal, is_own)
        self.state = LeaderState.NO_LEADER
        self._on_state, self._started = on_state, False

    async def elect(self) -> LeaderState:
        """Runs for the seat; from now on also whenever it becomes free."""
        self._started = True
        await self._check()
        return self.state

    async def leader(self) -> bytes | None:
        """The value of the leader's node, read now."""
        found = await self._store.get(self.path)
        return None if found is None else found.value

    async def close(self) -> None:
        """Takes part no more; a leader steps down."""
        self._stop()
        self._become(LeaderState.NO_LEADER)
        await self._leave()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:  # another one may be elected from now on
            self._become(LeaderState.NO_LEADER)
        super()._on_session_event(event)

    async def _check(self) -> None:
        async with self._mutex:
            if self._stopped or not self._started:
                return
            try:
                leading = await self._claim()
                outcome = LeaderState.LEADING if leading else LeaderState.NO_LEADER
                self._retry_s = _RETRY_MIN_S
            except LockBusyError:
                outcome = LeaderState.FOLLOWING
            except MetadataError as error:
                outcome = LeaderState.NO_LEADER
                self._check_later(error)
            if not self._stopped:
                self._become(outcome)

    def _become(self, state: LeaderState) -> None:
        if state is not self.state:
            self.state = state
            self._on_state(state)
