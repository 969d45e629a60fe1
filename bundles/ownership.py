"""Keeps the bundles that this broker owns, and finds the owners of the others.

Ownership is an ephemeral node at ``/namespace/<tenant>/<ns>/<range>`` that holds the owner's URLs.
It is advisory: what keeps two brokers from appending to one topic is the fencing of its ledgers.
So while the metadata session is lost this broker acquires nothing and answers no lookup, but what
is loaded serves on; a bundle is unloaded when another owner is seen.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from magnetar.bundles.errors import (
    BundleBusyError,
    BundleError,
    BundleNotReadyError,
    InvalidBundleError,
)
from magnetar.bundles.local_policies import LOCAL_POLICIES_ROOT, BundleFactory
from magnetar.bundles.lookup import BrokerLookup, LookupAction, decide_lookup
from magnetar.bundles.namespace_bundles import (
    DEFAULT_BUNDLE_COUNT,
    HashRange,
    NamespaceBundles,
    namespace_of,
)
from magnetar.metadata.coordination import ResourceLock
from magnetar.metadata.errors import (
    LockBusyError,
    MetadataError,
    SessionLostError,
    StoreClosedError,
)
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent

_log = logging.getLogger(__name__)

OWNERS_ROOT = "/namespace"
_EXPECT_RETRY_S = 1.0
_UNLOADS_KEPT = 1_000

UnloadBundle = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Ownership:
    """A bundle and the broker that owned it when it was asked for."""

    bundle: str  # tenant/ns/0x00000000_0x08000000
    broker: BrokerLookup


@dataclass(frozen=True, slots=True)
class Redirect:
    """Names the broker to ask about a bundle without an owner.

    Attributes:
        authoritative: that broker shall own it; else it shall choose the owner.
    """

    bundle: str
    broker: BrokerLookup
    authoritative: bool


ChooseBroker = Callable[[str], Awaitable[Redirect | None]]
"""Names the broker to ask about an unowned bundle; None: this broker shall own it.

Raises:
    BundleNotReadyError: no broker may own it now, or that can't be told.
"""


PermitBundle = Callable[[str], Awaitable[None]]
"""Checks that this broker may take an unowned bundle now.

Raises:
    BundleNotReadyError: it may not, or that can't be told.
