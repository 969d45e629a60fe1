"""SEND: what is stored, what is answered, and in which order."""

import asyncio
from pathlib import Path
from typing import Any, Final, cast

import pytest

from magnetar.broker.connection import send_path as send_path
from magnetar.broker.producer.joined_batches import joined
from magnetar.broker.producer.producer import PublishBatch
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import parse_header
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

PARTS: Final = (("a", 1), ("b", 4), ("c", 1))


async def connected(broker: Broker, topic: str = "t") -> Client:
    client = broker.client()
    await client.receive_one()
    answer, _ = await client.produce(topic)
    assert answer.type == pb.BaseCommand.PRODUCER_SUCCESS
    return client


async def stored(broker: Broker, topic: str = "persistent://public/default/t") -> list[bytes]:
    ledger = broker.service.topics[topic].ledger  # type: ignore[attr-defined] # persistent
    found: list[bytes] = []
    position = EARLIEST
    while (batch := await ledger.read(position, 100, 1 << 20)) is not None:
        found += [bytes(parse_entry_body(body)[1]) for body in batch.bodies]
        position = (batch.ledger_id, batch.last + 1)
    return found


async def test_sends_of_one_read_are_stored_in_order_and_answered_with_one_write(
    broker: Broker,
) -> None:
    client = await connected(broker)
    writes = client.transport.writes
    client.feed(b"".join(message(n, b"%d" % n) for n in range(5)))
    answers = receipts(await client.receive(5))
    ledger_id = answers[0][1]
    assert answers == [(n, ledger_id, n) for n in range(5)]
    assert client.transport.writes == writes + 1
    assert await stored(broker) == [b"0", b"1", b"2", b"3", b"4"]
    assert client.connection.in_flight_bytes == broker.service.ledgers.append_budget.in_flight == 0


async def test_producers_of_one_topic_share_the_append_of_a_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connected(broker)
    for producer_id, topic in ((2, "t"), (3, "other")):
        await client.produce(topic, producer_id)
    counts: list[int] = []
    append = ManagedLedger.append

    def counted(ledger: ManagedLedger, heads: list[bytes], *rest: Any) -> None:
        counts.append(len(heads))
        append(ledger, heads, *rest)

    monkeypatch.setattr(ManagedLedger, "append", counted)
    sends = ((1, 0), (2, 0), (3, 0), (2, 1), (1, 1))
    client.feed(b"".join(message(n, b"%d%d" % (who, n), who) for who, n in sends))
    answers = [command.send_receipt for command in await client.receive(5)]
    assert counts == [4, 1]
    assert await stored(broker) == [b"10", b"11", b"20", b"21"]
    of_t = [(x.producer_id, x.sequence_id, x.message_id.entryId) for x in answers][:4]
    assert of_t == [(1, 0, 0), (1, 1, 1), (2, 0, 2), (2, 1, 3)]
    assert (answers[4].producer_id, answers[4].message_id.entryId) == (3, 0)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_append_in_parts_is_told_to_each_producer(is_lost: bool) -> None:
    batches = [PublishBatch(cast(Any, name), [b""] * n, [b""] * n, [], []) for name, n in PARTS]
    told: list[tuple[object, int, int]] = []
    error = OSError() if is_lost else None

    def on_done(batch: PublishBatch, _: int, first: int, count: int, why: object) -> None:
        assert (why is None) is (first >= 0)
        told.append((batch.producer, first, count))

    heads, bodies, on_part = joined(batches, on_done)
    assert len(heads) == len(bodies) == 6
    on_part(7, 10, 2, None)
    on_part(7, 12, 1, None)
    on_part(-1 if is_lost else 7, -1 if is_lost else 13, 3, error)
    rest = [("b", -1, 2), ("c", -1, 1)] if is_lost else [("b", 13, 2), ("c", 15, 1)]
    assert told == [("a", 10, 1), ("b", 11, 1), ("b", 12, 1), *rest]


async def test_who_publishes_and_consumes_gets_receipt_and_message_with_one_write(
    broker: Broker,
) -> None:
    client = await connected(broker)
    for consumer, shared in enumerate((pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared)):
        subscribe = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        subscribe.subscribe.topic, subscribe.subscribe.subscription = "t", f"s{consumer}"
        subscribe.subscribe.subType = shared
        subscribe.subscribe.consumer_id = subscribe.subscribe.request_id = consumer
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = consumer, 100
        client.send(subscribe)
        await eventually(lambda: any(each.type == pb.BaseCommand.SUCCESS for each in client.take()))
        client.send(flow)
    for n in range(3):
        await client.expect_nothing()
        writes = client.transport.writes
        client.feed(message(n))
        found = await client.receive(3)
        assert [each.type for each in found] == [
            *(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.MESSAGE, pb.BaseCommand.MESSAGE),
        ]
        assert client.transport.writes == writes + 1


