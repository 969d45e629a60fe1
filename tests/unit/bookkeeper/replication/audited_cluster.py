"""A cluster without bookies: registrations, cookies and ledgers in an embedded store."""

from magnetar.bookkeeper.bookie.cookie import Cookie
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.bookkeeper.replication.auditor import Auditor, AuditorDependencies
from magnetar.bookkeeper.replication.auditor_core import AuditorConfig
from magnetar.bookkeeper.replication.metrics import AuditorMetrics
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.replication.zones import ZoneConfig
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH, ServiceInfo
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.paths import encode_name
from tests.waiting import eventually as eventually

SETTLE_MS = 50


class Cluster:
    """Bookies are nodes of a session of their own, so that they can be taken away."""

    def __init__(self) -> None:
        self.store = EmbeddedMetadataStore.open(None)
        self.bookie_session = self.store.new_session()
        self.ledgers = LedgerStore(self.store)
        self.now_ms = 1_000_000  # the wall clock
        self.marks = UnderReplicationStore(self.store, self.clock)
        self.metrics = AuditorMetrics()

    def clock(self) -> int:
        return self.now_ms

    def ports(self) -> AuditorDependencies:
        """Of a process with a session of its own."""
        session = self.store.new_session()
        return AuditorDependencies(
            session, LedgerStore(session), UnderReplicationStore(session, self.clock), self.clock
        )

    def auditor(self, delay_ms: int = 0, settle_ms: int = SETTLE_MS) -> Auditor:
        config = AuditorConfig(delay_ms, ZoneConfig(settle_ms=settle_ms))
        return Auditor(self.ports(), config, self.metrics)

    async def come(self, *bookies: str, read_only: bool = False) -> None:
        """Registered and with a cookie; its name's first letter is its zone."""
        for bookie in bookies:
            info, name = ServiceInfo(bookie, f"/{bookie[0]}/ud"), encode_name(bookie)
            cookie = Cookie(bookie, "cluster", "directory").encode(info.network_location)
            await self.store.put(f"/ledgers/cookies/{name}", cookie)
            directory = READ_ONLY_PATH if read_only else AVAILABLE_PATH
            await self.bookie_session.put(f"{directory}/{name}", info.encode(), -1, ephemeral=True)

    async def go(self, *bookies: str) -> None:
        for bookie in bookies:
            for directory in (AVAILABLE_PATH, READ_ONLY_PATH):
                await self.store.delete_recursive(f"{directory}/{encode_name(bookie)}")

    async def ledger(self, *segments: tuple[str, ...], above: int = -1) -> int:
        """A closed ledger of ten entries for each segment; its id is higher than ``above``."""

        def build(ledger_id: int) -> LedgerMetadata:
            return LedgerMetadata(
                ledger_id,
                *(len(segments[0]), len(segments[0]), 1),
                segments=tuple(
                    EnsembleSegment(10 * i, bookies) for i, bookies in enumerate(segments)
                ),
                state=LedgerState.CLOSED,
                last_entry=10 * len(segments) - 1,
            )

        return (await self.ledgers.create(build, above)).metadata.ledger_id

    async def until_marked(self, ledgers: dict[int, set[str]]) -> None:
        async def is_so() -> bool:
            return await self.marked() == ledgers

        await eventually(is_so)

    async def marked(self) -> dict[int, set[str]]:
        found = {}
        async for ids in self.marks.ledger_ids():
            for ledger_id in ids:
                if (marker := await self.marks.read(ledger_id)) is not None:
                    found[ledger_id] = set(marker.bookies)
        return found
