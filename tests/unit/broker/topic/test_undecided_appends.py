"""De-duplication while nobody knows whether failed appends are stored."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.transport import AddRequest
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import TopicFencedError
from magnetar.broker.producer import deduplication as deduplication
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger import append_path
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.errors import SessionLostError
from magnetar.metadata.store import Versioned
from tests.unit.broker.doubles import Broker, message, receipts
from tests.unit.broker.topic.test_deduplication import (
    NAME,
    connected,
    reload,
    sends,
    stored,
    topic_of,
)
from tests.unit.managed_ledger.cluster import eventually


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for an end gives up after 0.3 s, and begins again at once."""
    monkeypatch.setattr(append_path, "END_RETRY_S", 0.001)
    monkeypatch.setattr(deduplication, "_SEEK_S", 0.01)


def cut_off(broker: Broker, *, is_stored: bool = True) -> Callable[[], None]:
    """With the next entry bookies go, and metadata for a moment; the result brings them back.

    The ledger can then only be ended by a recovery, which needs the bookies.
    """
    link, bookie = broker.cluster.connections[0], broker.cluster.bookie
    session = broker.cluster.sessions[0]
    answer, put = link._answer, session.put
    lost: list[str] = []

    def store_and_vanish(request: AddRequest) -> None:
        if is_stored:
            bookie.add(request)
        bookie.up = False
        answer(request)

    async def put_with_a_gap(
        path: str, value: bytes, expected_version: int | None = None, **more: bool
    ) -> Versioned:
        if path.startswith("/ledgers/") and not lost and not bookie.up:
            lost.append(path)
            raise SessionLostError("s")
        return await put(path, value, expected_version, **more)

    def heal() -> None:
        link._answer, bookie.up = answer, True  # type: ignore[method-assign]

    link._answer = store_and_vanish  # type: ignore[method-assign]
    session.put = put_with_a_gap  # type: ignore[method-assign]
    return heal


async def undecided(
    broker: Broker, what: bytes, *, is_stored: bool = True
) -> tuple[PersistentTopic, Callable[[], None]]:
    """A topic that has stored 0 and doesn't know what became of ``what``; and the healing."""
    topic = await topic_of(broker)
    client, _ = await connected(broker)
    client.feed(sends(0))
    await client.receive(1)
    heal = cut_off(broker, is_stored=is_stored)
    client.feed(what)
    assert (await client.receive_one()).type == pb.BaseCommand.CLOSE_PRODUCER
    await eventually(lambda: topic.deduplication is None or topic.deduplication.seeks_end)
    return topic, heal


@pytest.fixture
async def broker() -> Broker:
    return await Broker(broker_deduplication_enabled=True).start()


@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_id_comes_again_when_it_is_known_what_became_of_it(
    broker: Broker, *, is_stored: bool
) -> None:
    _, heal = await undecided(broker, sends(1), is_stored=is_stored)
    heal()
    client, last = await connected(broker, port=5001)
    assert last == (1 if is_stored else 0), "as it is in the log"
    client.feed(sends(1, 2))
    assert [id_ for id_, *_ in receipts(await client.receive(2))] == [1, 2]
    assert await stored(broker) == [b"0", b"1", b"2"]
    await broker.close()


async def test_no_producer_is_let_in_before_that_but_consumers_are(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "_PRODUCER_WAITS_S", 0.05)
    topic, heal = await undecided(broker, sends(1))
    client = broker.client(port=5001)
    await client.receive_one()
    answer, _ = await client.produce(producer_name="p")
    assert (answer.type, answer.error.error) == (pb.BaseCommand.ERROR, pb.ServiceNotReady)
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic, subscribe.subscription = NAME.full, "keeper"
    subscribe.subType, subscribe.consumer_id, subscribe.request_id = (
        pb.CommandSubscribe.Shared,
        1,
        9,
    )
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, 10
    client.send(command)
    assert (await client.receive_one()).message.message_id.entryId == 0
    heal()
    # What turns up is delivered, though nothing is published.
    assert (await client.receive_one()).message.message_id.entryId == 1
    await eventually(lambda: topic.last_sequence_id("p") == 1)
    await broker.close()


