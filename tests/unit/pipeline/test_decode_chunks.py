"""Messages in pieces: joined where the last one is, however they were stored and read."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS
from magnetar.pipeline.chunks import ChunkLookback, MissingChunk
from magnetar.pipeline.decode import EntryDecoder
from magnetar.pipeline.errors import UndecodableError
from magnetar.pipeline.offsets import Offset
from tests.unit.pipeline.entries import TOPIC, Entry, chunked, framed, rows_of, single

COLUMNS = ("value", "entryId", "batchIndex", "key")


def read(
    entries: list[Entry], first: int = 0, last: int | None = None, **more: Any
) -> list[tuple[int, bytes]]:
    """Entry id and value of all rows when the entries from ``first`` to ``last`` are one slice."""
    end = len(entries) if last is None else last
    decoder = EntryDecoder(COLUMNS, TOPIC, -1, start=Offset(5, first), end=Offset(5, end), **more)
    rows = rows_of(decoder, entries[first:end], first=first, before=entries[:first])
    assert {row["batchIndex"] for row in rows} <= {-1}
    return [(row["entryId"], row["value"]) for row in rows]


@pytest.mark.parametrize("kind", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_a_message_in_pieces_is_where_its_last_one_is(kind: pb.CompressionType.ValueType) -> None:
    data = random.Random(7).randbytes(700) * 2
    pieces = chunked(data, 3, compression=kind, partition_key="k")
    entries = [single(b"a"), *pieces[:2], single(b"b"), pieces[2], single(b"c")]
    assert read(entries) == [(0, b"a"), (3, b"b"), (4, data), (5, b"c")]
    for first in range(len(entries)):  # also where a slice begins in the middle
        assert read(entries, first) == [row for row in read(entries) if row[0] >= first]
        assert read(entries, 0, first) == [row for row in read(entries) if row[0] < first]


def test_pieces_of_several_producers() -> None:
    a, b = chunked(b"a" * 50, 3, "a-1"), chunked(b"b" * 50, 2, "b-1")
    entries = [a[0], b[0], a[1], b[1], a[2]]
    assert read(entries) == [(3, b"b" * 50), (4, b"a" * 50)]
    for first in range(5):
        assert read(entries, first) == [row for row in read(entries) if row[0] >= first]


def test_a_chunked_batch_is_unpacked() -> None:
    """No client makes one, but what is said of single messages holds for them, too."""
    one = pb.SingleMessageMetadata(payload_size=0)
    pieces = chunked(framed([(one, b"x"), (one, b"y")]), 2, num_messages_in_batch=2)
    decoder = EntryDecoder(("value", "batchIndex"), TOPIC, -1)
    rows = rows_of(decoder, pieces)
    assert [(row["value"], row["batchIndex"]) for row in rows] == [(b"x", 0), (b"y", 1)]


M = chunked(b"0112358d", 4)  # b"01", b"12", b"35", b"8d"
WHOLE = b"0112358d"


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("0123", [3]),
        ("012", []),
        ("123", []),  # its beginning is gone
        ("3", []),
        ("00123", [4]),
        ("010123", [5]),  # a producer that came back sends all of it again
        ("01230123", [3, 7]),
        ("01233", [3]),  # only what it has no receipt for
        ("012323", [3]),
        ("0112233", [5]),
        ("01213", [4]),
        ("0023", []),  # a gap
        ("01312", []),
        ("0231230123", [9]),
        ("0130123", [6]),
    ],
)
def test_repeated_and_lost_pieces(order: str, found: list[int]) -> None:
    entries = [M[int(digit)] for digit in order]
    wanted = [(entry_id, WHOLE) for entry_id in found]
    assert read(entries) == wanted
    for first in range(len(entries)):
        assert read(entries, first) == [row for row in wanted if row[0] >= first]


@given(
    order=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=24),
    cuts=st.sets(st.integers(0, 24), max_size=4),
)
def test_slices_agree_wherever_they_are_cut(order: list[tuple[int, int]], cuts: set[int]) -> None:
    """Any order of the pieces of two messages, read as one slice or as several."""
    messages = [M, chunked(b"abcdefgh", 4, "other")]
    entries = [messages[which][piece] for which, piece in order]
    whole = read(entries)
    edges = sorted({0, len(entries), *(cut for cut in cuts if cut < len(entries))})
    parts = [row for first, last in pairwise(edges) for row in read(entries, first, last)]
    assert parts == whole
    # Little memory: every message is looked for again.
    assert read(entries, message_bytes_max=8) == whole
    # The rules, written down once more, the simple way.
    states, wanted = [-1, -1], []
    for entry_id, (which, piece) in enumerate(order):
        if piece == 0:
            states[which] = 0
        elif states[which] >= 0 and piece == states[which] + 1:
            states[which] = piece
            if piece == 3:
                wanted.append((entry_id, [WHOLE, b"abcdefgh"][which]))
        elif states[which] >= 0 and piece > states[which]:
            states[which] = -1
    assert whole == wanted


def test_what_is_missing_is_told() -> None:
    decoder = EntryDecoder(COLUMNS, TOPIC, -1)
    pieces = chunked(b"x" * 90, 3, publish_time=77)
    entries = [single(b"-"), *pieces[1:]]
    decoder.add(6, 10, [head for head, _ in entries], [body for _, body in entries])
    assert decoder.take() is None
    assert decoder.missing == MissingChunk("p-7", 6, 12, TOPIC)
    assert decoder.take() is None  # nothing else is opened
    decoder.resolve(None)
    assert decoder.take() is None
    found = decoder.finish()
    assert found is not None
    assert found.num_rows == 1
    assert decoder.incomplete_chunked == 1


def test_a_last_piece_out_of_bounds_is_not_looked_for() -> None:
    pieces = chunked(b"x" * 90, 3, publish_time=77)
    bounds: list[dict[str, Any]] = [{"publish_time_ms": (78, None)}, {"start": Offset(5, 1)}]
    for more in bounds:
        decoder = EntryDecoder(COLUMNS, TOPIC, -1, **more)
        decoder.add(5, 0, [pieces[2][0]], [pieces[2][1]])
        assert decoder.take() is None
        assert decoder.missing is None
        assert decoder.finish() is None


def test_the_oldest_pieces_make_room() -> None:
    """They are looked for again; more messages at once than are held."""
    count = 1_200
    messages = [chunked(b"%06d" % number, 2, f"p-{number}") for number in range(count)]
    entries = [first for first, _ in messages] + [last for _, last in messages]
    assert read(entries) == [(count + n, b"%06d" % n) for n in range(count)]


def test_a_message_that_is_too_large_is_named() -> None:
    pieces = chunked(b"x" * 90, 3)
    with pytest.raises(UndecodableError, match=rf"{TOPIC}: entry 5:2: .* 90 bytes, limit 80"):
        read(pieces, message_bytes_max=80)


def test_a_look_back_ends() -> None:
    missing = MissingChunk("p-7", 5, 100, "t")
    heads, bodies = zip(*[single(b"-")] * 10, strict=True)
    lookback = ChunkLookback(missing, entries_max=25)
    for _ in range(2):
        lookback.add(heads, bodies)
        assert not lookback.done
    lookback.add(heads, bodies)
    assert lookback.done
    assert lookback.chunks() is None

    pieces = chunked(b"x" * 90, 3)
    lookback = ChunkLookback(missing, bytes_max=40)
    heads, bodies = zip(*pieces[:2], strict=True)
    with pytest.raises(UndecodableError, match="before t: 5:100 has too many bytes"):
        lookback.add(heads, bodies)
    lookback = ChunkLookback(missing)
    with pytest.raises(UndecodableError, match="before t: 5:100, an entry can't be decoded"):
        lookback.add([pieces[1][0]], [b""])
    lookback = ChunkLookback(missing)
    found = [(b"-", b"-"), *pieces[:2]]
    lookback.add([head for head, _ in found], [body for _, body in found])
    chunks = lookback.chunks()
    assert chunks is not None  # nothing before it
    assert [(metadata.chunk_id, data) for metadata, data in chunks] == [
        (0, b"x" * 30),
        (1, b"x" * 30),
    ]
