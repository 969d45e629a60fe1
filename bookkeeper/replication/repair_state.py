"""What auto-recovery has to do, as anybody may read it: its switch, its auditor, its markers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.bookkeeper.replication.under_replication import (
    UNDER_REPLICATION_ROOT,
    UnderReplicationStore,
)
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class RepairState:
    """Auto-recovery of a cluster.

    Attributes:
        off_reason: why it is switched off; None: it is on.
        auditor: the elected one; "": there is none.
        marked: ledgers that are marked as under-replicated.
        first: the lowest ids of them.
    """

    off_reason: str | None
    off_since_ms: int | None
    auditor: str
    marked: int
    first: Sequence[int]


async def repair_state(
    store: MetadataStore, clock: Callable[[], int], first_max: int
) -> RepairState:
    """``clock`` in ms. Raises MetadataError."""
    markers = UnderReplicationStore(store, clock)
    switch = await markers.disabled()
    auditor = await store.get(f"{UNDER_REPLICATION_ROOT}/auditorelection")
    marked, first = 0, list[int]()
    async for ids in markers.ledger_ids():
        marked += len(ids)
        first += ids[: max(0, first_max - len(first))]
    return RepairState(
        None if switch is None else switch.reason,
        None if switch is None else switch.since_ms,
        "" if auditor is None else auditor.value.decode(errors="replace"),
        marked,
        first,
    )
