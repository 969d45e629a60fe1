"""What `magnetar verify` sends: topics, groups of messages, contents. Drawn from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol
from zlib import crc32

from magnetar.broker.verify.history import MessageName, SubscriptionType

MARKER: Final = "marker"
"""The producer of the last message of a topic."""
PRODUCERS: Final = 2
_KEYS: Final = 7
BATCH_MAX: Final = 8
_DELAY_MS_MIN: Final = 2_000
DELAY_MS_MAX: Final = 4_000
_SHARE_DELAYED: Final = 0.05
_SHARE_CHUNKED: Final = 0.3
_CHUNKS_MAX: Final = 5
_CONTENT_BYTES_MAX: Final = 2_000
_COMPRESSIONS: Final = 5
"""None, LZ4, ZLIB, ZSTD, SNAPPY."""


class Rng(Protocol):
    """``random.Random`` fits."""

    def random(self) -> float: ...

    def randint(self, a: int, b: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """``partitions`` 0: it has none. What needs more than a topic needs rights to administer.

    Attributes:
        added: partitions that are added while the others are in use. Messages are sent there before
            consumers come, to the subscriptions that the topic has.
        chunked: some messages are sent in chunks. Only subscriptions of one consumer at a time,
            acknowledged message by message: a cumulative acknowledgement, a seek or a start
            message id would fall between the chunks of messages that others send meanwhile.
        is_stored: it isn't a non-persistent topic.
    """

    name: str
    partitions: int = 0
    added: int = 0
    deduplicated: bool = False
    chunked: bool = False
    is_stored: bool = True

    @property
    def types(self) -> tuple[SubscriptionType, ...]:
        if self.chunked:
            return SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER
        return tuple(SubscriptionType)


PLAIN: Final = TopicPlan("plain")
TOPICS: Final = (
    PLAIN,
    TopicPlan("deduplicated", deduplicated=True),
    TopicPlan("partitioned", partitions=2, added=1),
    TopicPlan("chunked", chunked=True),
    TopicPlan("non-persistent", is_stored=False),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of one entry: numbers ``first`` to before ``end``, of one key.

    One key, since a Key_Shared subscription gives an entry to one consumer as a whole.
    """

    first: int
    end: int
    key: str
    batched: bool
    compression: int = 0
    """Of ``CompressionType``; 0: none."""
    delay_ms: int = 0
    """After the moment of sending; 0: none."""
    chunks: int = 1
    """Entries of its one message."""


def draw_groups(count: int, rng: Rng, *, chunked: bool = False) -> Iterator[Group]:
    """``count`` messages of one producer: single ones, batches, delayed ones, and chunked ones
    where that is asked for.
    """
    number = 0
    while number < count:
        key = f"key-{rng.randint(1, _KEYS)}"
        if rng.random() < _SHARE_DELAYED:
            yield Group(
                number,
                number + 1,
                key,
                batched=False,
                delay_ms=rng.randint(_DELAY_MS_MIN, DELAY_MS_MAX),
            )
            number += 1
            continue
        if chunked and rng.random() < _SHARE_CHUNKED:
            chunks = rng.randint(2, _CHUNKS_MAX)
            yield Group(number, number + 1, key, batched=False, chunks=chunks)
            number += 1
            continue
        compression = max(0, rng.randint(-_COMPRESSIONS, _COMPRESSIONS - 1))
        batched = rng.random() < 0.5
        end = min(count, number + (rng.randint(1, BATCH_MAX) if batched else 1))
        yield Group(number, end, key, batched, compression)
        number = end


def content_of(message: MessageName) -> bytes:
    """Its name, and as many bytes more as follow from it."""
    head = b"%s %d " % (message[0].encode(), message[1])
    size = crc32(head) % _CONTENT_BYTES_MAX
    return head + (head * (size // len(head) + 1))[:size]


def message_in(content: bytes) -> MessageName | None:
    """Whose content it is; None: nobody's."""
    producer, _, rest = content.partition(b" ")
    number, _, _ = rest.partition(b" ")
    if not number.isdigit():
        return None
    message = producer.decode(errors="replace"), int(number)
    return message if content_of(message) == content else None