@pytest.mark.parametrize("piece", [1, 7, 4096])
async def test_frames_may_arrive_in_any_pieces(broker: Broker, piece: int) -> None:
    client = await connected(broker)
    payloads = [b"small", b"x" * 5_000, b"", b"y" * 300]
    client.feed(b"".join(message(n, body) for n, body in enumerate(payloads)), piece)
    assert [n for n, _, _ in receipts(await client.receive(4))] == [0, 1, 2, 3]
    assert await stored(broker) == payloads


async def test_a_large_frame_is_received_whole(broker: Broker) -> None:
    client = await connected(broker)
    payloads = [b"a" * 700_000, b"b" * 3_000_000, b"c"]
    client.feed(b"".join(message(n, body) for n, body in enumerate(payloads)), 100_000)
    assert [n for n, _, _ in receipts(await client.receive(3))] == [0, 1, 2]
    assert await stored(broker) == payloads


async def test_an_entry_without_checksum_gets_one(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(0, b"old client", checksum=False) + message(0, b"old client"))
    await client.receive(2)
    ledger = broker.service.topics["persistent://public/default/t"].ledger  # type: ignore[attr-defined] # persistent
    batch = await ledger.read(EARLIEST, 10, 1 << 20)
    assert bytes(batch.bodies[0]) == bytes(batch.bodies[1])


