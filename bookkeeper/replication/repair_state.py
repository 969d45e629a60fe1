"""What auto-recovery has to do, as anybody may read it: its switch, its auditor, its markers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.replication.auditor_elector import read_auditor
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class RepairState:
    """Auto-recovery of a cluster.

    Attributes:
        off_reason: why it is switched off; None: it is on.
        auditor: the elected one; "": there is none.
        marked: ledgers that are marked as under-replicated.
        first: the lowest ids of them.
        lost_bookie_delay_s: how long a lost bookie may come back, as an operator or else the
            auditor's settings have it; None: there was no auditor yet.
    """

    off_reason: str | None
    off_since_ms: int | None
    auditor: str
    marked: int
    first: Sequence[int]
    lost_bookie_delay_s: float | None


async def repair_state(
    store: MetadataStore, clock: Callable[[], int], first_max: int, layout: Layout
) -> RepairState:
    """``clock`` in ms. Raises MetadataError."""
    markers = UnderReplicationStore(store, clock, layout)
    switch = await markers.disabled()
    auditor = await read_auditor(store, layout)
    marked, first = 0, list[int]()
    async for ids in markers.ledger_ids():
        marked += len(ids)
        first += ids[: max(0, first_max - len(first))]
    return RepairState(
        None if switch is None else switch.reason,
        None if switch is None else switch.since_ms,
        auditor or "",
        marked,
        first,
        await markers.lost_bookie_delay_s(),
    )
