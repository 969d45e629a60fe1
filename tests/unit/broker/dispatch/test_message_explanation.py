"""What keeps a client from giving a message to its application, by what the entry says."""

from typing import Any

import pytest

from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.broker.dispatch.explanation import Reason
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import FLAG_MARKER, make_header
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.subscription.consumer import SHARED
from magnetar.broker.subscription.message_explanation import (
    NO_MESSAGE,
    explain_message,
    explain_now,
)
from magnetar.managed_ledger.position import Position
from tests.unit.broker.dispatch.builders import Bench, settle
from tests.unit.broker.dispatch.doubles import head


def stored(bench: Bench, **fields: Any) -> Position:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    return bench.ledger.append(make_header(metadata), body=encode_body(metadata, b"x"))


def chunk(bench: Bench, uuid: str, number: int, of: int = 3) -> Position:
    return stored(bench, uuid=uuid, chunk_id=number, num_chunks_from_msg=of)


async def sent(bench: Bench) -> None:
    await bench.consumer(SHARED, permits=2_000)
    await settle()


async def test_an_encrypted_message_needs_a_key() -> None:
    bench = Bench()
    position = stored(bench, encryption_keys=[pb.EncryptionKeys(key="k1", value=b"secret")])
    assert (await explain_message(bench.subscription, position)).reason is Reason.NO_CONSUMER
    await sent(bench)
    for found in (
        await explain_message(bench.subscription, position),
        await explain_now(bench.subscription, None),
    ):
        assert found.reason is Reason.PENDING
        assert "Message 10:0 is encrypted (key k1)" in found.message
        assert found.details["encryptionKeys"] == ["k1"]


async def test_parts_of_a_message_wait_for_each_other() -> None:
    bench = Bench()
    first, _, second = chunk(bench, "a", 0), chunk(bench, "b", 0), chunk(bench, "a", 1)
    await sent(bench)
    found = await explain_now(bench.subscription, None)
    assert (found.reason, found.details["missingParts"]) == (Reason.INCOMPLETE, [3])
    assert "Message 10:0 is part 1 of 3" in found.message
    assert "part 3 is not among" in found.message
    last = chunk(bench, "a", 2)
    bench.subscription.wake()
    await settle()
    found = await explain_message(bench.subscription, second)
    assert (found.reason, found.details["part"]) == (Reason.PENDING, 2)
    bench.subscription.acknowledge(None, [first])
    found = await explain_message(bench.subscription, last)
    assert (found.reason, found.details["missingParts"]) == (Reason.INCOMPLETE, [1])


async def test_a_part_far_behind_is_not_called_missing() -> None:
    bench = Bench()
    first = chunk(bench, "a", 0, 2)
    for _ in range(1_000):
        bench.ledger.append()
    await sent(bench)
    found = await explain_message(bench.subscription, first)
    assert (found.reason, found.details["parts"]) == (Reason.PENDING, 2)


async def test_what_is_no_message_is_only_pending() -> None:
    bench = Bench([1])
    bench.ledger.append(body=bytes(3) + b"\x05\xff\xff\xff\xff\xff")
    await sent(bench)
    for position in ((10, 0), (10, 1)):
        found = await explain_message(bench.subscription, position)
        assert found.reason is Reason.PENDING


async def test_a_duplicate_has_no_place() -> None:
    found = await explain_message(Bench([1]).subscription, NO_MESSAGE)
    assert (found.reason, "duplicate" in found.message) == (Reason.NOT_FOUND, True)


async def test_a_message_that_cannot_be_read_is_not_said_to_wait_for_permits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unanswered(*_: object) -> None:
        raise BookieUnavailableError("no bookie answers")

    bench = Bench([2])
    await bench.consumer(SHARED, permits=1)
    await settle()
    with monkeypatch.context() as patch:
        patch.setattr(bench.ledger, "read", unanswered)
        assert (await explain_message(bench.subscription, (10, 0))).reason is Reason.PENDING
        found = await explain_message(bench.subscription, (10, 1))
    assert (found.reason, "no bookie answers" in found.message) == (Reason.READ_FAILED, True)
    assert (await explain_message(bench.subscription, (10, 1))).reason is Reason.NO_PERMITS


async def test_when_the_first_of_delayed_messages_is_due() -> None:
    bench = Bench()
    now_ms = bench.service.now_ms
    for hours in (3, 1, 2):
        bench.ledger.append(head(deliver_at_ms=now_ms + hours * 3_600_000))
    bench.ledger.append(head(flags=FLAG_MARKER))
    found = await explain_now(bench.subscription, None)
    assert (found.reason, found.until_ms) == (Reason.NO_CONSUMER, now_ms + 3_600_000)
    assert found.message == (
        "No consumer is connected. All messages are delayed by their producers. "
        "The first one is due in 1 h."
    )
    await sent(bench)
    found = await explain_now(bench.subscription, None)
    assert (found.reason, found.until_ms) == (Reason.DELAYED, now_ms + 3_600_000)
    assert found.message.endswith("it is due in 3 h. The first one is due in 1 h.")
    bench.subscription.acknowledge(None, [(10, 1)])
    assert (await explain_now(bench.subscription, None)).until_ms == now_ms + 2 * 3_600_000


async def test_one_message_without_a_delay_needs_only_a_consumer() -> None:
    bench = Bench([1])
    bench.ledger.append(head(deliver_at_ms=bench.service.now_ms + 1_000))
    assert (await explain_now(bench.subscription, None)).message == "No consumer is connected."
    bench.subscription.acknowledge(None, [(10, 0)])
    assert (await explain_now(bench.subscription, None)).until_ms == bench.service.now_ms + 1_000


async def test_of_very_many_delayed_messages_the_first_is_not_looked_for() -> None:
    bench = Bench()
    for _ in range(1_001):
        bench.ledger.append(head(deliver_at_ms=bench.service.now_ms + 1_000))
    assert (await explain_now(bench.subscription, None)).until_ms is None
    bench.subscription.acknowledge(None, [(10, 0), (10, 1)])
    assert (await explain_now(bench.subscription, None)).until_ms is not None
