"""Tenants, namespaces, clusters and partitioned topics: JSON at Pulsar's paths in the store.

Documents are kept as Pulsar's, field by field; fields this broker doesn't use
are stored and served unchanged. Reads are cached and repaired by the store's events.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson

from magnetar.broker.auth.authorization import Grants
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import (
    AlreadyExistsError,
    BrokerMetadataError,
    NamespaceNotFoundError,
    PreconditionFailedError,
    TenantNotFoundError,
    TopicNotFoundError,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.protocol.topic_name import (
    InvalidTopicNameError,
    TopicName,
    is_transaction_log,
)
from magnetar.broker.schema.registry import SCHEMAS
from magnetar.bundles.namespace_bundles import NamespaceBundles
from magnetar.metadata.errors import (
    BadVersionError,
    NotEmptyError,
    NotFoundError,
    ValueTooLargeError,
)
from magnetar.metadata.loop_turns import LoopTurns, in_turns
from magnetar.metadata.paths import decode_name, encode_name
from magnetar.metadata.recipes import CachedValue, CachedValues, update
from magnetar.metadata.sorted_names import sort_in_turns
from magnetar.metadata.store import (
    CREATE_ONLY,
    VALUE_BYTES_MAX,
    MetadataEvent,
    MetadataStore,
    Versioned,
    Watch,
)

Document = dict[str, Any]


class RoleGrants(NamedTuple):
    """Roles with rights; None: there is no such tenant, no such namespace."""

    admins: frozenset[str] | None
    grants: Grants | None


POLICIES: Final = "/admin/policies"
_CLUSTERS: Final = "/admin/clusters"
_PARTITIONED: Final = "/admin/partitioned-topics"
_LOCAL_POLICIES: Final = "/admin/local-policies"
TOPIC_POLICIES: Final = "/admin/topic-policies"
MANAGED_LEDGERS: Final = "/managed-ledgers"
_ACCESS_ENTRIES_MAX: Final = 20_000


class Resources:
    """Configuration documents of the cluster, as seen by this broker.

    One object, since a change of a tenant's or a namespace's document makes both the cached
    policies and the cached grants old.
    """

    def __init__(self, store: MetadataStore, config: BrokerConfig | None = None) -> None:
        """
        Args:
            config: the settings that hold where policies leave something open.
        """
        self._store = store
        self._config = config or BrokerConfig()
        self._policies = CachedValues(store, POLICIES, self._decode_policies)
        self._partitioned = CachedValues(store, _PARTITIONED, decode_document)
        self._access: CachedValues[frozenset[str] | Grants] = CachedValues(
            store, POLICIES, _decode_access, _ACCESS_ENTRIES_MAX
        )

    def config_changed(self, config: BrokerConfig) -> None:
        """From now on policies are made of these settings; made ones stay as they are."""
        self._config = config
        self._policies.clear()

    def close(self) -> None:
        self._policies.close()
        self._partitioned.close()
        self._access.close()

    async def bootstrap(self, cluster: str, urls: Mapping[str, str], bundle_count: int) -> None:
        """Create what every cluster has; what exists already stays as it is."""
        documents: dict[str, Document] = {f"{_CLUSTERS}/{cluster}": dict(urls)}
        for tenant, namespace in (("public", "default"), ("pulsar", "system")):
            tenant_path, name = f"{POLICIES}/{tenant}", f"{tenant}/{namespace}"
            documents[tenant_path] = {"adminRoles": [], "allowedClusters": [cluster]}
            documents[f"{POLICIES}/{name}"] = _new_policies(name, [cluster], bundle_count)
        for path, document in documents.items():
            with contextlib.suppress(AlreadyExistsError):
                await self._create(path, document, "")

    async def _create(self, path: str, document: Document, exists: str) -> None:
        """Raises AlreadyExistsError(exists); PreconditionFailedError: the document is too large."""
        try:
            await self._store.put(path, orjson.dumps(document), CREATE_ONLY)
        except BadVersionError as error:
            raise AlreadyExistsError(exists) from error
        except ValueTooLargeError as error:
            raise _too_large(error) from error

    # --- clusters

    async def clusters(self) -> list[str]:
        return await self._store.children(_CLUSTERS)

    async def cluster(self, name: str) -> Document | None:
        """ClusterData, None when there is no such cluster."""
        return await self._document(f"{_CLUSTERS}/{encode_name(name)}")

    async def put_cluster(self, name: str, data: Document) -> None:
        await self._store.put(f"{_CLUSTERS}/{encode_name(name)}", orjson.dumps(data))

    async def delete_cluster(self, name: str) -> None:
        await self._store.delete_recursive(f"{_CLUSTERS}/{encode_name(name)}")

    # --- tenants

    async def tenants(self) -> list[str]:
        return [decode_name(name) for name in await self._store.children(POLICIES)]

    async def tenant(self, name: str) -> Document | None:
        """TenantInfo, None when there is no such tenant."""
        return await self._document(f"{POLICIES}/{encode_name(name)}")

    async def create_tenant(self, name: str, info: Document) -> None:
        """Raises AlreadyExistsError."""
        await self._create(f"{POLICIES}/{encode_name(name)}", info, "Tenant already exists")

    async def update_tenant(self, name: str, info: Document) -> None:
        """Raises TenantNotFoundError."""
        path = f"{POLICIES}/{encode_name(name)}"
        await self._change(path, lambda _: info, TenantNotFoundError(name))
        self._access.invalidate(path)  # the event may come later than this reply

    async def delete_tenant(self, name: str) -> None:
        """Raises TenantNotFoundError; PreconditionFailedError while it has namespaces."""
        try:
            await self._store.delete(f"{POLICIES}/{encode_name(name)}")
        except NotFoundError as error:
            raise TenantNotFoundError("Tenant does not exist") from error
        except NotEmptyError as error:
            raise PreconditionFailedError("The tenant still has active namespaces") from error
        await self._store.delete_recursive(f"{_PARTITIONED}/{encode_name(name)}")

    # --- namespaces

    async def namespaces(self, tenant: str) -> list[str]:
        """``tenant/ns`` names, sorted."""
        names = await self._store.children(f"{POLICIES}/{encode_name(tenant)}")
        return [f"{tenant}/{decode_name(name)}" async for name in in_turns(names)]

    async def namespace_exists(self, namespace: str) -> bool:
        return await self.policies(namespace) is not None

    async def policies(self, namespace: str) -> EffectivePolicies | None:
        """The namespace's policies, None when it does not exist."""
        found = await self._policies.get(f"{POLICIES}/{namespace}")
        return None if found is None else found.value

    async def create_namespace(
        self,
        namespace: str,
        clusters: list[str],
        bundle_count: int,
        policies: Document | None = None,
    ) -> None:
        """Create a namespace; fields of ``policies`` win over the defaults.

        Raises:
            TenantNotFoundError, AlreadyExistsError.
        """
        tenant = namespace.partition("/")[0]
        if await self.tenant(tenant) is None:
            raise TenantNotFoundError("Tenant does not exist")
        document = _new_policies(namespace, clusters, bundle_count)
        document.update(
            {key: value for key, value in (policies or {}).items() if value is not None}
        )
        path = f"{POLICIES}/{namespace}"
        await self._create(path, document, f"Namespace {namespace} already exists")

    async def update_policies(
        self, namespace: str, change: Callable[[Document], Document]
    ) -> Document:
        """Apply a pure change to the document; repeated when another client was faster.

        This broker's topics learn of it by the store's event; what they are to know on return is
        changed by ``PolicyWatcher``.

        Raises:
            NamespaceNotFoundError.
        """
        path = f"{POLICIES}/{namespace}"
        missing = NamespaceNotFoundError("Namespace does not exist")
        document = await self._change(path, change, missing)
        self._policies.invalidate(path)  # the event may come later than this reply
        self._access.invalidate(path)
        return document

    async def delete_namespace(self, namespace: str) -> None:
        """Forget a namespace; its topics are the caller's matter. Raises NamespaceNotFoundError."""
        try:
            await self._store.delete(f"{POLICIES}/{namespace}")
        except NotFoundError as error:
            raise NamespaceNotFoundError("Namespace does not exist") from error
        for root in (_LOCAL_POLICIES, _PARTITIONED, TOPIC_POLICIES, MANAGED_LEDGERS, SCHEMAS):
            await self._store.delete_recursive(f"{root}/{namespace}")

    # --- roles with rights

    async def access(self, tenant: str, namespace: str) -> RoleGrants:
        """Admins of a tenant and grants of a namespace (``tenant/ns``, "": of none).

        Raises:
            BrokerMetadataError, MetadataError: they can't be read.
        """
        admins = await self._access.get(f"{POLICIES}/{encode_name(tenant)}")
        grants = await self._access.get(f"{POLICIES}/{namespace}") if namespace else None
        return _access(admins, grants)

    def access_nowait(self, tenant: str, namespace: str) -> RoleGrants | None:
        """The same from memory; None when it was not read yet."""
        cache = self._access
        tenant_path, namespace_path = f"{POLICIES}/{encode_name(tenant)}", f"{POLICIES}/{namespace}"
        admins = cache.get_nowait(tenant_path)
        grants = cache.get_nowait(namespace_path) if namespace else None
        if (admins is None and not cache.is_known(tenant_path)) or (
            namespace and grants is None and not cache.is_known(namespace_path)
        ):
            return None
        return _access(admins, grants)

    # --- topic-level policies: one document for a topic and its partitions

    async def topic_policies(self, name: TopicName) -> Document | None:
        """A topic's own policies, ``{"local": {...}, "global": {...}}``; None: it has none."""
        return await self._document(topic_policies_path(name))

    async def update_topic_policies(
        self, name: TopicName, change: Callable[[Document], Document]
    ) -> None:
        """Apply a pure change, to ``{}`` when there is no document yet; ``{}`` deletes it."""
        path = topic_policies_path(name)

        def apply(value: bytes | None) -> bytes | None:
            document = change({} if value is None else decode_document(path, value))
            return None if value is None and not document else orjson.dumps(document)

        written = await self._update(path, apply)
        if written is not None and written.value == b"{}":
            # Another client may be faster; an empty document says the same as none.
            with contextlib.suppress(BadVersionError, NotFoundError):
                await self._store.delete(path, written.stat.version)

    async def delete_topic_policies(self, name: TopicName) -> None:
        """Forget them; a topic without is fine."""
        path = topic_policies_path(name)
        if await self._store.exists(path):  # asking costs less than a write
            await self._store.delete_recursive(path)

    # --- partitioned topics

    async def partitioned(self, name: TopicName, *, anew: bool = False) -> Document | None:
        """PartitionedTopicMetadata, None when there is no partitioned topic of that name.

        Args:
            anew: ask the store, whose events may be on their way.
        """
        path = _partitioned_path(name)
        if anew:
            self._partitioned.invalidate(path)
        found = await self._partitioned.get(path)
        return None if found is None else found.value

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Raises AlreadyExistsError."""
        document: Document = {"partitions": partitions}
        if properties:
            document["properties"] = dict(properties)
        await self._create(_partitioned_path(name), document, "This topic already exists")

    async def update_partitioned(
        self, name: TopicName, change: Callable[[Document], Document]
    ) -> Document:
        """Raises TopicNotFoundError."""
        path = _partitioned_path(name)
        missing = TopicNotFoundError(f"Topic {name} is not partitioned topic")
        document = await self._change(path, change, missing)
        self._partitioned.invalidate(path)  # the event may come later than this reply
        return document

    async def delete_partitioned(self, name: TopicName) -> None:
        """Raises TopicNotFoundError."""
        try:
            await self._store.delete(_partitioned_path(name))
        except NotFoundError as error:
            raise TopicNotFoundError(f"Partitioned Topic {name} not found") from error

    async def partitioned_topics(self, namespace: str, domain: str = "persistent") -> list[str]:
        """Full names of a namespace's partitioned topics, sorted."""
        names = await self._store.children(f"{_PARTITIONED}/{namespace}/{domain}")
        return sorted(f"{domain}://{namespace}/{decode_name(name)}" for name in names)

    # --- stored topics

    async def stored_topics(self, namespace: str) -> list[str]:
        """Full names of the persistent topics with a managed ledger, sorted.

        Managed ledgers of transactions are left out.
        """
        return await sort_in_turns([name async for name in self.walk_stored_topics(namespace)])

    async def walk_stored_topics(self, namespace: str) -> AsyncIterator[str]:
        """The same, one after the other in the order of their encoded names, in short turns."""
        names = await self._store.children(f"{MANAGED_LEDGERS}/{namespace}/persistent")
        prefix, turns = f"persistent://{namespace}/", LoopTurns()
        names.reverse()
        while names:
            name = names.pop()  # to free 100,000 at once would hold the loop for a millisecond
            if not is_transaction_log(namespace, name):
                # Without taking it apart: ten thousand would take 25 ms.
                yield prefix + (unquote(name) if "%" in name else name)
            if turns.is_over:
                await turns.next()

    async def is_stored(self, name: TopicName) -> bool:
        return await self._store.exists(f"{MANAGED_LEDGERS}/{name.ml_name}")

    def watch_topics(self, on_event: Callable[[MetadataEvent], None]) -> Watch:
        """Events of every managed ledger, of its cursors too: filter by ``stored_topic_of``."""
        return self._store.watch(MANAGED_LEDGERS, on_event)

    # --- documents

    def _decode_policies(self, path: str, value: bytes) -> EffectivePolicies:
        return EffectivePolicies(decode_document(path, value), self._config)

    async def _document(self, path: str) -> Document | None:
        found = await self._store.get(path)
        return None if found is None else decode_document(path, found.value)

    async def _update(
        self, path: str, apply: Callable[[bytes | None], bytes | None]
    ) -> Versioned | None:
        """Raises PreconditionFailedError: the document would be too large."""
        try:
            return await update(self._store, path, apply)
        except ValueTooLargeError as error:
            raise _too_large(error) from error

    async def _change(
        self, path: str, change: Callable[[Document], Document], missing: Exception
    ) -> Document:
        def apply(value: bytes | None) -> bytes:
            if value is None:
                raise missing
            return orjson.dumps(change(decode_document(path, value)))

        written = await self._update(path, apply)
        assert written is not None
        return decode_document(path, written.value)