async def test_the_head_tells_what_dispatch_needs(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(
        message(7, b"x" * 18, num_messages_in_batch=3, partition_key="key1", deliver_at_time=99)
    )
    await client.receive(1)
    ledger = broker.service.topics["persistent://public/default/t"].ledger  # type: ignore[attr-defined] # persistent
    head = parse_header((await ledger.read(EARLIEST, 1, 1 << 20)).heads[0])
    assert (head.message_count, head.deliver_at_ms, head.key_hash) == (3, 99, 462881061)


async def test_a_receipt_echoes_both_sequence_ids_of_a_batch(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(10, highest=14))
    receipt = (await client.receive_one()).send_receipt
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (10, 14)


async def test_errors_wait_for_the_receipts_in_front_of_them(broker: Broker) -> None:
    client = await connected(broker)
    release = broker.hold_storage()
    client.feed(message(0) + message(1, damage=True) + message(2) + message(9, highest=8))
    client.feed(message(3) + message(4, damage=True, highest=6))
    await client.expect_nothing()
    release()
    answers = await client.receive(6)
    assert [answer.type for answer in answers] == [
        pb.BaseCommand.SEND_RECEIPT,
        pb.BaseCommand.SEND_ERROR,
        pb.BaseCommand.SEND_RECEIPT,
        pb.BaseCommand.SEND_ERROR,
        pb.BaseCommand.SEND_RECEIPT,
        pb.BaseCommand.SEND_ERROR,
    ]
    errors = [answer.send_error for answer in answers if answer.HasField("send_error")]
    assert [(error.sequence_id, error.error) for error in errors] == [
        (1, pb.ChecksumError),
        (9, pb.MetadataError),
        (6, pb.ChecksumError),
    ]
    entries = [a.send_receipt for a in answers if a.HasField("send_receipt")]
    assert [(r.sequence_id, r.message_id.entryId) for r in entries] == [(0, 0), (2, 1), (3, 2)]
    assert len(await stored(broker)) == 3


async def test_a_wrong_checksum_stores_nothing_and_keeps_the_connection(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(5, damage=True))
    answer = (await client.receive_one()).send_error
    assert (answer.producer_id, answer.sequence_id, answer.error) == (1, 5, pb.ChecksumError)
    assert await stored(broker) == []
    client.feed(message(6))
    assert receipts(await client.receive(1))[0][0] == 6


async def test_a_transactional_send_is_refused(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(0, txnid_least_bits=0, txnid_most_bits=0))
    assert (await client.receive_one()).send_error.error == pb.NotAllowedError


async def test_send_to_an_unknown_producer_closes(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(0) + message(0, producer_id=2))
    assert client.connection.closed
    # what came before it is stored all the same
    topic = broker.service.topics["persistent://public/default/t"]
    await eventually(lambda: topic.ledger.offsets.entry_count == 1)  # type: ignore[attr-defined] # persistent


async def test_sends_that_crossed_our_close_are_ignored_for_thirty_seconds(broker: Broker) -> None:
    client = await connected(broker)
    topic = broker.service.topics["persistent://public/default/t"]
    await broker.service.loader.unload(str(topic.name))
    close = (await client.receive_one()).close_producer
    assert (close.producer_id, close.request_id) == (1, 2**64 - 1)
    client.feed(message(0))
    await client.expect_nothing()
    assert not client.connection.closed
    broker.cluster.now_ms += 30_001
    client.feed(message(1))
    assert client.connection.closed


async def test_close_producer_waits_for_publishes_in_flight(broker: Broker) -> None:
    client = await connected(broker)
    release = broker.hold_storage()
    client.feed(message(0))
    request_id = client.close_producer()
    await client.expect_nothing()
    release()
    receipt, success = await client.receive(2)
    assert receipts([receipt])[0][0] == 0
    assert success.success.request_id == request_id
    assert not broker.service.topics["persistent://public/default/t"].producers


async def test_storage_failure_fences_closes_producers_and_then_accepts_them_again(
    broker: Broker,
) -> None:
    client = await connected(broker)
    client.feed(message(0))
    await client.receive(1)
    broker.cluster.bookie.up = False
    client.feed(message(1) + message(2))
    assert (await client.receive_one()).close_producer.producer_id == 1
    client.feed(message(3))  # crossed on the wire
    broker.cluster.bookie.up = True
    topic = broker.service.topics.get("persistent://public/default/t")
    await eventually(
        lambda: topic is None or not topic.fenced or topic.full_name not in broker.service.topics
    )
    answer, _ = await client.produce()
    assert answer.type == pb.BaseCommand.PRODUCER_SUCCESS
    client.feed(message(1, b"again"))
    assert receipts(await client.receive(1))[0][0] == 1
    assert (await stored(broker))[-1] == b"again"
    assert broker.service.ledgers.append_budget.in_flight == 0


async def test_another_owner_of_the_log_ends_the_topic_here(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(0))
    await client.receive(1)
    topic = broker.service.topics["persistent://public/default/t"]
    thief = broker.cluster.factory()
    stolen = await thief.open(topic.name.ml_name, topic.ledger.config)  # type: ignore[attr-defined] # persistent
    client.feed(message(1))
    assert (await client.receive_one()).close_producer.producer_id == 1
    await eventually(lambda: not broker.service.topics)
    assert topic.fenced
    # it serves again when its bundle is still ours: the log is taken back, nothing is lost
    answer, _ = await client.produce()
    assert answer.type == pb.BaseCommand.PRODUCER_SUCCESS
    client.feed(message(1, b"again"))
    assert receipts(await client.receive(1))[0][0] == 1
    assert await stored(broker) == [b"payload", b"again"]
    await stolen.close()


async def test_the_exact_size_limit_is_stored(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(0, bytes(5 * 1024 * 1024)), 1 << 17)
    assert receipts(await client.receive(1))[0][0] == 0


async def test_an_unload_answers_what_is_under_way_before_it_closes(broker: Broker) -> None:
    client = await connected(broker)
    release = broker.hold_storage()
    client.feed(message(0))
    topic = broker.service.topics["persistent://public/default/t"]
    unload = broker.service.loop.create_task(broker.service.loader.unload(str(topic.name)))
    await eventually(lambda: topic.fenced)
    client.feed(message(1))  # too late: the client sends it again after it reconnected
    await client.expect_nothing()
    release()
    receipt, close = await client.receive(2)
    assert receipts([receipt])[0][0] == 0
    assert close.close_producer.producer_id == 1
    await unload
    await client.produce()
    client.feed(message(1))
    await client.receive(1)
    assert len(await stored(broker)) == 2


async def test_a_failed_append_doesn_t_bring_a_closing_topic_back(broker: Broker) -> None:
    client = await connected(broker)
    release = broker.hold_storage()
    client.feed(message(0))
    topic = broker.service.topics["persistent://public/default/t"]
    unload = broker.service.loop.create_task(broker.service.loader.unload(str(topic.name)))
    await eventually(lambda: topic.fenced)
    broker.cluster.bookie.up = False
    release()
    assert (await client.receive_one()).close_producer.producer_id == 1
    assert topic.fenced
    broker.cluster.bookie.up = True
    await asyncio.gather(unload, return_exceptions=True)
    assert topic.fenced
    assert not broker.service.topics


async def test_a_terminated_topic_says_so(broker: Broker) -> None:
    client = await connected(broker)
    client.feed(message(0))
    await client.receive(1)
    topic = broker.service.topics["persistent://public/default/t"]
    last = await topic.terminate()  # type: ignore[attr-defined] # persistent
    assert last[1] == 0
    assert (await client.receive_one()).close_producer.producer_id == 1
    answer, _ = await client.produce()
    assert answer.error.error == pb.TopicTerminatedError


async def test_entries_during_a_termination_get_no_error_but_the_end_of_their_producer(
    broker: Broker,
) -> None:
    client = await connected(broker)
    release = broker.hold_storage()
    client.feed(message(0))
    topic = broker.service.topics["persistent://public/default/t"]
    ending = broker.service.loop.create_task(topic.terminate())  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    client.feed(message(1))
    release()
    receipt, close = await client.receive(2)
    assert receipt.send_receipt.sequence_id == 0
    assert close.close_producer.producer_id == 1
    await ending
    answer, _ = await client.produce()
    assert answer.error.error == pb.TopicTerminatedError


async def test_a_non_persistent_topic_answers_at_once_with_id_zero(broker: Broker) -> None:
    client = await connected(broker, "non-persistent://public/default/n")
    client.feed(message(0) + message(1))
    assert receipts(await client.receive(2)) == [(0, 0, 0), (1, 0, 0)]


async def test_reading_pauses_for_bytes_in_flight_and_resumes_at_half(broker: Broker) -> None:
    client = await connected(broker)
    broker.service.connection_in_flight_max = 10_000
    release = broker.hold_storage()
    client.feed(message(0, b"x" * 9_000))
    assert client.reads()
    client.feed(message(1, b"x" * 9_000))
    assert not client.reads()
    release()
    await client.receive(2)
    assert client.reads()
    assert client.connection.in_flight_bytes == 0


async def test_reading_pauses_for_the_buffer_of_the_process(broker: Broker) -> None:
    one, two = await connected(broker), broker.client(port=5001)
    await two.receive(1)
    await two.produce("t", producer_name="two")
    broker.service.ledgers.append_budget.bytes_max = 10_000
    release = broker.hold_storage()
    one.feed(message(0, b"x" * 20_000))
    assert (one.reads(), two.reads()) == (False, True)
    two.feed(message(0))
    assert not two.reads()
    release()
    await one.receive(1)
    await two.receive(1)
    assert one.reads()
    assert two.reads()
    assert broker.service.ledgers.append_budget.in_flight == 0


async def test_a_lost_connection_gives_back_its_share_of_the_buffer(broker: Broker) -> None:
    client = await connected(broker)
    release = broker.hold_storage()
    client.feed(message(0, b"x" * 20_000))
    assert broker.service.ledgers.append_budget.in_flight > 20_000
    client.lose()
    release()
    await eventually(lambda: broker.service.ledgers.append_budget.in_flight == 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_parsing_keeps_nothing_of_the_messages_that_went_by(broker: Broker) -> None:
    # One protobuf object parses them all, and such an object never gives back what it once held:
    # a broker grew by 16 bytes a message until it was replaced now and then.
    client = await connected(broker)
    large = message(0, partition_key="k" * 4_000_000, txnid_least_bits=1, txnid_most_bits=1)
    before = resident_bytes()
    for _ in range(60):
        client.feed(large)
        assert (await client.receive_one()).type == pb.BaseCommand.SEND_ERROR
    assert resident_bytes() - before < 120_000_000  # of 240 MB


@pytest.mark.parametrize("step", ["_open_batch", "make_header"])
async def test_a_send_to_one_broker_is_not_touched_by_a_send_to_another_of_the_process(
    broker: Broker, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of embedded brokers switch anywhere: here in the middle of each SEND."""
    other = await Broker().start()
    try:
        client, other_client = await connected(broker), await connected(other)
        messages = broker.service.send_messages
        owner: object = send_path.SendPath if step == "_open_batch" else messages
        plain, foreign = getattr(owner, step), iter(range(100, 200))
        switches: list[int] = []

        def switched(*arguments: object) -> object:
            if not switches:  # not in the other's own SEND
                switches.append(number := next(foreign))
                other_client.feed(message(number, b"theirs", deliver_at_time=1, highest=number + 9))
            return plain(*arguments)

        monkeypatch.setattr(owner, step, switched)
        if step == "make_header":  # compiled code has no such step
            client.connection.sends.scan = None
        messages._renew()
        for number in range(3):
            client.feed(message(number, b"ours"))
            switches.clear()
        assert [n for n, _, _ in receipts(await client.receive(3))] == [0, 1, 2]
        assert [n for n, _, _ in receipts(await other_client.receive(3))] == [100, 101, 102]
        assert await stored(broker) == [b"ours"] * 3
        assert await stored(other) == [b"theirs"] * 3
        for each, times in ((broker, {0}), (other, {1})):
            ledger = each.service.topics["persistent://public/default/t"].ledger  # type: ignore[attr-defined] # persistent
            batch = await ledger.read(EARLIEST, 100, 1 << 20)
            assert {parse_header(head).deliver_at_ms for head in batch.heads} == times
    finally:
        await other.close()
