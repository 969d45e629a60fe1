"""Recipes for a metadata store: the update loop, ids, cached values; locks and elections."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from magnetar.metadata.errors import BadVersionError, MetadataError, OutcomeUnknownError
from magnetar.metadata.store import (
    CREATE_ONLY,
    MetadataEvent,
    MetadataStore,
    SessionEvent,
    Stat,
    Versioned,
)

T = TypeVar("T")

# Only contention repeats a round, and in every round one writer's change succeeds.
_ROUNDS_MAX = 1000


async def update(
    store: MetadataStore, path: str, change: Callable[[bytes | None], bytes | None]
) -> Versioned | None:
    """Read, change and compare-and-set a value; repeat if another writer was faster.

    After a lost reply the stored value tells: if it is what we wrote, the write happened. Two
    writers of identical values can't be told apart then, so a change that isn't idempotent
    (a counter) needs something in its value that tells the writers apart.

    Args:
        change: pure; gets the stored value (None: no node) and returns the new one, or None when
            nothing is to be done. Its errors end the update.
    Returns:
        The node afterwards; None if there is none and ``change`` wanted none.
    Raises:
        BadVersionError: lost against others a thousand times in a row.
        OutcomeUnknownError: a reply was lost, and what is stored couldn't be read again.
    """
    error: MetadataError | None = None
    unknown: bytes | None = None  # written, fate unknown
    for _ in range(_ROUNDS_MAX):
        try:
            found = await store.get(path)
        except MetadataError as failed:
            if unknown is None:
                raise
            # Not its own error: whoever reads "session lost" takes it that nothing was written.
            raise OutcomeUnknownError(path, failed) from failed
        if found is not None and unknown is not None and found.value == unknown:
            return found
        value = change(None if found is None else found.value)
        if value is None:
            return found
        try:
            return await store.put(
                path, value, CREATE_ONLY if found is None else found.stat.version
            )
        except BadVersionError as conflict:
            error, unknown = conflict, None
        except OutcomeUnknownError as lost:
            error, unknown = lost, value
    assert error is not None  # for mypy: each round that gets here has set it
    raise error


class IdGenerator:
    """Gives ids that no process ever gives twice, also after crashes.

    The node holds the first id that no process has reserved, as decimal text. A block is reserved
    before its first id is given; what a process doesn't use is skipped.
    """

    def __init__(self, store: MetadataStore, path: str, block: int = 1000) -> None:
        if block < 1:
            raise ValueError(f"block {block}")
        self._store, self._path, self._block = store, path, block
        self._next = self._end = 0  # ids [_next, _end) are reserved for us
        self._floor = 0  # no block begins below
        self._fetching = asyncio.Lock()

    def skip(self, count: int) -> None:
        """Give none of our block any more, nor of the ``count`` ids behind it.

        For a caller that finds that the node was set back, and ids are in use already.
        """
        self._next, self._floor = self._end, self._end + count

    async def next_id(self, above: int = -1) -> int:
        """A new id.

        Blocks of several processes interleave, so an id of ours may be below one that another
        process took earlier.

        Args:
            above: the id shall be greater than this one, which is in use. The ids of the block
                up to it are skipped.
        Raises:
            MetadataError: a new block is needed and can't be reserved; retry later.
        """
        while True:
            self._next = max(self._next, min(above + 1, self._end))
            if self._next < self._end:
                self._next += 1
                return self._next - 1
            async with self._fetching:  # a waiting caller finds the block of the one before
                if self._next == self._end:
                    await self._fetch(above)

    async def _fetch(self, above: int) -> None:
        for _ in range(_ROUNDS_MAX):
            found = await self._store.get(self._path)
            # Not below what was given: a node that was deleted or set back mustn't repeat ids.
            first = max(self._end, above + 1, self._floor)
            if found is not None:
                first = max(first, self._parse(found.value))
            end = first + self._block
            try:
                await self._store.put(
                    self._path, b"%d" % end, CREATE_ONLY if found is None else found.stat.version
                )
            except (BadVersionError, OutcomeUnknownError):
                continue  # an own write whose reply was lost skips a block: never re-use
            self._next, self._end = first, end
            return
        raise MetadataError(f"{self._path}: no block of ids after {_ROUNDS_MAX} attempts")

    def _parse(self, value: bytes) -> int:
        if not value.isdigit():
            raise MetadataError(f"{self._path}: not a counter: {value[:40]!r}")
        return int(value)


@dataclass(frozen=True, slots=True)
class CachedValue(Generic[T]):
    value: T
    stat: Stat


class CachedValues(Generic[T]):
    """Decoded values below a prefix, read once and dropped when they change.

    May trail the store by the delay of its events; what is written with a cached version is
    safe all the same, as the store refuses an old one.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        decode: Callable[[str, bytes], T],
        entries_max: int = 100_000,
    ) -> None:
        """``get`` raises the errors of ``decode(path, value)``; they aren't cached."""
        self._store, self._decode, self._entries_max = store, decode, entries_max
        self._entries: dict[str, CachedValue[T] | None] = {}  # None: known to be absent
        self._reading: dict[str, object] = {}  # path -> token of the newest read under way
        self._watches = (
            store.watch(prefix, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    async def get(self, path: str) -> CachedValue[T] | None:
        if path in self._entries:
            return self._entries[path]
        token = self._reading[path] = object()
        try:
            found = await self._store.get(path)
            entry = (
                None if found is None else CachedValue(self._decode(path, found.value), found.stat)
            )
            # An event during the read has taken the token away: what was read may be old by now.
            if self._reading.get(path) is token:
                self._keep(path, entry)
            return entry
        finally:
            if self._reading.get(path) is token:
                del self._reading[path]

    def get_nowait(self, path: str) -> CachedValue[T] | None:
        """The cached value; None when absent or not cached."""
        return self._entries.get(path)

    def is_known(self, path: str) -> bool:
        """Tell whether ``get_nowait`` knows the answer, also that there is no value."""
        return path in self._entries

    def invalidate(self, path: str) -> None:
        self._entries.pop(path, None)
        self._reading.pop(path, None)

    def clear(self) -> None:
        """Drop everything: whatever is asked for is read and decoded again."""
        self._entries.clear()
        self._reading.clear()

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self.clear()

    def _keep(self, path: str, entry: CachedValue[T] | None) -> None:
        if len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]  # the oldest
        self._entries[path] = entry

    def _on_event(self, event: MetadataEvent) -> None:
        self.invalidate(event.path)

    def _on_session_event(self, event: SessionEvent) -> None:
        # Cut off, what is cached serves on; events are being lost, so it goes on return.
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self._entries.clear()
        self._reading.clear()
