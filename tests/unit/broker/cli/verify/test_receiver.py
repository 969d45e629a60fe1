"""Entries of `magnetar verify`: parts of batches, and chunks that are joined."""

from magnetar.broker.cli.verify.receiver import ReceivedEntry
from magnetar.broker.cli.verify.sender import chunks_of
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.chunks import ChunkAssembler
from magnetar.broker.protocol.messages import OutgoingMessage, encode_batch, encode_single
from magnetar.broker.verify.plan import content_of


def received(
    entry_id: int, body: bytes, assembler: ChunkAssembler, ack_set: int | None = None
) -> ReceivedEntry:
    command = pb.CommandMessage(message_id=pb.MessageIdData(ledgerId=1, entryId=entry_id))
    if ack_set is not None:
        command.ack_set.append(ack_set)
    return ReceivedEntry(command, body, assembler)


def test_chunks_are_one_message_at_the_last_of_them() -> None:
    """As the log is when the connection ended between: one of them is there twice."""
    payload = content_of(("p", 4))
    metadata, _, _ = encode_single("p", OutgoingMessage(payload, 4), 1_000)
    bodies = [body for _, body, _ in chunks_of(metadata, payload, 4)]
    assert len(bodies) == 4
    assembler = ChunkAssembler(10**6)
    log = [bodies[0], bodies[1], bodies[1], bodies[2], bodies[3]]
    entries = [received(nth, body, assembler) for nth, body in enumerate(log)]
    assert [each.messages for each in entries] == [[], [], [], [], [("p", 4)]]
    assert entries[-1].positions == [(1, 4, -1)]
    assert list(entries[-1].entries) == [(1, nth) for nth in range(5)]


def test_what_is_acknowledged_of_a_batch_is_left_out() -> None:
    messages = [OutgoingMessage(content_of(("p", number)), number) for number in range(4)]
    _, body, _ = encode_batch("p", messages, 1_000)
    entry = received(7, body, ChunkAssembler(10**6), ack_set=0b1010)
    assert entry.messages == [("p", 1), ("p", 3)]
    assert entry.positions == [(1, 7, 1), (1, 7, 3)]
    whole = received(7, body, ChunkAssembler(10**6))
    assert len(whole.messages) == 4
