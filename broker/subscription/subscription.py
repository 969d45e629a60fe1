"""What every subscription is: consumers of one type, admission rules, counters."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.broker.auth.authorization import Resource
from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.key_selector import KeySelector, StickyRanges
from magnetar.broker.dispatch.refusal import RefusedClient, another_refused, consumer_refused
from magnetar.broker.errors import (
    BrokerMetadataError,
    ConsumerBusyError,
    ConsumerNotFoundError,
    NotAllowedError,
    SubscriptionBusyError,
    SubscriptionFencedError,
    TopicBusyError,
)
from magnetar.broker.rate_limits.rate_sampler import RateSampler
from magnetar.broker.subscription.consumer import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SUB_TYPE_NAMES,
    Consumer,
    ConsumerSink,
    SubscribeRequest,
)
from magnetar.broker.subscription.key_shared_policy import KeySharedPolicy, ranges_of
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.position import Position
from magnetar.metadata.loop_turns import Steps, run_at_once

if TYPE_CHECKING:
    from magnetar.broker.dispatch.async_dispatcher import AsyncDispatcher
    from magnetar.broker.topic.topic import Topic
    from magnetar.broker.transaction.transaction_id import TransactionId

SINGLE_ACTIVE = frozenset((EXCLUSIVE, FAILOVER))
AckDone = Callable[[BaseException | None], None]
"""Called once: None when the acknowledgment is durable, else why it isn't."""
Counts: TypeAlias = tuple[int, int, int, int, int]
"""Messages out, bytes out, redelivered messages, acknowledged entries, entries out."""
_NO_COUNTS: Final[Counts] = (0, 0, 0, 0, 0)
_NO_TASKS: Final[frozenset[Any]] = frozenset()


def after(done: AckDone, count: int) -> AckDone:
    """Calls ``done`` once, after ``count`` calls, with the first error among them."""
    left, failure = count, None

    def one_more(error: BaseException | None) -> None:
        nonlocal left, failure
        left -= 1
        failure = failure or error
        if left == 0:
            done(failure)

    return one_more


