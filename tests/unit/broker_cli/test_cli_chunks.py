"""Messages in pieces: whole in any interleaving, dropped when a piece is missing."""

from __future__ import annotations

from magnetar.broker.cli.chunks import AssembledMessage, ClientChunkAssembler
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import parse_entry_body


def add(
    chunks: ClientChunkAssembler, uuid: str, index: int, count: int = 3
) -> AssembledMessage | None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = uuid, index, count
    origin = (1, pb.MessageIdData(ledgerId=ord(uuid), entryId=index))
    return chunks.add(metadata, f"{uuid}{index}".encode(), origin)


def dropped(chunks: ClientChunkAssembler) -> list[str]:
    return [f"{chr(message_id.ledgerId)}{message_id.entryId}" for _, message_id in chunks.dropped]


def test_messages_may_interleave() -> None:
    chunks = ClientChunkAssembler(0)
    assert [add(chunks, *piece) for piece in (("a", 0), ("b", 0), ("a", 1), ("b", 1))] == [None] * 4
    whole = add(chunks, "b", 2)
    assert whole is not None
    _, payload = parse_entry_body(whole.body)
    assert bytes(payload) == b"b0b1b2"
    assert [message_id.entryId for _, message_id in whole.origins] == [0, 1, 2]
    assert add(chunks, "a", 2) is not None
    assert chunks.dropped == []


def test_a_message_without_its_beginning_is_dropped() -> None:
    chunks = ClientChunkAssembler(0)
    assert add(chunks, "a", 1) is None
    assert add(chunks, "b", 0) is None
    assert add(chunks, "b", 2) is None
    assert dropped(chunks) == ["a1", "b0", "b2"]


def test_a_message_that_begins_again_counts_anew() -> None:
    chunks = ClientChunkAssembler(0)
    add(chunks, "a", 0)
    add(chunks, "a", 1)
    add(chunks, "a", 0)
    add(chunks, "a", 1)
    assert add(chunks, "a", 2) is not None
    assert dropped(chunks) == ["a0", "a1"]


def test_the_oldest_makes_room() -> None:
    chunks = ClientChunkAssembler(2)
    for uuid in "abc":
        add(chunks, uuid, 0)
    assert dropped(chunks) == ["a0"]