"""


class _OwnedBundle:
    __slots__ = ("lock", "unloading")

    def __init__(self, lock: ResourceLock) -> None:
        self.lock, self.unloading = lock, False


class OwnershipService:
    """The ownership cache of one broker and its repair.

    One object, since taking, giving and splitting a bundle and the loss of a session change the
    same table of owned bundles, each in one step.

    Invariant: at most one acquisition per bundle is under way, and none while it is unloaded.
    """

    def __init__(
        self,
        store: MetadataStore,
        broker: BrokerLookup,
        *,
        unload: UnloadBundle,
        choose: ChooseBroker | None = None,
        permit: PermitBundle | None = None,
        default_bundle_count: int = DEFAULT_BUNDLE_COUNT,
        unload_timeout_s: float = 60.0,
    ) -> None:
        """
        Args:
            broker: this broker's URLs, under which it owns bundles; no other broker has the same,
                but an earlier or a later process of this one.
            unload: closes the loaded topics of a bundle and tells their clients to look up again,
                or to go to its ``new_owner``; awaited before a bundle is released, and started when
                one is lost.
            choose: None: the broker that is asked for an unowned bundle takes it.
            permit: asked before this broker takes an unowned bundle that no broker gave to it.
            unload_timeout_s: after this the bundle is given up all the same; what still tries to
                append then is fenced by the next owner.
        """
        self.broker = broker
        self._store, self._value, self._unload = store, broker.encode(), unload
        self._choose, self._permit = choose, permit
        self._unload_timeout_s = unload_timeout_s
        self.factory = BundleFactory(store, default_bundle_count)
        self._owned: dict[str, _OwnedBundle] = {}
        self._acquiring: dict[str, asyncio.Task[_OwnedBundle]] = {}
        self._unloads: deque[tuple[float, str]] = deque(maxlen=_UNLOADS_KEPT)
        self._unloading: dict[str, float] = {}  # bundles whose hook runs, also lost ones; since
        self._lost: set[str] = set()  # those of them that another broker owns
        self._new_owners: dict[
            str, BrokerLookup
        ] = {}  # of bundles that are being given to a broker
        self._expected: dict[str, asyncio.Task[None]] = {}  # bundles that come from a broker
        self._splitting = Counter[str]()  # parts of splits under way, not stored yet
        self._changed_namespaces: set[str] = set()  # namespaces whose boundaries were changed
        self._reconciling: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._session_lost = self._closed = False
        self._session_watch = store.on_session_event(self._on_session_event)
        self._boundary_watch = store.watch(LOCAL_POLICIES_ROOT, self._on_boundaries)

    @property
    def owned_bundles(self) -> list[str]:
        """Names of the bundles this broker believes to own, also while it can't prove it."""
        return list(self._owned)

    async def bundle_of(self, topic_name: str) -> str:
        """The bundle of a complete topic name, ``tenant/ns/0x00000000_0x08000000``.

        Raises:
            InvalidBundleError: the name or the stored boundaries are wrong.
            BundleNotReadyError: the boundaries can't be read now.
        """
        return (await self.bundles(namespace_of(topic_name))).bundle_of(topic_name)

    def bundle_of_nowait(self, topic_name: str) -> str | None:
        """As ``bundle_of``, from memory; None when the boundaries have to be read."""
        bundles = self.factory.bundles_nowait(namespace_of(topic_name))
        return None if bundles is None else bundles.bundle_of(topic_name)

    def owns_nowait(self, topic_name: str) -> bool:
        """Tells whether a topic may be loaded here now; False may mean unknown: ``acquire``."""
        bundle = self.bundle_of_nowait(topic_name)
        owned = None if bundle is None else self._owned.get(bundle)
        return owned is not None and not owned.unloading and owned.lock.proven

    async def owner_of(self, topic_name: str) -> BrokerLookup | None:
        """Finds the broker that serves the topic; None: no broker owns its bundle.

        Raises:
            BundleNotReadyError: retriable; unloading, or this broker's session is lost.
        """
        answer = await self.lookup(topic_name, read_only=True)
        return None if answer is None else answer.broker

    async def owner_of_bundle(self, bundle: str) -> BrokerLookup | None:
        """Reads the owner, this broker or another one, from the bundle's node; None: no owner.

        Raises:
            InvalidBundleError: what is there names no broker.
            BundleNotReadyError: this broker's session is lost.
        """
        found = await self._read(bundle)
        return None if found is None else BrokerLookup.decode(found[0])

    async def acquire(self, topic_name: str) -> Ownership:
        """Makes this broker the owner of the topic's bundle; at once when it is already.

        The bundle is owned when this returns. A caller that awaits anything before ``unload`` can
        find the topic asks ``owns_nowait`` again.

        Raises:
            BundleBusyError: another broker owns it.
            BundleNotReadyError: retriable; unloading, or this broker's session is lost.
        """
        bundle = await self.bundle_of(topic_name)
        owned = self._owned.get(bundle)
        if owned is None or owned.unloading or not owned.lock.proven:
            await self._acquire(bundle)
        return Ownership(bundle, self.broker)

    async def acquire_if_assigned(self, topic_name: str) -> None:
        """Returns once this broker owns the topic's bundle; takes an unowned one if chosen to.

        For calls that load a topic wherever they arrive: placement holds for them as for lookups.

        Raises:
            BundleBusyError: another broker owns it, or is to: ``lookup`` names it.
            BundleNotReadyError: retriable; unloading, no broker may own it now, or this broker's
                session is lost.
        """
        if self.owns_nowait(topic_name):
            return
        bundle = await self.bundle_of(topic_name)
        if bundle not in self._owned:
            found = await self.lookup_bundle(bundle, authoritative=False)
            if found is None or found.broker != self.broker:
                raise BundleBusyError(bundle)
        await self._acquire(bundle)

    async def ensure_owned(self, topic_name: str) -> None:
        """Returns once this broker owns the topic's bundle; it doesn't take an unowned bundle.

        For clients that a lookup sent here: if the bundle has no owner, a lookup chooses one first.
        If another broker is giving the bundle to this one, this call waits for it.

        Raises:
            BundleBusyError: another broker owns it.
            BundleNotReadyError: retriable; no broker owns it, it is unloading, or this broker's
                session is lost.
        """
        if self.owns_nowait(topic_name):
            return
        bundle = await self.bundle_of(topic_name)
        if (expected := self._expected.get(bundle)) is not None:
            await asyncio.wait((expected,))
            if self.owns_nowait(topic_name):
                return
        if self._choose is not None and bundle not in self._owned:
            found = await self._read(bundle)
            if found is None:
                raise BundleNotReadyError(bundle, "nobody owns it")
            if not self.broker.is_successor_of(found[0]):
                raise BundleBusyError(bundle)
        await self._acquire(bundle)

    async def lookup(
        self, topic_name: str, *, read_only: bool = False, authoritative: bool = True
    ) -> Ownership | Redirect | None:
        """Finds the topic's owner; without one, names the broker to ask, or acquires the bundle.

        Args:
            read_only: don't acquire; None when no broker owns the bundle.
            authoritative: this broker takes an unowned bundle, as the chosen broker does; False:
                the answer may be a ``Redirect``.
        Raises:
            BundleBusyError, BundleNotReadyError: retriable.
        """
        return await self.lookup_bundle(
            await self.bundle_of(topic_name), read_only=read_only, authoritative=authoritative
        )

    async def lookup_bundle(
        self, bundle: str, *, read_only: bool = False, authoritative: bool = True
    ) -> Ownership | Redirect | None:
        """As ``lookup``, of a bundle itself, which must be one."""
        owned, other, own_node = self._owned.get(bundle), None, False
        if owned is None and not self._session_lost:
            found = await self._read(bundle)
            owned = self._owned.get(bundle)
            if owned is None and found and not self.broker.is_successor_of(found[0]):
                other = BrokerLookup.decode(found[0])
            elif owned is None and found is not None and found[1]:
                # Ours by session and value, but the cache lost it: a reply that didn't arrive.
                owned = await self._acquire(bundle)
            own_node = found is not None and other is None  # of our former session, if not owned
        if owned is not None and owned.unloading and (new_owner := self._new_owners.get(bundle)):
            return Ownership(bundle, new_owner)
        action = decide_lookup(
            owner_known=other is not None,
            owned_here=owned is not None,
            unloading=owned is not None and owned.unloading,
            session_proven=not self._session_lost and not self._closed,
            read_only=read_only,
            authoritative=authoritative or own_node or bundle in self._expected,
        )
        if action is LookupAction.ANSWER_OWNER:
            return Ownership(bundle, self.broker if other is None else other)
        if action is LookupAction.ANSWER_NOBODY:
            return None
        if action is LookupAction.NOT_READY:
            raise BundleNotReadyError(bundle, "it is unloading, or the metadata session is lost")
        chosen = None
        if action is LookupAction.CHOOSE and self._choose is not None:
            chosen = await self._choose(bundle)
        is_ours = own_node or bundle in self._expected
        if chosen is None and self._permit is not None and not is_ours:
            await self._permit(bundle)
        return chosen or await self._acquire_or_name(bundle)

    async def _acquire_or_name(self, bundle: str) -> Ownership:
        """Acquires the bundle, or returns the broker that acquired it first."""
        try:
            await self._acquire(bundle)
        except BundleBusyError:
            found = await self._read(bundle)
            if found is None or self.broker.is_successor_of(found[0]):
                raise
            return Ownership(bundle, BrokerLookup.decode(found[0]))
        return Ownership(bundle, self.broker)

    # --- bundles that go from one broker to another

    def new_owner(self, bundle: str) -> BrokerLookup | None:
        """Returns the new owner of a bundle that this broker unloads; None: not known."""
        return self._new_owners.get(bundle)

    def is_lost(self, bundle: str) -> bool:
        """Of a bundle that is being unloaded here: another broker owns it, so nothing of it may be
        written any more.
        """
        return bundle in self._lost

    def expect(
        self, bundle: str, given_up: asyncio.Event, giver: BrokerLookup | None = None
    ) -> "asyncio.Task[None]":
        """Takes a bundle as soon as its owner gives it up; clients that come early wait for it.

        Args:
            given_up: once set, the bundle doesn't come.
            giver: its owner; if another broker owns it, it doesn't come. None: any owner.
        Returns:
            Ends when the bundle is owned here, or doesn't come.
        """
        if (task := self._expected.get(bundle)) is None:
            task = asyncio.get_running_loop().create_task(self._expect(bundle, given_up, giver))
            self._expected[bundle] = task
            task.add_done_callback(lambda _: self._expected.pop(bundle))
        return task

    async def _expect(
        self, bundle: str, given_up: asyncio.Event, giver: BrokerLookup | None
    ) -> None:
        news = asyncio.Event()
        watches = (
            self._store.watch(_path(bundle), lambda _: news.set()),
            self._store.on_session_event(lambda _: news.set()),
        )
        ending = asyncio.get_running_loop().create_task(given_up.wait())
        ending.add_done_callback(lambda _: news.set())
        try:
            while not given_up.is_set() and not self._closed:
                news.clear()
                try:
                    await self._acquire(bundle)
                    return
                except BundleBusyError:
                    if await self._went_elsewhere(bundle, giver):
                        return
                except (BundleError, MetadataError) as error:
                    _log.debug("bundle %s is on its way: %s", bundle, error)
                with suppress(TimeoutError):  # of troubles without an event
                    async with asyncio.timeout(_EXPECT_RETRY_S):
                        await news.wait()
        finally:
            ending.cancel()
            for watch in watches:
                watch.close()

    async def _went_elsewhere(self, bundle: str, giver: BrokerLookup | None) -> bool:
        try:
            owner = await self.owner_of_bundle(bundle)
        except (BundleError, MetadataError) as error:
            _log.debug("bundle %s is on its way: %s", bundle, error)
            return False
        return None not in (owner, giver) and owner not in (giver, self.broker)

    async def release(self, bundle: str, new_owner: BrokerLookup | None = None) -> bool:
        """Unloads a bundle: no new topics, close the loaded ones, then give up the node.

        The node goes also when closing the topics fails: the next owner fences their ledgers.
        A bundle that isn't owned here is released already.

        Args:
            new_owner: expects the bundle; clients are sent there.
        Returns:
            False: there was nothing to do, or it is being released already, perhaps to another.
        """
        owned = self._owned.get(bundle)
        if owned is None or owned.unloading:
            return False
        owned.unloading = True
        if new_owner is not None:
            self._new_owners[bundle] = new_owner
        try:
            await self._run_unload(bundle)
        finally:
            self._new_owners.pop(bundle, None)
            try:
                await owned.lock.release()
            finally:
                if self._owned.get(bundle) is owned:
                    del self._owned[bundle]
        return True

    async def release_namespace(self, namespace: str) -> None:
        """Unloads all bundles of a namespace that are owned here."""
        prefix = namespace + "/"
        await asyncio.gather(
            *(self.release(bundle) for bundle in list(self._owned) if bundle.startswith(prefix))
        )

    async def bundles(self, namespace: str) -> NamespaceBundles:
        """The bundles of a namespace.

        Raises:
            InvalidBundleError: the stored boundaries are wrong.
            BundleNotReadyError: they can't be read now.
        """
        try:
            return await self.factory.bundles(namespace)
        except (SessionLostError, StoreClosedError) as error:
            raise BundleNotReadyError(namespace, str(error)) from error

    async def split(self, namespace: str, bundle: HashRange, points: Sequence[int]) -> list[str]:
        """Cuts a bundle at points strictly inside it; its topics stay open and serve on.

        This broker owns the bundle first, then also the new ones, before they are stored: so at
        no time can another broker get a part of it. Topics loaded meanwhile are refused and
        retried by their clients.

        Returns:
            The new bundles' names; the old one's when there is nothing to cut.
        Raises:
            InvalidBundleError: there is no such bundle (any more), or the points aren't inside.
            BundleBusyError: another broker owns it: split it there.
            BundleNotReadyError: retriable; unloading, or this broker's session is lost.
        """
        parent = f"{namespace}/{bundle}"
        if bundle not in (await self.bundles(namespace)).ranges:
            raise InvalidBundleError(f"Cannot find bundle {parent} in the bundles list")
        await self._acquire(parent)
        if not points:
            return [parent]
        parts = [
            HashRange(low, high) for low, high in pairwise((bundle.lower, *points, bundle.upper))
        ]
        names = [f"{namespace}/{part}" for part in parts]
        held: dict[str, _OwnedBundle] = {}

        def check() -> None:
            for name, owned in held.items():
                if self._owned.get(name) is not owned or owned.unloading or not owned.lock.proven:
                    raise BundleNotReadyError(name, "it was lost, or is unloading")

        self._splitting.update(names)
        try:
            for name in (parent, *names):
                held[name] = await self._acquire(name)
            await self.factory.split(namespace, bundle, points, check)
        except (SessionLostError, StoreClosedError) as error:
            raise BundleNotReadyError(parent, str(error)) from error
        finally:
            self._splitting.subtract(names)
            self._splitting = +self._splitting
            # The old bundle goes, or after a failure the new ones; and what a lost reply hid.
            self._reconcile_soon(namespace)
            await self._reconciled()
        return names

    # --- bundles that are none (any more)

    def _reconcile_soon(self, namespace: str) -> None:
        """Compares the owned bundles with the stored boundaries, which a broker has changed."""
        self._changed_namespaces.add(namespace)
        if self._reconciling is None and not self._closed:
            self._reconciling = asyncio.get_running_loop().create_task(self._reconcile())

    async def _reconciled(self) -> None:
        if self._reconciling is not None:
            await asyncio.shield(self._reconciling)

    async def _reconcile(self) -> None:
        changed: set[str] = set()
        try:
            while self._changed_namespaces and not self._session_lost:
                changed, self._changed_namespaces = self._changed_namespaces, set()
                changed &= {bundle.rpartition("/")[0] for bundle in self._owned}
                while changed:
                    await self._drop_vanished(min(changed))
                    changed.remove(min(changed))
        except (SessionLostError, StoreClosedError) as error:
            _log.info("bundles are compared again with the next session: %s", error)
        except Exception:
            _log.exception("bundles can't be compared with the stored boundaries")
        finally:
            self._changed_namespaces |= changed  # what an error left undone
            self._reconciling = None

    async def _drop_vanished(self, namespace: str) -> None:
        bundles = await self.factory.stored(namespace)
        if bundles is None:
            return
        prefix = namespace + "/"
        for name, owned in list(self._owned.items()):
            if (
                name.startswith(prefix)
                and name not in bundles.names
                and not self._splitting[name]
                and self._owned.get(name) is owned
            ):
                await self._drop(name, owned)
                await self._unload_foreign(HashRange.parse(name.removeprefix(prefix)), bundles)

    async def _unload_foreign(self, gone: HashRange, bundles: NamespaceBundles) -> None:
        """Close topics of a bundle that another broker has split: its parts aren't owned here."""
        for part, name in zip(bundles.ranges, bundles.names, strict=True):
            if part.lower < gone.upper and gone.lower < part.upper and name not in self._owned:
                await self._run_unload(name)

    async def _drop(self, bundle: str, owned: _OwnedBundle) -> None:
        """Gives up the node of a bundle that isn't one (any more); no topic is touched."""
        if owned.unloading:
            return  # its release does it
        owned.unloading = True
        try:
            await owned.lock.release()
        except (SessionLostError, StoreClosedError):
            pass  # the node ends with the session
        finally:
            if self._owned.get(bundle) is owned:
                del self._owned[bundle]

    async def close(self) -> None:
        """Releases every bundle; afterwards nothing is acquired."""
        self._closed = True
        self._session_watch.close()
        self._boundary_watch.close()
        expected = list(self._expected.values())
        for task in expected:
            task.cancel()
        await asyncio.gather(*expected, return_exceptions=True)
        await asyncio.gather(*self._acquiring.values(), return_exceptions=True)
        await self._reconciled()
        await asyncio.gather(*(self.release(bundle) for bundle in list(self._owned)))
        await asyncio.gather(*self._tasks)
        self.factory.close()

    async def _read(self, bundle: str) -> tuple[bytes, bool] | None:
        """Value of the owner node, and whether this session created it."""
        try:
            found = await self._store.get(_path(bundle))
        except (SessionLostError, StoreClosedError) as error:
            raise BundleNotReadyError(bundle, str(error)) from error
        return None if found is None else (found.value, found.stat.created_by_self)

    async def _acquire(self, bundle: str) -> _OwnedBundle:
        """One acquisition per bundle, however many callers; a cancelled caller doesn't end it."""
        task = self._acquiring.get(bundle)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._acquire_once(bundle))
            self._acquiring[bundle] = task
            task.add_done_callback(lambda done: self._on_acquired(bundle, done))
        owned = await asyncio.shield(task)
        # A release or a loss may have come between the end of the task and this caller's turn.
        if self._owned.get(bundle) is not owned or owned.unloading:
            raise BundleNotReadyError(bundle, "it is unloading")
        return owned

    async def _acquire_once(self, bundle: str) -> _OwnedBundle:
        if self._session_lost or self._closed:
            raise BundleNotReadyError(bundle, "the metadata session is lost or closing")
        if bundle in self._unloading:
            raise BundleNotReadyError(bundle, "it is unloading")
        owned = self._owned.get(bundle)
        try:
            if owned is not None:
                if owned.unloading:  # its node is being deleted
                    raise BundleNotReadyError(bundle, "it is unloading")
                if not await owned.lock.revalidate():
                    raise BundleBusyError(bundle)
                if not owned.lock.proven:
                    raise BundleNotReadyError(bundle, "ownership can't be proven now")
                return owned
            lock = await ResourceLock.acquire(
                self._store,
                _path(bundle),
                self._value,
                lambda lock: self._on_lost(bundle, lock),
                self.broker.is_successor_of,
            )
        except LockBusyError as error:
            raise BundleBusyError(bundle) from error
        except (SessionLostError, StoreClosedError) as error:
            raise BundleNotReadyError(bundle, str(error)) from error
        owned = self._owned[bundle] = _OwnedBundle(lock)
        if not self._splitting[bundle]:
            try:
                await self._check_boundaries(bundle, owned)
            except (SessionLostError, StoreClosedError) as error:
                raise BundleNotReadyError(bundle, str(error)) from error
        return owned

    async def _check_boundaries(self, bundle: str, owned: _OwnedBundle) -> None:
        """Checks that no broker split the bundle since the caller looked at the boundaries.

        They are read after the node was created: the broker that split it has stored them before
        giving its node up, so this read can't miss the split.
        """
        namespace = bundle.rpartition("/")[0]
        try:
            bundles = await self.factory.stored(namespace)
        except (SessionLostError, StoreClosedError):
            self._changed_namespaces.add(namespace)  # compared with the next session
            raise
        if bundles is not None and bundle not in bundles.names:
            await self._drop(bundle, owned)
            raise BundleNotReadyError(bundle, "it was split")

    def _on_acquired(self, bundle: str, task: "asyncio.Task[_OwnedBundle]") -> None:
        del self._acquiring[bundle]
        if not task.cancelled():
            task.exception()  # retrieved: a caller that was cancelled doesn't ask for it

    def _on_lost(self, bundle: str, lock: ResourceLock) -> None:
        owned = self._owned.pop(bundle, None)
        if owned is not None and not owned.unloading:
            _log.warning("bundle %s has another owner now: closing its topics", bundle)
            self._note_unloading(bundle)  # from now on, not from the task's first turn
            task = asyncio.get_running_loop().create_task(self._unload_lost(bundle, lock.holder))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _unload_lost(self, bundle: str, holder: bytes | None) -> None:
        if holder is not None:
            with suppress(InvalidBundleError):
                self._new_owners[bundle] = BrokerLookup.decode(holder)
        self._lost.add(bundle)
        try:
            await self._run_unload(bundle)
        finally:
            self._lost.discard(bundle)
            self._new_owners.pop(bundle, None)

    def unloading_s(self) -> dict[str, float]:
        """Bundles whose topics are being closed, and for how many seconds so far."""
        now_s = asyncio.get_running_loop().time()
        return {bundle: now_s - since_s for bundle, since_s in self._unloading.items()}

    def unloads(self, within_s: float) -> Counter[str]:
        """How often the topics of a bundle were closed in the last seconds, as far as is kept."""
        since_s = asyncio.get_running_loop().time() - within_s
        return Counter(bundle for at_s, bundle in self._unloads if at_s >= since_s)

    def _note_unloading(self, bundle: str) -> None:
        self._unloading.setdefault(bundle, asyncio.get_running_loop().time())

    async def _run_unload(self, bundle: str) -> None:
        self._note_unloading(bundle)
        self._unloads.append((asyncio.get_running_loop().time(), bundle))
        try:
            async with asyncio.timeout(self._unload_timeout_s):
                await self._unload(bundle)
        except Exception:  # TimeoutError too
            _log.exception("closing the topics of bundle %s failed", bundle)
        finally:
            self._unloading.pop(bundle, None)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._session_lost = True
        elif event is SessionEvent.SESSION_REESTABLISHED:
            self._session_lost = False  # each lock revalidates itself
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            for bundle in self._owned:  # events were lost meanwhile
                self._reconcile_soon(bundle.rpartition("/")[0])

    def _on_boundaries(self, event: MetadataEvent) -> None:
        if event.type is EventType.MODIFIED:
            self._reconcile_soon(event.path.removeprefix(LOCAL_POLICIES_ROOT + "/"))


def _path(bundle: str) -> str:
    return f"{OWNERS_ROOT}/{bundle}"
