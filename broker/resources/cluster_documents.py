"""Documents about the cluster's machines, kept for operators and for placement.

Failure domains and isolation policies of a cluster, racks of bookies, quotas of bundles: JSON at
Pulsar's paths, every change a compare-and-set.
"""

from collections.abc import Callable
from typing import Final

import orjson

from magnetar.broker.errors import AlreadyExistsError
from magnetar.broker.resources.resources import Document, decode_document
from magnetar.metadata.errors import NotFoundError
from magnetar.metadata.paths import decode_name, encode_name
from magnetar.metadata.recipes import update
from magnetar.metadata.store import MetadataStore

_CLUSTERS: Final = "/admin/clusters"
_RACKS: Final = "/bookies"
_QUOTAS: Final = "/loadbalance/resource-quota"

DEFAULT_QUOTA: Final[Document] = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}


class ClusterDocuments:
    """Reads and changes them. Any method may raise MetadataError and BrokerMetadataError.

    Attributes:
        racks_store: where the places of bookies are: beside ``/ledgers``, as Pulsar's brokers and
            Apache's auto-recovery look for them there.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = self.racks_store = store

    # --- failure domains

    async def failure_domains(self, cluster: str) -> dict[str, Document]:
        """FailureDomain by name."""
        root = _domains(cluster)
        domains: dict[str, Document] = {}
        for name in await self._store.children(root):
            if (document := await self._read(f"{root}/{name}")) is not None:
                domains[decode_name(name)] = document
        return domains

    async def failure_domain(self, cluster: str, name: str) -> Document | None:
        return await self._read(f"{_domains(cluster)}/{encode_name(name)}")

    async def put_failure_domain(self, cluster: str, name: str, brokers: list[str] | None) -> None:
        """Raises AlreadyExistsError: a broker is in another domain."""
        for other, domain in (await self.failure_domains(cluster)).items():
            taken = [each for each in domain.get("brokers") or () if each in (brokers or ())]
            if other != name and taken:
                raise AlreadyExistsError(f"[{', '.join(taken)}] already exists in {other}")
        document = {} if brokers is None else {"brokers": sorted(set(brokers))}
        await self._store.put(f"{_domains(cluster)}/{encode_name(name)}", orjson.dumps(document))

    async def delete_failure_domain(self, cluster: str, name: str) -> bool:
        """Whether there was one."""
        return await self._delete(f"{_domains(cluster)}/{encode_name(name)}")

    # --- isolation policies: one document for a cluster

    async def isolation_policies(self, cluster: str) -> dict[str, Document] | None:
        """NamespaceIsolationData by name; None when none was ever set."""
        return await self._read(_isolation(cluster))

    async def put_isolation_policy(self, cluster: str, name: str, policy: Document) -> None:
        await self._change(_isolation(cluster), lambda document: {**document, name: policy})

    async def delete_isolation_policy(self, cluster: str, name: str) -> None:
        """Nothing to delete is no error."""
        await self._change(
            _isolation(cluster),
            lambda document: {key: value for key, value in document.items() if key != name},
        )

    # --- bookies

    async def racks(self) -> dict[str, dict[str, Document]]:
        """BookieInfo by group and bookie."""
        return await self._read(_RACKS, self.racks_store) or {}

    async def put_rack(self, group: str, bookie: str, info: Document) -> None:
        """A bookie is in one group: it leaves the one it was in."""

        def put(document: Document) -> Document:
            left = _without(document, bookie)
            return {**left, group: {**left.get(group, {}), bookie: info}}

        await self._change(_RACKS, put, self.racks_store)

    async def delete_rack(self, bookie: str) -> bool:
        """Whether it had one."""
        if not any(bookie in members for members in (await self.racks()).values()):
            return False
        await self._change(_RACKS, lambda document: _without(document, bookie), self.racks_store)
        return True

    # --- quotas of bundles

    async def quota(self, bundle: str | None) -> Document:
        """ResourceQuota of a bundle, the default one for None and where none is set."""
        default = await self._read(f"{_QUOTAS}/default") or DEFAULT_QUOTA
        if bundle is None:
            return default
        return await self._read(_quota(bundle)) or default

    async def put_quota(self, bundle: str | None, quota: Document) -> None:
        path = f"{_QUOTAS}/default" if bundle is None else _quota(bundle)
        await self._store.put(path, orjson.dumps(quota))

    async def delete_quota(self, bundle: str) -> bool:
        """Whether there was one."""
        return await self._delete(_quota(bundle))

    # --- documents

    async def _read(self, path: str, store: MetadataStore | None = None) -> Document | None:
        found = await (store or self._store).get(path)
        return None if found is None or not found.value else decode_document(path, found.value)

    async def _change(
        self,
        path: str,
        change: Callable[[Document], Document],
        store: MetadataStore | None = None,
    ) -> None:
        await update(
            store or self._store,
            path,
            lambda value: orjson.dumps(change(decode_document(path, value) if value else {})),
        )

    async def _delete(self, path: str) -> bool:
        try:
            await self._store.delete(path)
        except NotFoundError:
            return False
        return True


def _domains(cluster: str) -> str:
    return f"{_CLUSTERS}/{encode_name(cluster)}/failureDomain"


def _quota(bundle: str) -> str:
    return f"{_QUOTAS}/namespace/{bundle}"  # where the leader looks for it


def _isolation(cluster: str) -> str:
    return f"{_CLUSTERS}/{encode_name(cluster)}/namespaceIsolationPolicies"


def _without(groups: Document, bookie: str) -> Document:
    left = {
        group: {name: info for name, info in members.items() if name != bookie}
        for group, members in groups.items()
    }
    return {group: members for group, members in left.items() if members}
