"""Text that isn't UTF-8 is found at any depth, and only looked for where there can be text."""

import pytest
from google.protobuf.message import Message

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol import text
from magnetar.broker.protocol.text import has_broken_text


def broken(message: Message) -> Message:
    """The same with the first byte of each ``text`` made one that no text begins with."""
    data = message.SerializePartialToString()
    assert b"text" in data
    return type(message).FromString(data.replace(b"text", b"\xffext"))


@pytest.mark.parametrize(
    "message",
    [
        pb.CommandSubscribe(topic="text", subscription="s"),
        pb.CommandSubscribe(topic="t", metadata=[pb.KeyValue(key="text", value="v")]),
        pb.CommandGetTopicsOfNamespaceResponse(topics=["t", "text"]),
        pb.CommandProducer(topic="t", schema=pb.Schema(name="text")),
        pb.CommandAck(properties=[pb.KeyLongValue(key="text", value=1)]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_broken_text_is_found_at_any_depth(message: Message) -> None:
    assert not has_broken_text(message)
    assert has_broken_text(broken(message))


def test_message_ids_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Message] = []

    def seen(message: Message) -> bool:
        looked_at.append(message)
        return False

    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    first = command.message_ids.add(ledgerId=1, entryId=2)
    first.first_chunk_message_id.ledgerId = 1
    monkeypatch.setattr(text, "has_broken_text", seen)
    assert not has_broken_text(command)
    assert not looked_at
