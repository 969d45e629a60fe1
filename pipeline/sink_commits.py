"""The driver's side of the exactly-once sink: carries out the steps of `commit_log.py`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from magnetar.broker.client.async_client_transaction import AsyncClientTransactions
from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.client.client_transaction import TransactionOutcomeUnknownError
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.errors import (
    BrokerError,
    ConsumerBusyError,
    InvalidTransactionStatusError,
    TransactionNotFoundError,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import (
    OutgoingMessage,
    encode_single,
    messages_of,
    open_entry,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import Position
from magnetar.pipeline.commit_log import (
    AbortAll,
    Append,
    CheckOpen,
    CommitAll,
    ForgetBefore,
    Read,
    ReadLog,
    Record,
    Step,
    Steps,
    TaskTransaction,
    TellTime,
    decode_record,
    encode_record,
)
from magnetar.pipeline.errors import WriteError
from magnetar.pipeline.sink_options import SinkOptions

_T = TypeVar("_T")

SUBSCRIPTION: Final = "spark-commits"
_PERMITS: Final = 1_000
_RECORD_BYTES_MAX: Final = 4 << 20
_ANSWER_S: Final = 30.0
_AT_ONCE: Final = 64
"""Transactions that are ended at the same time."""
_ENDED: Final = (
    TransactionNotFoundError,
    InvalidTransactionStatusError,
    TransactionOutcomeUnknownError,
)


def cluster_of(options: SinkOptions) -> ClusterClient:
    return ClusterClient(options.service_url, options.access, client_version="Magnetar-spark")


def run_steps(options: SinkOptions, topic: TopicName, steps: Steps, *, is_last: bool) -> bool:
    """Carry them out; what they return.

    Args:
        is_last: nobody will ask for the records again.
    Raises:
        WriteError: as the steps, or brokers don't answer: what was decided before stays decided.
    """
    return asyncio.run(_run(options, topic, steps, is_last))


async def _run(options: SinkOptions, topic: TopicName, steps: Steps, is_last: bool) -> bool:
    try:
        async with cluster_of(options) as cluster:
            place = (await cluster.parts(topic))[0]
            log = _CommitTopic(cluster, place)
            await log.open(options.name_wait_ms / 1000)
            runner = _StepRunner(AsyncClientTransactions(cluster), log)
            try:
                answer: Any = None
                while True:
                    answer = await runner.carry_out(steps.send(answer))
            except StopIteration as end:
                await log.close(unsubscribes=is_last)
                return bool(end.value)
    except BrokerError as error:
        raise WriteError(f"{topic}: {error}") from error


async def append_record(cluster: ClusterClient, topic: TopicName, record: Record) -> Position:
    """Returns when the record is durable. Raises BrokerError."""
    place = (await cluster.parts(topic))[0]
    producer = await ClientProducer(await cluster.owner(place), place).open()
    try:
        return await _append(producer, 1, record)
    finally:
        producer.close()


async def _append(producer: ClientProducer, sequence_id: int, record: Record) -> Position:
    message = OutgoingMessage(encode_record(record), sequence_id)
    entry = encode_single(producer.producer_name, message, _now_ms())
    stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_answer(_: int, __: int, ledger: int, entry_id: int, error: Exception | None) -> None:
        if stored.done():
            return
        if error is not None:
            stored.set_exception(error)
        else:
            stored.set_result((ledger, entry_id))

    producer.publish([entry], on_answer)
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await stored
    except TimeoutError as error:
        raise WriteError(f"{producer.topic}: no receipt within {_ANSWER_S:.0f} s") from error


def _now_ms() -> int:
    return int(time.time() * 1000)


class _CommitTopic:
    """The records of a query that are kept: behind the acknowledged ones of a subscription.

    Its consumer is the only one, so a driver that still runs keeps out the next one for a while.
    """

    def __init__(self, cluster: ClusterClient, topic: TopicName) -> None:
        self._cluster, self._topic = cluster, topic
        self._records: list[tuple[Position, Record]] = []
        self._came = asyncio.Event()
        self._consumer: ClientConsumer | None = None
        self._failed: Exception | None = None
        self._appended: Position | None = None
        self._count = 0

    async def open(self, wait_s: float) -> None:
        """
        Args:
            wait_s: how long to wait for another driver.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            connection = await self._cluster.owner(self._topic)
            consumer = ClientConsumer(connection, self._topic, self)
            kinds = pb.CommandSubscribe
            try:
                await consumer.subscribe(
                    kinds(
                        subscription=SUBSCRIPTION,
                        subType=kinds.Exclusive,
                        initialPosition=kinds.Earliest,
                    )
                )
                break
            except ConsumerBusyError as error:
                if loop.time() > deadline_s:
                    raise WriteError(
                        f"{self._topic}: another driver of this query is connected for "
                        f"more than {wait_s:.0f} s (producerNameTimeoutMs)"
                    ) from error
            await asyncio.sleep(0.2)
        self._consumer = consumer
        consumer.flow(consumer, _PERMITS)
        self._producer = await ClientProducer(connection, self._topic).open()

    async def append(self, record: Record) -> None:
        self._count += 1
        self._appended = await _append(self._producer, self._count, record)

    async def read(self) -> list[tuple[Position, Record]]:
        """All up to the last one that was appended here."""
        if self._appended is None:
            await self.append(Read(0))
        assert self._appended is not None
        try:
            async with asyncio.timeout(_ANSWER_S):
                while not self._records or self._records[-1][0] < self._appended:
                    if self._failed is not None:
                        raise self._failed
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError as error:
            raise WriteError(f"{self._topic}: records didn't come in time") from error
        return self._records

    async def forget_before(self, position: Position) -> None:
        assert self._consumer is not None
        old = [each for each, _ in self._records if each < position]
        if old:
            self._consumer.acknowledge(self._consumer, old)
            await self._consumer.flush()

    async def close(self, *, unsubscribes: bool) -> None:
        assert self._consumer is not None
        self._producer.close()
        if unsubscribes:
            await self._consumer.unsubscribe(self._consumer, force=False)
        else:
            await self._consumer.close()

    # --- the sink of the consumer

    def deliver(self, consumer: ClientConsumer, batch: Any, *_: Any) -> None:
        try:
            metadata, payload = open_entry(batch.bodies[0])
            for message in messages_of(metadata, payload, _RECORD_BYTES_MAX):
                place = (batch.ledger_id, batch.first)
                self._records.append((place, decode_record(message.payload)))
        except Exception as error:  # told to whom reads
            self._failed = error
        if consumer.permits < _PERMITS // 2:
            consumer.flow(consumer, _PERMITS - consumer.permits)
        self._came.set()

    def notify_end_of_topic(self, _: object) -> None:
        """Its appends say so."""

    def close_consumer(self, _: object) -> None:
        self._failed = WriteError(f"{self._topic} has left its broker; try again")
        self._came.set()


