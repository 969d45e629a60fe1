"""Sums over partitions, shapes of internal statistics: pure parts of the topics' routes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.http.topics.partitioned_stats import sum_topic_stats
from magnetar.broker.http.topics.topic_access import partitioned_metadata
from magnetar.broker.http.topics.topic_internals import format_ranges, ledger_info
from magnetar.broker.protocol.topic_name import TopicName, is_system_topic
from magnetar.broker.topic.topic_stats import empty_topic_stats
from magnetar.managed_ledger.cursor.cursor_store import CursorNode
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.stored_info import StoredCursor, StoredManagedLedger
from magnetar.metadata.loop_turns import run_at_once
from magnetar.metadata.store import Stat
from tests.unit.broker.http.long_answer import whole


def _total(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return run_at_once(sum_topic_stats(parts))


@st.composite
def topic_figures(draw: st.DrawFn) -> dict[str, Any]:
    stats = empty_topic_stats("host:1")
    for field, value in stats.items():
        if isinstance(value, bool):
            stats[field] = draw(st.booleans())
        elif isinstance(value, int):
            stats[field] = draw(st.integers(-1, 2**40))
        elif isinstance(value, float):
            stats[field] = float(draw(st.integers(0, 1000)))
    names = draw(st.sets(st.sampled_from("abc")))
    stats["subscriptions"] = {
        name: {
            "msgBacklog": draw(st.integers(0, 100)),
            "earliestMsgPublishTimeInBacklog": draw(st.sampled_from([-1, 0, 5, 7])),
            "consumers": [],
        }
        for name in names
    }
    return stats


@given(st.lists(topic_figures(), max_size=4))
def test_a_sum_has_every_field_with_its_type(parts: list[dict[str, Any]]) -> None:
    total = _total(parts)
    empty = empty_topic_stats("")
    assert {"ownerBroker", "deduplicationStatus"} == empty.keys() - total.keys()
    for field, value in total.items():
        assert type(value) is type(empty[field]), field
    for field in ("msgInCounter", "storageSize", "backlogSize", "msgRateOut"):
        assert total[field] == sum(part[field] for part in parts)
    chunked = [part["msgChunkPublished"] for part in parts]
    assert total["msgChunkPublished"] == any(chunked)
    times = [part["earliestMsgPublishTimeInBacklogs"] for part in parts]
    assert total["earliestMsgPublishTimeInBacklogs"] == min(
        (time for time in times if time > 0), default=0
    )
    assert total["lastPublishTimeStamp"] == max(
        part["lastPublishTimeStamp"] for part in [empty, *parts]
    )
    names = {name for part in parts for name in part["subscriptions"]}
    assert set(total["subscriptions"]) == names
    for name in names:
        backlogs = [p["subscriptions"].get(name, {}).get("msgBacklog", 0) for p in parts]
        assert total["subscriptions"][name]["msgBacklog"] == sum(backlogs)


@given(st.lists(topic_figures(), max_size=5), st.integers(0, 5))
def test_a_sum_may_be_made_in_steps(parts: list[dict[str, Any]], cut: int) -> None:
    in_steps = _total([_total(parts[:cut]), *parts[cut:]])
    assert in_steps == _total(parts)


def test_the_name_of_the_oldest_backlog_comes_from_its_partition() -> None:
    young, old = empty_topic_stats(""), empty_topic_stats("")
    young |= {"oldestBacklogMessageAgeSeconds": 3, "oldestBacklogMessageSubscriptionName": "y"}
    old |= {"oldestBacklogMessageAgeSeconds": 9, "oldestBacklogMessageSubscriptionName": "o"}
    for parts in ([young, old], [old, young]):
        total = _total(parts)
        assert total["oldestBacklogMessageAgeSeconds"] == 9
        assert total["oldestBacklogMessageSubscriptionName"] == "o"


def test_times_and_means_of_a_consumer_are_no_sums() -> None:
    def part(first_ms: int, last: str, per_entry: int) -> dict[str, Any]:
        consumer = {
            "consumerName": "c",
            "msgOutCounter": 10,
            "avgMessagesPerEntry": per_entry,
            "firstMessagesSentTimestamp": first_ms,
            "firstConsumedFlowTimestamp": first_ms + 1,
            "lastAckedTime": last,
            "lastConsumedTime": last,
        }
        return empty_topic_stats("") | {"subscriptions": {"s": {"consumers": [consumer]}}}

    never, early, late = "1970-01-01T00:00:00.000Z", "2026-01-31T12:00:00.000Z", "2026-02-01T00:"
    total = _total([part(0, never, 0), part(70, late, 3), part(50, early, 5)])
    assert total["subscriptions"]["s"]["consumers"] == [
        {
            "consumerName": "c",
            "msgOutCounter": 30,
            "avgMessagesPerEntry": 5,
            "firstMessagesSentTimestamp": 50,
            "firstConsumedFlowTimestamp": 1,
            "lastAckedTime": late,
            "lastConsumedTime": late,
        }
    ]


def test_ranges_are_open_below_and_closed_above() -> None:
    assert format_ranges([], 0) == "[]"
    ranges = [((3, 4), (3, 6)), ((3, 7), (3, 8))]
    assert format_ranges(ranges, 2) == "[(3:4..3:6],(3:7..3:8]]"
    assert format_ranges(ranges, 9) == "[(3:4..3:6],(3:7..3:8],and 7 more]"


async def test_stored_ledgers_and_cursors() -> None:
    stat = Stat(4, 1_700_000_000_000, 1_700_000_000_500, False, False)
    info = ManagedLedgerInfo(
        ledgers=LedgerRows((LedgerInfo(3, 10, 100, 1_700_000_000_100), LedgerInfo(5))),
        properties={"a": "b"},
        terminated=(5, 2),
    )
    cursor = StoredCursor(CursorNode((3, 4), 7, {"p": 1}), stat)
    answer = await whole(ledger_info(StoredManagedLedger(info, stat, {"s": cursor})))
    assert answer["version"] == 4
    assert answer["creationDate"] == "2023-11-14T22:13:20.000Z"
    assert answer["modificationDate"] == "2023-11-14T22:13:20.500Z"
    assert answer["ledgers"] == [
        {
            "ledgerId": 3,
            "isOffloaded": False,
            "entries": 10,
            "size": 100,
            "timestamp": 1_700_000_000_100,
        },
        {"ledgerId": 5, "isOffloaded": False},
    ]
    assert answer["terminatedPosition"] == {"ledgerId": 5, "entryId": 2}
    assert answer["properties"] == {"a": "b"}
    assert answer["cursors"]["s"]["cursorsLedgerId"] == 7
    assert answer["cursors"]["s"]["markDelete"] == {"ledgerId": 3, "entryId": 4}
    assert answer["cursors"]["s"]["properties"] == {"p": 1}


def test_metadata_of_a_partitioned_topic() -> None:
    assert partitioned_metadata({"partitions": 2}) == {"partitions": 2, "deleted": False}
    assert partitioned_metadata({"partitions": 2, "properties": {}, "own": 1}) == {
        "partitions": 2,
        "deleted": False,
        "properties": {},
    }


@given(
    st.sampled_from(["public/default", "pulsar/system", "pulsar/standalone", "t/n__s"]),
    st.sampled_from(
        ["a", "__change_events", "x__transaction_pending_ack", "healthcheck", "a__b", "__x"]
    ),
    st.sampled_from(["", "-partition-3"]),
)
def test_system_topics_are_known_by_their_names(namespace: str, local: str, suffix: str) -> None:
    name = f"persistent://{namespace}/{local}{suffix}"
    assert is_system_topic(name) is TopicName.parse(name).is_system
