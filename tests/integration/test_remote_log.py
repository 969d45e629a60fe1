"""The log of a topic of another broker, read over the binary protocol: as it is stored, bounded."""

from collections.abc import AsyncIterator, Iterator
from zlib import crc32

import pulsar
import pytest

import magnetar
from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.client.remote_log import RemoteLog
from magnetar.broker.protocol.messages import open_entry
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.embedding import EmbeddedBroker
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position
from tests.official_client import client_of

COUNT = 30
BYTES_MAX = 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded() as broker:
        yield broker


def topic_of(request: pytest.FixtureRequest) -> str:
    return f"log-{crc32(request.node.name.encode())}"


@pytest.fixture
def stored(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> list[Position]:
    """Positions of numbered messages, in two ledgers; the topic is the test's own."""
    positions = []
    with client_of(broker.service_url) as client:
        client.subscribe(topic_of(request), "holds-it").close()  # else the first ledger goes
        producer = client.create_producer(topic_of(request), batching_enabled=False)
        for number in range(COUNT):
            if number == COUNT // 2:
                broker.faults.unload(topic_of(request))
            id_ = producer.send(b"%d" % number)
            positions.append((id_.ledger_id(), id_.entry_id()))
    assert positions[0][0] < positions[-1][0]
    return positions


@pytest.fixture
async def log(
    broker: EmbeddedBroker, stored: list[Position], request: pytest.FixtureRequest
) -> AsyncIterator[RemoteLog]:
    client = ClusterClient(broker.service_url, ClientAuth(), client_version="test")
    async with client:
        name = TopicName.parse(topic_of(request))
        yield RemoteLog(client, name, LedgerOffsets(), "reader-", is_followed=False)


async def read_from(log: RemoteLog, position: Position, entries_max: int) -> list[int]:
    """The numbers from there to the end."""
    found: list[int] = []
    while (batch := await log.read(position, entries_max, BYTES_MAX)) is not None:
        assert (batch.ledger_id, batch.first) >= position
        assert 0 < len(batch.bodies) <= entries_max
        found += [int(bytes(open_entry(body)[1])) for body in batch.bodies]
        position = log.next
    return found


@pytest.mark.parametrize("entries_max", [1, 7, 100])
async def test_all_entries_in_order(
    log: RemoteLog, stored: list[Position], entries_max: int
) -> None:
    assert await read_from(log, stored[0], entries_max) == list(range(COUNT))


@pytest.mark.parametrize("first", [1, COUNT // 2 - 1, COUNT // 2, COUNT - 1])
async def test_from_a_position_on(log: RemoteLog, stored: list[Position], first: int) -> None:
    assert await read_from(log, stored[first], 7) == list(range(first, COUNT))
    assert await read_from(log, stored[0], 7) == list(range(COUNT))  # and again from elsewhere


async def test_behind_the_end_is_nothing(log: RemoteLog, stored: list[Position]) -> None:
    ledger_id, entry_id = stored[-1]
    assert await log.read((ledger_id, entry_id + 1), 10, BYTES_MAX) is None


async def test_few_bytes_are_one_entry_at_least(log: RemoteLog, stored: list[Position]) -> None:
    batch = await log.read(stored[0], 10, 0)
    assert batch is not None
    assert len(batch.bodies) == 1


async def test_a_topic_that_moves_is_read_on(
    broker: EmbeddedBroker,
    log: RemoteLog,
    stored: list[Position],
    request: pytest.FixtureRequest,
) -> None:
    """What came before is read; then a new subscription begins behind it."""
    first = await log.read(stored[0], 5, BYTES_MAX)
    assert first is not None
    with client_of(broker.service_url) as client:
        broker.faults.unload(topic_of(request))
        reader = client.create_reader(topic_of(request), pulsar.MessageId.earliest)
        assert reader.read_next(30_000).data() == b"0"  # it is there again
    rest = await read_from(log, log.next, 100)
    assert rest == list(range(len(first.bodies), COUNT))
