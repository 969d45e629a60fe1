"""Every field of internalStats that the log knows, against a log that has something to tell."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.broker.http.topics.topic_internals import internal_stats, ledger_info
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.stored_info import read_stored
from tests.unit.broker.http.long_answer import whole
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Cluster, appended

TOPIC = """entriesAddedCounter numberOfEntries totalSize currentLedgerEntries currentLedgerSize
    lastLedgerCreatedTimestamp waitingCursorsCount pendingAddEntriesCount lastConfirmedEntry state
    ledgers cursors schemaLedgers compactedLedger properties"""
LEDGER = "ledgerId entries size offloaded underReplicated"
CURSOR = """markDeletePosition readPosition waitingReadOp pendingReadOps messagesConsumedCounter
    cursorLedger cursorLedgerLastEntry individuallyDeletedMessages lastLedgerSwitchTimestamp state
    active numberOfEntriesSinceFirstNotAckedMessage totalNonContiguousDeletedMessagesRange
    subscriptionHavePendingRead subscriptionHavePendingReplayRead properties"""
STORED = "version creationDate modificationDate ledgers cursors"
STORED_CURSOR = """version creationDate modificationDate cursorsLedgerId markDelete
    individualDeletedMessages"""


def _check_metadata(texts: list[str]) -> None:
    closed, opened = texts
    assert "state=CLOSED, length=23, lastEntryId=2, digestType=CRC32C, password=OMITTED" in closed
    assert "component=base64:bWFuYWdlZC1sZWRnZXI=" in closed
    assert "state=OPEN, digestType=CRC32C, password=OMITTED" in opened


async def test_every_field_is_there_and_says_what_is(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=3))
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, b"one", b"two", b"three", b"four", b"five")
    at = [position for position, _ in appends.acked]
    cursor.ack([at[0], at[2], at[4]])
    await cursor.flush()
    topic = cast(PersistentTopic, SimpleNamespace(ledger=log, subscriptions={}, compacted=None))

    found: dict[str, Any] = await whole(internal_stats(topic))
    assert found.keys() == set(TOPIC.split())
    assert [found["entriesAddedCounter"], found["numberOfEntries"]] == [5, 5]
    assert found["totalSize"] == sum(4 + len(payload) for _, payload in appends.acked)
    assert [found["currentLedgerEntries"], found["currentLedgerSize"]] == [2, 16]
    assert found["lastConfirmedEntry"] == f"{at[4][0]}:1"
    assert [found["state"], found["pendingAddEntriesCount"]] == ["LedgerOpened", 0]
    assert all(row.keys() == set(LEDGER.split()) for row in found["ledgers"])
    assert found["ledgers"][-1]["entries"] == found["ledgers"][-1]["size"] == 0  # it is open
    shown = found["cursors"]["sub"]
    assert shown.keys() == set(CURSOR.split())
    assert shown["markDeletePosition"] == f"{at[0][0]}:0"
    assert shown["readPosition"] == f"{at[1][0]}:1"
    first, second = at[0][0], at[4][0]
    assert shown["individuallyDeletedMessages"] == (
        f"[({first}:1..{first}:2],({second}:0..{second}:1]]"
    )
    assert shown["totalNonContiguousDeletedMessagesRange"] == 2
    assert shown["messagesConsumedCounter"] == 3
    assert (shown["cursorLedger"], shown["cursorLedgerLastEntry"]) == cursor.ledger_position
    assert shown["state"] == "Open"
    assert shown["numberOfEntriesSinceFirstNotAckedMessage"] == 1  # the one that is read next

    markers = UnderReplicationStore(cluster.store, lambda: 0)
    await markers.mark(first, ["b9"])
    found = await whole(internal_stats(topic, metadata=True))
    assert [row["underReplicated"] for row in found["ledgers"]] == [True, False]
    _check_metadata([row["metadata"] for row in found["ledgers"]])

    await log.close()
    stored = await read_stored(cluster.store, NAME)
    assert stored is not None
    info = await whole(ledger_info(stored))
    assert not stored.cursors, "what was read of 10,000 is not freed at once"
    assert info.keys() == set(STORED.split())
    assert [row["entries"] for row in info["ledgers"]] == [3, 2]
    kept = info["cursors"]["sub"]
    assert kept.keys() == set(STORED_CURSOR.split())
    assert kept["markDelete"] == {"ledgerId": first, "entryId": 0}
    assert kept["individualDeletedMessages"] == [
        {
            "from": {"ledgerId": first, "entryId": 1},
            "to": {"ledgerId": first, "entryId": 2},
        },
        {
            "from": {"ledgerId": second, "entryId": 0},
            "to": {"ledgerId": second, "entryId": 1},
        },
    ]


async def test_what_is_read_next_counts_whether_it_is_there_or_not(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=2))
    topic = cast(PersistentTopic, SimpleNamespace(ledger=log, subscriptions={}, compacted=None))
    cursor = await log.open_cursor("sub", EARLIEST)

    async def shown(name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await whole(internal_stats(topic)))["cursors"][name]
        return found

    async def counted() -> int:
        count: int = (await shown("sub"))["numberOfEntriesSinceFirstNotAckedMessage"]
        return count

    assert await counted() == 1
    appends = await appended(log, b"one", b"two", b"three")
    assert await counted() == 1
    cursor.ack([position for position, _ in appends.acked])
    assert await counted() == 1
    log.new_non_durable_cursor(appends.acked[1][0], "reader")
    reader = await shown("reader")
    assert (reader["state"], reader["cursorLedger"]) == ("Open", -1)


async def test_a_part_of_the_cursors(cluster: Cluster) -> None:
    """Those that have acknowledged least; what is told of the log is of all."""
    log = await cluster.factory().open(NAME, CONFIG)
    topic = cast(PersistentTopic, SimpleNamespace(ledger=log, subscriptions={}, compacted=None))
    appends = await appended(log, *[b"x"] * 5)
    at = [position for position, _ in appends.acked]
    for number in (3, 0, 4, 2, 1):
        cursor = await log.open_cursor(f"s{number}", EARLIEST)
        cursor.ack(at[: number + 1])
        await cursor.flush()
    every: dict[str, Any] = await whole(internal_stats(topic))
    for most in range(7):
        part: dict[str, Any] = await whole(internal_stats(topic, cursors_max=most))
        least = {f"s{number}": every["cursors"][f"s{number}"] for number in range(min(most, 5))}
        assert part == {**every, "cursors": least}
    await log.close()
    stored = await read_stored(cluster.store, NAME)
    without = await read_stored(cluster.store, NAME, with_cursors=False)
    assert stored is not None
    assert without == replace(stored, cursors={})
