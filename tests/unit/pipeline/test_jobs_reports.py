"""Rows of backlog and load out of brokers' statistics, and how tables are shown."""

from pathlib import Path
from typing import Any

import pytest

from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.jobs.backlog import choices_of, rows_of
from magnetar.pipeline.jobs.load import broker_row, bundle_rows
from magnetar.pipeline.jobs.tables import ReportTable, age_text

TOPIC = "persistent://public/default/orders"
NOW_MS = 1_800_000_000_000


def subscription(**changes: Any) -> dict[str, Any]:
    return {
        "type": "Shared",
        "msgBacklog": 15,
        "backlogSize": 2550,
        "earliestMsgPublishTimeInBacklog": NOW_MS - 90_500,
        "msgRateOut": 21.0,
        "consumers": [
            {"msgRateOut": 20.0, "avgMessagesPerEntry": 10},
            {"msgRateOut": 1.0, "avgMessagesPerEntry": 0},
        ],
        "unackedMessages": 2,
        "msgDelayed": 1,
    } | changes


def test_rows_of_backlog() -> None:
    stats = {"subscriptions": {"b": subscription(), "a": subscription(msgBacklog=0)}}
    first, second = rows_of(f"{TOPIC}-partition-3", stats, NOW_MS)
    assert second == {
        "topic": TOPIC,
        "partition": 3,
        "subscription": "b",
        "type": "Shared",
        "entries": 15,
        "bytes": 2550,
        "oldestSeconds": 90.5,
        "consumers": 2,
        "unacked": 2,
        "delayed": 1,
        "rateOut": 21.0,
        "drainSeconds": 5.0,
    }
    assert (first["subscription"], first["oldestSeconds"], first["drainSeconds"]) == (
        *("a", None),
        None,
    )


def test_what_brokers_do_not_know() -> None:
    unknown = subscription(
        earliestMsgPublishTimeInBacklog=-1, backlogSize=-1, msgRateOut=0.0, type="", consumers=[]
    )
    (row,) = rows_of(TOPIC, {"subscriptions": {"s": unknown}}, NOW_MS)
    assert (row["partition"], row["bytes"], row["oldestSeconds"], row["type"]) == (-1, 0, None, "-")
    assert row["drainSeconds"] is None
    assert rows_of(TOPIC, {}, NOW_MS) == []


def test_a_clock_that_is_behind_makes_nobody_older() -> None:
    early = subscription(earliestMsgPublishTimeInBacklog=NOW_MS + 5)
    assert rows_of(TOPIC, {"subscriptions": {"s": early}}, NOW_MS)[0]["oldestSeconds"] == 0


def test_places() -> None:
    namespace, pattern, topics = choices_of(["a/b", "orders", "a/b/x.*", "persistent://a/b/c"])
    assert (namespace.pattern, namespace.namespaces) == (".*", ("a/b",))
    assert (pattern.pattern, pattern.namespaces) == ("a/b/x.*", ("a/b",))
    assert topics.names == (TOPIC, "persistent://a/b/c")
    assert choices_of([]) == []


@pytest.mark.parametrize("place", ["non-persistent://a/b/c", "a/b/", "x://a/b/c", "/"])
def test_places_that_are_none(place: str) -> None:
    with pytest.raises(OptionsError):
        choices_of([place])


def topic_stats(rate: float, stored: int = 10) -> dict[str, Any]:
    return {
        "msgRateIn": rate,
        "msgRateOut": 2 * rate,
        "msgThroughputIn": 100 * rate,
        "msgThroughputOut": 200 * rate,
        "msgInCounter": 7,
        "storageSize": stored,
        "publishers": [{}],
        "subscriptions": {"s": subscription()},
    }


def test_rows_of_bundles() -> None:
    topics = {
        "public/default": {
            "0x00000000_0x80000000": {
                "persistent": {"x": topic_stats(1.0), "y": topic_stats(3.0)},
                "non-persistent": {"z": topic_stats(0.0)},
            },
            "0x80000000_0xffffffff": {"persistent": {"w": topic_stats(0.0)}},
        }
    }
    busy, idle = bundle_rows("b1:8080", topics)
    assert busy == {
        "bundle": "public/default/0x00000000_0x80000000",
        "broker": "b1:8080",
        "topics": 3,
        "producers": 3,
        "consumers": 6,
        "rate": 12.0,
        "throughput": 1200.0,
        "messages": 21,
        "storage": 30,
        "backlog": 45,
        "hottestTopic": "y",
        "hottestShare": 0.75,
    }
    assert (idle["hottestTopic"], idle["hottestShare"]) == ("w", 1.0)  # by messages, then
    assert bundle_rows("b1:8080", {"n/s": {"0x0_0x1": {}}})[0]["hottestTopic"] is None


def test_rows_of_brokers() -> None:
    report = {"cpu": {"usage": 50.0, "limit": 200.0}, "memory": {"usage": 89.5, "limit": 1.0}}
    bundles = [{"topics": 2, "rate": 1.5, "throughput": 10.0}]
    row = broker_row("b1:8080", report, bundles)
    assert (row["cpu"], row["memory"], row["bundles"], row["topics"]) == (25.0, 89.5, 1, 2)
    assert broker_row("b1:8080", {"cpu": {"usage": 1, "limit": -1}}, [])["cpu"] is None


TABLE = ReportTable(
    "t",
    {"name": "string", "count": "int64", "share": "float64"},
    [
        {"name": "ä", "count": 1_234, "share": 0.5},
        {"name": "b", "count": 9, "share": None},
        {"name": "c", "count": 100_000, "share": 2.0},
    ],
)


def test_text_of_a_table() -> None:
    assert TABLE.to_text().splitlines() == [
        "name    count  share",
        "ä       1,234    0.5",
        "b           9      -",
        "c     100,000      2",
    ]
    assert ReportTable("t", {"name": "string"}, []).to_text() == "name"


def test_sorted_tables() -> None:
    assert [row["name"] for row in TABLE.sorted_by("count").rows] == ["c", "ä", "b"]
    assert [row["name"] for row in TABLE.sorted_by("share").rows] == ["c", "ä", "b"]


def test_parquet_of_a_table(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    TABLE.write_parquet(tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == list(TABLE.rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1 / 3, "0.333"), (99.5, "99.5"), (1234.56, "1,234.6"), (1234, "1,234")],
)
def test_numbers(value: float, text: str) -> None:
    row = {"x": value}
    assert ReportTable("t", {"x": "float64"}, [row]).to_text().split() == ["x", text]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (61, "1m 1s"), (3600, "1h"), (273_900, "3d 4h"), (59.9, "59s")],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text