class Subscription(ABC):
    """Common face of persistent and non-persistent subscriptions. One loop owns it.

    Invariant: all connected consumers have the same type; with none connected the type is free.

    One object, since what clients send, a reset and the end of a consumer change the same lists.
    ``broker/dispatch`` decides which consumer gets an entry; ``subscription_admin.py`` has the rest
    of what administrators do.
    """

    cursor: Cursor | None = None
    """What is acknowledged; None on a non-persistent topic."""

    def __init__(self, topic: Topic, name: str, *, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.durable = durable
        self.consumers: list[Consumer] = []
        self.sub_type: int | None = None  # of the consumers connected now or last
        self.key_policy: KeySharedPolicy | None = None  # Key_Shared: what its consumers agree on
        self.selector: KeySelector | None = None
        self.properties: dict[str, str] = {}
        self.marked_replicated = False  # stored; whether that counts is ``replicated``
        self.rates = RateSampler()
        self.refused: RefusedClient | None = None
        """The last consumer that wasn't accepted, since one was."""
        self.fenced = False  # being closed or deleted, for good
        self._opened: asyncio.Future[None] | None = None  # set while a reset is under way
        self._tasks: frozenset[asyncio.Task[None]] = _NO_TASKS
        # counters of consumers that left; the connected ones' come on top
        self._gone = _NO_COUNTS
        self.last_flow_ms = self.last_consumed_ms = self.last_acked_ms = 0
        self.active_ms = topic.service.clock()  # loaded, or a consumer came or left

    def __str__(self) -> str:
        return f"{self.topic.name} {self.name}"

    def now_ms(self) -> int:
        return self.topic.service.clock()

    @property
    def dispatcher(self) -> AsyncDispatcher | None:
        """What reads for its consumers; None: there is none now."""
        return None

    @property
    def resource(self) -> Resource:
        """What a right to consume it is given on."""
        return Resource.of_topic(self.topic.name, self.name)

    @property
    def replicated(self) -> bool:
        """Whether other clusters shall have the subscription, too."""
        enabled = self.topic.service.config.enable_replicated_subscriptions
        return self.marked_replicated and enabled

    async def set_replicated(self, replicated: bool) -> None:  # noqa: B027
        """Whether other clusters shall have the subscription, too. Only a durable subscription
        keeps that, and only while ``enableReplicatedSubscriptions`` is true.

        Raises:
            PersistenceError: perhaps not stored. SubscriptionFencedError: being deleted or reset.
        """

    # --- consumers

    async def add_consumer(self, request: SubscribeRequest, sink: ConsumerSink) -> Consumer:
        """Check a request against the connected consumers and register it.

        Waits while the subscription is being reset, and for the probe of an exclusive rival.

        Raises:
            SubscriptionFencedError: closing or being deleted.
            ConsumerBusyError, NotAllowedError, ConsumerAssignError: as listed there.
            ConsumerNotFoundError: the client gave up meanwhile.
        """
        while True:
            while self._opened is not None:
                await asyncio.shield(self._opened)
            self._check(request)
            rival = self.consumers[0] if self.consumers else None
            if rival is None or request.sub_type != EXCLUSIVE:
                break
            if await rival.sink.check_liveness():
                raise ConsumerBusyError("Exclusive consumer is already connected")
            self.remove_consumer(rival)  # its connection is dead; usually it removed it itself
        if request.cancelled:
            raise ConsumerNotFoundError("the client closed the consumer before it was created")
        consumer = Consumer(self, request, sink, self.now_ms())
        if not self.consumers:
            self.sub_type = request.sub_type
            self.key_policy = self.selector = None
            if request.sub_type == KEY_SHARED:
                self.key_policy = KeySharedPolicy.of(request)
                self.selector = self.key_policy.make_selector(
                    consistent_hashing=self.topic.service.config.subscription_key_shared_use_consistent_hashing
                )
            self._start(request.sub_type, request)
        self.consumers.append(consumer)
        self.refused = None
        self.active_ms = self.now_ms()
        if isinstance(self.selector, StickyRanges):
            self.selector.offer(ranges_of(request))
        self._join(consumer)
        return consumer

    def _check(self, request: SubscribeRequest) -> None:
        if self.fenced:
            raise SubscriptionFencedError("Subscription is fenced")
        if request.durable != self.durable and self.topic.persistent:
            kind = "durable" if self.durable else "non-durable"
            raise NotAllowedError(f"Subscription {self.name} exists and is {kind}")
        config = self.topic.service.config
        if request.sub_type == KEY_SHARED and not config.subscription_key_shared_enable:
            raise NotAllowedError("Key_Shared subscriptions are switched off")
        connected = len(self.consumers)
        self.topic.check_consumer_count()  # again: others came while we waited
        if 0 < self.topic.policies.max_consumers_per_subscription <= connected:
            raise ConsumerBusyError("Subscription reached max consumers limit")
        if connected and request.sub_type != self.sub_type:
            raise SubscriptionBusyError("Subscription is of different type")
        if request.sub_type == KEY_SHARED:
            policy = KeySharedPolicy.of(request)
            if connected:
                assert self.selector is not None
                policy.check(request, self.key_policy, self.selector)
            else:
                policy.check(request, None, policy.make_selector())

    @abstractmethod
    def _start(self, sub_type: int, request: SubscribeRequest) -> None:
        """The first consumer comes: make the dispatcher of its type."""

    @abstractmethod
    def _join(self, consumer: Consumer) -> None:
        """A consumer was admitted."""

    @abstractmethod
    def _leave(self, consumer: Consumer) -> None:
        """A consumer was taken out of ``consumers``."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """Its client closed it or is gone: pending entries go to the others. Unknown: ignored."""
        if consumer.closed or consumer not in self.consumers:
            return
        consumer.closed = True
        self.consumers.remove(consumer)
        self.active_ms = self.now_ms()
        self._gone = _added(self._gone, (consumer,))
        self._leave(consumer)
        self.end_if_orphaned()

    def unused_ms(self, now_ms: int) -> int:
        """For how long it has had no consumer and no acknowledgment.

        It counts from the load of the topic at the earliest: when a subscription was used last is
        not stored.
        """
        if self.consumers:
            return 0
        return now_ms - max(self.active_ms, self.last_acked_ms)

    def end_if_orphaned(self) -> None:
        """A non-durable subscription lives no longer than its consumers."""
        if not self.consumers and not self.durable and not self.fenced and self._opened is None:
            self.fenced = True
            self.topic.forget_subscription(self.name)
            self.run(self._ended())

    async def _ended(self) -> None:  # noqa: B027
        """The last consumer of a non-durable subscription left: drop what it used."""

    def disconnect_all(self) -> None:
        """Tell every client to subscribe again, perhaps at another broker."""
        for consumer in list(self.consumers):
            self.dismiss_consumer(consumer)

    def dismiss_consumer(self, consumer: Consumer) -> None:
        """End one consumer; its client is told. One that is gone already is ignored."""
        if not consumer.closed:
            self.remove_consumer(consumer)
            consumer.sink.close_consumer(consumer)

    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None:
        """End the subscription on behalf of a consumer.

        Raises:
            BrokerMetadataError: other consumers are connected and ``force`` is false.
            SubscriptionFencedError: it is being reset, closed or deleted already.
        """
        if len(self.consumers) > 1 and not force:
            raise BrokerMetadataError("Unsubscribe refused: other consumers are connected")
        if self.fenced or self._opened is not None:
            raise SubscriptionFencedError("Subscription is fenced")
        self.fenced = True  # before the consumer leaves: nothing ends by itself now
        self.remove_consumer(consumer)
        try:
            await self.delete(force=True)
        except BaseException:
            # Its client goes on with it when it has heard of the failure: then it has to come back.
            asyncio.get_running_loop().call_soon(consumer.sink.close_consumer, consumer)
            raise

    # --- what clients send

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer can take ``permits`` more messages."""
        now_ms = consumer.last_flow_ms = self.last_flow_ms = self.now_ms()
        if not consumer.first_flow_ms:
            consumer.first_flow_ms = now_ms
        self._on_flow(consumer, permits)

    @abstractmethod
    def _on_flow(self, consumer: Consumer, permits: int) -> None: ...

    def wake(self) -> None:  # noqa: B027
        """A consumer's sink takes messages again, or what is to be sent has changed."""

    # What only a cursor can do: without one, everything is done at once.

    def acknowledge(
        self,
        consumer: Consumer | None,
        positions: Sequence[Position],
        on_durable: AckDone | None = None,
    ) -> None:
        """Whole entries are done. Unknown and already acknowledged ones are ignored."""
        if on_durable is not None:
            on_durable(None)

    def acknowledge_cumulative(
        self,
        consumer: Consumer | None,
        position: Position,
        properties: Mapping[str, int] | None = None,
        on_durable: AckDone | None = None,
        *,
        ack_set: Sequence[int] = (),
    ) -> None:
        """Everything up to ``position`` is done; with an ack set, of that entry only a part.

        On Shared and Key_Shared it is ignored and reported as done.
        """
        if on_durable is not None:
            on_durable(None)

    def acknowledge_batch(
        self,
        consumer: Consumer | None,
        position: Position,
        ack_set: Sequence[int],
        on_durable: AckDone | None = None,
    ) -> None:
        """A part of a batch is done; set bits of the words are what isn't."""
        if on_durable is not None:
            on_durable(None)

    def redeliver(  # noqa: B027
        self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None = None
    ) -> None:
        """Send again what this consumer has not acknowledged; None: everything."""

    async def reset(self, position: Position, ack_set: Sequence[int] = ()) -> None:  # noqa: B027
        """Disconnect the consumers and continue at ``position``."""

    async def reset_to_time(self, publish_time_ms: int) -> None:  # noqa: B027
        """`reset` to the first entry published at that time or later."""

    # --- what the topic says

    def policies_changed(self) -> None:  # noqa: B027 - not every type has anything to apply
        """The topic's policies are new: apply what isn't read at each use."""

    def on_terminated(self) -> None:  # noqa: B027
        """The topic was terminated: consumers are told once everything is acknowledged."""

    async def end_transaction(  # noqa: B027
        self, transaction: TransactionId, low_watermark: int, *, commit: bool
    ) -> None:
        """Return when the end is durable, and the cursor or the dispatcher has followed.

        Args:
            low_watermark: all transactions of the same coordinator up to this one have ended.

        Raises:
            BrokerError: ask again.
        """

    def end_nowait(
        self, transaction: TransactionId, low_watermark: int, done: AckDone, *, commit: bool
    ) -> bool:
        """See `LocalParticipant`."""
        return False

    async def close(self) -> None:
        """Fence, tell the consumers to reconnect, close the cursor."""
        self.fenced = True
        self.disconnect_all()

    async def delete(self, *, force: bool = False) -> None:
        """Fence and delete.

        Raises:
            TopicBusyError: consumers are connected and ``force`` is false.
        """
        if self.consumers and not force:
            raise TopicBusyError(f"Subscription {self.name} has connected consumers")
        self.fenced = True
        try:
            self.disconnect_all()
            await self._delete_cursor()
        except BaseException:
            self.fenced = False
            raise
        self.topic.forget_subscription(self.name)

    async def _delete_cursor(self) -> None:  # noqa: B027
        """Raises PersistenceError."""

    # --- questions

    def explain(self, publishing: Explanation | None) -> Explanation:
        """Why it delivers nothing now, or that it does.

        Args:
            publishing: why nothing can be published, see ``Topic.explain_publishing``.
        """
        found, refusal, now_ms = self._explain_closed(), self.refused, self.now_ms()
        if found is not None:
            return found
        found = self._explain(publishing)
        if (
            refusal is not None
            and refusal.is_recent(now_ms)
            and found.reason is not explanation.Reason.CONSUMER_REFUSED
        ):
            return another_refused(refusal, now_ms, found)
        return found

    def explain_oldest(self) -> Explanation:
        """What became of the oldest unacknowledged entry. REQUIRES: there is one."""
        return self.explain(None)

    def _explain_closed(self) -> Explanation | None:
        if self.fenced:
            return explanation.closing()
        return None if self._opened is None else explanation.resetting()

    def _explain_no_consumer(self) -> Explanation:
        found = explanation.no_consumer(self.active_ms, stored=self.topic.persistent)
        refusal = self.refused
        return found if refusal is None else consumer_refused(refusal, self.now_ms(), found)

    @abstractmethod
    def _explain(self, publishing: Explanation | None) -> Explanation: ...

    # --- statistics

    @property
    def backlog(self) -> int:
        """Entries that aren't acknowledged as a whole."""
        return 0 if self.cursor is None else self.cursor.state.backlog

    @property
    def unacked(self) -> int:
        """Messages pending at all consumers."""
        return 0

    def stats(self, now_ms: int) -> dict[str, Any]:
        """SubscriptionStats in Pulsar's shape."""
        return run_at_once(self.stats_steps(now_ms))

    @abstractmethod
    def stats_steps(self, now_ms: int, *, with_consumers: bool = True) -> Steps[dict[str, Any]]:
        """The same, some consumers at a step.

        Args:
            with_consumers: false leaves the list of consumers empty.
        """

    def counters(self) -> Counts:
        """What was done for all consumers that there ever were."""
        return _added(self._gone, self.consumers)

    def sums(self) -> Steps[Sequence[float]]:
        """Of the statistics what a topic adds up, some consumers at a step.

        Messages and bytes out a second, bytes and messages out, runs acknowledged above
        mark-delete, bytes of these, bytes of the index of delayed messages.
        """
        messages, sent_bytes, *_ = self._gone
        for each in list(self.consumers):
            messages += each.messages_out
            sent_bytes += each.bytes_out
            yield
        return (*self.rates.rates[:2], sent_bytes, messages, *self._kept_sums())

    def _kept_sums(self) -> tuple[int, int, int]:
        """Those of what only some subscriptions keep."""
        return 0, 0, 0

    def sample_steps(self, now_ms: int, since_ms: int = 0) -> Steps[None]:
        """Take a point of the rates, every ``statsUpdateFrequencyInSecs``; some at a step."""
        counts = self._gone
        for consumer in list(self.consumers):
            counts = _added(counts, (consumer,))
            consumer.sample(now_ms, since_ms)
            yield
        self.rates.sample(now_ms, counts[:4], since_ms)
        yield

    def common_stats(
        self, consumers: Sequence[Consumer], *, with_consumers: bool
    ) -> Steps[dict[str, Any]]:
        """The part of the statistics that every subscription has; the rest is 0.

        Args:
            consumers: of now.
        """
        rate_out, throughput, rate_redeliver, rate_ack = self.rates.rates
        counts, chunk_rate, shown = self._gone, 0.0, list[dict[str, Any]]()
        for each in consumers:
            counts = _added(counts, (each,))
            chunk_rate += each.chunk_rate
            if with_consumers:
                shown.append(each.stats())
            yield
        messages, sent_bytes, *_ = counts
        stats: dict[str, Any] = {
            "msgRateOut": rate_out,
            "msgThroughputOut": throughput,
            "bytesOutCounter": sent_bytes,
            "msgOutCounter": messages,
            "msgRateRedeliver": rate_redeliver,
            "messageAckRate": rate_ack,
            "chunkedMessageRate": chunk_rate,
            "msgBacklog": 0,
            "backlogSize": 0,
            "earliestMsgPublishTimeInBacklog": 0,
            "msgBacklogNoDelayed": 0,
            "blockedSubscriptionOnUnackedMsgs": False,
            "msgDelayed": 0,
            "msgInReplay": 0,
            "unackedMessages": 0,
            "msgRateExpired": 0.0,
            "msgExpired": 0,
            "totalMsgExpired": 0,
            "lastExpireTimestamp": 0,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
            "lastConsumedTimestamp": self.last_consumed_ms,
            "lastAckedTimestamp": self.last_acked_ms,
            "lastMarkDeleteAdvancedTimestamp": 0,
            "consumers": shown,
            "isDurable": self.durable,
            "isReplicated": self.replicated,
            "allowOutOfOrderDelivery": False,
            "consumersAfterMarkDeletePosition": {},
            "drainingHashesCount": 0,
            "drainingHashesClearedTotal": 0,
            "drainingHashesUnackedMessages": 0,
            "nonContiguousDeletedMessagesRanges": 0,
            "nonContiguousDeletedMessagesRangesSerializedSize": 0,
            "delayedMessageIndexSizeInBytes": 0,
            "subscriptionProperties": dict(self.properties),
            "filterProcessedMsgCount": 0,
            "filterAcceptedMsgCount": 0,
            "filterRejectedMsgCount": 0,
            "filterRescheduledMsgCount": 0,
            "durable": self.durable,
            "replicated": self.replicated,
        }
        for unit in ("Msg", "Bytes"):
            for scope in ("Subscription", "Topic", "Broker"):
                stats[f"dispatchThrottled{unit}EventsBy{scope}Limit"] = 0
        if self.sub_type is not None:
            stats["type"] = SUB_TYPE_NAMES[self.sub_type]
        if self.key_policy is not None:
            stats["keySharedMode"] = self.key_policy.mode
            stats["allowOutOfOrderDelivery"] = self.key_policy.out_of_order
        return stats

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that goes on when a client leaves; a failure is reported by asyncio."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks |= {task}
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks = (self._tasks - {task}) or _NO_TASKS


def _added(counts: Counts, consumers: Iterable[Consumer]) -> Counts:
    messages, sent_bytes, redelivered, acks, entries = counts
    for each in consumers:
        messages += each.messages_out
        sent_bytes += each.bytes_out
        redelivered += each.redelivered
        acks += each.acks
        entries += each.entries_out
    return messages, sent_bytes, redelivered, acks, entries
