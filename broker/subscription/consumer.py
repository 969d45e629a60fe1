"""A consumer of a subscription: identity, permits, counters; and the sink of its messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from magnetar.broker.dispatch.interfaces import ConsumerState, Deliver
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.rate_limits.rate_sampler import RateSampler, iso_time
from magnetar.broker.schema.definition import SchemaDefinition
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import LATEST, Position

if TYPE_CHECKING:
    from magnetar.broker.subscription.subscription import Subscription

logger = logging.getLogger(__name__)

# PulsarApi.proto CommandSubscribe.SubType
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
SUB_TYPE_NAMES = ("Exclusive", "Shared", "Failover", "Key_Shared")
SUB_TYPES = {name: number for number, name in enumerate(SUB_TYPE_NAMES)}


class ConsumerSink(Protocol):
    """Takes a consumer's messages: a binary connection, a WebSocket, a REST session."""

    remote: str
    """``ip:port`` of the client, for statistics."""
    client_version: str

    @property
    def writable(self) -> bool:
        """False while too much is buffered; call ``subscription.wake()`` when it turns true."""

    @property
    def unheard(self) -> str:
        """Why nothing is read from the client now; "": it is."""

    def deliver(
        self,
        consumer: Consumer,
        batch: EntryBatch,
        picks: Sequence[int] | None,
        redelivery_counts: Sequence[int] | None,
        ack_sets: Mapping[int, Sequence[int]] | None,
    ) -> None:
        """Send entries of ``batch``; the lists are shared with other consumers: never change them.

        Args:
            picks: ascending indexes into the batch; None: all of it.
            redelivery_counts: parallel to the picks; None: all 0.
            ack_sets: by index, the words of what is left of a partly acknowledged entry (bit set:
                still unacknowledged); None: nothing is partly acknowledged.
        """

    def notify_active(self, consumer: Consumer, is_active: bool) -> None:
        """Failover: this consumer is, or isn't, the one that gets messages."""

    def notify_end_of_topic(self, consumer: Consumer) -> None:
        """The topic is terminated and this consumer got and acknowledged everything."""

    def close_consumer(self, consumer: Consumer) -> None:
        """The broker ends the consumer: tell the client; it is unregistered already."""

    async def check_liveness(self) -> bool:
        """Whether the client behind this sink still answers."""


@dataclass(slots=True, kw_only=True)
class SubscribeRequest:
    """What a client asked for in SUBSCRIBE, or a WebSocket or REST call."""

    subscription: str
    sub_type: int = EXCLUSIVE
    consumer_id: int = 0
    consumer_name: str = ""
    priority_level: int = 0
    durable: bool = True
    initial_position: Position = LATEST
    """EARLIEST or LATEST: where a new subscription starts."""
    start_position: Position | None = None
    """Non-durable only: the first entry to deliver; EARLIEST and LATEST are legal."""
    rollback_seconds: int = 0
    """> 0: start at the first message published that long ago or later (new cursors only)."""
    read_compacted: bool = False
    replicate_state: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    """Stored when the subscription is created."""
    epoch: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    key_shared_meta: pb.KeySharedMeta | None = None
    schema: SchemaDefinition | None = None
    """Of what it expects; None: raw bytes."""
    role: str = ""
    cancelled: bool = False
    """The client gave up while the consumer was being created."""


