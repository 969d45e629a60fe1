"""What every topic is: a name, producers, subscriptions; storage is the subclasses' matter.

``PersistentTopic`` (persistent_topic.py) appends to a managed ledger, ``NonPersistentTopic``
(non_persistent_topic.py) hands entries straight to its subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.dispatch.explanation import (
    Explanation,
    no_producer,
    producers_queued,
    publish_rate_limited,
)
from magnetar.broker.dispatch.refusal import RefusedClient, producer_refused
from magnetar.broker.errors import (
    AlreadyExistsError,
    BrokerError,
    BrokerMetadataError,
    ConsumerBusyError,
    NamingError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicFencedError,
    TopicTerminatedError,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer import producer_registry as producer_registry
from magnetar.broker.producer.producer import Producer, ProducerRequest, PublishBatch
from magnetar.broker.producer.producer_registry import ProducerRegistry
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.rate_sampler import RateSampler
from magnetar.broker.rate_limits.topic_rate_limiters import TopicRateLimiters
from magnetar.broker.schema.definition import SchemaDefinition
from magnetar.broker.schema.schema_checks import admit_consumer, admit_producer
from magnetar.broker.subscription.consumer import (
    SUB_TYPE_NAMES,
    Consumer,
    ConsumerSink,
    SubscribeRequest,
)
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.topic.activity_mark import ActivityMark, activity_mark
from magnetar.broker.topic.topic_stats import ALL_STATS, StatsParts, topic_stats
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.bundles.lookup import BrokerLookup
from magnetar.managed_ledger.orphan_ledgers import COMPACTION_CURSOR
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.metadata.loop_turns import Steps, run_at_once, run_in_turns

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.transaction.async_coordinator import LocalParticipant

logger = logging.getLogger(__name__)

RESERVED_SUBSCRIPTIONS = frozenset(("pulsar.dedup", COMPACTION_CURSOR))
_RESERVED_PREFIX = "pulsar.repl"
_ENCRYPTION = "Encryption is required in this namespace"


class Topic(ABC):
    """A loaded topic. One loop owns it; only its own methods change it.

    One object, since closing, fencing and new policies concern producers and subscriptions at once.
    ``ProducerRegistry`` admits producers, ``TopicRateLimiters`` limits traffic.
    """

    persistent: bool = False
    new_owner: BrokerLookup | None = None
    """Where its clients find it again, once it is closed; None: they look it up."""

    def __init__(
        self, service: BrokerService, name: TopicName, policies: EffectivePolicies
    ) -> None:
        self.service = service
        self.name = name
        self.policies = policies
        """What holds for it; replaced by the policy feed, which then calls policies_changed."""
        self.full_name, self.is_system = str(name), name.is_system
        self.slot = -1
        """Among the loaded topics, which set it."""
        self.registry = ProducerRegistry()
        self.producers: dict[str, Producer] = self.registry.by_name
        self.subscriptions: dict[str, Subscription] = {}
        self.epoch: int | None = None
        """Of the exclusive producers, durable; None: there never was one."""
        self.terminated = False
        self.fenced = False
        """No new producers, consumers or entries: being closed, deleted or re-opened."""
        self.closing = False
        """Fenced for good: this object will not serve again."""
        self.refused_producer: RefusedClient | None = None
        """The last one, or its message, since a producer was accepted."""
        self._refused_subscription: tuple[str, RefusedClient] | None = None
        self.created_ms = self.active_ms = service.clock()
        self.last_publish_ms = 0
        self.entries_in = self.messages_in = self.bytes_in = self.chunks_in = 0
        self.messages_out_before = self.bytes_out_before = 0  # of subscriptions that are gone
        self.rates = RateSampler()
        self._opening: dict[str, asyncio.Task[Subscription]] = {}
        self.rate_limits = TopicRateLimiters(self)
        self._mark: ActivityMark | None = None  # at the last sample
        self.still_ms = 0
        """When a sample found it as the one before did, so that its rates are 0; 0: it didn't."""

    # --- producers

    async def add_producer(self, request: ProducerRequest) -> Producer:
        """Register a producer (checks, access mode, epoch). ``waiting`` on the result: queued.

        Raises:
            BrokerError: as docs/spec/wire-protocol.md, "PRODUCER", lists.
        """
        try:
            producer = await self._add_producer(request)
        except BrokerError as error:
            if not isinstance(error, ServiceNotReadyError):  # it comes again by itself
                self.note_refused(f"Producer {request.name} of {request.sink.remote}", error)
            raise
        self.refused_producer = None
        return producer

    def note_refused(self, client: str, error: object) -> None:
        """A producer or a message of it wasn't accepted, see ``RefusedClient``."""
        self.refused_producer = RefusedClient.of(client, error, self.service.clock())

    async def _add_producer(self, request: ProducerRequest) -> Producer:
        self._check_open()
        if self.terminated:
            raise TopicTerminatedError(f"Topic {self.full_name} is terminated")
        await self._check_storage()
        self._check_encryption(request)
        schema_version = await admit_producer(self, request.schema, self.policies)
        if request.initial_subscription and self.persistent:
            await self._ensure_initial_subscription(request.initial_subscription)
        producer = Producer(self, request, self.service.clock())
        producer.schema_version = schema_version
        await self._free_name(producer)
        self._check_takes_entries()
        self._check_encryption(request)  # the policy may have come while we waited
        self._require(producer)
        producers_max = self.policies.max_producers
        if 0 < producers_max <= sum(1 for _ in self.registry) and not self.name.is_system:
            raise ProducerBusyError("Topic reached max producers limit")
        await self._admit(producer)
        self.active_ms = self.service.clock()
        for throttle in (self.rate_limits.publish, self.service.publish_throttle):
            if throttle is not None:
                throttle.enter(producer.sink)
        return producer

    async def _check_storage(self) -> None:  # noqa: B027 - only stored topics have any
        """Raises what a new producer is told when the storage can't, or mustn't, take more."""

    def _check_takes_entries(self) -> None:
        """Raises what a producer is told that comes too early or too late."""
        self._check_open()

    def _check_encryption(self, request: ProducerRequest) -> None:
        if self.policies.encryption_required and not request.encrypted:
            raise BrokerMetadataError(_ENCRYPTION)

    def _require(self, producer: Producer) -> None:
        """Tell a producer what is checked for each of its entries."""
        producer.require(
            encryption=self.policies.encryption_required,
            delay_max_ms=self.policies.delayed_delivery.delay_max_ms,
            message_bytes_max=self.policies.max_message_size,
            transactions=self.persistent and self.service.config.transaction_coordinator_enabled,
        )

    async def _free_name(self, producer: Producer) -> None:
        """Make the name available, or raise."""
        while (other := self.registry.same_name(producer.name)) is not None:
            if other.sink is producer.sink:
                if other.producer_id != producer.producer_id or producer.epoch <= other.epoch:
                    raise producer_registry.name_taken(producer.name)
            elif await other.sink.check_liveness():
                # It may have left while we asked; only the one we asked about counts.
                if self.registry.same_name(producer.name) is other:
                    raise producer_registry.name_taken(producer.name)
                continue
            self.registry.remove(other)  # replaced by its own client, or dead

    async def _admit(self, producer: Producer) -> None:
        verdict = self.registry.decide(producer, self.epoch)
        if verdict == producer_registry.JOIN:
            self.registry.join(producer)
        elif verdict == producer_registry.WAIT:
            self.registry.wait(producer)
        else:
            if verdict == producer_registry.TAKE_OVER:
                self.evict_producers(ProducerFencedError("Topic is taken over by another producer"))
            self.registry.claim(producer)
            await self._own(producer)

    async def _own(self, producer: Producer) -> None:
        """Make the claimed producer the exclusive one; its epoch is durable before it may send."""
        if producer.topic_epoch is not None:
            epoch = producer.topic_epoch
        else:
            epoch = 0 if self.epoch is None else self.epoch + 1
        try:
            if epoch != self.epoch:
                await self._store_epoch(epoch)
        except BaseException:
            self.registry.unclaim(producer)
            self._promote_next()  # another may have queued behind it meanwhile
            raise
        if self.registry.owner is not producer:  # taken over, closed or left while storing
            raise ProducerFencedError("Topic was taken over by another producer")
        self.epoch = producer.topic_epoch = epoch
        self.registry.join(producer)

    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer; promotes a waiting one. Unknown producers are ignored."""
        if self.registry.remove(producer):
            self.active_ms = self.service.clock()
        self._promote_next()

    def _promote_next(self) -> None:
        if not self.fenced and (new_owner := self.registry.next_owner()) is not None:
            self.service.run(self._promote(new_owner))

    async def _promote(self, producer: Producer) -> None:
        try:
            await self._own(producer)
        except BrokerError as error:
            producer.tell_ready(error)
            self.remove_producer(producer)
        else:
            producer.waiting = False
            producer.tell_ready(None)

    def evict_producers(self, error: BrokerError) -> None:
        """Close every producer: CLOSE_PRODUCER for those that produce, an error for the queue."""
        for producer in self.registry.evict_all():
            if producer.waiting:
                producer.tell_ready(error)
            else:
                producer.sink.close_producer(producer)

    def dismiss_producers(self, error: BrokerError) -> None:
        """End every producer; its entries under way are answered first, or they would come twice.

        A client is told with CLOSE_PRODUCER and hears why when it comes back; one that waits for
        exclusive access hears ``error``.
        """
        for producer in [*self.registry.waiting, *self.registry.by_name.values()]:
            self.dismiss_producer(producer, error)

    def dismiss_producer(self, producer: Producer, error: BrokerError) -> None:
        """End one producer in the same way."""
        if producer.waiting:
            self.remove_producer(producer)
            producer.tell_ready(error)
        elif producer.sent == producer.answered:
            self._dismiss(producer)
        elif not producer.leaving:
            producer.leaving = True
            if producer.on_settled is None:  # else its client closes it just now
                producer.on_settled = partial(self._dismiss, producer)

    def _dismiss(self, producer: Producer) -> None:
        self.remove_producer(producer)
        producer.sink.close_producer(producer)

    async def _ensure_initial_subscription(self, name: str) -> None:
        if name in self.subscriptions:
            return
        if not self.policies.auto_subscription_creation:
            raise NotAllowedError(
                "Initial subscription doesn't exist and may not be created automatically"
            )
        try:
            await self.create_subscription(name, (-1, -1))
        except AlreadyExistsError:
            return  # another client was faster

    def last_sequence_id(self, producer_name: str) -> int:
        """Of a producer of that name: the highest that is stored; -1: none is known."""
        del producer_name
        return -1

    # --- entries

    @abstractmethod
    def publish(self, batches: Sequence[PublishBatch]) -> None:
        """Take entries; every one is answered through its producer's sink, in order."""

    def _count(self, batch: PublishBatch) -> None:
        self.entries_in += len(batch.sequence_ids)
        self.messages_in += batch.message_count
        self.bytes_in += batch.entry_bytes
        self.chunks_in += batch.chunked_count
        self.last_publish_ms = self.service.clock()
        producer = batch.producer
        producer.entries_in += len(batch.sequence_ids)
        producer.messages_in += batch.message_count
        producer.bytes_in += batch.entry_bytes
        producer.chunks_in += batch.chunked_count
        if (throttle := self.rate_limits.publish) is not None:
            throttle.charge(producer.sink, batch.message_count, batch.entry_bytes)
        if (throttle := self.service.publish_throttle) is not None:
            throttle.charge(producer.sink, batch.message_count, batch.entry_bytes)

    def _refuse(self, batch: PublishBatch, error: Exception) -> None:
        """Answer what is left of a batch with an error."""
        offset = batch.answered
        count = len(batch.sequence_ids) - offset
        batch.answered += count
        if count:
            batch.producer.sink.publish_failed(batch, offset, count, error)

    def check_transaction(self, transaction: TransactionId) -> None:
        """Whether an entry of a transaction may be published now.

        Raises:
            NotAllowedError: there are no transactions, or this one has ended.
        """
        raise NotAllowedError("Transactions need a persistent topic")

    async def end_transaction(  # noqa: B027
        self, transaction: TransactionId, low_watermark: int, *, commit: bool
    ) -> None:
        """Return when the end of a transaction is stored, or nothing of it can come any more.

        Args:
            low_watermark: all transactions of its coordinator up to this one have ended.

        Raises:
            BrokerError: ask again.
        """

    async def end_acknowledgements(
        self, subscription: str, transaction: TransactionId, low_watermark: int, *, commit: bool
    ) -> None:
        """The same of what a subscription acknowledged in the transaction."""
        self._check_open()
        if (found := self.subscriptions.get(subscription)) is not None:
            await found.end_transaction(transaction, low_watermark, commit=commit)

    def participant(self, subscription: str | None) -> LocalParticipant | None:
        """What may end a transaction without waiting for anything but its log.

        Args:
            subscription: None: of the messages.

        Returns:
            None: there is none now; ask by the methods above.
        """
        if self.fenced or subscription is None:
            return None
        return self.subscriptions.get(subscription)

    @property
    def compacted(self) -> CompactedLedger | None:
        """What the last compaction left; None: there was none."""
        return None

    # --- subscriptions

    async def subscribe(self, request: SubscribeRequest, sink: ConsumerSink) -> Consumer:
        """Create or open the subscription and add a consumer to it.

        Raises:
            BrokerError: as docs/spec/wire-protocol.md, "SUBSCRIBE", lists.
        """
        try:
            return await self._subscribe(request, sink)
        except BrokerError as error:
            if not isinstance(error, ServiceNotReadyError):
                name, client = request.subscription, f"A consumer of {sink.remote}"
                if request.consumer_name:
                    client = f"Consumer {request.consumer_name} of {sink.remote}"
                refusal = RefusedClient.of(client, error, self.service.clock())
                if (found := self.subscriptions.get(name)) is not None:
                    found.refused = refusal
                else:
                    self._refused_subscription = name, refusal
            raise

    @property
    def refused_subscription(self) -> tuple[str, RefusedClient] | None:
        """One that isn't there because its consumer was refused: the last one's name."""
        found = self._refused_subscription
        return None if found is None or found[0] in self.subscriptions else found

    async def _subscribe(self, request: SubscribeRequest, sink: ConsumerSink) -> Consumer:
        self._check_open()
        name = request.subscription
        _check_subscription_name(name)
        self.rate_limits.check_subscribe(request, sink)
        await self._check_subscribe(request)
        subscription = self.subscriptions.get(name)
        if subscription is None:
            subscription = await self._open_once(request)
        if subscription.durable != request.durable and self.persistent:
            kind = "durable" if subscription.durable else "non-durable"
            raise NotAllowedError(f"Subscription {name} exists and is {kind}")
        if request.replicate_state:
            await subscription.set_replicated(True)
        consumer = await subscription.add_consumer(request, sink)
        self.active_ms = self.service.clock()
        return consumer

    async def _check_subscribe(self, request: SubscribeRequest) -> None:
        if request.schema is not None:
            await admit_consumer(
                self, request.schema, self.policies, has_entries=self.holds_entries
            )
            # The consumer keeps its request: of half a megabyte only the type matters from here on.
            request.schema = SchemaDefinition(request.schema.type, b"")
            self._check_open()  # the check may have taken a while
        policies = self.policies
        enabled = policies.subscription_types
        if SUB_TYPE_NAMES[request.sub_type] not in enabled:
            raise NotAllowedError(
                f"Subscription of type {SUB_TYPE_NAMES[request.sub_type]} is disabled"
            )
        self.check_consumer_count()
        if request.subscription not in self.subscriptions:
            self._check_subscription_count(request.subscription)

    def check_consumer_count(self) -> None:
        """Raises ConsumerBusyError: one more consumer is one too many."""
        limit = self.policies.max_consumers
        if limit <= 0 or self.name.is_system:
            return
        if sum(len(s.consumers) for s in self.subscriptions.values()) >= limit:
            raise ConsumerBusyError("Topic reached max consumers limit")

    def _check_subscription_count(self, name: str) -> None:
        """Raises NotAllowedError: one more subscription is one too many."""
        limit = self.policies.max_subscriptions
        if limit <= 0 or self.name.is_system:
            return  # else 3,000 that are opened at once would look at each other
        opening = self._opening.keys() - self.subscriptions.keys() - {name}
        if limit <= len(self.subscriptions.keys() - RESERVED_SUBSCRIPTIONS) + len(opening):
            raise NotAllowedError(
                f"Exceed the maximum number of subscriptions of the topic: {self.full_name}"
            )

    async def _open_once(self, request: SubscribeRequest) -> Subscription:
        """Joins concurrent openings of one name: there must never be two cursors of it."""
        name = request.subscription
        if (task := self._opening.get(name)) is None:
            task = asyncio.get_running_loop().create_task(self._open_subscription(request))
            self._opening[name] = task
            task.add_done_callback(partial(self._on_opened, name))
        return await asyncio.shield(task)

    def _on_opened(self, name: str, task: asyncio.Task[Subscription]) -> None:
        self._opening.pop(name, None)
        if not task.cancelled():
            task.exception()  # raised in its callers; they may all have gone

    @abstractmethod
    async def _open_subscription(self, request: SubscribeRequest) -> Subscription:
        """Create what the request names and register it in ``subscriptions``."""

    @abstractmethod
    async def create_subscription(
        self,
        name: str,
        initial: Position = LATEST,
        properties: Mapping[str, str] | None = None,
    ) -> Subscription:
        """Create a durable subscription whose first delivered entry is at ``initial``.

        Raises:
            AlreadyExistsError: it exists.
        """

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription and its cursor.

        Raises:
            SubscriptionNotFoundError: there is none.
            TopicBusyError: consumers are connected and ``force`` is false.
        """
        if (subscription := self.subscriptions.get(name)) is None:
            raise SubscriptionNotFoundError(f"Subscription {name} not found")
        await subscription.delete(force=force)
        if self.subscriptions.get(name) is subscription:
            self.forget_subscription(name)

    def forget_subscription(self, name: str) -> None:
        """A subscription ended itself: unsubscribed, or non-durable without consumers."""
        if (subscription := self.subscriptions.pop(name, None)) is not None:
            self.active_ms = self.service.clock()
            final = subscription.stats(self.active_ms)
            self.messages_out_before += final.get("msgOutCounter", 0)
            self.bytes_out_before += final.get("bytesOutCounter", 0)

    # --- life

    def _check_open(self) -> None:
        if self.fenced:
            raise TopicFencedError(f"Topic {self.full_name} is temporarily unavailable")

    def policies_changed(self) -> None:
        """``policies`` is new: apply what isn't read at each use.

        Connected clients stay when a limit was lowered or a subscription type was switched off;
        only a producer that doesn't encrypt goes when encryption becomes a duty, as in Pulsar.
        """
        self._mark = None
        self.rate_limits.apply()
        for subscription in self.subscriptions.values():
            subscription.policies_changed()
        for producer in list(self.registry):
            if producer.encrypted or not self.policies.encryption_required:
                self._require(producer)
                continue
            self.remove_producer(producer)
            if producer.waiting:
                producer.tell_ready(BrokerMetadataError(_ENCRYPTION))
            else:
                producer.sink.close_producer(producer)

    async def close(self, new_owner: BrokerLookup | None = None, *, lost: bool = False) -> None:
        """Unload: fence, disconnect all clients, flush cursors, close storage.

        Args:
            new_owner: the broker that gets the topic; clients are sent there.
            lost: that broker has it already: nothing is written any more.
        """
        self.fenced = self.closing = True
        self.new_owner = new_owner
        if lost:
            self._give_up_storage()
        # First the receipts, then CLOSE_PRODUCER: what is stored isn't sent again.
        await self._settle()
        self.evict_producers(TopicFencedError(f"Topic {self.full_name} is being unloaded"))
        self.rate_limits.close()
        # All at once: until the last one is stored no broker serves the topic.
        closing = self._close_subscriptions()
        results = await asyncio.gather(closing, self._close_storage(), return_exceptions=True)
        self.subscriptions.clear()
        if isinstance(results[-1], BaseException):
            raise results[-1]

    async def _close_subscriptions(self) -> None:
        await asyncio.gather(
            *(self._close_subscription(each) for each in self.subscriptions.values())
        )

    async def _close_subscription(self, subscription: Subscription) -> None:
        try:
            await subscription.close()
        except Exception:
            # One cursor that can't be flushed must not keep the others from closing.
            logger.exception("%s: subscription %s not closed cleanly", self.name, subscription.name)

    async def delete(self) -> None:
        """Fence, disconnect all clients, delete storage and the subscriptions with it.

        If that fails, this object is closed all the same: it has no clients, and the next
        load finds everything as it was, or nothing.
        """
        self.fenced = self.closing = True
        self.evict_producers(TopicFencedError(f"Topic {self.full_name} is being deleted"))
        self.rate_limits.close()
        await self._close_subscriptions()
        try:
            await self._delete_storage()
        finally:
            self.subscriptions.clear()

    # What only a topic with storage has to do.

    async def _store_epoch(self, epoch: int) -> None:  # noqa: B027
        """Make the producers' epoch durable; else it lives as long as the topic is loaded."""

    async def _settle(self) -> None:  # noqa: B027
        """Wait, not for ever, until the entries under way are answered."""

    def _give_up_storage(self) -> None:  # noqa: B027
        """Another broker owns it: write no more."""

    async def _close_storage(self) -> None: ...  # noqa: B027

    async def _delete_storage(self) -> None: ...  # noqa: B027

    @property
    def holds_entries(self) -> bool:
        """Whether a new subscription from the earliest message would get something."""
        return False

    # --- statistics

    def explain_publishing(self) -> Steps[Explanation | None]:
        """Why nothing is published here now; None: it is up to producers."""
        for scope, limiter in (
            ("topic", self.rate_limits.publish),
            ("broker", self.service.publish_throttle),
        ):
            if limiter is None:
                continue
            waiting = 0
            for each in list(self.registry):
                waiting += limiter.is_waiting(each.sink)
                yield
            if waiting:
                return publish_rate_limited(scope, limiter.rate, waiting, limiter.wait_ms())
        refusal, now_ms = self.refused_producer, self.service.clock()
        if (
            refusal is not None
            and refusal.at_ms > self.last_publish_ms
            and (refusal.is_recent(now_ms) or not self.producers)
        ):
            return producer_refused(refusal, now_ms, producers=len(self.producers))
        if self.registry.waiting:
            owner = self.registry.owner
            name = "" if owner is None else owner.name
            return producers_queued(name, len(self.registry.waiting))
        return None if self.producers else no_producer()

    def quiet_mark(self) -> ActivityMark | None:
        """None: something may have happened since two samples have found the topic the same.

        Else there is nothing to sample: all rates are 0 since ``still_ms``.
        """
        mark = self._mark
        return mark if self.still_ms and mark == activity_mark(self) else None

    def sample_steps(self, now_ms: int, since_ms: int = 0) -> Steps[None]:
        """Take a point for the rates of the topic and its clients, some at a step.

        Args:
            since_ms: the last samples, of those topics, too, that had nothing to sample.
        """
        before, self._mark, self.still_ms = self._mark, activity_mark(self), 0
        counters = (self.entries_in, self.messages_in, self.bytes_in, self.chunks_in)
        self.rates.sample(now_ms, counters, since_ms)
        for producer in list(self.registry):
            producer.sample(now_ms, since_ms)
            yield
        self.rate_limits.sample()
        for subscription in list(self.subscriptions.values()):
            yield from subscription.sample_steps(now_ms, since_ms)
        if self._mark is not None and self._mark == before:
            self.still_ms = self.service.clock()

    @property
    def stored_bytes(self) -> int:
        """Of all existing entries."""
        return 0

    def storage_stats(self) -> Steps[dict[str, Any]]:
        """The fields that only some topics fill."""
        yield
        return {"publishRateLimitedTimes": self.rate_limits.publish_limited_times}

    def traffic(self) -> Steps[tuple[float, float, float, float]]:
        """A second, of the last sample: messages and bytes in, messages and bytes out."""
        _, rate_in, bytes_in, _ = self.rates.rates
        rate_out = bytes_out = 0.0
        for number, subscription in enumerate(list(self.subscriptions.values()), 1):
            rates = subscription.rates.rates
            rate_out += rates[0]
            bytes_out += rates[1]
            if number % 64 == 0:
                yield
        return rate_in, bytes_in, rate_out, bytes_out

    def stats(self) -> dict[str, Any]:
        """TopicStats in Pulsar's shape."""
        return run_at_once(topic_stats(self))

    async def stats_in_turns(self, parts: StatsParts = ALL_STATS) -> dict[str, Any]:
        """The same, which may have thousands of subscriptions: others have their turns."""
        return await run_in_turns(topic_stats(self, parts))


def _check_subscription_name(name: str) -> None:
    if not name.strip():
        raise NamingError("Empty subscription name")
    if name.startswith(_RESERVED_PREFIX) or name in RESERVED_SUBSCRIPTIONS:
        raise NamingError(f"Subscription name {name!r} is reserved")
