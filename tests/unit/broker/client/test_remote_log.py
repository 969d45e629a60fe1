"""The log of a topic of another broker, over a connection that is played by the test."""

import asyncio
from typing import Any, cast

import pytest

from magnetar.broker.client import remote_log
from magnetar.broker.client.remote_log import RemoteLog
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position

BYTES_MAX = 1 << 20
LAST = (7, 9)


class Connection:
    """Of a broker whose topic ends at ``LAST``. Nothing is answered while it is paused."""

    def __init__(self) -> None:
        self.users: dict[Any, Any] = {}
        self.asked: list[Any] = []
        self.permits = 0
        self._paused = False

    def next_id(self) -> int:
        return len(self.asked)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def is_paused(self) -> bool:
        return self._paused

    def tell(self, command: Any) -> None:
        self.permits += command.messagePermits

    async def register(self, kind: str, id_: int, user: Any, command: Any) -> None:
        self.users[kind, id_] = user
        await self.call(command)

    async def call(self, command: Any) -> Any:
        if self._paused:
            raise ServiceNotReadyError("no answer: the connection isn't read")
        self.asked.append(command)
        last = pb.MessageIdData(ledgerId=LAST[0], entryId=LAST[1])
        return pb.CommandGetLastMessageIdResponse(last_message_id=last, request_id=1)

    def send(self, *positions: Position, payload: bytes = b"x") -> None:
        """Entries to the consumer that is there."""
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        (user,) = self.users.values()
        for ledger_id, entry_id in positions:
            id_ = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
            command = pb.CommandMessage(consumer_id=0, message_id=id_)
            user.on_command(command, encode_body(metadata, payload))


class Client:
    def __init__(self) -> None:
        self.connection = Connection()

    async def owner(self, topic: TopicName) -> Connection:
        return self.connection


def log_and_connection(*, is_followed: bool = False) -> tuple[RemoteLog, Connection]:
    client, topic = Client(), TopicName.parse("persistent://public/default/t")
    log = RemoteLog(cast("Any", client), topic, LedgerOffsets(), "r-", is_followed=is_followed)
    return log, client.connection


async def opened(position: Position, *, is_followed: bool = False) -> tuple[RemoteLog, Connection]:
    log, connection = log_and_connection(is_followed=is_followed)
    await log.open(position)
    return log, connection


async def read(log: RemoteLog, position: Position, entries_max: int = 10) -> list[Position] | None:
    batch = await log.read(position, entries_max, BYTES_MAX)
    if batch is None:
        return None
    return [(batch.ledger_id, batch.first + nth) for nth in range(len(batch.bodies))]


async def test_entries_of_one_ledger_come_together() -> None:
    log, connection = await opened((6, 1))
    (subscribe, _) = connection.asked
    assert (subscribe.start_message_id.ledgerId, subscribe.start_message_id.entryId) == (6, 0)
    assert not subscribe.durable
    connection.send((6, 0), (6, 1), (6, 2), (7, 0), (7, 2))  # the first is before it: left out
    assert await read(log, (6, 1)) == [(6, 1), (6, 2)]
    assert log.next == (6, 3)
    assert await read(log, log.next) == [(7, 0)]
    assert await read(log, log.next) == [(7, 2)]  # (7, 1) isn't in the topic any more


async def test_it_ends_where_the_topic_ended() -> None:
    log, connection = await opened((7, 9))
    connection.send((7, 9))
    assert await read(log, (7, 9)) == [(7, 9)]
    assert await read(log, log.next) is None
    followed, _ = await opened((7, 9), is_followed=True)
    assert await read(followed, (7, 9)) is None  # nothing came yet, and it doesn't wait


async def test_another_position_is_another_subscription() -> None:
    log, connection = await opened((6, 0))
    connection.send((6, 0), (6, 1))
    assert await read(log, (6, 0), 1) == [(6, 0)]
    reading = asyncio.ensure_future(read(log, (7, 5)))
    await asyncio.sleep(0)
    connection.send((7, 5))
    assert await reading == [(7, 5)]
    kinds = [type(each) for each in connection.asked]
    assert kinds.count(pb.CommandSubscribe) == 2
    assert pb.CommandCloseConsumer in kinds
    assert len(connection.users) == 1


async def test_a_full_buffer_stops_the_connection_until_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_log, "_HELD_BYTES_MAX", 1_000)
    log, connection = await opened((6, 0))
    connection.send((6, 0), (6, 1), payload=bytes(600))
    assert connection.is_paused()
    assert await read(log, (6, 0), 1) == [(6, 0)]
    assert not connection.is_paused()
    connection.send((6, 2), payload=bytes(600))
    assert connection.is_paused()
    await log.open((7, 0))  # elsewhere: the answers come over the same connection
    assert not connection.is_paused()


async def test_permits_are_given_back_as_messages_come() -> None:
    log, connection = await opened((6, 0))
    assert connection.permits == remote_log._PERMITS
    connection.send(*((6, number) for number in range(600)))
    assert await read(log, (6, 0), 1) == [(6, 0)]
    assert connection.permits == remote_log._PERMITS + 600


async def test_a_topic_that_left_is_told_to_who_waits() -> None:
    log, connection = await opened((6, 0))
    reading = asyncio.ensure_future(read(log, (6, 0)))
    await asyncio.sleep(0)
    (user,) = connection.users.values()
    user.on_command(pb.CommandCloseConsumer(consumer_id=0, request_id=1), b"")
    with pytest.raises(ServiceNotReadyError, match="has left its broker"):
        await reading


async def test_nothing_that_comes_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_log, "ANSWER_S", 0.01)
    log, _ = await opened((6, 0))
    with pytest.raises(ServiceNotReadyError, match="no messages came in time"):
        await read(log, (6, 0))
