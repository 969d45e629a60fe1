"""Settings of one managed ledger; frozen, shared by all topics of a namespace."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from magnetar.bookkeeper.ledger_metadata import DIGEST_CRC32C
from magnetar.managed_ledger.entry_form import HEADS_IN_FRONT, EntryForm
from magnetar.managed_ledger.offload.config import NO_OFFLOAD, OffloadConfig

_NO_METADATA: Final[Mapping[str, bytes]] = MappingProxyType({})


class PlacementMetadata:
    """Custom metadata of new ledgers, which name groups of bookies. Here none: ledgers are kept
    where the client's placement puts them."""

    __slots__ = ()

    async def read(self) -> Mapping[str, bytes]:
        """Raises MetadataError: it can't be told now."""
        return _NO_METADATA

    def known(self) -> Mapping[str, bytes]:
        """The same without a wait, as far as it is in memory: for what is told to people."""
        return _NO_METADATA


ANY_BOOKIES: Final = PlacementMetadata()


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """How a managed ledger stores, rotates and retains its entries.

    Quorums: every ledger (data and cursors) is written with ``ensemble_size >= write_quorum >=
    ack_quorum``.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    password: bytes = b""
    digest_type: str = DIGEST_CRC32C
    """Of new ledgers, see ``LedgerConfig``."""
    form: EntryForm = HEADS_IN_FRONT
    """How entries lie in ledgers."""
    placement_metadata: PlacementMetadata = ANY_BOOKIES
    """Asked for each new ledger, so that a change holds from the next one on."""

    create_if_missing: bool = True
    ledger_entries_max: int = 50_000
    ledger_bytes_max: int = 2048 << 20
    ledger_age_min_ms: int = 600_000
    """A ledger younger than this isn't rotated for its entries or bytes."""
    ledger_age_max_ms: int = 14_400_000
    """A non-empty ledger older than this is rotated by the factory's sweep."""

    retention_ms: int = 0
    """Consumed ledgers are kept this long after their close; -1: for ever."""
    retention_bytes: int = 0
    """Consumed ledgers are kept while the log is below this size; -1: no limit."""

    offload: OffloadConfig = NO_OFFLOAD

    cursor_ensemble_size: int = 1
    cursor_write_quorum: int = 1
    cursor_ack_quorum: int = 1
    cursor_ledger_entries_max: int = 50_000
    mark_delete_rate: float = 0.0
    """Writes a second of one cursor for acknowledgements without a waiting caller; 0: no limit."""
    cursor_ledger_age_max_ms: int = 14_400_000

    def __post_init__(self) -> None:
        for ensemble, write, ack in (
            (self.ensemble_size, self.write_quorum, self.ack_quorum),
            (self.cursor_ensemble_size, self.cursor_write_quorum, self.cursor_ack_quorum),
        ):
            if not ensemble >= write >= ack >= 1:
                raise ValueError(f"quorums need E >= Qw >= Qa >= 1: {ensemble}/{write}/{ack}")
        if self.ledger_entries_max < 1 or self.ledger_bytes_max < 1:
            raise ValueError("ledger_entries_max and ledger_bytes_max must be positive")
