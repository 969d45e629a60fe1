"""Before a client has proved who it is: how many, how long, how much of each."""

from collections.abc import AsyncIterator

import pytest

from magnetar.broker.config import BrokerConfig
from magnetar.broker.listener.file_limit import AddressQuota
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.unit.broker.doubles import Broker
from tests.unit.managed_ledger.cluster import eventually

WAITING_MAX = 5


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(
        authentication_enabled=True,
        anonymous_user_role="anonymous",
        max_unauthenticated_connections=WAITING_MAX,
    ).start()
    yield broker
    await broker.close()


async def test_who_waits_longest_makes_room(broker: Broker) -> None:
    clients = [broker.client(connect=False, port=5000 + index) for index in range(20)]
    assert [each.connection.closed for each in clients] == [True] * 15 + [False] * 5
    limiter = broker.service.unauthenticated_limiter
    assert (len(limiter), limiter.cut) == (WAITING_MAX, 15)
    assert len(broker.service.connections) == WAITING_MAX


async def test_who_is_proved_waits_no_more(broker: Broker) -> None:
    known = [broker.client(port=4000 + index) for index in range(WAITING_MAX)]
    for client in known:
        assert (await client.receive_one()).type == pb.BaseCommand.CONNECTED
    for index in range(50):
        broker.client(connect=False, port=5000 + index)
    assert not any(client.connection.closed for client in known)
    late = broker.client(port=6000)
    assert (await late.receive_one()).type == pb.BaseCommand.CONNECTED
    late.lose()
    assert len(broker.service.unauthenticated_limiter) <= WAITING_MAX


async def test_one_frame_before_the_login_is_small(broker: Broker) -> None:
    client = broker.client(connect=False)
    client.feed((1 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"))
    assert client.connection.closed
    client = broker.client()
    assert (await client.receive_one()).type == pb.BaseCommand.CONNECTED
    client.feed((1 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"))
    assert not client.connection.closed


async def test_an_unauthenticated_client_that_pings_and_reads_nothing_is_closed(
    broker: Broker,
) -> None:
    client = broker.client(connect=False)
    ping = pb.BaseCommand(type=pb.BaseCommand.PING)
    ping.ping.SetInParent()
    client.send(*[ping] * 100)
    assert len(await client.receive(100)) == 100
    client.transport.unsent = 1 << 20
    client.connection.pause_writing()  # as its transport says then
    client.send(ping)
    await eventually(lambda: client.connection.closed)


async def test_unauthenticated_clients_do_not_fill_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="magnetar.broker.connection.connection"):
        for _ in range(300):
            broker.client(connect=False).feed(b"\xff" * 8)
    assert 0 < len(caplog.records) < 100
    assert "malformed frame" in caplog.records[0].getMessage()


async def test_a_login_has_a_deadline(broker: Broker) -> None:
    client = broker.client(connect=False)
    client.feed(b"\0\0")
    for connection in list(broker.service.connections):
        connection.on_sweep(broker.cluster.now_ms + broker.service.keep_alive_ms)
    assert client.connection.closed
    assert len(broker.service.unauthenticated_limiter) == 0


async def test_without_authentication_nobody_is_unproved() -> None:
    broker = await Broker(max_unauthenticated_connections=1).start()
    clients = [broker.client(connect=False, port=5000 + index) for index in range(5)]
    assert not any(each.connection.closed for each in clients)
    assert len(broker.service.unauthenticated_limiter) == 0
    await broker.close()


def test_addresses_are_counted_and_forgotten() -> None:
    quota = AddressQuota(2)
    assert [quota.enter("a"), quota.enter("a"), quota.enter("a"), quota.enter("b")] == [
        *(True, True, False, True),
    ]
    for _ in range(3):
        quota.leave("a")
    quota.leave("b")
    assert not quota._counts
    unlimited = AddressQuota(0)
    assert all(unlimited.enter("a") for _ in range(100))


def test_no_secret_is_shown_with_the_settings() -> None:
    secrets = {
        "token_secret_key": "data:;base64,c2VjcmV0LW9uZQ==",
        "basic_auth_conf": "data:;base64,c2VjcmV0LXR3bw==",
        "managed_ledger_password": "secret-three",
    }
    config = BrokerConfig(**secrets)  # type: ignore[arg-type] # test's duty
    for text in (*config.as_keys().values(), repr(config)):
        assert not any(secret in text for secret in secrets.values())