@pytest.mark.parametrize(
    ("what", "last", "payloads"),
    [
        (message(1, b"x" * 60, highest=3, num_messages_in_batch=3), 3, 1),
        (message(1, b"x" * 60, num_messages_in_batch=3), 3, 1),
        (
            b"".join(
                message(
                    1, b"x", uuid="u", num_chunks_from_msg=2, chunk_id=n, total_chunk_msg_size=2
                )
                for n in range(2)
            ),
            1,
            2,
        ),
    ],
    ids=["batch", "batch of C++", "chunks"],
)
async def test_so_it_is_with(broker: Broker, what: bytes, last: int, payloads: int) -> None:
    _, heal = await undecided(broker, what)
    heal()
    client, told = await connected(broker, port=5001)
    assert told == last
    client.feed(what)
    assert all(x.type == pb.BaseCommand.SEND_RECEIPT for x in await client.receive(payloads))
    assert len(await stored(broker)) == 1 + payloads
    await broker.close()


async def test_the_topic_may_be_unloaded_meanwhile(broker: Broker) -> None:
    _, heal = await undecided(broker, sends(1))
    await broker.service.loader.unload(str(NAME))
    assert NAME.full not in broker.service.topics
    heal()
    topic = await reload(broker)
    assert topic.last_sequence_id("p") == 1
    client, last = await connected(broker, port=5001)
    client.feed(sends(1, 2))
    await client.receive(2)
    assert (last, await stored(broker)) == (1, [b"0", b"1", b"2"])
    await broker.close()


async def test_what_turned_up_is_read_before_anything_is_taken(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, heal = await undecided(broker, sends(1))
    read = ManagedLedger.read
    failures: list[bool] = []

    async def fail(self: ManagedLedger, *arguments: object) -> object:
        if len(failures) < 3:
            failures.append(topic.deduplication is not None and topic.deduplication.seeks_end)
            raise BookieUnavailableError("b0")
        return await read(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ManagedLedger, "read", fail)
    heal()
    client, last = await connected(broker, port=5001)
    assert (last, failures) == (1, [True] * 3)
    client.feed(sends(1))
    await client.receive(1)
    assert await stored(broker) == [b"0", b"1"]
    await broker.close()


async def test_de_duplication_that_begins_meanwhile_waits_as_well(broker: Broker) -> None:
    await broker.service.apply_config(_with(broker, on=False))
    topic, heal = await undecided(broker, sends(1))
    assert topic.deduplication is None
    assert topic.ledger.is_undecided
    await broker.service.apply_config(_with(broker, on=True))
    await eventually(lambda: getattr(topic.deduplication, "judges", False))
    heal()
    client, last = await connected(broker, port=5001)
    client.feed(sends(1))
    await client.receive(1)
    assert (last, await stored(broker)) == (1, [b"0", b"1"])
    await broker.close()


async def test_without_it_the_next_message_is_taken_at_once() -> None:
    broker = await Broker().start()
    topic, heal = await undecided(broker, sends(1))
    assert topic.ledger.is_undecided
    client, _ = await connected(broker, port=5001)
    client.feed(sends(1))
    heal()
    await client.receive(1)
    assert await stored(broker) == [b"0", b"1", b"1"], "as in Pulsar: that is at least once"
    await broker.close()


async def test_a_duplicate_that_is_answered_last_does_not_keep_the_topic_fenced(
    broker: Broker,
) -> None:
    topic, heal = await undecided(broker, sends(1, 0))
    await eventually(lambda: not topic.fenced)
    with pytest.raises(TopicFencedError):
        topic._check_takes_entries()  # for the end that isn't known
    heal()
    client, last = await connected(broker, port=5001)
    assert last == 1
    client.feed(sends(2))
    await client.receive(1)
    await broker.close()


def _with(broker: Broker, *, on: bool) -> BrokerConfig:
    return replace(broker.service.config, broker_deduplication_enabled=on)
