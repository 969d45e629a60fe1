"""Markers, locks and switches of auto-recovery: the only access to /ledgers/underreplication.

A *marker* says that a ledger may miss replicas. Auditors create it, workers repair the ledger and
clear it. Anybody may mark a ledger again at any time, also while it is repaired, so a marker is
cleared at the version that was read before the repair: a newer one stays.

A version alone proves too little: a marker that was cleared and created again starts at version 0
as the first one did. So only the holder of the ledger's *lock* clears its marker. The lock is a
node of the holder's session: while that session lives nobody else can take it, and once it ended
the store refuses everything that was sent in it.

Paths and values: docs/formats/auto-recovery.md.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

import orjson

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.layout.under_replication_format import UnderreplicationMarker
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.bookkeeper.replication.zones import ZONE_REASON
from magnetar.bookkeeper.service_info import UNDER_REPLICATION_ROOT
from magnetar.metadata.coordination import unclaim
from magnetar.metadata.errors import (
    BadVersionError,
    MetadataError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
)
from magnetar.metadata.item_errors import Item
from magnetar.metadata.paths import parent_of
from magnetar.metadata.recipes import update
from magnetar.metadata.store import (
    CREATE_ONLY,
    EventType,
    MetadataEvent,
    MetadataStore,
    SessionEvent,
    Watch,
)

CHECK_ALL_LEDGERS: Final = "checkallledgersctime"
PLACEMENT_CHECK: Final = "placementpolicycheckctime"
REPLICAS_CHECK: Final = "replicascheckctime"
_CHECKS: Final = frozenset({CHECK_ALL_LEDGERS, PLACEMENT_CHECK, REPLICAS_CHECK})

# Before a delay that is an auditor's, not an operator's: the next auditor may have other settings.
# Apache's Auditor and shell read it with Integer.parseInt, which takes a plus sign.
AUDITORS_DELAY: Final = b"+"
_ATTEMPTS_MAX: Final = 100
_REASON_CHARS_MAX: Final = 1000
_LEVELS: Final = 4  # directories of four hex digits: 64 bits of id


@dataclass(frozen=True, slots=True)
class ReplicationDisabled:
    """Auto-recovery is switched off."""

    reason: str
    since_ms: int


class MarkerLock:
    """Held by one worker while it repairs a ledger; ends by ``release`` or with the session.

    It is never taken back once it was lost: between, another worker may have had it.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        value: bytes,
        on_end: "Callable[[MarkerLock], None]",
    ) -> None:
        """Use ``UnderReplicationStore.lock``."""
        self.path = path
        self.on_lost: Callable[[], None] | None = None
        """Called once, on the loop, when it is lost; not after ``release``."""
        self._store, self._value, self._on_end = store, value, on_end
        self._held = True
        self._created = False
        self._watches = (
            store.watch(path, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    @property
    def held(self) -> bool:
        """False once another worker may have it."""
        return self._held

    async def create(self) -> bool:
        """Make the node; False: another has it. Once only."""
        try:
            await self._store.put(self.path, self._value, CREATE_ONLY, ephemeral=True)
        except BadVersionError:
            return False
        except OutcomeUnknownError:
            found = await self._store.get(self.path)
            if found is None or not found.stat.created_by_self or found.value != self._value:
                return False
        # What was told before this moment is about earlier locks of the same ledger.
        self._created = True
        return True

    async def release(self) -> None:
        """Give it up; another's lock is left alone. What can't be deleted ends with the session.

        Raises:
            MetadataError: the node could not be deleted.
        """
        self.end()
        try:
            await unclaim(self._store, self.path, self._value)
        except (SessionLostError, StoreClosedError):
            return

    def end(self) -> None:
        """It isn't held any more; the node is left alone."""
        if self._held:
            self._held = False
            for watch in self._watches:
                watch.close()
            self._on_end(self)

    def _lose(self) -> None:
        if self._held:
            self.end()
            if self.on_lost is not None:
                self.on_lost()

    def _on_event(self, event: MetadataEvent) -> None:
        if self._created and event.type is EventType.DELETED and event.path == self.path:
            self._lose()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.SESSION_LOST, SessionEvent.SESSION_REESTABLISHED):
            self._lose()


class UnderReplicationStore:
    """Auto-recovery's part of one cluster's metadata.

    One object, since markers, locks and switch are read and changed under one root together: only
    the lock's holder may clear its marker.

    Every method may raise MetadataError when the store can't answer; what it began may then be
    repeated, all changes here are idempotent.

    Args:
        clock: wall clock in milliseconds since the epoch; for the dates in values only.
        layout: of the cluster; None: our own.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Callable[[], int],
        layout: Layout | None = None,
    ) -> None:
        self._store, self._clock = store, clock
        self._format = (layout or JsonLayout()).under_replication
        self._markers = f"{UNDER_REPLICATION_ROOT}/ledgers"
        self._switch = f"{UNDER_REPLICATION_ROOT}/disable"
        self._delay = f"{UNDER_REPLICATION_ROOT}/lostBookieRecoveryDelay"
        self._locks: dict[str, MarkerLock] = {}
        self._lock_count = 0

    # Markers

    async def mark(
        self, ledger_id: int, bookies: Iterable[str], *, suspects: Iterable[str] = ()
    ) -> None:
        """The ledger may miss replicas of ``bookies``: create its marker, or add them to it.

        Idempotent in what it says; but always a new version, so that a worker that looked at the
        ledger before doesn't clear it.

        Args:
            suspects: of them, those whose copies were found bad: see
            ``UnderreplicationMarker.suspects``.
        """
        named, suspected = frozenset(bookies), frozenset(suspects)

        def change(marker: UnderreplicationMarker | None) -> UnderreplicationMarker:
            if marker is None:
                return UnderreplicationMarker(
                    ledger_id, named | suspected, self._clock(), 0, "", suspected
                )
            return replace(
                marker,
                bookies=marker.bookies | named | suspected,
                suspects=marker.suspects | suspected,
            )

        await self._change(ledger_id, change)

    async def read(self, ledger_id: int) -> UnderreplicationMarker | None:
        """The marker; None: the ledger isn't marked.

        Raises:
            LedgerMetadataError: the stored bytes can't be read.
        """
        found = await self._store.get(self.marker_path(ledger_id))
        return None if found is None else self._format.decode_marker(ledger_id, found)

    async def note(self, ledger_id: int, reason: str) -> None:
        """Write into the marker why the ledger waits; nothing if it says so, or is gone."""
        text = reason[:_REASON_CHARS_MAX]

        def change(marker: UnderreplicationMarker | None) -> UnderreplicationMarker | None:
            if marker is None or marker.reason == text:
                return None
            return replace(marker, reason=text)

        await self._change(ledger_id, change)

    async def plan(self, ledger_id: int, first_entry: int, slot: int, target: str) -> None:
        """Write the target of one slot's copies into the marker, before they are made.

        After a crash another worker goes on with the same target.
        """

        def change(marker: UnderreplicationMarker | None) -> UnderreplicationMarker | None:
            key = (first_entry, slot)
            if marker is None or marker.targets.get(key) == target:
                return None
            return replace(marker, targets={**marker.targets, key: target})

        await self._change(ledger_id, change)

    async def clear(self, ledger_id: int, version: int) -> bool:
        """Remove the marker that was read at ``version``.

        REQUIRES: the ledger's lock, taken from this object before the marker was read.

        Returns:
            False: it was marked again meanwhile, or the lock is lost: the marker stays.
        """
        path = self.marker_path(ledger_id)
        if self.lock_path(ledger_id) not in self._locks:
            return False
        try:
            await self._store.delete(path, version)
        except BadVersionError:
            return False
        except NotFoundError:
            pass
        except OutcomeUnknownError:
            # Not again: it may be gone, and marked anew with the same version. A new version makes
            # sure that the lost request can't remove it later.
            if await self._store.exists(path):
                await self._change(ledger_id, lambda marker: marker)
                return False
        await self._remove_empty_directories(path)
        return True

    async def ledger_ids(self, item: Item = nullcontext) -> AsyncIterator[list[int]]:
        """Ids of marked ledgers, ascending, in lists of at most 65,536.

        One that is being cleared may still be among them: ``read`` tells.

        Args:
            item: entered for each directory; one whose failure goes no further is left out.
        """
        for high in await self._hex_names(self._markers, item):
            for upper in await self._hex_names(f"{self._markers}/{high}", item):
                for lower in await self._hex_names(f"{self._markers}/{high}/{upper}", item):
                    digits = f"{high}/{upper}/{lower}"
                    names = await self._hex_names(f"{self._markers}/{digits}", item)
                    base = int(digits.replace("/", ""), 16) << 16
                    if names:
                        yield [base + int(name, 16) for name in names]

    async def remove_traces(self, ledger_id: int) -> None:
        """Remove directories that a clear which was cut short left behind; a marker stays."""
        await self._remove_empty_directories(self.marker_path(ledger_id))

    def watch_each(self, on_change: Callable[[int], None]) -> Watch:
        """Calls ``on_change(ledger_id)`` when its marker was made, changed or cleared.

        Says nothing after a reconnect: what happened meanwhile is lost.
        """

        def on_event(event: MetadataEvent) -> None:
            name = event.path.rpartition("/")[2]
            if event.type is not EventType.CHILDREN_CHANGED and name.startswith("urL"):
                on_change(int(name[3:]))

        return self._store.watch(self._markers, on_event)

    def watch(self, on_change: Callable[[], None]) -> Watch:
        """Calls ``on_change`` when a marker may have appeared or changed. Events come in bursts."""

        def on_event(event: MetadataEvent) -> None:
            if event.type in (EventType.CREATED, EventType.MODIFIED):
                on_change()

        return self._watch(self._markers, on_event, on_change)

    def marker_path(self, ledger_id: int) -> str:
        """Node of a ledger's marker."""
        if not 0 <= ledger_id < 2**63:
            raise ValueError(f"not a ledger id: {ledger_id}")
        digits = f"{ledger_id:016x}"
        directories = "/".join(digits[i : i + 4] for i in range(0, 16, 4))
        return f"{self._markers}/{directories}/urL{ledger_id:010d}"

    # Locks

    def watch_locks(self, on_free: Callable[[int], None]) -> Watch:
        """Calls ``on_free(ledger_id)`` when a worker's lock on a repair ended."""
        prefix = f"{UNDER_REPLICATION_ROOT}/locks/urL"

        def on_event(event: MetadataEvent) -> None:
            digits = event.path.removeprefix(prefix)
            if event.type is EventType.DELETED and digits.isdigit():
                on_free(int(digits))

        return self._store.watch(f"{UNDER_REPLICATION_ROOT}/locks", on_event)

    def lock_path(self, ledger_id: int) -> str:
        """Node of the lock on a ledger's repair."""
        return f"{UNDER_REPLICATION_ROOT}/locks/urL{ledger_id:010d}"

    async def lock(self, ledger_id: int) -> MarkerLock | None:
        """The ledger is ours to repair until ``release``; None: another has it.

        For efficiency, and for ``clear``: repairs are safe without it.
        """
        path = self.lock_path(ledger_id)
        if path in self._locks:
            return None
        self._lock_count += 1
        # Tells our own attempt from those of others in the same session.
        value = self._format.encode_lock(
            f"{self._store.session_id}/{id(self):x}/{self._lock_count}"
        )
        lock = MarkerLock(self._store, path, value, self._forget_lock)  # watches before it exists
        self._locks[path] = lock
        creation = asyncio.ensure_future(lock.create())
        try:
            created = await asyncio.shield(creation)
        except BaseException:
            # Cancelled or unanswered: if the node is there, it must not outlive this call.
            await asyncio.gather(creation, return_exceptions=True)
            await lock.release()
            raise
        if created and lock.held:
            return lock
        if created:
            # The end of the holder before us was told late, and looked like ours. The node is there
            # and no worker holds it: no repair of this ledger could begin while our session lives.
            await lock.release()
        lock.end()
        return None

    async def repairs(self) -> dict[int, bytes]:
        """Ledgers that are locked now; the value tells one lock from the next."""
        prefix = f"{UNDER_REPLICATION_ROOT}/locks/urL"
        locks: dict[int, bytes] = {}
        for name in await self._store.children(f"{UNDER_REPLICATION_ROOT}/locks"):
            digits = name.removeprefix("urL")
            found = await self._store.get(prefix + digits) if digits.isdigit() else None
            if found is not None:
                locks[int(digits)] = found.value
        return locks

    def _forget_lock(self, lock: MarkerLock) -> None:
        if self._locks.get(lock.path) is lock:
            del self._locks[lock.path]

    # Switches

    async def is_enabled(self) -> bool:
        """False: auditors don't mark, workers take no work and leave what they have."""
        return not await self._store.exists(self._switch)

    async def disabled(self) -> ReplicationDisabled | None:
        """Why and since when auto-recovery is off; None: it is on."""
        found = await self._store.get(self._switch)
        if found is None:
            return None
        try:
            fields = orjson.loads(found.value)
            return ReplicationDisabled(str(fields["reason"]), int(fields["sinceMs"]))
        except (ValueError, KeyError, TypeError):
            # Off is what counts; an operator may have made the node by hand.
            return ReplicationDisabled(found.value.decode(errors="replace"), found.stat.created_ms)

    async def disable(self, reason: str) -> None:
        """Switch off; the reason and time of the first one who did so stay.

        But what was off for a zone is off for an operator's reason now: its return mustn't switch
        on what an operator wants off.
        """
        value = orjson.dumps({"reason": reason, "sinceMs": self._clock()})

        def change(found: bytes | None) -> bytes | None:
            if found is None or (_is_of_zones(found) and not reason.startswith(ZONE_REASON)):
                return value
            return None

        await update(self._store, self._switch, change)

    async def enable_after_zones(self) -> bool:
        """Switch on what was switched off for zones; False: an operator wants it off."""
        for _ in range(_ATTEMPTS_MAX):
            found = await self._store.get(self._switch)
            if found is None:
                return True
            if not _is_of_zones(found.value):
                return False
            try:
                await self._store.delete(self._switch, found.stat.version)
            except (BadVersionError, NotFoundError, OutcomeUnknownError):
                continue
        return False

    async def enable(self) -> None:
        """An operator's order: switch on, whatever it was off for, and let zones be copied
        that are held, be it by themselves (``zones.py``)."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._store.delete(self._switch)
            except OutcomeUnknownError:
                continue
            except NotFoundError:
                pass
            break
        await ZoneStore(self._store, UNDER_REPLICATION_ROOT).release()

    def watch_switch(self, on_change: Callable[[], None]) -> Watch:
        """Calls ``on_change`` when auto-recovery may have been switched on or off."""
        return self._watch(self._switch, lambda _: on_change(), on_change)

    # The auditor's facts

    async def lost_bookie_delay_s(self, *, ordered_only: bool = False) -> float | None:
        """Seconds from a bookie's loss to the audit, as an operator or else an auditor set it.

        Args:
            ordered_only: leave out what an auditor set.
        Returns:
            None: nobody did.
        """
        found = await self._store.get(self._delay)
        if found is None or (ordered_only and found.value.startswith(AUDITORS_DELAY)):
            return None
        try:
            return float(found.value)
        except ValueError as error:
            raise LedgerMetadataError(f"{self._delay}: not a number: {found!r}") from error

    async def set_lost_bookie_delay_s(self, seconds: float) -> None:
        """Set the delay for all auditors; setting it again, to any value, triggers an audit."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"not a delay in seconds: {seconds}")
        await self._store.put(self._delay, self._format.encode_delay(seconds))

    async def show_auditors_delay_s(self, seconds: float) -> None:
        """Store the delay of an auditor's settings, unless an operator set one.

        BookKeeper's shell can't do without the node (``triggeraudit``, ``decommissionbookie``).
        """
        value = AUDITORS_DELAY + self._format.encode_delay(seconds)

        def change(found: bytes | None) -> bytes | None:
            return value if found is None or found.startswith(AUDITORS_DELAY) else None

        await update(self._store, self._delay, change)

    async def check_time_ms(self, name: str) -> int | None:
        """When the periodic check ``name`` last ended; None: never."""
        found = await self._store.get(self._check_path(name))
        if found is None:
            return None
        try:
            return self._format.decode_check_time(found.value)
        except ValueError as error:
            raise LedgerMetadataError(f"{found.path}: not a time: {found.value!r}") from error

    async def set_check_time_ms(self, name: str, ms: int) -> None:
        """Remember when the periodic check ``name`` ended (``CHECK_ALL_LEDGERS``, ...)."""
        await self._store.put(self._check_path(name), self._format.encode_check_time(ms))

    # Helpers

    def _check_path(self, name: str) -> str:
        if name not in _CHECKS:
            raise ValueError(f"not a periodic check: {name!r}")
        return f"{UNDER_REPLICATION_ROOT}/{name}"

    async def _change(
        self,
        ledger_id: int,
        change: Callable[[UnderreplicationMarker | None], UnderreplicationMarker | None],
    ) -> None:
        """Compare-and-set loop. After a lost answer it goes again: twice is as good as once."""
        path = self.marker_path(ledger_id)
        error: MetadataError | None = None
        for _ in range(_ATTEMPTS_MAX):
            found = await self._store.get(path)
            marker = change(None if found is None else self._format.decode_marker(ledger_id, found))
            if marker is None:
                return
            version = CREATE_ONLY if found is None else found.stat.version
            try:
                await self._store.put(path, self._format.encode_marker(marker), version)
            except (BadVersionError, NotFoundError, OutcomeUnknownError) as conflict:
                error = conflict
                continue
            return
        assert error is not None
        raise error

    async def _remove_empty_directories(self, path: str) -> None:
        for _ in range(_LEVELS):
            path = parent_of(path)
            try:
                await self._store.delete(path)
            except NotFoundError:
                continue
            except (NotEmptyError, OutcomeUnknownError):
                return  # an empty directory that stays costs a look and is removed by the next

    async def _hex_names(self, path: str, item: Item) -> list[str]:
        names: list[str] = []
        with item(path):
            names = await self._store.children(path)
        return [n for n in names if len(n) == 4 and not set(n) - set("0123456789abcdef")]

    def _watch(
        self,
        path: str,
        on_event: Callable[[MetadataEvent], None],
        on_return: Callable[[], None],
    ) -> Watch:
        def on_session_event(event: SessionEvent) -> None:
            # Events may have been lost meanwhile.
            if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
                on_return()

        return _Watches(
            self._store.watch(path, on_event), self._store.on_session_event(on_session_event)
        )


class _Watches(Watch):
    def __init__(self, *watches: Watch) -> None:
        self._all = watches

    def close(self) -> None:
        for watch in self._all:
            watch.close()


def _is_of_zones(value: bytes) -> bool:
    try:
        return str(orjson.loads(value)["reason"]).startswith(ZONE_REASON)
    except (ValueError, KeyError, TypeError):
        return False