class _StepRunner:
    def __init__(self, transactions: AsyncClientTransactions, log: _CommitTopic) -> None:
        self._transactions, self._log = transactions, log

    async def carry_out(self, step: Step) -> Any:
        """Its answer. Raises BrokerError, WriteError: it is open whether it was carried out."""
        match step:
            case ReadLog():
                return await self._log.read()
            case Append(record):
                return await self._log.append(record)
            case CheckOpen(transactions):
                return await self._each(self._is_open, transactions)
            case CommitAll(transactions):
                return await self._each(self._is_committed, transactions)
            case AbortAll(ids):
                return await self._each(self._abort, ids)
            case TellTime():
                return _now_ms()
            case ForgetBefore(position):
                return await self._log.forget_before(position)

    async def _each(self, ask: Callable[[_T], Awaitable[bool]], what: Iterable[_T]) -> list[bool]:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(each: _T) -> bool:
            async with slots:
                return await ask(each)

        return await asyncio.gather(*map(one, what))

    async def _is_open(self, written: TaskTransaction) -> bool:
        return await _holds(self._transactions.transaction(written.id).check(written.partition))

    async def _is_committed(self, written: TaskTransaction) -> bool:
        return await _holds(self._transactions.transaction(written.id).commit())

    async def _abort(self, id_: TransactionId) -> bool:
        return await _holds(self._transactions.transaction(id_).abort())


async def _holds(asked: Awaitable[None]) -> bool:
    """Whether it was carried out; else the transaction has ended, or is being aborted."""
    try:
        await asked
    except _ENDED:
        return False
    return True
