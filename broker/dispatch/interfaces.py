"""What dispatch needs of a managed ledger and a cursor, and the words cores and shells exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from magnetar.broker.dispatch.consumer_state import ConsumerState
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import Position

AckSets: TypeAlias = Callable[[Position], "list[int] | None"]
"""What is left of a partly acknowledged entry, as words (bit set: unacknowledged)."""


class EntrySource(Protocol):
    """The reading face of a managed ledger."""

    @property
    def last_confirmed(self) -> Position: ...

    def read_nowait(
        self, position: Position, entries_max: int, bytes_max: int
    ) -> EntryBatch | None: ...

    async def read(
        self, position: Position, entries_max: int, bytes_max: int
    ) -> EntryBatch | None: ...


class AckStateView(Protocol):
    """What dispatch asks of a cursor's state."""

    def acked_in(self, ledger_id: int, first: int, count: int) -> list[int] | None: ...
    def batch_ack_set(self, position: Position) -> list[int] | None: ...
    def first_unacked(self) -> Position: ...


class CursorView(Protocol):
    """A cursor's state, and the one write dispatch makes: acking what it skips."""

    @property
    def state(self) -> AckStateView: ...
    def ack(self, positions: Sequence[Position]) -> None: ...


class DispatchLimiter(Protocol):
    """Rate limits of a dispatcher; there is none at all where nothing is limited."""

    def admit(
        self, who: object, go_on: Callable[[], None], position: Position, per_entry: float
    ) -> tuple[int, int] | None:
        """Entries and bytes that may be read there now; None: ``go_on`` will be called."""

    def take(self, entries: int, messages: int, size: int) -> None:
        """So much was sent."""

    def leave(self, who: object) -> None:
        """It waits no more."""


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds of one dispatcher."""

    read_entries_max: int = 1_000
    turn_bytes_max: int = 1024 * 1024
    round_robin_messages: int = 20
    unacked_per_consumer: int = 50_000  # 0: no limit
    unacked_per_subscription: int = 200_000  # 0: no limit
    failover_delay_ms: int = 1_000
    delay_enabled: bool = True
    delay_tick_ms: int = 1_000
    delay_strict: bool = False
    delayed_index_bytes: int = 32 * 1024 * 1024  # of a subscription; 0: no limit
    retry_first_ms: int = 100
    retry_max_ms: int = 60_000


@dataclass(slots=True)
class DispatchReadRequest:
    """What the core wants next; answer: ``on_entries`` with this request, or drop it."""

    position: Position | None
    """None: the cursor's first unacknowledged entry."""
    entries_max: int
    replay: bool
    generation: int
    """A read that ends in a later generation of the core must not be delivered."""


@dataclass(slots=True)
class Deliver:
    """Hand entries to one consumer; permits and pending entries are booked already."""

    consumer: ConsumerState
    batch: EntryBatch
    picks: Sequence[int] | None
    """Ascending indexes; None: all."""
    messages: int
    redelivery_counts: Sequence[int] | None = None
    ack_sets: Mapping[int, Sequence[int]] | None = None
    chunks: int = 0
    """How many of the entries are parts of chunked messages."""


@dataclass(slots=True)
class SkipEntries:
    """Acknowledge entries that no client may see (markers)."""

    positions: list[Position]


@dataclass(slots=True)
class NotifyActive:
    """Tell a Failover consumer whether it is the active one."""

    consumer: ConsumerState
    is_active: bool


Effect: TypeAlias = Deliver | SkipEntries | NotifyActive


class DispatchCore(Protocol):
    """What the asyncio shell drives; see single_active.py and shared.py."""

    generation: int
    per_entry: float
    """Messages an entry holds, a moving average."""
    is_held_back: bool
    """No new entry is read, as the index of delayed ones is full."""

    def next_read(self) -> DispatchReadRequest | None:
        """What to read next; None: nobody can take an entry."""

    def on_entries(
        self,
        request: DispatchReadRequest,
        batch: EntryBatch,
        acked: Sequence[int] | None,
        ack_set_of: AckSets | None,
        now_ms: int,
    ) -> None: ...

    def on_nothing(self, request: DispatchReadRequest, position: Position) -> None:
        """There is no entry at or after the requested position yet."""

    def next_deadline_ms(self) -> int | None: ...
    def on_tick(self, now_ms: int) -> None: ...
    def take_effects(self) -> list[Effect]: ...
