"""MESSAGE frames byte for byte against protobuf's own encoding."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.connection.consumer_sink import MessageFrames
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.managed_ledger.entry_batch import EntryBatch
from tests.raw_client import encode_command

LIMITS = [0, 1, 126, 127, 128, 129, 16_382, 16_383, 16_384, 16_385, 2_097_151, 2_097_152, 10**9]


def expected(
    consumer_id: int,
    batch: EntryBatch,
    index: int,
    *,
    partition: int = -1,
    count: int = 0,
    ack_set: list[int] | None = None,
    epoch: int | None = None,
) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    message = command.message
    message.consumer_id = consumer_id
    message.message_id.ledgerId = batch.ledger_id
    message.message_id.entryId = batch.first + index
    if partition >= 0:
        message.message_id.partition = partition
    if count:
        message.redelivery_count = count
    message.ack_set.extend(ack_set or [])
    if epoch is not None:
        message.consumer_epoch = epoch
    return encode_command(command, bytes(batch.bodies[index]))


def test_known_bytes() -> None:
    batch = EntryBatch(1, 2, [b""], [b"\x0e\x01body"])
    assert b"".join(MessageFrames(3, -1).build(batch)) == bytes.fromhex(
        "000000160000000c08094a080803120408011002" + b"\x0e\x01body".hex()
    )


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**63 - 1),
    st.sampled_from(LIMITS),
    st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    st.sampled_from([-1, 0, 200]),
    st.sampled_from([None, 0, 300]),
    st.data(),
)
def test_every_frame_is_what_protobuf_writes(
    consumer_id: int,
    ledger_id: int,
    first: int,
    bodies: list[bytes],
    partition: int,
    epoch: int | None,
    data: st.DataObject,
) -> None:
    frames = MessageFrames(consumer_id, partition)
    batch = EntryBatch(ledger_id, first, [b""] * len(bodies), [*bodies])
    whole = [
        expected(consumer_id, batch, index, partition=partition, epoch=epoch)
        for index in range(len(bodies))
    ]
    assert b"".join(frames.build(batch, epoch=epoch)) == b"".join(whole)
    picks = sorted(data.draw(st.sets(st.sampled_from(range(len(bodies))), min_size=1)))
    assert b"".join(frames.build(batch, picks, epoch=epoch)) == b"".join(
        whole[index] for index in picks
    )
    part = range(picks[0], picks[-1] + 1)
    assert b"".join(frames.build(batch, part, epoch=epoch)) == b"".join(
        whole[index] for index in part
    )


def test_a_run_across_all_varint_widths() -> None:
    frames = MessageFrames(1, -1)
    for first in (120, 16_380, 32_760, 2_097_140):
        batch = EntryBatch(9, first, [b""] * 20, [b"x"] * 20)
        assert b"".join(frames.build(batch)) == b"".join(
            expected(1, batch, index) for index in range(20)
        )


def test_redelivered_and_partly_acknowledged_entries() -> None:
    batch = EntryBatch(9, 5, [b""] * 3, [b"a", b"bb", b"ccc"])
    buffers = MessageFrames(4, 2).build(batch, [0, 2], [0, 3], {2: [-1, 5]}, 6)
    assert b"".join(buffers) == expected(4, batch, 0, partition=2, epoch=6) + expected(
        4, batch, 2, partition=2, count=3, ack_set=[-1, 5], epoch=6
    )


def test_bodies_are_not_copied() -> None:
    body = memoryview(b"x" * 5000)
    buffers = MessageFrames(4, -1).build(EntryBatch(1, 1, [b""], [body]))
    assert buffers[1] is body


def test_redeliveries_leave_nothing_behind() -> None:
    frames = MessageFrames(1, -1)
    batch = EntryBatch(1, 0, [b""], [b"body"])
    words = [-1] * 250_000  # 2.5 MB in the frame

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident_bytes()
    for _ in range(60):
        frames.build(batch, ack_sets={0: words})
    assert resident_bytes() - before < 60_000_000  # of 120 MB and more
