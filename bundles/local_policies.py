"""Stores this cluster's local policies of a namespace, above all its bundle boundaries.

Stored as Pulsar's LocalPolicies JSON at ``/admin/local-policies/<tenant>/<ns>``; fields that we
don't use are kept as they are. Boundaries are written once, create-only, and afterwards changed
with the version they were read with, so that no stale view overwrites newer ones.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from magnetar.bundles.bookie_affinity import BookieAffinity
from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.namespace_bundles import HashRange, NamespaceBundles
from magnetar.metadata.errors import BadVersionError, MetadataError, ValueTooLargeError
from magnetar.metadata.recipes import CachedValues, update
from magnetar.metadata.store import CREATE_ONLY, VALUE_BYTES_MAX, MetadataStore

_log = logging.getLogger(__name__)

LOCAL_POLICIES_ROOT = "/admin/local-policies"
POLICIES_ROOT = "/admin/policies"
# Pulsar's names of the fields.
ANTI_AFFINITY_GROUP = "namespaceAntiAffinityGroup"
BOOKIE_AFFINITY = "bookieAffinityGroup"
_COPY_RETRY_S: Final = 1.0
_HEARTBEAT = re.compile(r"pulsar/[^/]+:\d+")


def is_heartbeat(namespace: str) -> bool:
    """Tells whether a namespace is a broker's, ``pulsar/host:port``: one bundle, no policies."""
    return _HEARTBEAT.fullmatch(namespace) is not None


@dataclass(frozen=True, slots=True)
class LocalPolicies:
    bundles: NamespaceBundles
    other_fields: Mapping[str, Any] = field(default_factory=dict)  # affinity groups, migration

    @property
    def bookie_affinity(self) -> BookieAffinity | None:
        """Groups of bookies that the namespace's ledgers are kept on; None: it has none."""
        stored = self.other_fields.get(BOOKIE_AFFINITY)
        return BookieAffinity.of_stored(stored) if isinstance(stored, dict) else None

    def encode(self) -> bytes:
        return orjson.dumps({"bundles": self.encode_bundles(), **self.other_fields})

    def encode_bundles(self) -> dict[str, Any]:
        """BundlesData, as both policy documents hold it."""
        return {"boundaries": self.bundles.boundary_texts(), "numBundles": len(self.bundles)}

    @classmethod
    def decode(cls, namespace: str, value: bytes) -> "LocalPolicies":
        """Raises InvalidBundleError: not JSON, or boundaries that don't partition."""
        document = _document(namespace, value)
        bundles = bundles_of_policies(namespace, document)
        if bundles is None:
            raise InvalidBundleError(f"{namespace}: local policies without bundles")
        return cls(bundles, {key: each for key, each in document.items() if key != "bundles"})


def bundles_of_policies(namespace: str, policies: Mapping[str, Any]) -> NamespaceBundles | None:
    """The ``bundles`` of a Policies or LocalPolicies document; None when it names none.

    A document with a count and no boundaries means equal parts (what an admin call may send).
    """
    bundles = policies.get("bundles")
    if not isinstance(bundles, dict):
        return None
    boundaries, count = bundles.get("boundaries"), bundles.get("numBundles")
    if isinstance(boundaries, list) and boundaries:
        return NamespaceBundles.parse(namespace, boundaries)
    if isinstance(count, int) and count > 0:
        return NamespaceBundles.equal_parts(namespace, count)
    return None


def already_cut(bundles: NamespaceBundles, bundle: HashRange, points: Sequence[int]) -> bool:
    """Tells whether the split is stored: so repeating it after a lost reply is no error."""
    wanted = [bundle.lower, *points, bundle.upper]
    inside = [each for each in bundles.boundaries if bundle.lower <= each <= bundle.upper]
    return inside == wanted


