"""What compaction keeps: the tables of Pulsar's rules, and random logs against a plain model."""

import random
from collections.abc import Iterable, Sequence

import pytest

from magnetar.broker.compaction.keyed_messages import last_kept_index
from magnetar.broker.compaction.latest_keys import LatestKeys
from magnetar.broker.compaction.two_passes import TwoPasses
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body, parse_entry_body
from magnetar.broker.protocol.messages import (
    OutgoingMessage,
    encode_batch,
    encode_single,
    messages_of,
)

CODECS = (pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)
Log = list[bytes]


def single(key: str | None, value: str, codec: pb.CompressionType.ValueType = pb.NONE) -> bytes:
    return encode_single("p", OutgoingMessage(value.encode(), 0, key), 1, codec)[1]


def batch(
    pairs: Sequence[tuple[str | None, str]], codec: pb.CompressionType.ValueType = pb.NONE
) -> bytes:
    messages = [OutgoingMessage(value.encode(), at, key) for at, (key, value) in enumerate(pairs)]
    return encode_batch("p", messages, 1, codec)[1]


def compacted(log: Iterable[bytes], passes: TwoPasses | None = None) -> Log:
    passes, entries = passes or TwoPasses(), list(log)
    for entry in entries:
        passes.note(entry)
    passes.choose()
    kept = [passes.take(entry) for entry in entries]
    return [bytes(entry) for entry in kept if entry is not None]


def shown(log: Iterable[bytes]) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    for entry in log:
        metadata, payload = parse_entry_body(entry)
        found += [(m.key, m.payload.decode()) for m in messages_of(metadata, payload, 1 << 20)]
    return found


LOG = [
    *(("a", "1"), ("b", "1"), ("a", "2"), (None, "nokey"), ("c", "1")),
    *(("b", ""), ("c", ""), ("d", "1"), ("", "x")),
]


@pytest.mark.parametrize(
    ("retains", "left", "removed"),
    [
        (False, [("a", "2"), ("d", "1"), ("", "x")], 4),
        (True, [("a", "2"), (None, "nokey"), ("d", "1"), ("", "x")], 3),
    ],
)
def test_the_newest_of_each_key_stays(
    retains: bool, left: list[tuple[str | None, str]], removed: int
) -> None:
    passes = TwoPasses(retains)
    assert shown(compacted([single(*pair) for pair in LOG], passes)) == left
    assert passes.removed == removed


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_keeps_its_count_and_its_indexes(codec: pb.CompressionType.ValueType) -> None:
    before = batch([("a", "1"), ("b", "2"), (None, "3"), ("a", "4")], codec)
    (entry,) = compacted([before])
    metadata, payload = parse_entry_body(entry)
    assert metadata.num_messages_in_batch == 4
    assert list(metadata.compacted_batch_indexes) == [1, 3]
    assert metadata.compression == codec
    assert [m.batch_index for m in messages_of(metadata, payload, 1 << 20)] == [1, 3]
    assert shown([entry]) == [("b", "2"), ("a", "4")]
    assert last_kept_index(entry) == 3
    assert compacted([entry]) == [entry], "what is gone stays gone, the rest as it is"
    assert shown(compacted([entry, single("a", "5")])) == [("b", "2"), ("a", "5")]


def test_a_batch_without_survivors_goes_and_a_whole_one_stays_as_it_is() -> None:
    gone, whole = batch([("a", "1"), ("b", "1")]), batch([("a", "2"), ("b", "2")], pb.ZSTD)
    assert compacted([gone, whole]) == [whole]


def _metadata(key: str | None = "k", **fields: object) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)  # type: ignore[arg-type]
    if key is not None:
        metadata.partition_key = key
    return metadata


def test_a_null_value_removes_its_key() -> None:
    assert compacted([single("k", "1"), encode_body(_metadata(null_value=True), b"x")]) == []


def test_the_size_before_compression_says_whether_there_is_a_value() -> None:
    empty = encode_body(_metadata(uncompressed_size=0, compression=pb.ZSTD), b"frame of nothing")
    assert compacted([single("k", "1"), empty]) == []


