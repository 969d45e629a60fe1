"""The ledger client: create, open (with recovery or without), delete."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from types import MappingProxyType
from typing import Final

from magnetar.bookkeeper.client.async_ledger_recovery import recover_ledger
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, PlacementRandom
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.replica_choice import Replicas
from magnetar.bookkeeper.errors import UnauthorizedAccessError
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.metadata.store import MetadataStore

_NO_METADATA: Final[Mapping[str, bytes]] = MappingProxyType({})


class BookKeeperClient:
    """Ledgers of one cluster.

    Args:
        bookies: started by the caller.
        clock: wall clock in milliseconds since the epoch.
        rng: chance, for tokens and back-off; ``random.Random`` fits.
    """

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookiePool,
        placement: EnsemblePlacementPolicy,
        *,
        clock: Callable[[], int],
        rng: PlacementRandom,
        config: ClientConfig | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.ledgers = LedgerStore(store, layout)
        self.bookies = bookies
        self.on_ledger_deleted: Callable[[int], None] | None = None
        """Told of each deletion: a bookie in the same process frees the space at once."""
        self.custom_metadata: Mapping[str, bytes] = _NO_METADATA
        """Of each ledger that it creates, beside what the caller gives."""
        self._placement = placement
        self._clock = clock
        self._rng = rng
        self._config = config or ClientConfig()
        self.replicas = Replicas(bookies, self._config.reads)

    async def create_ledger(
        self,
        config: LedgerConfig,
        custom_metadata: Mapping[str, bytes] = _NO_METADATA,
        *,
        above: int = -1,
    ) -> AsyncLedgerWriter:
        """A new, empty ledger: one metadata put, no bookie is contacted.

        Args:
            custom_metadata: names groups of bookies that it is kept on, or not; see
                ``placement.isolation``.
            above: the new ledger's id shall exceed this one's, so that positions in both ascend.
        Raises:
            NotEnoughBookiesError: fewer bookies accept writes, or are in the groups, than the
                ensemble needs.
            ValueTooLargeError: too much custom metadata; there is no ledger.
            MetadataError: the store failed.
        """
        custom = {**self.custom_metadata, **custom_metadata}
        placement = self._placement.for_ledger(custom)
        ensemble = placement.new_ensemble(
            config.ensemble_size, config.write_quorum, config.ack_quorum, self.bookies.writable
        )
        token = self._rng.getrandbits(63)
        created_ms = self._clock()
        created = await self.ledgers.create(
            lambda ledger_id: LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=len(ensemble),
                write_quorum=config.write_quorum,
                ack_quorum=config.ack_quorum,
                segments=(EnsembleSegment(0, ensemble),),
                password=config.password,
                custom_metadata=custom,
                created_ms=created_ms,
                creator_token=token,
                digest_type=config.digest_type,
            ),
            above,
        )
        return AsyncLedgerWriter(
            *(created, self.ledgers, self.bookies, placement, self._config, self.replicas),
            deferred_sync=config.deferred_sync,
        )

    def missing_bookies(
        self, ensemble_size: int, write_quorum: int, custom_metadata: Mapping[str, bytes]
    ) -> tuple[int, str]:
        """How many more must accept writes before such a ledger can be created.

        Returns:
            that, and which bookies may be taken; "": all.
        """
        placement = self._placement.for_ledger({**self.custom_metadata, **custom_metadata})
        missing = placement.missing(ensemble_size, write_quorum, self.bookies.writable)
        return missing, placement.restriction

    async def open_ledger(
        self, ledger_id: int, password: bytes = b"", *, recover: bool
    ) -> LedgerReader:
        """A reader of an existing ledger.

        Args:
            recover: fence the writer and close the ledger, unless it is closed. Without it a live
                ledger is read up to what its bookies know to be confirmed, and never disturbed.

        Raises:
            NoSuchLedgerError, UnauthorizedAccessError (wrong password).
            LedgerRecoveryError: too few bookies answered to find the end; retry later.
            BookieUnavailableError: without recovery, no bookie of an open ledger answered.
            MetadataError: the store failed.
        """
        metadata = (await self.ledgers.require(ledger_id)).metadata
        if not compare_digest(metadata.password, password):
            raise UnauthorizedAccessError(f"ledger {ledger_id}: wrong password")
        if recover and metadata.state is not LedgerState.CLOSED:
            metadata = await recover_ledger(
                ledger_id, self.ledgers, self.bookies, self._placement, self._rng, self._config
            )
        reader = LedgerReader(
            *(metadata, metadata.last_entry, self.ledgers, self.bookies),
            *(self._config, self.replicas),
        )
        if metadata.state is not LedgerState.CLOSED:
            await reader.refresh()
        return reader

    async def delete_ledger(self, ledger_id: int) -> None:
        """Remove the ledger for ever; a missing one is success. Bookies free its space later."""
        await self.ledgers.delete(ledger_id)
        if self.on_ledger_deleted is not None:
            self.on_ledger_deleted(ledger_id)

    async def read_ledger_metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """What the store knows of the ledger; None: there is none."""
        found = await self.ledgers.read(ledger_id)
        return None if found is None else found.metadata