class Consumer(ConsumerState):
    """One consumer of one subscription. The subscription registers it; the sink owns its life.

    The sink feeds it: ``subscription.flow(consumer, permits)``, ``acknowledge...``, ``redeliver``,
    ``on_writable`` and, when the client is gone, ``subscription.remove_consumer(consumer)``.
    """

    __slots__ = (
        "acks",
        "bytes_out",
        "chunk_rates",
        "chunks_out",
        "closed",
        "connected_ms",
        "consumer_id",
        "entries_out",
        "first_flow_ms",
        "first_sent_ms",
        "last_acked_ms",
        "last_flow_ms",
        "messages_out",
        "metadata",
        "rates",
        "redelivered",
        "request",
        "sink",
        "subscription",
    )

    def __init__(
        self, subscription: Subscription, request: SubscribeRequest, sink: ConsumerSink, now_ms: int
    ) -> None:
        super().__init__(request.consumer_name, request.priority_level, request.epoch)
        self.subscription = subscription
        self.request = request
        self.sink = sink
        self.consumer_id = request.consumer_id
        self.metadata = dict(request.metadata)
        self.connected_ms = now_ms
        self.closed = False
        self.rates = RateSampler()
        self.chunk_rates: RateSampler | None = None  # most clients never see a chunk
        self.entries_out = self.messages_out = self.bytes_out = self.chunks_out = 0
        self.acks = self.redelivered = 0
        self.last_acked_ms = self.last_flow_ms = 0
        self.first_sent_ms = self.first_flow_ms = 0

    @property
    def label(self) -> str:
        return f"{self.name} at {self.sink.remote}".lstrip()

    @property
    def idle_since_ms(self) -> int:
        return self.last_consumed_ms or self.connected_ms

    @property
    def writable(self) -> bool:
        return self.sink.writable

    @property
    def unheard(self) -> str:
        return self.sink.unheard

    @property
    def available(self) -> bool:
        return self.permits > 0 and not self.blocked and self.sink.writable

    def deliver(self, effect: Deliver) -> int:
        if self.closed:
            return 0  # it left in this very turn: its entries are in the replay queue again
        bodies, picks = effect.batch.bodies, effect.picks
        if picks is None:
            sent, count = sum(map(len, bodies)), len(bodies)
        else:
            sent, count = sum([len(bodies[index]) for index in picks]), len(picks)
        self.entries_out += count
        self.messages_out += effect.messages
        self.bytes_out += sent
        self.chunks_out += effect.chunks
        subscription = self.subscription
        self.last_consumed_ms = subscription.last_consumed_ms = subscription.now_ms()
        self.first_sent_ms = self.first_sent_ms or self.last_consumed_ms
        try:
            self.sink.deliver(self, effect.batch, picks, effect.redelivery_counts, effect.ack_sets)
        except Exception:
            # The entries are booked as sent: without this they would wait for the client to leave.
            logger.exception("%s: sink of %r failed", subscription, self.name)
            subscription.dismiss_consumer(self)
        return sent

    def notify_active(self, is_active: bool) -> None:
        if not self.closed:
            self.sink.notify_active(self, is_active)

    def sample(self, now_ms: int, since_ms: int = 0) -> None:
        """Take a point for the rates."""
        counters = (self.messages_out, self.bytes_out, self.redelivered, self.acks)
        self.rates.sample(now_ms, counters, since_ms)
        if self.chunks_out:
            if self.chunk_rates is None:
                self.chunk_rates = RateSampler()
            self.chunk_rates.sample(now_ms, (self.chunks_out, 0, 0, 0), since_ms)

    @property
    def chunk_rate(self) -> float:
        """Parts of chunked messages a second that it was sent."""
        return 0.0 if self.chunk_rates is None else self.chunk_rates.rates[0]

    def stats(self) -> dict[str, Any]:
        """ConsumerStats in Pulsar's shape."""
        rate_out, throughput, rate_redeliver, rate_ack = self.rates.rates
        per_entry = self.messages_out // self.entries_out if self.entries_out else 0
        return {
            "msgRateOut": rate_out,
            "msgThroughputOut": throughput,
            "bytesOutCounter": self.bytes_out,
            "msgOutCounter": self.messages_out,
            "msgRateRedeliver": rate_redeliver,
            "messageAckRate": rate_ack,
            "chunkedMessageRate": self.chunk_rate,
            "consumerName": self.name,
            "availablePermits": self.permits,
            "unackedMessages": self.unacked,
            "avgMessagesPerEntry": per_entry,
            "blockedConsumerOnUnackedMsgs": self.blocked,
            "drainingHashesCount": 0,
            "drainingHashesClearedTotal": 0,
            "drainingHashesUnackedMessages": 0,
            "address": f"/{self.sink.remote}",
            "connectedSince": iso_time(self.connected_ms),
            "clientVersion": self.sink.client_version,
            "lastAckedTimestamp": self.last_acked_ms,
            "lastConsumedTimestamp": self.last_consumed_ms,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
            "firstMessagesSentTimestamp": self.first_sent_ms,
            "firstConsumedFlowTimestamp": self.first_flow_ms,
            "metadata": dict(self.metadata),
            "lastAckedTime": iso_time(self.last_acked_ms),
            "lastConsumedTime": iso_time(self.last_consumed_ms),
        }