def test_a_key_that_is_no_text_is_a_key() -> None:
    """C++ producers put any bytes into it."""

    def with_key(key: bytes, value: bytes) -> bytes:
        field = bytes([6 << 3 | 2, len(key)]) + key
        data = _metadata(None).SerializeToString() + field
        return len(data).to_bytes(4) + data + value

    log = [with_key(b"\xff\xfe", b"1"), with_key(b"\xff\xfd", b"1"), with_key(b"\xff\xfe", b"2")]
    assert compacted(log) == log[1:]


def test_an_encrypted_batch_goes_by_the_key_of_its_entry() -> None:
    keys = [pb.EncryptionKeys(key="rsa", value=b"x")]
    with_key = encode_body(_metadata(num_messages_in_batch=3, encryption_keys=keys), b"secret")
    without = encode_body(_metadata(None, num_messages_in_batch=3, encryption_keys=keys), b"secret")
    assert compacted([single("k", "1"), with_key, without]) == [with_key]
    assert compacted([with_key, without], TwoPasses(retains_keyless=True)) == [with_key, without]


def test_markers_go_and_what_is_not_understood_stays() -> None:
    marker = encode_body(_metadata(marker_type=10), b"")
    broken = encode_body(_metadata(num_messages_in_batch=9), b"\0\0\0\1?")
    assert compacted([marker, broken, b"\0\0"]) == [broken, b"\0\0"]


def chunk(uuid: str, index: int, count: int, key: str = "k") -> bytes:
    metadata = _metadata(
        key, uuid=uuid, chunk_id=index, num_chunks_from_msg=count, total_chunk_msg_size=99
    )
    return encode_body(metadata, b"part")


def test_all_chunks_of_the_newest_message_stay() -> None:
    first, second = [chunk("u", i, 3) for i in range(3)], [chunk("v", i, 2) for i in range(2)]
    other = single("o", "1")
    log = [first[0], second[0], first[1], other, second[1], first[2]]
    assert compacted(log) == [first[0], first[1], other, first[2]], "the last chunk decides"
    assert compacted([*first, single("k", "")]) == []


def test_chunks_of_a_message_that_is_not_complete_yet_stay() -> None:
    parts = [chunk("u", i, 3) for i in range(3)]
    left = compacted([single("k", "0"), *parts[:2]])
    assert left == [single("k", "0"), *parts[:2]], "its key still has its old value"
    assert compacted([*left, parts[2]]) == parts
    assert compacted(parts[1:]) == [], "nobody can join what lacks its first part"


def _random_log(rng: random.Random) -> tuple[Log, list[tuple[str | None, str]]]:
    """A log, and its messages in order."""
    log, messages = [], []
    for number in range(rng.randrange(1, 60)):
        pairs = [
            (
                rng.choice([None, *"abcdefgh"]) if rng.random() < 0.9 else f"once-{number}",
                rng.choice(["", f"{number}-{at}"]) if rng.random() < 0.3 else f"{number}-{at}",
            )
            for at in range(rng.randrange(1, 6))
        ]
        codec = rng.choice(CODECS)
        if len(pairs) == 1:
            log.append(single(*pairs[0], codec))
        else:
            log.append(batch(pairs, codec))
        messages += pairs
    return log, messages


def _model(messages: Sequence[tuple[str | None, str]]) -> list[tuple[str | None, str]]:
    newest = {key: at for at, (key, _) in enumerate(messages)}
    return [
        (key, value)
        for at, (key, value) in enumerate(messages)
        if key is not None and newest[key] == at and value
    ]


@pytest.mark.parametrize("seed", range(40))
def test_random_logs_in_one_run_in_several_and_with_little_memory(seed: int) -> None:
    rng = random.Random(seed)
    log, messages = _random_log(rng)
    expected = _model(messages)
    assert shown(compacted(log)) == expected
    small = TwoPasses(keys=LatestKeys(keys_max=rng.randrange(1, 6)))
    in_memory = TwoPasses()
    assert compacted(log, small) == compacted(log, in_memory)
    assert small.removed == in_memory.removed
    view: Log = []
    while log:
        cut = rng.randrange(1, len(log) + 1)
        view, log = compacted([*view, *log[:cut]]), log[cut:]
    assert shown(view) == expected
