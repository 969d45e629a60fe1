"""What waits for WebSocket consumers that don't read: bounds, and the progress of those that do.

Real topics, sessions and channels; the sockets are models, that take so many characters until
their client reads.
"""

import asyncio
import random
from typing import Any

import pytest

from magnetar.broker.dispatch import unsent_budget
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.http.websocket.channel import WebSocketChannel
from magnetar.broker.http.websocket.consumer import ConsumerSession
from magnetar.broker.http.websocket.parameters import ConsumerParameters
from magnetar.broker.protocol.messages import OutgoingMessage, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker
from tests.waiting import eventually

NAME = TopicName.parse("persistent://public/default/t")
LIMIT, MESSAGES, PAYLOAD_MIN, PAYLOAD_MAX = 8 * 1024, 200, 1_000, 2_000
"""Of webSocketBufferBytes; messages that are published; bytes of each."""


class Reader:
    """A session whose socket takes messages for as long as it has room."""

    def __init__(self, broker: Broker, number: int, room: int) -> None:
        self.room = room
        self.taken = 0  # messages
        self._has_room = asyncio.Event()
        parameters = ConsumerParameters.parse({"receiverQueueSize": "1000"})
        self.session = ConsumerSession(broker.service, (NAME,), f"s{number}", parameters)
        self.session.consumer_feed.buffer_bytes_max = LIMIT
        self.channel = WebSocketChannel(self, 600, 1_000_000)  # type: ignore[arg-type] # its two methods
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.session.open("127.0.0.1:1", "test")
        self._running = asyncio.create_task(self.session.run(self.channel))

    async def receive(self) -> dict[str, Any]:
        """The client says nothing."""
        return await asyncio.Future()

    async def send(self, event: dict[str, Any]) -> None:
        while self.room <= 0:
            self._has_room.clear()
            await self._has_room.wait()
        self.room -= sum(map(len, event["texts"]))
        self.taken += len(event["texts"])

    def read(self, room: int) -> None:
        self.room += room
        self._has_room.set()

    @property
    def waiting(self) -> int:
        """Bytes of messages in memory."""
        return self.session.consumer_feed.buffered_bytes

    async def stop(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.session.close()
        await self.channel.finish(0)


async def publish(broker: Broker, payloads: list[bytes]) -> None:
    producer = await LocalProducer.open(
        broker.service, NAME, "p", generated=True, remote="127.0.0.1:0", client_version="test"
    )
    messages = [OutgoingMessage(each, sequence) for sequence, each in enumerate(payloads)]
    producer.publish([encode_single("p", each, 1) for each in messages], lambda *_: None)
    producer.close()


@pytest.mark.parametrize("seed", range(3))
async def test_what_waits_is_bounded_and_who_reads_goes_on(
    broker: Broker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, budget, piece, least = random.Random(seed), 100_000, 32_000, 4_000
    monkeypatch.setattr(unsent_budget, "BUDGET_BYTES", budget)
    monkeypatch.setattr(unsent_budget, "PIECE_BYTES", piece)
    monkeypatch.setattr(unsent_budget, "LEAST_PIECE_BYTES", least)
    broker.service.unsent_budget.changed(0)
    readers = [Reader(broker, number, room=20_000) for number in range(20)]
    for each in readers:
        await each.start()
    reading = readers[1::2]
    worst = 0
    await publish(
        broker, [rng.randbytes(rng.randint(PAYLOAD_MIN, PAYLOAD_MAX)) for _ in range(MESSAGES)]
    )
    for _ in range(20_000):
        await asyncio.sleep(0)
        waiting = [each.waiting for each in readers]
        # Of objects more is counted than of the entries of a piece.
        assert max(waiting) <= 2 * (LIMIT + piece)
        text_max = max(each.channel.queued for each in readers)
        assert text_max <= piece // 4 // PAYLOAD_MIN, "more is text than is sent at once"
        worst = max(worst, sum(waiting))
        for each in rng.sample(reading, 2):
            each.read(rng.randint(1, 20_000))
        if all(each.taken == MESSAGES for each in reading):
            break
    else:
        pytest.fail(f"those that read don't go on: {[each.taken for each in readers]}")
    assert budget < worst <= 2 * (budget + piece + len(readers) * (LIMIT + least))
    assert all(0 < each.taken < MESSAGES for each in readers[::2])
    for each in readers[::2]:
        each.read(1 << 30)
    for _ in range(2_000):
        await asyncio.sleep(0)
    assert [each.taken for each in readers] == [MESSAGES] * len(readers)
    assert broker.service.unsent_budget.total == 0
    for each in readers:
        await each.stop()


async def test_what_a_session_held_waits_no_more_when_it_ends(broker: Broker) -> None:
    reader = Reader(broker, 0, room=0)
    await reader.start()
    await publish(broker, [bytes(10_000)])
    await eventually(lambda: reader.waiting > 10_000)
    assert broker.service.unsent_budget.total == reader.waiting
    await reader.stop()
    assert broker.service.unsent_budget.total == 0
