import contextlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FrameReader,
    FrameTooLargeError,
    MalformedFrameError,
    encode,
    encode_body,
    parse_entry_body,
)
from tests.raw_client import encode_command

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000)


def _ping() -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.PING)
    command.ping.SetInParent()
    return command


def _send(sequence_id: int) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=sequence_id)
    )


def test_known_frames() -> None:
    # The empty sub-message must be present
    assert encode(pb.CommandPing()).hex() == "00000009000000050812920100"
    assert encode(pb.CommandPong()).hex() == "000000090000000508139a0100"


def test_checksum_is_castagnoli_over_size_metadata_and_payload() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    body = encode_body(METADATA, b"payload")
    assert body[:2] == b"\x0e\x01"
    assert int.from_bytes(body[2:6], "big") == crc32c(body[6:])


def test_body_round_trip() -> None:
    body = encode_body(METADATA, b"payload")
    metadata, payload = parse_entry_body(body)
    assert metadata == METADATA
    assert bytes(payload) == b"payload"


def test_body_without_checksum_is_accepted_unchecked() -> None:
    body = encode_body(METADATA, b"payload")[6:]
    metadata, payload = parse_entry_body(body)
    assert metadata == METADATA
    assert bytes(payload) == b"payload"


@given(st.integers(6, 40), st.integers(1, 255))
def test_any_changed_byte_behind_the_checksum_is_noticed(at: int, flip: int) -> None:
    body = bytearray(encode_body(METADATA, b"payload" * 4))
    assert int.from_bytes(body[2:6]) == crc32c(body[6:])
    body[at] ^= flip
    assert int.from_bytes(body[2:6]) != crc32c(body[6:])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00\x00",
        b"\x0e\x01\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x05abcd",
        b"\x0e\x01\x00\x00\x00\x00\xff\xff\xff\xffabcd",
    ],
)
def test_impossible_sizes_are_malformed(body: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        parse_entry_body(body)


@given(st.lists(st.binary(max_size=300), max_size=8), st.randoms(use_true_random=False))
def test_frames_survive_any_cutting(payloads: list[bytes], rng: object) -> None:
    stream = b"".join(
        encode_command(_send(n), encode_body(METADATA, payload))
        for n, payload in enumerate(payloads)
    )
    reader, seen, at = FrameReader(), [], 0
    while at < len(stream):
        step = rng.randint(1, 64)  # type: ignore[attr-defined] # hypothesis types it as object
        seen += list(reader.feed(stream[at : at + step]))
        at += step
    assert [command.send.sequence_id for command, _ in seen] == list(range(len(payloads)))
    assert [bytes(parse_entry_body(body)[1]) for _, body in seen] == payloads


def test_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameTooLargeError):
        list(FrameReader(100).feed(b"\x00\x00\x00\x65"))


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_incomplete(data: bytes) -> None:
    reader = FrameReader(1000)
    with contextlib.suppress(MalformedFrameError):
        list(reader.feed(data))
