"""What a bookie keeps in memory about every ledger it holds."""

from dataclasses import dataclass

from magnetar.bookkeeper.bookie.storage.index_format import LedgerRecord

NO_ENTRY_ID = -1


@dataclass(slots=True, eq=False)
class LedgerDescriptor:
    """Loop-owned; the maintenance thread only reads it.

    Attributes:
        fenced: refuses normal adds from this moment on.
        fence_durable: the fence survives a crash, so it may be confirmed.
        limbo: entries or a fence may have been lost with a disk: no explicit negative answers.
        fence_unknown: it came back after a loss as a copy that a recovery or repair made: a fence
            that it had before may be forgotten, so its writer is refused until it was checked.
        last_entry: highest entry id accepted, durable or not; -1: none.
        flushed_last: highest entry id in the index (maintenance thread only).
        draining: its entries are being removed, because others hold them: takes none, lists none.
        creator: token of the client that made the ledger; 0: not known. It never changes.
        disputed: another creator's ledger with this id asked for its place here: the metadata store
            went back, so what it says of this id proves nothing, and nothing is collected by it.
        creator_stored: ``disputed`` as the index has it, with the creator; None: it has neither
            (maintenance thread only, as ``flushed_last``).
        lac_digest: the one that ``explicit_lac`` came with, if it isn't CRC32C: only clients of the
            ledger can make it. Empty: the ledger has none. None: CRC32C.
        listed_s: loop time when a client was told what is here, and may rely on it.
    """

    ledger_id: int
    master_key: bytes
    creator: int = 0
    fenced: bool = False
    fence_durable: bool = False
    limbo: bool = False
    fence_unknown: bool = False
    draining: bool = False
    disputed: bool = False
    creator_stored: bool | None = None
    listed_s: float = float("-inf")
    explicit_lac: int = -1
    lac_digest: bytes | None = None
    last_entry: int = NO_ENTRY_ID
    flushed_last: int = NO_ENTRY_ID

    def raise_lac(self, lac: int, digest: bytes | None) -> None:
        """An explicit LAC is here; it never decreases."""
        if lac > self.explicit_lac or (lac == self.explicit_lac and digest is not None):
            self.explicit_lac, self.lac_digest = lac, digest

    def is_of(self, creator: int) -> bool:
        """False: this ledger is certainly another one than ``creator`` made."""
        return creator == self.creator or not creator or not self.creator

    @classmethod
    def from_record(cls, ledger_id: int, record: LedgerRecord) -> "LedgerDescriptor":
        state = cls(ledger_id, record.master_key)
        state.fenced = state.fence_durable = record.fenced
        state.limbo = record.limbo
        state.fence_unknown = record.fence_unknown
        state.explicit_lac, state.lac_digest = record.explicit_lac, record.lac_digest
        state.last_entry = state.flushed_last = record.last_entry
        return state

    def to_record(self, last_entry: int) -> LedgerRecord:
        return LedgerRecord(
            self.master_key,
            self.fenced,
            self.limbo,
            self.explicit_lac,
            last_entry,
            self.fence_unknown,
            self.lac_digest,
        )
