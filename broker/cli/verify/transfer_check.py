"""Transfers of `magnetar verify`: messages go from topic to topic in transactions."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from magnetar.broker.cli.binary_client import CommandClient
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.verify.attempts import NoProgressError, retried
from magnetar.broker.cli.verify.topic_check import Surroundings
from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.client.async_client_transaction import (
    AsyncClientTransaction,
    AsyncClientTransactions,
)
from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.client.client_transaction import (
    ClientTransactionState,
    TransactionOutcomeUnknownError,
)
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.broker.protocol.messages import OutgoingMessage, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.history import Rule, Violation
from magnetar.broker.verify.transfers import (
    Anomaly,
    Seen,
    Sending,
    Transfer,
    TransferHistory,
    TransferMessage,
    check_transfers,
)
from magnetar.broker.verify.verdict import TopicVerdict
from magnetar.managed_ledger.entry_batch import EntryBatch

_T = TypeVar("_T")

TRANSFER_TOPICS: Final = 3
_RETAINING, _SUBSCRIPTION = "retaining", "transfers"
_TIMEOUT_MS: Final = 5_000
_ANSWER_S: Final = 10.0
_DISTURB_S: Final = 1.0, 3.0
_PERMITS: Final = 1000
_SHARE_COMMITTED, _SHARE_ENDED = 0.8, 0.97
"""The others time out."""
_FAILED: Final = (BrokerError, CliError, TimeoutError)


async def has_transactions(client: CommandClient) -> bool:
    """Raises CliError, BrokerError."""
    try:
        transaction = await AsyncClientTransactions(client).new_transaction(_TIMEOUT_MS)
    except (BrokerError, CliError):
        return False
    await transaction.abort()
    return True


class TransferCheck:
    """``run`` it once, and ask for its ``verdict``."""

    def __init__(
        self, around: Surroundings, topics: Sequence[TopicName], seed: str, count: int
    ) -> None:
        """``count``: transfers that each topic's client tries."""
        self.around, self.topics, self.count = around, topics, count
        self.history = TransferHistory()
        self.tick = itertools.count().__next__
        self.number = itertools.count().__next__
        self.disturbances: dict[str, int] = {}
        self._rng = random.Random(seed)
        self._client = CommandClient(around.target)
        self._workers = [
            _TransferWorker(self, place, random.Random(self._rng.random()))
            for place in range(len(topics))
        ]

    async def run(self) -> None:
        """Raises NoProgressError: there is nothing to judge."""
        try:
            for topic in self.topics:
                for name in (_RETAINING, _SUBSCRIPTION):
                    await self._read(topic, name, None)
            disturbing = asyncio.ensure_future(self._disturb())
            try:
                await asyncio.gather(*(each.run() for each in self._workers))
            finally:
                disturbing.cancel()
            await self._look()
        finally:
            for client in (self._client, *(each.client for each in self._workers)):
                client.close()

    def verdict(self) -> TopicVerdict:
        """Of all its topics together."""
        where = ", ".join(map(str, self.topics))
        return TopicVerdict(
            where,
            [
                Violation(Rule.TRANSACTION, f"{each.anomaly}: {each.text}", topic=where)
                for each in check_transfers(self.history)
            ],
            sent=len(self.history.sendings),
            stored=sum(len(each or ()) for each in self.history.final.values()),
            delivered=len(self.history.consumed),
        )

    async def send(
        self,
        producer: ClientProducer,
        transfer: int | None = None,
        transaction: AsyncClientTransaction | None = None,
    ) -> TransferMessage:
        """Returns with the receipt. Raises BrokerError, TimeoutError."""
        message = TransferMessage(str(producer.topic), self.number())
        sending = self.history.sendings[message] = Sending(self.tick(), None, transfer)
        content = OutgoingMessage(
            b"%d" % message.number,
            message.number,
            transaction=None if transaction is None else transaction.id,
        )
        entry = encode_single(producer.producer_name, content, int(time.time() * 1000))
        if transaction is not None:
            self.history.transfers[transfer or 0].sent.append(message)
            await transaction.send(producer, [entry])
        else:
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def answered(_: int, __: int, ___: int, ____: int, error: Exception | None) -> None:
                if not stored.done():
                    stored.set_result(None) if error is None else stored.set_exception(error)

            producer.publish([entry], answered)
            async with asyncio.timeout(_ANSWER_S):
                await stored
        sending.receipt = self.tick()
        return message

    async def _disturb(self) -> None:
        admin, rng = self.around.admin, self._rng
        assert admin is not None  # who makes the topics
        while True:
            await asyncio.sleep(rng.uniform(*_DISTURB_S))
            if rng.random() < 0.5 or not self.around.known_faults:
                what = "transfers' connections cut"
                rng.choice(self._workers).client.close()
            else:
                what = "topic of transfers unloaded"
                with contextlib.suppress(BrokerError, CliError):
                    await admin.unload(rng.choice(self.topics))
            self.disturbances[what] = self.disturbances.get(what, 0) + 1

    # --- the end

    async def _look(self) -> None:
        """At what is stored, and at what the subscriptions deliver once all has timed out."""
        ends = {topic: await self._send_last(topic) for topic in self.topics}
        for topic, end in ends.items():
            try:
                seen = await self._read(topic, _RETAINING, end)
                self.history.final[str(topic)] = [each.message for each in seen]
            except NoProgressError:
                self.history.final[str(topic)] = None
        deadline_s = time.monotonic() + self.around.patience_s
        while True:
            for topic, end in ends.items():
                seen = await self._read(topic, _SUBSCRIPTION, end)
                self.history.consumed += seen
                self.history.left[str(topic)] = {each.message for each in seen}
            found = check_transfers(self.history)
            if all(each.anomaly != Anomaly.NOT_RETURNED for each in found):
                return
            if time.monotonic() > deadline_s:
                return
            await asyncio.sleep(1)

    async def _send_last(self, topic: TopicName) -> TransferMessage:
        async def send() -> TransferMessage:
            producer = await ClientProducer(await self._client.owner(topic), topic).open()
            try:
                return await self.send(producer)
            finally:
                producer.close()

        return await self._retried(f"{topic}: no receipt", send)

    async def _read(
        self, topic: TopicName, subscription: str, end: TransferMessage | None
    ) -> list[Seen]:
        """What a subscription delivers, up to that message; None: it is only made.

        Raises:
            NoProgressError: that doesn't come.
        """

        async def read() -> list[Seen]:
            since, seen = self.tick(), list[Seen]()
            inbox = await _TransferInbox.open(self._client, topic, subscription)
            try:
                while end is not None and (not seen or seen[-1].message != end):
                    async with asyncio.timeout(_ANSWER_S):
                        _, message = await inbox.take()
                    seen.append(Seen(message, self.tick(), since))
            finally:
                with contextlib.suppress(BrokerError):
                    await inbox.close()
            return seen

        return await self._retried(f"{topic}: {subscription} isn't read to its end", read)

    async def _retried(self, what: str, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async def without_timeouts() -> _T:
            try:
                return await work()
            except TimeoutError as error:
                raise CliError("no answer in time") from error

        return await retried(what, without_timeouts, self.around.patience_s)


class _TransferInbox:
    """The sink of a consumer: ids and messages that came."""

    def __init__(self, connection: AsyncClientConnection, topic: TopicName) -> None:
        self.consumer = ClientConsumer(connection, topic, self)
        self._topic = str(topic)
        self._came: asyncio.Queue[tuple[pb.MessageIdData, TransferMessage] | None]
        self._came = asyncio.Queue()

    @classmethod
    async def open(
        cls, client: CommandClient, topic: TopicName, subscription: str
    ) -> "_TransferInbox":
        """Raises BrokerError, CliError."""
        inbox = cls(await client.owner(topic), topic)
        kinds = pb.CommandSubscribe
        command = kinds(
            subscription=subscription, subType=kinds.Shared, initialPosition=kinds.Earliest
        )
        await inbox.consumer.subscribe(command)
        inbox.consumer.flow(inbox.consumer, _PERMITS)
        return inbox

    async def take(self) -> tuple[pb.MessageIdData, TransferMessage]:
        """Raises ServiceNotReadyError: the consumer has ended."""
        found = await self._came.get()
        if found is None:
            raise ServiceNotReadyError(f"{self._topic}: the consumer was closed")
        self.consumer.flow(self.consumer, 1)
        return found

    async def close(self) -> None:
        """Raises BrokerError."""
        await self.consumer.close()

    # --- the sink

    def deliver(self, consumer: object, batch: EntryBatch, *_: object) -> None:
        for nth, body in enumerate(batch.bodies):
            number = int(bytes(parse_entry_body(bytes(body))[1]))
            at = pb.MessageIdData(ledgerId=batch.ledger_id, entryId=batch.first + nth)
            self._came.put_nowait((at, TransferMessage(self._topic, number)))

    def notify_end_of_topic(self, consumer: object) -> None:
        """Nobody ends these topics."""

    def close_consumer(self, consumer: object) -> None:
        self._came.put_nowait(None)


class _TransferWorker:
    """Takes from one topic, and sends to the others."""

    def __init__(self, check: TransferCheck, place: int, rng: random.Random) -> None:
        self.client = CommandClient(check.around.target)
        self._check, self._topic, self._rng = check, check.topics[place], rng
        self._transactions = AsyncClientTransactions(self.client, check.around.patience_s)
        self._done = 0
        self._moved_s = time.monotonic()

    async def run(self) -> None:
        """Raises NoProgressError."""
        self._moved_s = time.monotonic()
        while self._done < self._check.count:
            try:
                await self._session()
            except _FAILED as error:
                if self._is_late():
                    raise NoProgressError(f"{self._topic}: no transaction: {error}") from error
                await asyncio.sleep(0.1)

    async def _session(self) -> None:
        """Until something breaks."""
        check, producers, since = self._check, list[ClientProducer](), self._check.tick()
        inbox = await _TransferInbox.open(self.client, self._topic, _SUBSCRIPTION)
        try:
            for topic in check.topics:
                connection = await self.client.owner(topic)
                producers.append(await ClientProducer(connection, topic).open())
            while self._done < check.count:
                own = next(each for each in producers if each.topic == self._topic)
                await check.send(own)
                async with asyncio.timeout(_ANSWER_S):
                    at, message = await inbox.take()
                check.history.consumed.append(Seen(message, check.tick(), since))
                others = [each for each in producers if each is not own]
                await self._transfer(others, inbox.consumer, at, message)
                self._done += 1
                self._moved_s = time.monotonic()
        finally:
            for producer in producers:
                producer.close()
            with contextlib.suppress(*_FAILED):
                await inbox.close()

    async def _transfer(
        self,
        producers: Sequence[ClientProducer],
        consumer: ClientConsumer,
        at: pb.MessageIdData,
        message: TransferMessage,
    ) -> None:
        check, number = self._check, self._check.number()
        transfer = check.history.transfers[number] = Transfer()
        transaction = await self._transactions.new_transaction(_TIMEOUT_MS)
        for producer in producers:
            await check.send(producer, number, transaction)
        await transaction.acknowledge(consumer, [at])
        transfer.taken = [message]
        fate = self._rng.random()
        if fate > _SHARE_ENDED:
            what = "transaction left to time out"
        elif fate > _SHARE_COMMITTED:
            what = "transaction aborted"
            await transaction.abort()
        else:
            what = "transaction committed"
            transfer.commit_asked = check.tick()
            await self._commit(transaction)
            transfer.committed = check.tick()
        check.disturbances[what] = check.disturbances.get(what, 0) + 1

    async def _commit(self, transaction: AsyncClientTransaction) -> None:
        """Raises BrokerError, CliError: nobody says whether it is committed."""
        while True:
            try:
                return await transaction.commit()
            except TransactionOutcomeUnknownError:
                raise
            except _FAILED:
                is_asked = transaction.state is ClientTransactionState.COMMITTING
                if not is_asked or self._is_late():
                    raise
            await asyncio.sleep(0.1)

    def _is_late(self) -> bool:
        return time.monotonic() - self._moved_s > self._check.around.patience_s
