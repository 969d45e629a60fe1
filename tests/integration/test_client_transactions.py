"""Our client's transactions on a real broker, read back by a consumer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.client.async_client_transaction import AsyncClientTransactions
from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.client.client_transaction import (
    ClientTransactionState,
    TransactionOperationFailedError,
)
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.errors import (
    InvalidTransactionStatusError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import Entry, OutgoingMessage, encode_batch
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.transaction.transaction_id import TransactionId
from tests.official_client import client_of
from tests.standalone_process import StandaloneProcess

S = ClientTransactionState
MINUTE_MS = 60_000
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    data = tmp_path_factory.mktemp("transactions") / "data"
    with StandaloneProcess(data, "--set", "transactionCoordinatorEnabled=true") as process:
        yield process


def cluster(broker: StandaloneProcess) -> ClusterClient:
    return ClusterClient(broker.service_url, ClientAuth(), client_version="test")


def topic(name: str) -> TopicName:
    return TopicName.parse(f"persistent://public/default/{name}-{time.time_ns()}")


async def produce(client: ClusterClient, name: TopicName) -> ClientProducer:
    return await ClientProducer(await client.owner(name), name).open()


def entry(
    producer: ClientProducer, first: int, values: list[bytes], transaction: TransactionId | None
) -> Entry:
    messages = [
        OutgoingMessage(value, first + nth, transaction=transaction)
        for nth, value in enumerate(values)
    ]
    return encode_batch(producer.producer_name, messages, int(time.time() * 1000))


def values_of(broker: StandaloneProcess, name: TopicName) -> list[bytes]:
    with client_of(broker.service_url) as client:
        reader = client.create_reader(str(name), pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(WAIT_MS).data())
        return found


async def until_refused(ask: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(30):
        while True:
            await ask()
            await asyncio.sleep(0.05)


class Inbox:
    """The sink of a consumer: ids of what comes."""

    def __init__(self) -> None:
        self.ids: asyncio.Queue[pb.MessageIdData] = asyncio.Queue()

    def deliver(self, _consumer: Any, batch: Any, *_: Any) -> None:
        self.ids.put_nowait(pb.MessageIdData(ledgerId=batch.ledger_id, entryId=batch.first))

    def notify_end_of_topic(self, _consumer: Any) -> None: ...

    def close_consumer(self, _consumer: Any) -> None: ...


def test_two_topics_get_all_of_a_transaction_or_nothing(broker: StandaloneProcess) -> None:
    names = [topic("both"), topic("both-other")]

    async def run() -> None:
        async with cluster(broker) as client:
            transactions = AsyncClientTransactions(client)
            producers = [await produce(client, name) for name in names]
            aborted = await transactions.new_transaction(MINUTE_MS)
            committed = await transactions.new_transaction(MINUTE_MS)
            for transaction, word in ((aborted, b"no"), (committed, b"yes")):
                await asyncio.gather(
                    *(
                        transaction.send(each, [entry(each, 1, [word] * 3, transaction.id)])
                        for each in producers
                    )
                )
            await aborted.abort()
            await committed.commit()
            assert (aborted.state, committed.state) == (S.ABORTED, S.COMMITTED)
            with pytest.raises(InvalidTransactionStatusError):
                await committed.send(producers[0], [])
            # As another process asks: the coordinator has forgotten it.
            with pytest.raises(TransactionNotFoundError):
                await transactions.transaction(committed.id).commit()

    asyncio.run(run())
    assert [values_of(broker, name) for name in names] == [[b"yes"] * 3] * 2


def test_an_acknowledgement_that_conflicts_aborts_the_transaction(
    broker: StandaloneProcess,
) -> None:
    name = topic("acked")

    async def run() -> None:
        async with cluster(broker) as client:
            transactions = AsyncClientTransactions(client)
            inbox = Inbox()
            consumer = ClientConsumer(await client.owner(name), name, inbox)
            await consumer.subscribe(
                pb.CommandSubscribe(subscription="s", subType=pb.CommandSubscribe.Shared)
            )
            consumer.flow(consumer, 10)
            producer = await produce(client, name)
            first = await transactions.new_transaction(MINUTE_MS)
            await first.send(producer, [entry(producer, 1, [b"in"], first.id)])
            await first.commit()
            id_ = await inbox.ids.get()
            one, other = [await transactions.new_transaction(MINUTE_MS) for _ in range(2)]
            await one.acknowledge(consumer, [id_])
            with pytest.raises(TransactionConflictError):
                await other.acknowledge(consumer, [id_])
            with pytest.raises(TransactionOperationFailedError):
                await other.commit()
            assert other.state is S.ABORTED
            await one.abort()
            assert await inbox.ids.get() == id_  # comes again

    asyncio.run(run())


def test_one_that_timed_out_is_not_committed(broker: StandaloneProcess) -> None:
    name = topic("late")

    async def run() -> None:
        async with cluster(broker) as client:
            producer = await produce(client, name)
            transaction = await AsyncClientTransactions(client).new_transaction(1_000)
            await transaction.send(producer, [entry(producer, 1, [b"x"], transaction.id)])
            with pytest.raises((InvalidTransactionStatusError, TransactionNotFoundError)):
                await until_refused(lambda: transaction.check(str(name)))
            with pytest.raises((InvalidTransactionStatusError, TransactionNotFoundError)):
                await transaction.commit()
            assert transaction.state in (S.ABORTED, S.ERROR)

    asyncio.run(run())
    assert values_of(broker, name) == []


def test_a_coordinator_that_is_killed_is_found_again(tmp_path: Path) -> None:
    name = topic("killed")
    with StandaloneProcess(
        tmp_path / "data", "--set", "transactionCoordinatorEnabled=true"
    ) as broker:

        async def run() -> None:
            async with cluster(broker) as client:
                transaction = await AsyncClientTransactions(client).new_transaction(MINUTE_MS)
                producer = await produce(client, name)
                await transaction.send(producer, [entry(producer, 1, [b"x"], transaction.id)])
                broker.kill()
                ending = asyncio.ensure_future(transaction.commit())
                await asyncio.to_thread(broker.start, same_ports=True)
                await ending
                assert transaction.state is S.COMMITTED

        asyncio.run(run())
        assert values_of(broker, name) == [b"x"]


def test_a_cancelled_operation_turns_the_commit_into_an_abort(broker: StandaloneProcess) -> None:
    """Nobody knows whether the message was stored."""
    name = topic("cancelled")

    async def run() -> None:
        async with cluster(broker) as client:
            transaction = await AsyncClientTransactions(client).new_transaction(MINUTE_MS)
            producer = await produce(client, name)
            sent = entry(producer, 1, [b"no"], transaction.id)
            sending = asyncio.ensure_future(transaction.send(producer, [sent]))
            await asyncio.sleep(0)  # it has begun
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            with pytest.raises(TransactionOperationFailedError, match="cancelled"):
                await transaction.commit()
            assert transaction.state is S.ABORTED

    asyncio.run(run())
    assert values_of(broker, name) == []
