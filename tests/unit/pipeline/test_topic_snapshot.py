"""The brokers' list of a topic's ledgers, decoded."""

import copy
from typing import Any

import pytest

from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.pipeline.errors import SegmentsUnavailableError
from magnetar.pipeline.offsets import BEGINNING, END, Offset
from magnetar.pipeline.topic_snapshot import parse_snapshot

_ANSWER: dict[str, Any] = {
    "topic": "persistent://public/default/t-partition-0",
    "headBytes": 0,
    "terminated": False,
    "first": {"ledgerId": 5, "entryId": 0},
    "lastConfirmed": {"ledgerId": 9, "entryId": 41},
    "ledgers": [
        {
            "ledgerId": 5,
            "entries": 1000,
            "size": 123_000,
            "createdAt": 1,
            "closedAt": 2,
            "copy": {
                "uuid": "u",
                "driver": "filesystem",
                "location": {"uri": "file:///x"},
                "isOnly": True,
                "size": 9,
            },
        },
        {
            "ledgerId": 9,
            "entries": 42,
            "size": 5120,
            "createdAt": -1,
            "closedAt": 0,
            "metadata": {
                "ensembleSize": 3,
                "writeQuorum": 2,
                "ackQuorum": 2,
                "ensembles": [
                    {"firstEntry": 0, "bookies": ["a", "b", "c"]},
                    {"firstEntry": 7, "bookies": ["a", "d", "c"]},
                ],
            },
        },
    ],
    "bookies": {"a": {"host": "h", "port": 3181}},
    "instanceId": "i",
}


def test_an_answer() -> None:
    found = parse_snapshot(_ANSWER)
    assert (found.first, found.end) == (Offset(5, 0), Offset(9, 42))
    assert found.bookies == {"a": ("h", 3181)}
    old, live = found.ledgers
    assert old.metadata is None
    assert old.copy_is_only
    assert old.copy is not None
    assert old.copy.name == "5-u"
    assert old.entry_bytes == 123
    assert live.metadata is not None
    assert live.metadata.state is LedgerState.OPEN
    assert live.metadata.is_striped
    assert live.metadata.segment_of(8).bookies == ("a", "d", "c")
    assert live.copy is None


def test_ledgers_are_found_by_their_ids() -> None:
    found = parse_snapshot(_ANSWER)
    assert [found.index_from(x) for x in (0, 5, 6, 9, 10)] == [0, 0, 1, 1, 2]
    assert found.find(9) is found.ledgers[1]
    assert found.find(6) is None
    assert found.clamp(BEGINNING) == Offset(5, 0)
    assert found.clamp(END) == Offset(9, 42)
    assert found.clamp(Offset(6, 3)) == Offset(6, 3)


def test_what_a_compaction_left() -> None:
    row = {
        **_ANSWER["ledgers"][1],
        "ledgerId": 12,
        "horizon": {"ledgerId": 9, "entryId": 3},
    }
    found = parse_snapshot({**_ANSWER, "compacted": row}, compacted=True)
    assert found.compacted is not None
    assert found.compacted.horizon == Offset(9, 4)
    ledger = found.compacted.ledger
    assert found.find(12) is ledger
    assert ledger.closed_ms == 0, "its messages are of any time"
    assert ledger.metadata is not None
    assert (ledger.metadata.state, ledger.metadata.last_entry) == (LedgerState.CLOSED, 41)
    assert found.begin == found.clamp(BEGINNING) == BEGINNING, "the log has lost some of them"
    never = parse_snapshot({**_ANSWER, "compacted": None}, compacted=True)
    assert (never.compacted, never.begin) == (None, Offset(5, 0))
    with pytest.raises(SegmentsUnavailableError, match=r"compacted.*older than this package"):
        parse_snapshot(_ANSWER, compacted=True)


def test_an_empty_topic() -> None:
    answer = {
        **_ANSWER,
        "ledgers": [],
        "first": {"ledgerId": 3, "entryId": 0},
        "lastConfirmed": {"ledgerId": 3, "entryId": -1},
    }
    found = parse_snapshot(answer)
    assert found.first == found.end == Offset(3, 0)


@pytest.mark.parametrize("missing", ["topic", "first", "lastConfirmed", "ledgers"])
def test_an_answer_that_is_none(missing: str) -> None:
    answer = copy.deepcopy(_ANSWER)
    del answer[missing]
    with pytest.raises(SegmentsUnavailableError, match=missing):
        parse_snapshot(answer)


@pytest.mark.parametrize("answer", [None, [], "x", {"topic": 1}])
def test_something_else_altogether(answer: object) -> None:
    with pytest.raises(SegmentsUnavailableError, match="can't be read"):
        parse_snapshot(answer)
