"""A bundle that another broker has: its topics are closed, and nothing of them is written."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OWNERS_ROOT
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.broker.doubles import Broker, Client, message
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
NEW_OWNER = BrokerLookup("pulsar://heir.example:6650", None, None, None)


class Writes:
    """The changes that a session asks its store for, of topics and of ledgers."""

    def __init__(self, store: Any) -> None:
        self.paths: list[str] = []
        for name in ("put", "delete", "delete_recursive"):
            setattr(store, name, self._counted(getattr(store, name)))

    def _counted(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def counted(path: str, *args: Any, **options: Any) -> object:
            if path.startswith(("/managed-ledgers", "/ledgers")):
                self.paths.append(path)
            return await call(path, *args, **options)

        return counted


async def busy_topic(broker: Broker) -> tuple[Client, Callable[[], None]]:
    """Stored messages, a subscription with holes, and a message under way; how to release it."""
    client = broker.client()
    await client.receive_one()
    topic = await broker.service.loader.load(TopicName.parse(TOPIC), create=True)
    subscription: Any = await topic.create_subscription("s", (-1, -1))
    await client.produce()
    client.feed(b"".join(message(number) for number in range(5)))
    receipts = [each.send_receipt.message_id for each in await client.receive(5)]
    durable: list[BaseException | None] = []
    position = (receipts[1].ledgerId, receipts[1].entryId)
    subscription.cursor.ack([position], durable.append)
    await eventually(lambda: bool(durable))
    assert durable == [None]
    release = broker.hold_storage()
    client.feed(message(5))
    return client, release


@pytest.mark.parametrize("lost", [True, False])
async def test_what_is_written_when_a_bundle_goes(broker: Broker, lost: bool) -> None:
    client, release = await busy_topic(broker)
    store: Any = broker.service.store
    bundles = broker.service.bundles
    bundle = await bundles.bundle_of(TOPIC)
    assert bundle in bundles.owned_bundles
    writes = Writes(store)
    if lost:
        other, former = store.new_session(), store.session_id
        store.lose_session()
        await other.expire_session(former)
        await other.put(f"{OWNERS_ROOT}/{bundle}", NEW_OWNER.encode(), ephemeral=True)
        store.begin_session()
        await eventually(lambda: bundle not in bundles.owned_bundles)
        release()
        await eventually(lambda: not broker.service.topics)
    else:
        release()
        await bundles.release(bundle, NEW_OWNER)
    assert bool(writes.paths) is not lost, writes.paths
    commands: list[pb.BaseCommand] = []

    def closed() -> bool:
        commands.extend(client.take())
        return any(each.type == pb.BaseCommand.CLOSE_PRODUCER for each in commands)

    await eventually(closed)
    *receipts, close = commands
    # Of a lost bundle either comes first: the entry, which is durable then, or the close.
    assert [each.send_receipt.sequence_id for each in receipts] in ([[], [5]] if lost else [[5]])
    assert close.type == pb.BaseCommand.CLOSE_PRODUCER
    assert close.close_producer.assignedBrokerServiceUrl == NEW_OWNER.broker_url
    if lost:
        assert await bundles.owner_of(TOPIC) == NEW_OWNER


async def test_a_bundle_that_goes_while_a_topic_is_opened(broker: Broker) -> None:
    """The topic is another broker's then: nobody is served here, and its log is closed."""
    service, store = broker.service, cast("EmbeddedMetadataStore", broker.service.store)
    other = store.new_session()
    bundles, open_log = service.bundles, service.ledgers.open
    opened: list[Any] = []

    async def open_and_lose(*args: Any) -> Any:
        opened.append(await open_log(*args))
        bundle = await bundles.bundle_of(TOPIC)
        await bundles.release(bundle, NEW_OWNER)
        await other.put(f"{OWNERS_ROOT}/{bundle}", NEW_OWNER.encode(), ephemeral=True)
        return opened[0]

    service.ledgers.open = open_and_lose  # type: ignore[method-assign,assignment]
    with pytest.raises(ServiceNotReadyError, match="being unloaded"):
        await service.loader.load(TopicName.parse(TOPIC), create=True)
    assert not service.topics
    assert not opened[0].is_open