def _decode_access(path: str, value: bytes) -> frozenset[str] | Grants:
    document = decode_document(path, value)
    if path.count("/") > POLICIES.count("/") + 1:
        return Grants.of_document(document)
    admins = document.get("adminRoles")
    # Of a text every character would be an admin.
    roles = admins if isinstance(admins, list) else ()
    return frozenset(each for each in roles if isinstance(each, str))


_Cached = CachedValue[frozenset[str] | Grants]


def _access(admins: _Cached | None, grants: _Cached | None) -> RoleGrants:
    # By the depth of its path each is of its own kind; whatever isn't grants nothing.
    roles = None if admins is None else admins.value
    rights = None if grants is None else grants.value
    return RoleGrants(
        roles if isinstance(roles, frozenset) else None,
        rights if isinstance(rights, Grants) else None,
    )


def stored_topic_of(path: str) -> TopicName | None:
    """The topic whose managed ledger is exactly at ``path``; None for other paths."""
    parts = path.removeprefix(MANAGED_LEDGERS + "/").split("/")
    if len(parts) != 4 or parts[2] != "persistent":
        return None
    return TopicName.from_ml_name("/".join(parts))


def _too_large(error: ValueTooLargeError) -> PreconditionFailedError:
    return PreconditionFailedError(
        f"A document of {error.value_bytes} bytes can't be stored; at most {VALUE_BYTES_MAX} are"
    )


