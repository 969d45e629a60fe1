"""What producers sent, what a reader found stored, and what consumers were given: for the checks.

Positions are ledger, entry and, where batches are looked into, the index in the batch: tuples that
sort as the messages are stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

Position: TypeAlias = tuple[int, ...]
MessageName: TypeAlias = tuple[str, int]
"""Producer and number: its first message has the number 0."""


class Rule(StrEnum):
    """A promise of Pulsar's that can be broken; its value is its name in reports."""

    LOST = "lost"
    MOVED = "moved"
    INVENTED = "invented"
    DAMAGED = "damaged"
    REORDERED = "reordered"
    DUPLICATED = "duplicated"
    NOT_DELIVERED = "not-delivered"
    NOT_REDELIVERED = "not-redelivered"
    SKIPPED = "skipped"
    DELIVERED_TWICE = "delivered-twice"
    DELIVERED_AFTER_ACK = "delivered-after-ack"
    EARLY = "early"
    TWO_CONSUMERS = "two-consumers"
    INACTIVE_CONSUMER = "inactive-consumer"
    KEY_AT_TWO = "key-at-two"
    WRONG_PLACE = "wrong-place"
    NOT_TOLD = "not-told"
    TRANSACTION = "transaction"


PROMISES: Final[dict[Rule, str]] = {
    Rule.LOST: "A message whose receipt came is stored.",
    Rule.MOVED: "A message is stored where its receipt says.",
    Rule.INVENTED: "What is stored and delivered was sent by somebody.",
    Rule.DAMAGED: "What is delivered at a position is what is stored there, byte by byte.",
    Rule.REORDERED: "Messages of a producer are stored in the order of sending; exclusive and "
    "failover subscriptions deliver as they are stored, Key_Shared ones each key. Each consumer "
    "of a non-persistent topic gets them in the order of sending.",
    Rule.DUPLICATED: "Only what was sent again is stored twice; with deduplication nothing is.",
    Rule.NOT_DELIVERED: "Every stored message is delivered to every subscription; of a "
    "non-persistent topic some are, while a consumer has room.",
    Rule.NOT_REDELIVERED: "What a consumer gave back unacknowledged is delivered again.",
    Rule.SKIPPED: "Exclusive and failover subscriptions leave out only what was acknowledged.",
    Rule.DELIVERED_TWICE: "A message comes again only after it was given back: by a negative "
    "acknowledgement, or with its consumer. From a non-persistent topic it never does.",
    Rule.DELIVERED_AFTER_ACK: "A message whose acknowledgement was confirmed never comes again.",
    Rule.EARLY: "A delayed message isn't delivered before its time.",
    Rule.TWO_CONSUMERS: "An exclusive subscription has one consumer.",
    Rule.INACTIVE_CONSUMER: "A failover subscription delivers to its active consumer alone.",
    Rule.KEY_AT_TWO: "Unacknowledged messages of a key are at one consumer of a Key_Shared "
    "subscription. Of a non-persistent topic a key moves only when consumers come or leave.",
    Rule.WRONG_PLACE: "A seek puts a subscription where it was told to, and a reader begins there: "
    "nothing from before comes.",
    Rule.NOT_TOLD: "A consumer that was let in is served, or told that it is closed.",
    Rule.TRANSACTION: "All messages and acknowledgements of a committed transaction count, and not "
    "before its commit; of another one none do.",
}


@dataclass(slots=True)
class Violation:
    """A broken promise.

    Attributes:
        text: what was wrong, for people.
        subscription: its name; "": it isn't about one.
    """

    rule: Rule
    text: str
    position: Position | None = None
    message: MessageName | None = None
    topic: str = ""
    subscription: str = ""
    story: list[str] = field(default_factory=list)
    """What else is known about the message, in order."""


class SubscriptionType(StrEnum):
    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class End(StrEnum):
    """Why a session is over."""

    CLOSED = "closed by its consumer"
    CUT = "connection cut by its client"
    MOVED = "closed by the broker"
    LOST = "connection lost"
    FORGOTTEN = "not known to the broker any more, which didn't tell it"

    @property
    def is_unasked(self) -> bool:
        """The broker or the network ended it: at the broker it was over earlier."""
        return self in (End.MOVED, End.LOST, End.FORGOTTEN)


@dataclass(slots=True)
class Attached:
    """A consumer was let in. Sessions are numbered: who comes again has another one."""

    session: int


@dataclass(slots=True)
class Activated:
    """The broker told a consumer of a failover subscription that it is the active one, or not."""

    session: int
    active: bool


@dataclass(slots=True)
class Delivered:
    session: int
    position: Position
    message: MessageName | None
    """None: nothing that anybody sent."""
    at_ms: int = 0
    redelivery_count: int = 0


@dataclass(slots=True)
class AckAsked:
    session: int
    ack: int
    """Its number; `AckConfirmed` has it, too."""
    positions: Sequence[Position]
    cumulative: bool = False
    partial: bool = False
    """Of a batch whose other messages aren't acknowledged by it."""


@dataclass(slots=True)
class AckConfirmed:
    session: int
    ack: int


@dataclass(slots=True)
class GivenBack:
    """Negatively acknowledged. On an exclusive or failover subscription the broker begins again at
    the first message that isn't acknowledged.
    """

    session: int
    positions: Sequence[Position]


@dataclass(slots=True)
class Ended:
    session: int
    why: End


@dataclass(slots=True)
class Sought:
    """A consumer asked for a seek, after which the broker ends all sessions of the subscription.

    REQUIRES: no consumer was let in between the question and its answer, where this event stands.
    """

    session: int
    entry: Position | None = None
    """Ledger and entry that come next. None: it is a seek by time."""
    published_ms: int = 0
    """What was published from then on comes next."""
    sure: bool = True
    """The broker said that it is done. False: it may be done."""


@dataclass(slots=True)
class Waited:
    """Nothing came for so long that all that was due had time to come; consumers had room."""

    seconds: float


Event: TypeAlias = (
    Attached | Activated | Delivered | AckAsked | AckConfirmed | GivenBack | Ended | Sought | Waited
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message, as its producer sent it, once or more often."""

    key: str = ""
    due_ms: int = 0
    """0: it isn't delayed."""
    published_ms: int = 0
    """As its metadata say. A log is sorted by it only by and large."""


@dataclass(slots=True)
class SubscriptionHistory:
    """Of one topic or partition, from its first message on.

    REQUIRES: in the order in which it was sent and received, over one connection at a time: only
    then is what came first also what the broker did first.
    """

    name: str
    type: SubscriptionType
    events: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class ReaderHistory:
    """What one reader read until it was closed or its connection ended."""

    name: str
    start: Position
    """Ledger and entry of its start message id, which is the first that it reads."""
    read: list[tuple[Position, MessageName | None]] = field(default_factory=list)


@dataclass(slots=True)
class TopicHistory:
    """Of one topic or partition.

    Attributes:
        window: messages that a producer may have under way, and so may have to send again; 0 with
            deduplication, where nothing is stored twice.
        sent: by name, each once.
        receipts: position None: the broker dropped it as a duplicate.
        stored: everything that a reader finds, in its order; message None: nobody sent it.
        is_stored: it isn't a non-persistent topic.
    """

    topic: str
    window: int = 0
    sent: dict[MessageName, Sent] = field(default_factory=dict)
    receipts: list[tuple[MessageName, Position | None]] = field(default_factory=list)
    stored: list[tuple[Position, MessageName | None]] = field(default_factory=list)
    subscriptions: list[SubscriptionHistory] = field(default_factory=list)
    readers: list[ReaderHistory] = field(default_factory=list)
    is_stored: bool = True
