"""Reads operators' policies for namespaces and brokers from the store, and keeps them current."""

import asyncio
import logging
from typing import Final

from magnetar.loadbalance.documents import parse
from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.policies import IsolationPolicies, PlacementPolicies, domains_of
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

_LOCAL_POLICIES: Final = "/admin/local-policies"
_GROUP: Final = "namespaceAntiAffinityGroup"
_AT_ONCE: Final = 100
"""Namespaces that are read together."""


class PolicyReader:
    """``read`` answers from memory until one of the documents changes.

    A document that can't be read leaves what was known before: isolation mustn't fail open.
    """

    def __init__(self, store: MetadataStore, cluster: str) -> None:
        self._store = store
        self._isolation_path = f"/admin/clusters/{cluster}/namespaceIsolationPolicies"
        self._domain_root = f"/admin/clusters/{cluster}/failureDomain"
        self._known: PlacementPolicies | None = None
        self._groups: dict[str, str] = {}
        self._changed_namespaces: set[str] | None = None  # None: any of them
        self._stale = True
        self._reading = asyncio.Lock()
        self._watches = (
            store.watch(self._isolation_path, self._on_event),
            store.watch(self._domain_root, self._on_event),
            store.watch(_LOCAL_POLICIES, self._on_local_policies),
            store.on_session_event(self._on_session_event),
        )

    def close(self) -> None:
        for watch in self._watches:
            watch.close()

    async def read(self) -> PlacementPolicies:
        """The same object as before if nothing has changed.

        Raises:
            MetadataError: the store can't tell.
            InvalidDocumentError: a document is wrong, and nothing was known before.
        """
        async with self._reading:
            while self._stale or self._known is None:
                self._stale = False  # what changes from now on is read again
                try:
                    self._known = await self._read()
                except InvalidDocumentError as error:
                    if self._known is None:
                        self._stale = True
                        raise
                    logger.error("policies stay as they were: %s", error)
                except BaseException:
                    self._stale = True
                    raise
            return self._known

    async def _read(self) -> PlacementPolicies:
        found = await self._store.get(self._isolation_path)
        isolation = IsolationPolicies()
        if found is not None:
            isolation = IsolationPolicies.parse(parse(self._isolation_path, found.value))
        documents = {}
        for name in await self._store.children(self._domain_root):
            path = f"{self._domain_root}/{name}"
            if (node := await self._store.get(path)) is not None:
                documents[decode_name(name)] = parse(path, node.value)
        await self._read_groups()
        return PlacementPolicies(isolation, domains_of(documents), dict(self._groups))

    async def _read_groups(self) -> None:
        names, self._changed_namespaces = self._changed_namespaces, set()
        try:
            if names is None:
                names = await self._namespaces()
                self._groups.clear()
            left = sorted(names)
            while left:
                some, left = left[:_AT_ONCE], left[_AT_ONCE:]
                groups = await asyncio.gather(*map(self._group_of, some))
                for name, group in zip(some, groups, strict=True):
                    self._groups.pop(name, None)
                    if group is not None:
                        self._groups[name] = group
        except BaseException:
            self._changed_namespaces = None  # all of them, next time
            raise

    async def _namespaces(self) -> set[str]:
        tenants = await self._store.children(_LOCAL_POLICIES)
        return {
            f"{tenant}/{name}"
            for tenant in tenants
            for name in await self._store.children(f"{_LOCAL_POLICIES}/{tenant}")
        }

    async def _group_of(self, namespace: str) -> str | None:
        path = f"{_LOCAL_POLICIES}/{namespace}"
        if (node := await self._store.get(path)) is None:
            return None
        try:
            group = parse(path, node.value).get(_GROUP)
        except InvalidDocumentError as error:  # a preference: lookups of that namespace tell
            logger.warning("%s", error)
            return None
        return group if isinstance(group, str) and group else None

    def _on_event(self, event: MetadataEvent) -> None:
        self._stale = True

    def _on_local_policies(self, event: MetadataEvent) -> None:
        namespace = event.path.removeprefix(f"{_LOCAL_POLICIES}/")
        # Parents come with the first of their namespaces, and hold nothing.
        if event.type is EventType.CHILDREN_CHANGED or namespace.count("/") != 1:
            return
        self._stale = True
        if self._changed_namespaces is not None:
            self._changed_namespaces.add(namespace)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self._stale = True  # events were lost meanwhile
            self._changed_namespaces = None