def topic_policies_path(name: TopicName) -> str:
    base = name.base
    return f"{TOPIC_POLICIES}/{base.namespace}/{base.domain}/{encode_name(base.local)}"


def topic_of_policies(path: str) -> TopicName | None:
    """The topic whose own policies are exactly at ``path``; None for other paths."""
    parts = path.removeprefix(TOPIC_POLICIES + "/").split("/")
    if len(parts) != 4:
        return None
    tenant, namespace, domain, local = parts
    try:
        return TopicName.parse(f"{domain}://{tenant}/{namespace}/{decode_name(local)}")
    except (InvalidTopicNameError, UnicodeDecodeError):
        return None  # no topic's


def _partitioned_path(name: TopicName) -> str:
    return f"{_PARTITIONED}/{name.namespace}/{name.domain}/{encode_name(name.local)}"


def _new_policies(namespace: str, clusters: list[str], bundle_count: int) -> Document:
    """A Policies document with every field that Pulsar always writes."""
    bundles = NamespaceBundles.equal_parts(namespace, bundle_count)
    return {
        "auth_policies": {
            "namespace_auth": {},
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "replication_clusters": clusters,
        "bundles": {"boundaries": bundles.boundary_texts(), "numBundles": bundle_count},
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }


def decode_document(path: str, value: bytes) -> Document:
    """Raises BrokerMetadataError."""
    if not value:  # a parent that was created on the way to its child
        return {}
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BrokerMetadataError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BrokerMetadataError(f"{path} is not a JSON object")
    return document