def _document(namespace: str, value: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidBundleError(f"{namespace}: policies aren't JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidBundleError(f"{namespace}: policies aren't a JSON object")
    return document


def _with_bundles(namespace: str, policies: bytes, local: LocalPolicies) -> bytes:
    """
    Raises:
        InvalidBundleError: the policies can't be read.
        ValueTooLargeError
    """
    document = _document(namespace, policies)
    value = orjson.dumps({**document, "bundles": local.encode_bundles()})
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLargeError(f"{POLICIES_ROOT}/{namespace}", len(value), VALUE_BYTES_MAX)
    return value


class BundleFactory:
    """The bundles of every namespace that was ever asked for here; repaired by events."""

    def __init__(self, store: MetadataStore, default_count: int) -> None:
        self._store, self._default_count = store, default_count
        self._local = CachedValues(store, LOCAL_POLICIES_ROOT, _decode_local_policies)
        self._policies = CachedValues(store, POLICIES_ROOT, _decode_policies)
        self._copying: set[asyncio.Task[None]] = set()  # boundaries that policies don't name yet

    async def bundles(self, namespace: str) -> NamespaceBundles:
        """Reads the boundaries; at the first use of a namespace writes them, create-only.

        They are taken from the namespace's policies, else in equal parts. For a namespace without
        policies nothing is written: names that clients make up mustn't fill the store.

        Raises:
            InvalidBundleError: what is stored doesn't partition the hash space.
        """
        if is_heartbeat(namespace):
            return NamespaceBundles.equal_parts(namespace, 1)
        path = f"{LOCAL_POLICIES_ROOT}/{namespace}"
        while True:
            if (local := await self._local.get(path)) is not None:
                return local.value.bundles
            policies = await self._policies.get(f"{POLICIES_ROOT}/{namespace}")
            bundles = None if policies is None else policies.value
            bundles = bundles or NamespaceBundles.equal_parts(namespace, self._default_count)
            if policies is None:
                return bundles
            try:
                await self._store.put(path, LocalPolicies(bundles).encode(), CREATE_ONLY)
            except BadVersionError:
                self._local.invalidate(path)  # another broker was first: its boundaries rule

    async def anti_affinity_group(self, namespace: str) -> str | None:
        """The group whose namespaces are to be served by different brokers; None: in none.

        Raises:
            InvalidBundleError: the stored local policies can't be read.
        """
        group = (await self._other_fields(namespace) or {}).get(ANTI_AFFINITY_GROUP)
        return group if isinstance(group, str) else None

    async def set_anti_affinity_group(self, namespace: str, group: str | None) -> None:
        """Store the group, or take it away; boundaries that others write meanwhile stay.

        Raises:
            InvalidBundleError: there is no such namespace, or what is stored can't be read.
        """
        await self._set_other_field(namespace, ANTI_AFFINITY_GROUP, group)

    async def bookie_affinity(self, namespace: str) -> BookieAffinity | None:
        """Groups of bookies that the namespace's ledgers are kept on; None: it has none.

        Raises:
            InvalidBundleError: the stored local policies can't be read.
        """
        local = await self._local.get(f"{LOCAL_POLICIES_ROOT}/{namespace}")
        return None if local is None else local.value.bookie_affinity

    def bookie_affinity_nowait(self, namespace: str) -> BookieAffinity | None:
        """From memory; None, too, when it has to be read."""
        local = self._local.get_nowait(f"{LOCAL_POLICIES_ROOT}/{namespace}")
        return None if local is None else local.value.bookie_affinity

    async def set_bookie_affinity(self, namespace: str, affinity: BookieAffinity | None) -> None:
        """Store the groups, or take them away; see ``set_anti_affinity_group``."""
        value = None if affinity is None else affinity.to_stored()
        await self._set_other_field(namespace, BOOKIE_AFFINITY, value)

    async def is_stored(self, namespace: str) -> bool:
        """Tell whether the namespace has local policies: they are written at its first use."""
        return await self._other_fields(namespace) is not None

    async def _other_fields(self, namespace: str) -> Mapping[str, Any] | None:
        local = await self._local.get(f"{LOCAL_POLICIES_ROOT}/{namespace}")
        return None if local is None else local.value.other_fields

    async def _set_other_field(self, namespace: str, field: str, content: Any) -> None:
        await self.bundles(namespace)  # so that there is a document to change
        path = f"{LOCAL_POLICIES_ROOT}/{namespace}"

        def change(value: bytes | None) -> bytes:
            if value is None:
                raise InvalidBundleError(f"namespace {namespace} does not exist")
            local = LocalPolicies.decode(namespace, value)
            others = {k: v for k, v in local.other_fields.items() if k != field}
            if content is not None:
                others[field] = content
            return LocalPolicies(local.bundles, others).encode()

        await update(self._store, path, change)
        self._local.invalidate(path)

    async def stored(self, namespace: str) -> NamespaceBundles | None:
        """Read anew: not older than what this session wrote last. None when nothing is stored."""
        path = f"{LOCAL_POLICIES_ROOT}/{namespace}"
        self._local.invalidate(path)
        local = await self._local.get(path)
        return None if local is None else local.value.bundles

    async def split(
        self,
        namespace: str,
        bundle: HashRange,
        points: Sequence[int],
        check: Callable[[], None],
    ) -> NamespaceBundles:
        """Stores the boundaries with ``bundle`` cut at ``points``; durable when it returns.

        Repeated while others change the same document; their cuts stay. The namespace's policies
        hold a copy, which only tools read: written next, or as soon as the store takes it.

        Args:
            check: called before each attempt to write; what it raises ends the split.
        Raises:
            InvalidBundleError: there is no such bundle (any more), or the points aren't inside.
            ValueTooLargeError: no room for the boundaries, or for their copy; nothing has changed.
        """
        await self.bundles(namespace)  # so that there is a document to change
        path = f"{LOCAL_POLICIES_ROOT}/{namespace}"
        policies = await self._store.get(f"{POLICIES_ROOT}/{namespace}")

        def cut(value: bytes | None) -> bytes:
            check()
            if value is None:
                raise InvalidBundleError(f"namespace {namespace} does not exist")
            local = LocalPolicies.decode(namespace, value)
            if not already_cut(local.bundles, bundle, points):
                local = LocalPolicies(local.bundles.split(bundle, points), local.other_fields)
            if policies is not None:
                _with_bundles(namespace, policies.value, local)
            return local.encode()

        found = await update(self._store, path, cut)
        assert found is not None
        self._local.invalidate(path)
        try:
            await self._copy(namespace)
        except MetadataError as error:
            _log.warning("%s: its policies have no copy of its bundles yet: %s", namespace, error)
            task = asyncio.get_running_loop().create_task(self._copy_later(namespace))
            self._copying.add(task)
            task.add_done_callback(self._copying.discard)
        return LocalPolicies.decode(namespace, found.value).bundles

    async def _copy(self, namespace: str) -> None:
        """The policies name the boundaries that are stored."""
        path = f"{POLICIES_ROOT}/{namespace}"
        while True:
            policies = await self._store.get(path)
            # Read after the policies: of a namespace that was made anew meanwhile, never older.
            local = await self._store.get(f"{LOCAL_POLICIES_ROOT}/{namespace}")
            if policies is None or local is None:
                return
            stored = LocalPolicies.decode(namespace, local.value)
            try:
                value = _with_bundles(namespace, policies.value, stored)
                await self._store.put(path, value, policies.stat.version)
                return
            except BadVersionError:
                continue  # another broker changed them

    async def _copy_later(self, namespace: str) -> None:
        while True:
            await asyncio.sleep(_COPY_RETRY_S)
            try:
                return await self._copy(namespace)
            except MetadataError as error:
                _log.debug("%s: no copy of its bundles yet: %s", namespace, error)

    def bundles_nowait(self, namespace: str) -> NamespaceBundles | None:
        """From memory; None when they have to be read or aren't stored."""
        if is_heartbeat(namespace):
            return NamespaceBundles.equal_parts(namespace, 1)
        local = self._local.get_nowait(f"{LOCAL_POLICIES_ROOT}/{namespace}")
        return None if local is None else local.value.bundles

    def close(self) -> None:
        for task in self._copying:
            task.cancel()
        self._local.close()
        self._policies.close()


def _decode_local_policies(path: str, value: bytes) -> LocalPolicies:
    return LocalPolicies.decode(path.removeprefix(LOCAL_POLICIES_ROOT + "/"), value)


def _decode_policies(path: str, value: bytes) -> NamespaceBundles | None:
    namespace = path.removeprefix(POLICIES_ROOT + "/")
    return bundles_of_policies(namespace, _document(namespace, value))
