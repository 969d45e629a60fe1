"""`Dispatcher`: what it needs of consumers, ledgers and cursors, and what it tells its shell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.position_set import PositionSet
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.broker.protocol.entry_header import EntryHeader
    from magnetar.managed_ledger.entry_batch import EntryBatch
    from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets

NO_LIMIT: Final = 1 << 62
"""Messages there is room for where nothing is limited."""
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


class ReadableLog(EntrySource, Protocol):
    """A managed ledger, or a view of it that leaves out some entries."""

    @property
    def offsets(self) -> LedgerOffsets: ...


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


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds of one dispatcher."""

    read_entries_max: int = 1_000
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


@dataclass(slots=True, eq=False)
class ConsumerState:
    """Permits and pending entries of one consumer; written only by its dispatcher."""

    name: str
    priority: int = 0
    """0 is the best."""
    epoch: int | None = None
    permits: int = 0
    """In messages; negative after a batch larger than the rest."""
    unacked: int = 0
    """Messages in ``pending``."""
    blocked: bool = False
    """Too many messages are unacknowledged."""
    pending: PositionSet = field(default_factory=PositionSet)
    """Sent and not acknowledged; empty for single-active types."""
    drained: int = 0
    """Key_Shared: slots that it gave up to another consumer."""
    waiting: PositionSet = field(default_factory=PositionSet)
    """Entries that only this consumer may get, once it has permits."""
    last_consumed_ms: int = 0
    """When it was sent something last; 0: never."""

    @property
    def label(self) -> str:
        """What a sentence calls it."""
        return self.name

    @property
    def idle_since_ms(self) -> int:
        """Since when it was sent nothing; 0: not known."""
        return self.last_consumed_ms

    @property
    def writable(self) -> bool:
        """False while the consumer's sink can't take more."""
        return True

    @property
    def unheard(self) -> str:
        """Why nothing that it sends arrives now; "": it does."""
        return ""

    @property
    def available(self) -> bool:
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and not self.blocked and self.writable

    def book(self, messages: int, unacked_max: int) -> None:
        """So many messages will be sent and are to be acknowledged; ``unacked_max`` 0: no limit."""
        self.permits -= messages
        self.unacked += messages
        if 0 < unacked_max <= self.unacked:
            self.blocked = True

    def deliver(self, effect: Deliver) -> int:
        """Send entries to the client; answers their bytes."""
        raise NotImplementedError

    def notify_active(self, is_active: bool) -> None:
        """Tell the client of a Failover consumer whether this is the active one."""
        raise NotImplementedError


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


