"""A topic whose entries live in a managed ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.dispatch import explanation, never_delivered
from magnetar.broker.dispatch.async_dispatcher import AsyncDispatcher
from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.broker.errors import (
    STORAGE_ERRORS,
    AlreadyExistsError,
    BrokerError,
    NotAllowedError,
    PersistenceError,
    PreconditionFailedError,
    SubscriptionFencedError,
    SubscriptionNotFoundError,
    TopicFencedError,
    TopicTerminatedError,
    storage_errors,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer.deduplication import DEDUPLICATION_CURSOR, Deduplication
from magnetar.broker.producer.joined_batches import joined
from magnetar.broker.producer.producer import PublishBatch
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.consumer import SubscribeRequest
from magnetar.broker.subscription.persistent_subscription import (
    PersistentSubscription,
    start_position,
)
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.subscription.transactional_acks import TransactionalAcks
from magnetar.broker.topic.backlog_check import BacklogCheck
from magnetar.broker.topic.compaction_subscription import CompactionSubscription
from magnetar.broker.topic.entry_metadata import INDEX_PROPERTY, entry_metadata_writer
from magnetar.broker.topic.ledger_settings import ledger_config
from magnetar.broker.topic.publish_metrics import PublishMetrics
from magnetar.broker.topic.topic import RESERVED_SUBSCRIPTIONS, Topic
from magnetar.broker.transaction.deleted_logs import delete_left, deleted_logs
from magnetar.broker.transaction.topic_transactions import TRANSACTION_PROPERTIES, TopicTransactions
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.view import TransactionView
from magnetar.managed_ledger.append_core import AppendDone
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.cursor.errors import CursorBusyError
from magnetar.managed_ledger.errors import (
    AppendFailedError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.orphan_ledgers import COMPACTION_CURSOR
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.metadata.errors import ValueTooLargeError
from magnetar.metadata.loop_turns import Steps

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.transaction.async_coordinator import LocalParticipant

logger = logging.getLogger(__name__)

_SETTLE_S: Final = 5.0
"""How long an unload waits for entries under way; what is left is sent again by its clients."""
NO_TRANSACTIONS: Final = "Transactions are not enabled."
EPOCH_PROPERTY: Final = "pulsar.topic.epoch"
_OWN_PROPERTIES: Final = frozenset({EPOCH_PROPERTY, INDEX_PROPERTY, *TRANSACTION_PROPERTIES})


class PersistentTopic(Topic):
    """Publishes into a managed ledger; a receipt means that an ack quorum has synced the entry.

    One object, since a failed append fences the topic and ends its producers; backlog quotas,
    de-duplication and figures are objects of their own.
    """

    persistent = True

    # An object with more than 30 attributes in its dictionary pays 1.5 kB for a table of its own;
    # the base class has nearly as many, so those that every idle topic has are here.
    __slots__ = (
        "_has_failed",
        "_held_back",
        "_in_flight",
        "_recovering",
        "_settled",
        "_switching",
        "_terminating",
        "backlog",
        "compaction",
        "deduplication",
        "entry_metadata",
        "ledger",
        "publish_figures",
        "transactions",
        "waiting",
        "watchers",
    )

    def __init__(
        self,
        service: BrokerService,
        name: TopicName,
        ledger: ManagedLedger,
        policies: EffectivePolicies,
    ) -> None:
        super().__init__(service, name, policies)
        self.ledger = ledger
        self.created_ms = ledger.lists.created_ms  # the topic's, not that of this load
        self.backlog = BacklogCheck(self)
        self.publish_figures = PublishMetrics()
        self.waiting: dict[AsyncDispatcher, None] = {}
        """Dispatchers to be told of new entries, each once."""
        self.watchers: tuple[Callable[[], None], ...] = ()
        """Told of what subscriptions are woken for, and of the end of the topic."""
        self._in_flight = 0  # batches given to the ledger and not answered in full
        self._has_failed = False  # fenced until every answer is out, for a failed append
        self._recovering = False
        self._terminating = False
        self.deduplication: Deduplication | None = None
        """There while the policies ask for it."""
        interceptors = service.config.broker_entry_metadata_interceptors
        self.entry_metadata = entry_metadata_writer(interceptors, service.clock)
        self._switching = False  # it is being made, or taken away
        self._settled: asyncio.Future[None] | None = None  # done when _in_flight is 0
        if (epoch := ledger.properties.get(EPOCH_PROPERTY)) is not None:
            self.epoch = int(epoch)
        self.terminated = ledger.terminated is not None
        self.transactions: TopicTransactions | None = None
        """There once it had one."""
        self._held_back: tuple[PublishBatch, ...] = ()  # until they have started
        self.compaction: TopicCompaction | None = None
        """There once it was compacted, now or by an earlier owner."""
        for cursor_name, cursor in ledger.cursors.items():
            if cursor_name == COMPACTION_CURSOR:
                self.compaction = self._new_compaction()
                self._on_compaction_cursor(cursor)
            elif cursor_name not in RESERVED_SUBSCRIPTIONS:
                self._register(cursor_name, cursor, durable=True)
        if self.compaction is None and ledger.lists.info.apart:
            self.compaction = self._new_compaction()  # deletes what an earlier owner left of one
        ledger.on_appended = self._on_appended
        ledger.on_fenced = self._on_fenced

    async def _check_storage(self) -> None:
        missing, allowed = self.ledger.missing_bookies
        if missing and self.ledger.client.bookies.writable:
            # Its sends would fail one after the other. With no bookie at all the storage is down or
            # full, which passes: then what is sent waits, or fails, by itself.
            raise PersistenceError(
                f"{self.ledger.config.ensemble_size} bookies are asked for, {missing} are missing"
                + (f" of {allowed}" if allowed else "")
            )
        await self.backlog.admit_producer()
        if self.deduplication is not None:
            await self.deduplication.wait_end()

    def _check_takes_entries(self) -> None:
        super()._check_takes_entries()
        if self.deduplication is not None and self.deduplication.seeks_end:
            raise TopicFencedError(f"Topic {self.full_name} doesn't know yet what it has stored")

    def policies_changed(self) -> None:
        super().policies_changed()
        config = ledger_config(self.service, self.policies, self.name)
        if config != self.ledger.config:
            self.ledger.configure(config)
        if self._deduplication_differs():
            self.service.run(self.switch_deduplication())

    # --- de-duplication

    def _wants_deduplication(self) -> bool:
        return self.policies.deduplication and not self.is_system

    def _deduplication_differs(self) -> bool:
        """Whether it isn't as the policies ask for."""
        if self._switching or self.fenced:
            return False
        if self._wants_deduplication():
            return self.deduplication is None or not self.deduplication.judges
        # A cursor whose delete failed would hold back everything.
        return self.deduplication is not None or DEDUPLICATION_CURSOR in self.ledger.cursors

    async def prepare(self) -> None:
        """Before the topic serves anybody: what its producers stored so far is known again.

        Raises:
            PersistenceError: it can't be read.
        """
        if self.entry_metadata is not None:
            with storage_errors("restore the index of messages"):
                await self.entry_metadata.restore(self.ledger)
        if not self.ledger.properties.keys().isdisjoint(TRANSACTION_PROPERTIES):
            with storage_errors("restore transactions"):
                await self._new_transactions().recover()
        logs = [each.log for each in self._transactional_acks()]
        await delete_left(self.ledger, [log.name for log in logs], self._delete_log)
        await asyncio.gather(*(log.open() for log in logs))
        with storage_errors("restore de-duplication"):
            if self._wants_deduplication():
                self.deduplication = Deduplication(self)
                await self.deduplication.start()
            elif DEDUPLICATION_CURSOR in self.ledger.cursors:  # switched off while not loaded
                await self.ledger.delete_cursor(DEDUPLICATION_CURSOR)

    def _persistent_subscriptions(self) -> list[PersistentSubscription]:
        return [x for x in self.subscriptions.values() if isinstance(x, PersistentSubscription)]

    def _transactional_acks(self) -> list[TransactionalAcks]:
        return [x for s in self._persistent_subscriptions() if (x := s.transactions) is not None]

    async def switch_deduplication(self) -> None:
        """Begin or end it, until it is as the policies ask for."""
        while self._deduplication_differs():
            self._switching = True
            try:
                if self._wants_deduplication():
                    self.deduplication = Deduplication(self)
                    await self.deduplication.start()
                else:
                    self.deduplication = None
                    await self.ledger.delete_cursor(DEDUPLICATION_CURSOR)
            except STORAGE_ERRORS as error:
                self.deduplication = None  # the next sweep tries again
                logger.warning("%s: can't switch de-duplication: %s", self.name, error)
                return
            finally:
                self._switching = False

    def sweep_deduplication(self, now_ms: int) -> None:
        """Its timers; and what could not be switched is tried again."""
        if self._deduplication_differs():
            self.service.run(self.switch_deduplication())
        elif self.deduplication is not None:
            self.deduplication.sweep(now_ms)

    def last_sequence_id(self, producer_name: str) -> int:
        if self.deduplication is None:
            return -1
        return self.deduplication.last_sequence_id(producer_name)

    # --- transactions

    def check_transaction(self, transaction: TransactionId) -> None:
        if not self.service.config.transaction_coordinator_enabled:
            raise NotAllowedError(NO_TRANSACTIONS)
        if self.transactions is None:
            self.service.run(self._start_transactions(self._new_transactions()))
        else:
            self.transactions.check_send(transaction)

    def _new_transactions(self) -> TopicTransactions:
        transactions = TopicTransactions(self, self.service.clock, self.service.run)
        self.transactions = transactions
        for subscription in self._persistent_subscriptions():
            subscription.read_from(transactions.view)
        return transactions

    async def _start_transactions(self, transactions: TopicTransactions) -> None:
        """What is published meanwhile waits, see ``publish``."""
        error: BrokerError | None = None
        try:
            with storage_errors("store that there are transactions"):
                await transactions.start()
        except BrokerError as failed:
            error = failed
            self.transactions = None
            for subscription in self._persistent_subscriptions():
                subscription.read_from(self.ledger)
        held_back, self._held_back = self._held_back, ()
        if error is None:
            self.publish(held_back)
        else:
            for batch in held_back:
                self._refuse(batch, error)
        self._on_appended()

    async def end_transaction(
        self, transaction: TransactionId, low_watermark: int, *, commit: bool
    ) -> None:
        self._check_open()
        transactions = self.transactions
        if transactions is None:
            if self.terminated:
                return
            # Its messages may still come: they are known by its end.
            transactions = self._new_transactions()
            await self._start_transactions(transactions)
        await transactions.end(transaction, low_watermark, commit=commit)

    def participant(self, subscription: str | None) -> LocalParticipant | None:
        if subscription is None:
            return None if self.fenced else self.transactions
        return super().participant(subscription)

    def append_markers(
        self, heads: list[bytes], bodies: list[bytes | memoryview], on_done: AppendDone
    ) -> None:
        if self.terminated or self._terminating:
            raise TopicTerminatedError(f"Topic {self.full_name} is terminated")

        def on_stored(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
            self._in_flight -= count - 1
            self._answered()
            on_done(ledger_id, first, count, error)
            if error is not None:
                self._on_storage_failure(error)

        self._in_flight += len(heads)
        self.append(heads, bodies, on_stored)

    def on_transaction_end(self, transaction: TransactionId, *, commit: bool) -> None:
        if self.deduplication is not None:
            self.deduplication.on_transaction_end(transaction, commit=commit)
        self._wake()

    def on_readable(self) -> None:
        self._wake()

    # --- compaction

    def _new_compaction(self) -> TopicCompaction:
        name, clock = self.name, self.service.clock
        return TopicCompaction(
            str(name),
            name.partition_index,
            self.ledger,
            clock,
            self._on_compaction_cursor,
            self.service.compaction_places,
            self.service.config.topic_compaction_retain_null_key,
            self._transaction_view,
        )

    def _transaction_view(self) -> TransactionView | None:
        return None if self.transactions is None else self.transactions.view

    def _on_compaction_cursor(self, cursor: Cursor) -> None:
        if self.compaction is not None and COMPACTION_CURSOR not in self.subscriptions:
            subscription = CompactionSubscription(self, cursor, self.compaction)
            self.subscriptions[COMPACTION_CURSOR] = subscription

    @property
    def compacted(self) -> CompactedLedger | None:
        return None if self.compaction is None else self.compaction.current

    def compact(self) -> None:
        """Begin a compaction.

        Raises:
            TopicFencedError, CompactionBusyError.
        """
        self._check_open()
        if self.compaction is None:
            self.compaction = self._new_compaction()
        self.compaction.begin()

    def sweep_compaction(self) -> None:
        """Begin a compaction if as much is not compacted yet as policies say."""
        if self.compaction is not None and not self.fenced:
            self.compaction.sweep()
        threshold = self.policies.compaction_threshold
        if threshold <= 0 or self.fenced or self.is_system:
            return
        compaction, ledger = self.compaction, self.ledger
        after = EARLIEST
        if compaction is not None and compaction.current is not None:
            after = compaction.current.horizon
        if compaction is not None and compaction.is_running:
            return
        view = self._transaction_view()
        end = ledger.last_confirmed if view is None else view.last_confirmed
        if end > after and ledger.bytes_after(after) > threshold:
            self.compact()

    # --- entries

    def publish(self, batches: Sequence[PublishBatch]) -> None:
        taken = [batch for batch in batches if self._takes(batch)]
        if len(taken) > 1:
            self.append(*joined(taken, self.on_appended_batch))
        elif taken:
            bodies = cast("list[bytes | memoryview]", taken[0].bodies)
            self.append(taken[0].heads, bodies, partial(self.on_appended_batch, taken[0]))

    def _takes(self, batch: PublishBatch) -> bool:
        """Whether it is to be appended now; if not, it is answered elsewhere."""
        if self.fenced or self._terminating:
            self._refuse(batch, TopicFencedError(f"Topic {self.full_name} is fenced"))
            return False
        if self.terminated:
            self._refuse(batch, TopicTerminatedError(f"Topic {self.full_name} is terminated"))
            return False
        deduplication, transactions = self.deduplication, self.transactions
        if deduplication is not None and deduplication.seeks_end:
            self._refuse(batch, TopicFencedError(f"Topic {self.full_name} is recovering"))
            return False
        if transactions is not None and transactions.is_starting:
            self._held_back += (batch,)
            return False
        self._count(batch)
        self.publish_figures.published(batch.bodies, batch.entry_bytes)
        batch.published_s = perf_counter()
        self._in_flight += 1
        if deduplication is not None and deduplication.judges:
            deduplication.publish(batch)
            return False
        return True

    def append(
        self, heads: list[bytes], bodies: list[bytes | memoryview], on_done: AppendDone
    ) -> None:
        """Store entries of clients; see `ManagedLedger.append`."""
        if self.entry_metadata is not None:
            heads = self.entry_metadata.add_to(heads)
        self.ledger.append(heads, bodies, on_done)

    def on_appended_batch(
        self,
        batch: PublishBatch,
        ledger_id: int,
        first_entry_id: int,
        count: int,
        error: BaseException | None,
    ) -> None:
        """A part of a batch, in order, is durable or lost."""
        offset = self._take_answer(batch, count)
        sink = batch.producer.sink
        if error is None:
            if self.deduplication is not None:
                last = (ledger_id, first_entry_id + count - 1)
                self.deduplication.on_stored(batch, offset, count, last)
            latency_ms = (perf_counter() - batch.published_s) * 1000
            self.publish_figures.stored(latency_ms, count)
            self.service.metrics.publish.record(latency_ms, count)
            sink.publish_done(batch, offset, count, ledger_id, first_entry_id)
            return
        if isinstance(error, ManagedLedgerTerminatedError):
            # `terminate` is under way and ends the producers next: see there.
            sink.publish_failed(batch, offset, count, TopicFencedError("Topic is being terminated"))
            return
        # Nothing behind a lost entry may be stored: the clients are told to come back and resend
        # everything from the first unanswered one on.
        sink.publish_failed(batch, offset, count, TopicFencedError(str(error)))
        self._on_storage_failure(error)

    def on_not_appended(self, batch: PublishBatch, count: int, error: Exception | None) -> None:
        """The next entries of a batch weren't given to the ledger: duplicates, or ``error``."""
        offset = self._take_answer(batch, count)
        sink = batch.producer.sink
        if error is None:
            sink.publish_done(batch, offset, count, -1, -1)
        else:
            sink.publish_failed(batch, offset, count, error)
        self._end_failure()

    def _take_answer(self, batch: PublishBatch, count: int) -> int:
        """Note that ``count`` more entries of a batch are answered; index of the first of them."""
        offset = batch.answered
        batch.answered += count
        if batch.answered >= len(batch.sequence_ids):
            self._answered()
        return offset

    def _answered(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0 and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _on_appended(self) -> None:
        """Once per tick in which the end of the log moved."""
        if self.transactions is not None:
            self.transactions.advance()
        self._wake()

    def _wake(self) -> None:
        # Not all subscriptions: those that are full cost nothing for each entry.
        if self.waiting:
            waiting = list(self.waiting)
            self.waiting.clear()
            for dispatcher in waiting:
                dispatcher.on_appended()
        for told in self.watchers:
            told()

    def watch(self, told: Callable[[], None]) -> None:
        """Call it in each tick in which the end of the log moved, and when the topic closes."""
        self.watchers += (told,)

    def unwatch(self, told: Callable[[], None]) -> None:
        self.watchers = tuple(each for each in self.watchers if each != told)

    def _on_storage_failure(self, error: BaseException) -> None:
        if not self.fenced:
            logger.error("%s: append failed, fencing: %s", self.name, error)
            self.fenced = True
            self.evict_producers(TopicFencedError(f"Topic {self.full_name} lost its storage"))
        if isinstance(error, AppendFailedError):
            self._has_failed = True
            self._end_failure()
        else:
            self._on_fenced(error)

    def _end_failure(self) -> None:
        """Once no older entry is under way, the ledger takes new ones again."""
        if self._has_failed and not (self._in_flight or self._recovering or self.closing):
            logger.info("%s: append failures settled", self.name)
            self._has_failed = self.fenced = False
            if self.deduplication is not None:
                self.deduplication.on_settled()

    def _on_fenced(self, error: BaseException) -> None:
        """Another owner, or a ledger that can't go on: unload; the next client loads it anew."""
        if self._recovering:
            return
        self._recovering = True
        logger.warning("%s: unloading, storage is gone: %s", self.name, error)
        if not self.fenced:
            self.fenced = True
            self.evict_producers(TopicFencedError(f"Topic {self.full_name} lost its storage"))
        self.service.run(self.service.loader.unload(str(self.name)))

    # --- subscriptions

    async def _open_subscription(self, request: SubscribeRequest) -> Subscription:
        name = request.subscription
        with storage_errors(f"open the cursor of {name}"):
            if request.durable:
                return await self._open_durable(request)
            start = await start_position(self.ledger, request, self.service.clock())
            cursor = self.ledger.new_non_durable_cursor(start, name)
        subscription = self._register(name, cursor, durable=False)
        subscription.begins_at(start)
        return subscription

    async def _open_durable(self, request: SubscribeRequest) -> Subscription:
        if not self.policies.auto_subscription_creation:
            raise SubscriptionNotFoundError(
                f"Subscription {request.subscription} does not exist and may not be created"
            )
        start = await start_position(self.ledger, request, self.service.clock())
        return await self._create_durable(request.subscription, start, request.properties)

    async def _create_durable(
        self, name: str, start: Position, properties: Mapping[str, str] | None
    ) -> Subscription:
        cursor = await self.ledger.open_cursor(name, start, properties or {})
        self._check_open()
        subscription = self._register(name, cursor, durable=True)
        subscription.begins_at(start)
        return subscription

    def _register(self, name: str, cursor: Cursor, *, durable: bool) -> PersistentSubscription:
        subscription = PersistentSubscription(self, name, cursor, self.ledger, durable=durable)
        if self.transactions is not None:
            subscription.read_from(self.transactions.view)
        self.subscriptions[name] = subscription
        return subscription

    async def create_subscription(
        self,
        name: str,
        initial: Position = LATEST,
        properties: Mapping[str, str] | None = None,
    ) -> Subscription:
        self._check_open()
        if name in self.subscriptions or name in self._opening:
            raise AlreadyExistsError(f"Subscription {name} already exists for topic")
        self._check_subscription_count(name)
        with storage_errors(f"create the cursor of {name}"):
            return await self._create_durable(name, initial, properties)

    # --- administration

    @property
    def properties(self) -> dict[str, str]:
        """What users stored with the topic; the broker's own are not among them."""
        return {
            name: value
            for name, value in self.ledger.properties.items()
            if name not in _OWN_PROPERTIES
        }

    async def update_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Apply a pure change, perhaps more than once, to the users' properties.

        Raises:
            PreconditionFailedError: the change adds a name that is the broker's, or too many bytes.
            PersistenceError.
        """

        def apply(before: Mapping[str, str]) -> dict[str, str]:
            own = {name: value for name, value in before.items() if name in _OWN_PROPERTIES}
            users = change({name: value for name, value in before.items() if name not in own})
            if taken := sorted(_OWN_PROPERTIES.intersection(users)):
                raise PreconditionFailedError(f"Property {taken[0]} is reserved")
            return {**users, **own}

        with storage_errors("store the properties"):
            try:
                await self.ledger.update_properties(apply)
            except ValueTooLargeError as error:
                raise PreconditionFailedError(f"Properties of {self.name}: {error}") from error

    async def truncate(self) -> None:
        """Acknowledge everything for every subscription and delete what is stored.

        Raises:
            TopicFencedError, SubscriptionFencedError, PersistenceError.
        """
        self._check_open()
        if COMPACTION_CURSOR in self.subscriptions:
            await self.delete_subscription(COMPACTION_CURSOR)
        # The dispatchers let go of what they hold; the ledger then moves every cursor. Messages of
        # open transactions go, too: if it fails, none is left of what else is gone.
        for subscription in self._persistent_subscriptions():
            subscription.acknowledge_cumulative(None, self.ledger.last_confirmed)
        with storage_errors(f"truncate {self.full_name}"):
            try:
                await self.ledger.truncate()
            except CursorBusyError as error:
                raise SubscriptionFencedError(f"A subscription is being reset: {error}") from error

    async def trim(self) -> None:
        """Delete now what no subscription and no retention needs.

        Raises:
            TopicFencedError, PersistenceError.
        """
        self._check_open()
        with storage_errors(f"trim {self.full_name}"):
            await self.ledger.trim()

    # --- life

    async def terminate(self) -> Position:
        """Take no more entries, for good; consumers drain. The last position."""
        self._check_open()
        # What arrives from now on gets no SEND_ERROR but, in the end, CLOSE_PRODUCER: the client
        # comes back, hears TopicTerminated and fails its messages. Go's client only forgets the
        # producer at such a SEND_ERROR, and its messages wait for their timeout.
        self._terminating = True
        told: BrokerError = TopicFencedError(f"Topic {self.full_name} could not be terminated")
        try:
            with storage_errors(f"terminate {self.full_name}"):
                last = await self.ledger.terminate()
            self.terminated = True
            told = TopicTerminatedError(f"Topic {self.full_name} is terminated")
        finally:
            self._terminating = False
            self.evict_producers(told)
        for subscription in list(self.subscriptions.values()):
            subscription.on_terminated()
        return last

    async def _settle(self) -> None:
        if self._in_flight and not self._recovering:
            self._settled = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._settled,), timeout=_SETTLE_S)

    async def _store_epoch(self, epoch: int) -> None:
        with storage_errors("store the topic epoch"):
            await self.ledger.update_properties(
                lambda before: {**before, EPOCH_PROPERTY: str(epoch)}
            )

    def _give_up_storage(self) -> None:
        self._recovering = True  # it is being unloaded already
        self.ledger.fence(ManagedLedgerFencedError(f"{self.name}: another broker owns its bundle"))

    def _end_news(self) -> None:
        self.ledger.on_appended = None
        self.ledger.on_fenced = None
        for told in self.watchers:
            told()

    async def _close_storage(self) -> None:
        self._end_news()
        if self.transactions is not None and self.ledger.is_open:
            await self.transactions.close()
        if self.deduplication is not None and self.ledger.is_open:
            self.deduplication.snapshot()  # stored by the close: the next owner reads little
        await self.ledger.close()

    async def _delete_storage(self) -> None:
        self._end_news()
        try:
            others: dict[str, Callable[[], Awaitable[None]]] = {
                x: partial(self._delete_log, x) for x in deleted_logs(self.ledger)
            }
            others |= {x.log.name: x.log.delete for x in self._transactional_acks()}
            await self.ledger.delete(others)
            if self.compaction is not None:
                await self.compaction.delete_ledger()
        except BaseException:  # also when the deletion is cancelled
            await self.ledger.close()
            raise

    async def _delete_log(self, name: str) -> None:
        """Of pending acknowledgements."""
        await self.service.ledgers.delete(name, self.ledger.config)

    @property
    def holds_entries(self) -> bool:
        return self.ledger.offsets.entry_count > 0

    # --- statistics

    def explain_publishing(self) -> Steps[Explanation | None]:
        if self.terminated:
            return explanation.terminated()
        if self.fenced and not self.closing:
            return explanation.storage_failed()
        found = yield from self.backlog.explain()
        if found is None:
            found = yield from super().explain_publishing()
        dropped = None if self.deduplication is None else self.deduplication.dropped()
        if found is None and dropped is not None:
            found = never_delivered.duplicates(dropped, self.service.clock())
        ledger = self.ledger
        missing, allowed = ledger.missing_bookies
        is_waiting = ledger.pending_bytes or missing
        if is_waiting and (found is None or found.reason is Reason.NO_PRODUCER):
            return explanation.storing(
                *(ledger.pending_bytes, ledger.pending_ms, missing, self.service.clock()),
                f" of {allowed}" if allowed else "",
            )
        return found

    @property
    def stored_bytes(self) -> int:
        return self.ledger.total_bytes

    def storage_stats(self) -> Steps[dict[str, Any]]:
        backlog = yield from self.backlog.stats(self.service.clock())
        return {
            **(yield from super().storage_stats()),
            **self._compaction_stats(),
            **({} if self.transactions is None else self.transactions.stats()),
            "storageSize": self.stored_bytes,
            "deduplicationStatus": "Disabled"
            if self.deduplication is None
            else self.deduplication.status,
            **self._offload_stats(),
            **backlog,
        }

    def _compaction_stats(self) -> dict[str, Any]:
        if self.compaction is None:
            return {}
        return {"compaction": self.compaction.figures.stats()}

    def _offload_stats(self) -> dict[str, int]:
        offloads = self.ledger.offloads
        return {
            "offloadedStorageSize": offloads.copied_bytes,
            "lastOffloadLedgerId": offloads.last_ledger_id,
            "lastOffloadSuccessTimeStamp": offloads.last_success_ms,
            "lastOffloadFailureTimeStamp": offloads.last_failure_ms,
        }
