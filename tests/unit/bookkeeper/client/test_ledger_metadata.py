"""Stored form and transitions of ledger metadata."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.errors import LedgerClosedError, LedgerFencedError, LedgerMetadataError
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    begin_recovery,
    change_ensemble,
    close_by_recovery,
    close_by_writer,
    decode,
    encode,
    replace_members,
)
from tests.ledger_transitions import transition_error

OPEN = LedgerMetadata(7, 2, 2, 1, (EnsembleSegment(0, ("a", "b")), EnsembleSegment(5, ("a", "c"))))
IN_RECOVERY = replace(OPEN, state=LedgerState.IN_RECOVERY)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry=9, length=100)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    keys = sorted({0, *draw(st.sets(st.integers(1, 1000), max_size=3))})
    bookies = st.lists(st.text(min_size=1), min_size=size, max_size=size, unique=True)
    return LedgerMetadata(
        draw(st.integers(0, 2**63 - 1)),
        size,
        write_quorum,
        draw(st.integers(1, write_quorum)),
        tuple(EnsembleSegment(key, tuple(draw(bookies))) for key in keys),
        password=draw(st.binary()),
        custom_metadata=draw(st.dictionaries(st.text(), st.binary(), max_size=3)),
        created_ms=draw(st.integers(-1, 2**40)),
        creator_token=draw(st.integers(0, 2**63 - 1)),
    )


@given(ledgers())
def test_round_trip(metadata: LedgerMetadata) -> None:
    assert decode(encode(metadata)) == metadata


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("state", "SHUT"),
        ("digestType", "HMAC"),
        ("ensembles", []),
        ("ensembles", [[1, ["a", "b"]]]),
        ("ensembles", [[0, ["a", "a"]]]),
        ("ensembles", [[0, ["a", "b"]], [0, ["a", "c"]]]),
        ("ackQuorum", 3),
        ("ackQuorum", 0),
        ("password", "***"),
        ("customMetadata", None),
    ],
)
def test_what_we_do_not_understand_is_refused(key: str, value: object) -> None:
    document = orjson.loads(encode(OPEN))
    document[key] = value
    with pytest.raises(LedgerMetadataError):
        decode(orjson.dumps(document))


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_foreign_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(LedgerMetadataError):
        decode(value)


def test_begin_recovery() -> None:
    assert begin_recovery(OPEN) == IN_RECOVERY
    assert begin_recovery(IN_RECOVERY) is None
    assert begin_recovery(CLOSED) is None


def test_change_ensemble() -> None:
    changed = change_ensemble(OPEN, 8, {1: ("c", "d")})
    assert changed is not None
    assert changed.segments == (*OPEN.segments, EnsembleSegment(8, ("a", "d")))
    in_place = change_ensemble(OPEN, 5, {0: ("a", "d"), 1: ("b", "e")})
    assert in_place is not None
    assert in_place.segments == (OPEN.segments[0], EnsembleSegment(5, ("d", "c")))
    assert change_ensemble(OPEN, 8, {1: ("b", "e")}) is None  # cured before
    with pytest.raises(LedgerMetadataError):
        change_ensemble(OPEN, 4, {1: ("c", "d")})
    with pytest.raises(LedgerFencedError):
        change_ensemble(IN_RECOVERY, 8, {1: ("c", "d")})
    with pytest.raises(LedgerClosedError):
        change_ensemble(CLOSED, 10, {1: ("c", "d")})


def test_close_by_recovery() -> None:
    closed = close_by_recovery(
        IN_RECOVERY, 7, 80, [EnsembleSegment(5, ("d", "c")), EnsembleSegment(7, ("d", "e"))]
    )
    assert closed is not None
    assert (closed.last_entry, closed.length) == (7, 80)
    assert closed.segments[1:] == (EnsembleSegment(5, ("d", "c")), EnsembleSegment(7, ("d", "e")))
    assert close_by_recovery(CLOSED, 7, 80, []) is None
    for state, end, segments in [(OPEN, 7, []), (IN_RECOVERY, 3, []), (IN_RECOVERY, 7, [0])]:
        with pytest.raises(LedgerMetadataError):
            close_by_recovery(
                state, end, 80, [EnsembleSegment(key, ("d", "c")) for key in segments]
            )


def test_repair_touches_only_members_of_closed_segments() -> None:
    repaired = replace_members(OPEN, 0, {1: ("b", "x")})
    assert repaired is not None
    assert repaired.segments == (EnsembleSegment(0, ("a", "x")), OPEN.segments[1])
    assert replace_members(OPEN, 0, {1: ("x", "y")}) is None
    assert replace_members(CLOSED, 5, {1: ("c", "x")}) is not None
    for metadata, key in [(OPEN, 5), (IN_RECOVERY, 5), (CLOSED, 3)]:
        with pytest.raises(LedgerMetadataError):
            replace_members(metadata, key, {1: ("c", "x")})


def test_every_pure_change_is_a_legal_transition() -> None:
    pairs = [
        (OPEN, begin_recovery(OPEN)),
        (OPEN, change_ensemble(OPEN, 8, {1: ("c", "d")})),
        (OPEN, change_ensemble(OPEN, 5, {1: ("c", "d")})),
        (OPEN, close_by_writer(OPEN, 9, 100)),
        (IN_RECOVERY, close_by_recovery(IN_RECOVERY, 9, 100, [EnsembleSegment(5, ("x", "y"))])),
        (CLOSED, replace_members(CLOSED, 5, {1: ("c", "x")})),
    ]
    for old, new in pairs:
        assert new is not None
        assert transition_error(old, new) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CLOSED, OPEN),
        (IN_RECOVERY, OPEN),
        (CLOSED, replace(CLOSED, last_entry=8)),
        (CLOSED, replace(CLOSED, length=99)),
        (CLOSED, replace(CLOSED, segments=(*CLOSED.segments, EnsembleSegment(10, ("a", "b"))))),
        (OPEN, replace(OPEN, segments=OPEN.segments[:1])),
        (OPEN, replace(OPEN, ack_quorum=2)),
        (OPEN, replace(OPEN, password=b"x")),
        (OPEN, replace(OPEN, last_entry=3)),
        (OPEN, replace(CLOSED, last_entry=3)),
        (
            IN_RECOVERY,
            replace(IN_RECOVERY, segments=(*OPEN.segments, EnsembleSegment(8, ("a", "d")))),
        ),
    ],
)
def test_forbidden_transitions_are_seen(old: LedgerMetadata, new: LedgerMetadata) -> None:
    assert transition_error(old, new) is not None


def test_segment_lookup() -> None:
    assert [OPEN.segment_of(e).first_entry for e in (0, 4, 5, 99)] == [0, 0, 5, 5]
    assert [OPEN.segment_end(e) for e in (0, 4, 5, 99)] == [5, 5, None, None]


def test_master_key() -> None:
    keys = [replace(OPEN, password=password).master_key for password in (b"", b"pw", b"Pw")]
    assert keys[0] == bytes(20)
    assert len(set(keys)) == 3
    assert all(len(key) == 20 for key in keys)