class Dispatcher(ABC):
    """Decides which consumer of a subscription gets which entry, and what comes again.

    Calls in, effects out; no clock, socket or task. What a type has no use for does nothing: single
    active types keep no pending entries, so acknowledgments and limits of them mean nothing there.
    """

    active: ConsumerState | None = None
    """Exclusive and Failover: the consumer that gets everything."""
    unacked = 0
    """Messages pending at all consumers."""
    waits_for_broker = False
    """The broker's budget of unacknowledged messages is used up, and too much of it here."""
    is_held_back = False
    """No new entry is read, as the index of delayed ones is full; until half of it is free."""
    unblocked = False
    """Since the shell looked last, a consumer may take entries again."""

    def __init__(self, limits: DispatchLimits) -> None:
        self.limits = limits
        self.read_position: Position | None = None  # None: the cursor's first unacknowledged entry
        self.generation = 0
        """A read that ends in a later one must not be delivered."""
        self.per_entry = 1.0
        """Messages an entry holds, a moving average that sizes reads."""
        self._effects: list[Effect] = []

    def set_limits(self, limits: DispatchLimits) -> None:
        """Other limits hold from now on, for what is pending and delayed as well."""
        self.limits = limits

    def join_budget(  # noqa: B027
        self, budget: UnackedBudget, wake: Callable[[], None]
    ) -> None:
        """Count pending messages in the broker's budget; ``wake``: it has waited and may go on."""

    def leave_budget(self) -> None:  # noqa: B027
        """Its consumers are gone."""

    # --- consumers

    @abstractmethod
    def add_consumer(self, consumer: ConsumerState, now_ms: int) -> None: ...

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerState, now_ms: int) -> None:
        """Its pending entries go to the others. One that is unknown is ignored."""

    @abstractmethod
    def rewind(self) -> None:
        """Start again from the cursor: nothing is pending, waiting or delayed any more."""

    def on_flow(self, consumer: ConsumerState, permits: int) -> None:
        """Permits add up; those of a consumer that can't be sent anything now are kept."""
        consumer.permits += permits

    # --- acknowledgments and redelivery

    def on_acked(self, consumer: ConsumerState | None, positions: Sequence[Position]) -> int:
        """The cursor took these acknowledgments: these entries need no delivery any more.

        Args:
            consumer: that has acknowledged; the first place to look for the entries. Any consumer
                may acknowledge what is pending at another.
        Returns:
            Messages that were pending until now.
        """
        return 0

    def on_batch_acked(self, position: Position, remaining: int) -> None:  # noqa: B027
        """Some messages of a pending batch were acknowledged; ``remaining`` are left."""

    def on_withheld(  # noqa: B027
        self, consumer: ConsumerState | None, positions: Sequence[Position]
    ) -> None:
        """As ``on_acked``, but these entries may come again: see ``deliver_again``."""

    @abstractmethod
    def deliver_again(self, positions: Sequence[Position]) -> None:
        """Send entries that were withheld; single active types all that isn't acknowledged."""

    def on_mark_delete(self, mark_delete: Position) -> None:  # noqa: B027
        """Everything up to this position is acknowledged at once (expiry, skip, clear)."""

    @abstractmethod
    def redeliver(
        self,
        consumer: ConsumerState,
        positions: Sequence[Position] | None,
        epoch: int | None = None,
    ) -> int:
        """Send again what a consumer hasn't acknowledged; single active types all of it.

        Args:
            positions: None: all.
        Returns:
            Messages that were pending and will be sent again.
        """

    # --- reading

    @abstractmethod
    def next_read(self) -> DispatchReadRequest | None:
        """What to read next; None: no consumer can take an entry."""

    @abstractmethod
    def on_entries(
        self,
        request: DispatchReadRequest,
        batch: EntryBatch,
        acked: Sequence[int] | None,
        ack_set_of: AckSets | None,
        now_ms: int,
    ) -> None:
        """Send as much of a batch as the permits allow, and book it; whole entries only."""

    @abstractmethod
    def on_nothing(self, request: DispatchReadRequest, position: Position) -> None:
        """There is no entry at or after the requested position yet."""

    @abstractmethod
    def next_deadline_ms(self) -> int | None:
        """When ``on_tick`` has something to do."""

    @abstractmethod
    def on_tick(self, now_ms: int) -> None: ...

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # --- questions

    def sample(self, now_ms: int) -> None:  # noqa: B027
        """Note what was sent, now and then, so that `explain` can say since when."""

    def is_unread(self, position: Position) -> bool:
        """Whether this entry, which isn't acknowledged, was not read since the last rewind."""
        return self.read_position is None or position >= self.read_position

    def next_entry(self, unread: Position | None) -> Position | None:
        """The entry that is to be sent next, but for what stops delivery; None: all are sent, or
        delayed.

        Args:
            unread: the first unacknowledged entry that wasn't read since the last rewind.
        """
        return unread

    @abstractmethod
    def explain(
        self, position: Position, head: EntryHeader | None, now_ms: int
    ) -> Explanation | None:
        """What became of an entry, or what keeps it from being sent.

        Args:
            position: REQUIRES: it exists and isn't acknowledged.
            head: None: not read.
        Returns:
            None: nothing does; it is sent in its turn.
        """

    def with_standby(self, found: Explanation) -> Explanation:
        """Also which of several consumers gets everything, while nothing stops it."""
        return found

    @abstractmethod
    def add_stats(self, stats: dict[str, Any], listed: Sequence[ConsumerState]) -> Iterable[None]:
        """Fill in what is known here of SubscriptionStats, some consumers at a step.

        Args:
            listed: whose statistics are there; some may have left.
        """


def remaining_messages(words: Sequence[int]) -> int:
    """How many bits are set in the signed 64-bit words of an ack set."""
    return sum((word & 0xFFFFFFFFFFFFFFFF).bit_count() for word in words)
