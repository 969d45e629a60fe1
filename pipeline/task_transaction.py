"""The rows of one Spark task, all in one transaction: of the exactly-once sink.

By this project's own client, since the official one for Python has no transactions. Each attempt
of a task has a transaction of its own; which of them counts is decided by the driver.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.cli.loop_thread import LoopThread
from magnetar.broker.client.async_client_transaction import (
    AsyncClientTransaction,
    AsyncClientTransactions,
)
from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.errors import BrokerError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import OutgoingMessage, encode_batch, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.pipeline.commit_log import Began, TaskTransaction
from magnetar.pipeline.entry_plan import HASHES, EntryPlan, choose_partition
from magnetar.pipeline.errors import WriteError
from magnetar.pipeline.sink_commits import append_record, cluster_of
from magnetar.pipeline.sink_options import SinkOptions, commit_topic_of, full_topic_name
from magnetar.pipeline.task_producers import RowMessage, TaskRun, TaskWriteResult

_log = logging.getLogger(__name__)

_COMPRESSIONS: Final = {
    "none": pb.NONE,
    "lz4": pb.LZ4,
    "zlib": pb.ZLIB,
    "zstd": pb.ZSTD,
    "snappy": pb.SNAPPY,
}
_CLOSING_S: Final = 5.0


@dataclass(slots=True)
class _TransactionTarget:
    """One topic partition that the task writes to."""

    number: int
    place: TopicName
    producer: ClientProducer | None = None  # opened with the first row
    messages: list[OutgoingMessage] = field(default_factory=list)
    """Of the open entry."""
    size: int = 0
    first_row: int = 0
    sequence_id: int = 0


class TaskTransactionWriter:
    """Sends the rows of one attempt of a task, in order, as `TaskProducers`. Not for several
    threads.
    """

    def __init__(self, options: SinkOptions, run: TaskRun, on_topic: Callable[[str], None]) -> None:
        """
        Args:
            on_topic: called with each topic before something is sent to it; may raise.
        Raises:
            WriteError: brokers don't answer, or have no transactions.
        """
        self._options, self._run, self._on_topic = options, run, on_topic
        self._hashed = HASHES[options.hashing]
        self._plan = EntryPlan(
            options.messages_max,
            options.entry_bytes_max,
            options.pending_messages_max,
            options.pending_bytes_max,
        )
        self._kind = _COMPRESSIONS[options.compression]
        self._topics: dict[str, list[_TransactionTarget]] = {}
        self._targets: list[_TransactionTarget] = []
        self._sending: deque[tuple[Future[Any], str, int, int]] = deque()
        self._sending_bytes = 0
        self._rows = 0
        self._cluster: ClusterClient = cluster_of(options)
        self._expires_ms = int(time.time() * 1000) + options.transaction_timeout_ms
        self._transaction: AsyncClientTransaction | None = None
        self._thread = LoopThread("task-transaction")
        try:
            self._transaction = self._call(self._open())
        except BaseException:
            self.abandon()
            raise

    def _call(self, asked: Any) -> Any:
        try:
            return self._thread.call(asked)
        except BrokerError as error:
            raise WriteError(f"{self._options.service_url}: {error}") from error

    async def _open(self) -> AsyncClientTransaction:
        transaction = await AsyncClientTransactions(self._cluster).new_transaction(
            self._options.transaction_timeout_ms
        )
        # Before the first row: whoever comes later finds what a killed task leaves open.
        topic = commit_topic_of(self._options, self._run.name)
        await append_record(self._cluster, topic, Began(self._run.batch_id, transaction.id))
        return transaction

    def send(self, message: RowMessage) -> None:
        """Take the next row; it may be stored later than this returns.

        Raises:
            WriteError: it can't be sent, or an earlier one wasn't stored.
            OptionsError: it names a topic or partition that can't be.
        """
        row = self._rows
        self._rows += 1
        topic = self._options.topic or message.topic
        if not topic:
            raise WriteError(f"row {row} of the task names no topic: column topic is null")
        targets = self._topics.get(topic) or self._open_topic(topic)
        try:
            index = choose_partition(
                message.key, message.partition, row + self._run.task, len(targets), self._hashed
            )
        except WriteError as error:
            raise WriteError(f"{topic}: row {row} of the task: {error}") from error
        target = targets[index]
        if target.producer is None:
            self._on_topic(str(target.place.base))
            target.producer = self._call(self._open_producer(target.place))
        delayed = message.deliver_ms is not None or message.deliver_after_ms is not None
        before, is_end = self._plan.place(target.number, message.size, delayed)
        for number in before:
            self._end_entry(self._targets[number])
        if not target.messages:
            target.first_row = row
        target.messages.append(self._outgoing(target, message))
        target.size += message.size
        if is_end:
            self._end_entry(target)

    def _outgoing(self, target: _TransactionTarget, row: RowMessage) -> OutgoingMessage:
        assert self._transaction is not None
        target.sequence_id += 1
        deliver_ms = row.deliver_ms or 0
        if row.deliver_after_ms is not None:
            deliver_ms = int(time.time() * 1000) + row.deliver_after_ms
        return OutgoingMessage(
            row.value or b"",
            target.sequence_id,
            key=row.key or None,
            properties=row.properties,
            event_time_ms=row.event_ms or 0,
            deliver_at_ms=deliver_ms,
            ordering_key=(row.ordering_key or "").encode(),
            is_tombstone=row.value is None,
            transaction=self._transaction.id,
        )

    def _end_entry(self, target: _TransactionTarget) -> None:
        messages, size, producer = target.messages, target.size, target.producer
        assert producer is not None
        assert self._transaction is not None
        target.messages, target.size = [], 0
        now_ms, name = int(time.time() * 1000), producer.producer_name
        if len(messages) > 1:
            entry = encode_batch(name, messages, now_ms, self._kind)
        else:
            entry = encode_single(name, messages[0], now_ms, self._kind)
        where = (str(target.place), target.first_row)
        if len(entry[1]) > self._cluster.message_bytes_max:
            raise WriteError(
                f"{where[0]}: row {where[1]} of the task was not stored: MessageTooBig"
            )
        while self._sending and (
            self._sending[0][0].done()
            or self._sending_bytes + size > self._options.pending_bytes_max
        ):
            self._wait_for_one()
        sent = self._thread.start(self._transaction.send(producer, [entry]))
        self._sending.append((sent, *where, size))
        self._sending_bytes += size

    def _wait_for_one(self) -> None:
        """Of the entries that were handed over, the first. Raises WriteError."""
        sent, place, row, size = self._sending.popleft()
        self._sending_bytes -= size
        try:
            sent.result()
        except BrokerError as error:
            raise WriteError(
                f"{place}: row {row} of the task, or one behind it, was not stored: {error}"
            ) from error

    def finish(self) -> TaskWriteResult:
        """All rows are stored; the transaction is open still.

        Raises:
            WriteError: one isn't.
        """
        for target in self._targets:
            if target.messages:
                self._end_entry(target)
        while self._sending:
            self._wait_for_one()
        assert self._transaction is not None
        used = next(target for target in self._targets if target.producer is not None)
        written = TaskTransaction(self._transaction.id, str(used.place), self._expires_ms)
        self._close()
        return TaskWriteResult(self._rows, 0, written)

    def abandon(self) -> None:
        """Abort, if that can be: else the driver does it, or the time-out."""
        try:
            if self._transaction is not None:
                self._thread.call(_abort(self._transaction))
        except Exception as error:  # an attempt that fails already
            _log.warning("transaction of %s: %s", self._run.producer_name, error)
        self._close()

    def _close(self) -> None:
        self._thread.call(self._leave())
        self._thread.close()

    async def _leave(self) -> None:
        self._cluster.close()

    # --- topics and producers

    def _open_topic(self, topic: str) -> list[_TransactionTarget]:
        name = full_topic_name(topic, True, "column topic")
        if (targets := self._topics.get(name)) is None:
            places = self._call(self._cluster.parts(TopicName.parse(name)))
            first = len(self._targets)
            targets = [_TransactionTarget(first + nth, place) for nth, place in enumerate(places)]
            self._targets += targets
            self._topics[name] = targets
        self._topics[topic] = targets
        return targets

    async def _open_producer(self, place: TopicName) -> ClientProducer:
        assert self._transaction is not None
        producer = await ClientProducer(await self._cluster.owner(place), place).open()
        await self._transaction.send(producer, [])  # registers the partition, once
        return producer


async def _abort(transaction: AsyncClientTransaction) -> None:
    async with asyncio.timeout(_CLOSING_S):
        await transaction.abort()
