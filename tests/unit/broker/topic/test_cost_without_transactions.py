"""A topic that never saw a transaction costs what it costs where there are none.

Bytecode instructions are counted, not time: of what the broker does for a message from its SEND to
its acknowledgement. The managed ledger is left out: it has timers, and knows no transactions.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.unit.broker.doubles import Broker
from tests.unit.broker.topic.test_deduplication import connected, topic_of
from tests.unit.broker.topic.test_transactions import (
    SHARED,
    Consumer,
    backlog,
    end,
    sent,
    store,
)
from tests.unit.managed_ledger.cluster import eventually

MESSAGES: Final = 20
_BROKER: Final = f"{Path(__file__).resolve().parents[4]}/magnetar/broker/"
_COUNTED: Final = ("connection", "dispatch", "producer", "subscription", "topic", "transaction")
Instructions = Counter[str]


def _part_of(frame: FrameType) -> str:
    """The package of the broker; empty: not counted."""
    name = frame.f_code.co_filename
    part = name.removeprefix(_BROKER).partition("/")[0] if name.startswith(_BROKER) else ""
    return part if part in _COUNTED else ""


class Counted:
    """Counts within ``with``."""

    def __init__(self) -> None:
        self.instructions = Instructions()

    def __enter__(self) -> Instructions:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self.instructions

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: FrameType, _: str, __: Any) -> Any:
        if not (part := _part_of(frame)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def on_event(_: FrameType, event: str, __: Any) -> Any:
            self.instructions[part] += event == "opcode"
            return on_event

        return on_event


async def _cost(*, enabled: bool, used: bool = False) -> Instructions:
    """Of `MESSAGES` that are sent, delivered and acknowledged, each before the next one."""
    broker = await Broker(transaction_coordinator_enabled=enabled).start()
    client, _ = await connected(broker)
    consumer = await Consumer(broker, 6000).subscribe()
    topic = await topic_of(broker)
    await store(client, sent(0))
    if used:
        await store(client, sent(1, 0))
        await end(topic, 0, commit=False)
    await consumer.sees(0)
    ledger_id, last = topic.ledger.last_confirmed
    with Counted() as instructions:
        for number in range(MESSAGES):
            await store(client, sent(10 + number))
            await consumer.sees(0, *range(10, 11 + number))
            ack = pb.BaseCommand(type=pb.BaseCommand.ACK)
            ack.ack.consumer_id, ack.ack.ack_type = 1, pb.CommandAck.Individual
            ack.ack.message_id.add(ledgerId=ledger_id, entryId=last + 1 + number)
            consumer.client.send(ack)
    await eventually(lambda: backlog(topic, f"s{SHARED}") == 1)
    await broker.close()
    return instructions


async def test_a_topic_without_transactions_pays_nothing_for_them() -> None:
    without = await _cost(enabled=False)
    assert await _cost(enabled=True) == without
    assert without["topic"] > 100 * MESSAGES
    assert without["transaction"] == 0
    used = await _cost(enabled=True, used=True)
    assert used["transaction"] > 0  # it would be seen
