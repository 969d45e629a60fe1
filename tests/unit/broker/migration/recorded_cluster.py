"""A recorded cluster in memory: its nodes in a store, its ledgers behind ``LedgerAccess``."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.broker.migration.backward import Backward
from magnetar.broker.migration.forward import Forward
from magnetar.broker.migration.ledger_access import MARK
from magnetar.broker.migration.pulsar_cluster import PulsarCluster
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_store import CursorNode
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore
from tests.unit.broker.migration.recorded import recorded

NOW_MS = 1_800_000_000_000


class RecordedLedgers:
    """Ledgers as they were recorded, and those that were made since; all are closed."""

    def __init__(self) -> None:
        self.stored = {k: list(v) for k, v in recorded().entries.items()}
        self.ends = dict(recorded().ends)
        self._marks: dict[int, str] = {}

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        if ledger_id not in self.ends:
            return None
        last_entry, length = self.ends[ledger_id]
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            segments=(EnsembleSegment(0, ("b",)),),
            state=LedgerState.CLOSED,
            last_entry=last_entry,
            length=length,
        )

    async def end(self, ledger_id: int) -> LedgerMetadata | None:
        return await self.metadata(ledger_id)

    async def last_entry(self, ledger_id: int) -> bytes | None:
        entries = [each async for each in self.entries(ledger_id)]
        return entries[-1] if entries else None

    async def entries(self, ledger_id: int, first: int = 0) -> AsyncIterator[bytes]:
        for each in self.stored.get(ledger_id, [])[first:] if ledger_id in self.ends else []:
            yield each

    async def image(self, where: str, node: CursorNode) -> CursorImage:
        return node.image(where)

    async def create(
        self, entries: Callable[[int], Sequence[bytes]], custom: dict[str, bytes]
    ) -> int:
        ledger_id = max(self.ends) + 1
        self.put(ledger_id, entries(ledger_id))
        self._marks[ledger_id] = custom.get(MARK, b"").decode()
        return ledger_id

    def put(self, ledger_id: int, entries: Sequence[bytes]) -> None:
        """There is a closed ledger with these entries."""
        self.stored[ledger_id] = list(entries)
        self.ends[ledger_id] = (len(entries) - 1, sum(map(len, entries)))

    async def marked(self, marks: Collection[str]) -> dict[int, str]:
        return {k: v for k, v in self._marks.items() if k in self.ends and v in marks}

    async def delete(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self.ends.pop(ledger_id, None)


async def restore(store: MetadataStore) -> None:
    """Puts the recorded nodes into an empty store."""
    for path, value in recorded().nodes.items():
        await store.put(path, value)


async def tree_of(store: MetadataStore, path: str = "/") -> dict[str, bytes]:
    """All values of a store that aren't empty."""
    found = dict[str, bytes]()
    for name in await store.children(path):
        child = f"{path.rstrip('/')}/{name}"
        node = await store.get(child)
        if node is not None and node.value:
            found[child] = node.value
        found |= await tree_of(store, child)
    return found


class Cluster:
    """Both stores, in memory."""

    def __init__(self) -> None:
        self.pulsar: MetadataStore = EmbeddedMetadataStore.open(None)
        self.ours: MetadataStore = EmbeddedMetadataStore.open(None)
        self.ledgers = RecordedLedgers()

    def forward(self, *, write: bool = True, accept_loss: bool = False) -> Forward:
        cluster = PulsarCluster(self.pulsar, self.ledgers)
        return Forward(cluster, self.ours, lambda: NOW_MS, write=write, accept_loss=accept_loss)

    def backward(
        self,
        *,
        write: bool = True,
        accept_loss: bool = False,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Backward:
        cluster = PulsarCluster(self.pulsar, self.ledgers, advance)
        return Backward(
            *(cluster, self.ours, self.ledgers, lambda: NOW_MS),
            write=write,
            accept_loss=accept_loss,
        )

    async def close(self) -> None:
        await self.pulsar.close()
        await self.ours.close()


def writes_in_vain(store: MetadataStore) -> list[str]:
    """Paths of the unconditional writes from now on that find no node: ZooKeeper answers each by a
    refusal, which it syncs."""
    found, put = list[str](), store.put

    async def watched(path: str, value: bytes, version: int | None = None, **kind: bool) -> Any:
        if version is None and await store.get(path) is None:
            found.append(path)
        return await put(path, value, version, **kind)

    setattr(store, put.__name__, watched)
    return found


class FailingWrites:
    """The n-th write fails: before it has any effect, or with its answer lost."""

    def __init__(
        self,
        n: int,
        *,
        lost_answer: bool,
        stores: list[MetadataStore],
        ledgers: RecordedLedgers | None = None,
    ) -> None:
        self.left, self._lost_answer = n, lost_answer
        for store in stores:
            for name in ("put", "delete", "delete_recursive"):
                setattr(store, name, self._failing(getattr(store, name)))
        if ledgers is not None:
            for name in ("create", "delete"):
                setattr(ledgers, name, self._failing(getattr(ledgers, name)))

    def _failing(self, write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*words: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left:
                return await write(*words, **options)
            if self._lost_answer:
                try:
                    await write(*words, **options)
                except MetadataError:
                    self.left = 1  # it had an answer of its own: the next one
                    raise
            raise MetadataError("planted")

        return call
