"""Where a topic's entries are: the answer's rows, and that all of it is of one moment."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.ledger_handles import WriteHandle
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment as EnsembleSegment
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.errors import PersistenceError, TopicFencedError
from magnetar.broker.http.topics.topic_segments import (
    access_fields,
    ledger_row,
    named_bookies,
    segments_head,
    topic_segments,
)
from magnetar.broker.service.bookie_access import BookieAccess
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows, PackedRows
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.readable_range import ReadableLedger, ReadableRange, left_of
from magnetar.metadata.errors import StoreUnreachableError
from tests.unit.broker.http.long_answer import whole
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Appends, Cluster, eventually

COPY = LedgerCopy(5, "u-1", "filesystem", {"fileSystemURI": "file:///copies"})
COMPLETE = OffloadContext(COPY, CopyState.COMPLETE, 17, 1234)
LISTED = ReadableLedger(5, 10, 990, 1_700_000_000_500)
METADATA = LedgerMetadata(
    *(5, 3, 2, 2),
    segments=(EnsembleSegment(0, ("b1", "b2", "b3")), EnsembleSegment(4, ("b1", "b4", "b3"))),
    length=995,
    password=b"secret",
    created_ms=1_700_000_000_000,
)
SHORT = {
    "ledgerId": 5,
    "entries": 10,
    "size": 990,
    "createdAt": 1_700_000_000_000,
    "closedAt": 1_700_000_000_500,
}
QUORUMS = {
    "ensembleSize": 3,
    "writeQuorum": 2,
    "ackQuorum": 2,
    "ensembles": [
        {"firstEntry": 0, "bookies": ["b1", "b2", "b3"]},
        {"firstEntry": 4, "bookies": ["b1", "b4", "b3"]},
    ],
}
COPY_FIELDS = {
    "uuid": "u-1",
    "driver": "filesystem",
    "location": {"fileSystemURI": "file:///copies"},
    "isOnly": False,
    "size": 1234,
}


# --- rows


def test_a_ledger_in_bookies() -> None:
    row = ledger_row(LISTED, METADATA, locations=True)
    assert row == {**SHORT, "metadata": QUORUMS}
    assert "secret" not in str(row)
    assert named_bookies([METADATA]) == {"b1", "b2", "b3", "b4"}


def test_a_ledger_with_a_copy() -> None:
    both = replace(LISTED, offload=COMPLETE)
    assert ledger_row(both, METADATA, locations=True) == {
        **SHORT,
        "metadata": QUORUMS,
        "copy": COPY_FIELDS,
    }
    only = replace(LISTED, offload=replace(COMPLETE, state=CopyState.ONLY))
    expected = {**SHORT, "createdAt": -1, "copy": {**COPY_FIELDS, "isOnly": True}}
    assert ledger_row(only, None, locations=True) == expected
    # It became the only one while the metadata were read: bookies are about to lose theirs.
    assert ledger_row(only, METADATA, locations=True) == {
        **SHORT,
        "copy": {**COPY_FIELDS, "isOnly": True},
    }
    begun = replace(LISTED, offload=OffloadContext(COPY))
    assert ledger_row(begun, METADATA, locations=True) == {**SHORT, "metadata": QUORUMS}


def test_without_locations() -> None:
    both = replace(LISTED, offload=COMPLETE)
    assert ledger_row(both, None, locations=False) == {**SHORT, "createdAt": -1}


def test_a_size_that_only_the_metadata_know() -> None:
    closing = replace(LISTED, size=-1, closed_ms=0)
    assert ledger_row(closing, METADATA, locations=False)["size"] == 995
    assert ledger_row(closing, None, locations=False)["size"] == 0


def test_head_and_access() -> None:
    extent = ReadableRange((5, 0), (9, 41), True, -1, (), (LISTED,))
    assert segments_head("persistent://t/n/x", extent, (5, 2)) == {
        "topic": "persistent://t/n/x",
        "headBytes": 0,
        "terminated": True,
        "first": {"ledgerId": 5, "entryId": 2},
        "lastConfirmed": {"ledgerId": 9, "entryId": 41},
    }
    assert access_fields(BookieAccess({"b1": ("h", 1)}, "i-1")) == {
        "bookies": {"b1": {"host": "h", "port": 1}},
        "instanceId": "i-1",
    }
    assert access_fields(BookieAccess({}, "", "t"))["bookieToken"] == "t"


# --- one moment


class Directory:
    """Knows everybody, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[set[str], str]] = []

    async def find(self, bookie_ids: Collection[str], log_name: str) -> BookieAccess:
        self.asked.append((set(bookie_ids), log_name))
        return BookieAccess(dict.fromkeys(bookie_ids, ("host", 1)), "i-1")


@pytest.fixture
async def log(cluster: Cluster) -> ManagedLedger:
    return await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=2))


def asked_about(log: ManagedLedger) -> PersistentTopic:
    return cast(PersistentTopic, SimpleNamespace(ledger=log, name="persistent://t/ns/topic"))


async def ask(
    log: ManagedLedger, from_ledger: int = -1, *, locations: bool = True
) -> dict[str, Any]:
    found: dict[str, Any] = await whole(
        await topic_segments(asked_about(log), Directory(), from_ledger, locations=locations)
    )
    return found


async def send(appends: Appends, *payloads: bytes) -> None:
    for payload in payloads:
        appends.send(payload)
        await appends.settle()


def before_each_read(
    log: ManagedLedger, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]
) -> None:
    """Once: ``work`` is done when the first metadata are asked for."""
    read, done = log.client.ledgers.read, False

    async def first_work(ledger_id: int) -> Any:
        nonlocal done
        if not done:
            done = True
            await work()
        return await read(ledger_id)

    monkeypatch.setattr(log.client.ledgers, "read", first_work)


async def test_all_ledgers_are_told_with_their_bookies(log: ManagedLedger) -> None:
    await log.open_cursor("keeps all", EARLIEST)
    appends = Appends(log)
    await send(appends, b"1", b"2", b"3")
    directory = Directory()
    answer = await whole(await topic_segments(asked_about(log), directory, -1, locations=True))
    first, second = (x["ledgerId"] for x in answer["ledgers"])
    assert answer["first"] == {"ledgerId": first, "entryId": 0}
    assert answer["lastConfirmed"] == {"ledgerId": second, "entryId": 0}
    assert answer["headBytes"] == 0
    assert [x["createdAt"] for x in answer["ledgers"]] == [1_000_000, 1_000_000]
    assert answer["ledgers"][1]["metadata"]["ensembles"] == [{"firstEntry": 0, "bookies": ["b0"]}]
    assert answer["bookies"] == {"b0": {"host": "host", "port": 1}}
    assert directory.asked == [({"b0"}, NAME)]
    assert [x["ledgerId"] for x in (await ask(log, second))["ledgers"]] == [second]
    nothing = await ask(log, second + 1)
    assert (nothing["ledgers"], nothing["bookies"]) == ([], {})
    assert nothing["lastConfirmed"] == answer["lastConfirmed"]


async def test_without_locations_nothing_is_read(
    log: ManagedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.open_cursor("keeps all", EARLIEST)
    await send(Appends(log), b"1", b"2", b"3")
    await eventually(lambda: log.lists.info.ledgers[0].closed_ms > 0)  # its length is listed

    async def refuse(ledger_id: int) -> Any:
        raise AssertionError(f"ledger {ledger_id} is read")

    monkeypatch.setattr(log.client.ledgers, "read", refuse)
    answer = await ask(log, locations=False)
    assert [x["entries"] for x in answer["ledgers"]] == [2, 1]
    assert answer.keys().isdisjoint({"bookies", "instanceId", "bookieToken"})
    assert {"metadata", "copy"}.isdisjoint(answer["ledgers"][0])


async def test_what_is_trimmed_while_metadata_are_read(
    log: ManagedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = Appends(log)
    await send(appends, b"1", b"2", b"3")
    at = [position for position, _ in appends.acked]

    async def consume() -> None:
        cursor.ack(at[:2])
        # Also gone from the store, so that its metadata are missing from the answer to come.
        await eventually(lambda: at[0][0] in log.trimmer.deleted)

    before_each_read(log, monkeypatch, consume)
    answer = await ask(log)
    assert [x["ledgerId"] for x in answer["ledgers"]] == [at[2][0]]
    assert answer["first"] == {"ledgerId": at[2][0], "entryId": 0}
    assert "metadata" in answer["ledgers"][0]


async def test_what_is_written_while_metadata_are_read(
    log: ManagedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.open_cursor("keeps all", EARLIEST)
    appends = Appends(log)
    await send(appends, b"1", b"2", b"3")
    at = [position for position, _ in appends.acked]
    before_each_read(log, monkeypatch, lambda: send(appends, b"4", b"5", b"6", b"7"))
    answer = await ask(log)
    assert answer["lastConfirmed"] == {"ledgerId": at[2][0], "entryId": at[2][1]}
    assert [x["entries"] for x in answer["ledgers"]] == [2, 1]


async def test_a_ledger_that_is_lost_is_told_all_the_same(log: ManagedLedger) -> None:
    """The owner lists it: readers must hear that its entries should be there."""
    await log.open_cursor("keeps all", EARLIEST)
    appends = Appends(log)
    await send(appends, b"1", b"2", b"3")
    await log.client.ledgers.delete(appends.acked[0][0][0])
    answer = await ask(log)
    assert [x["entries"] for x in answer["ledgers"]] == [2, 1]
    assert "metadata" not in answer["ledgers"][0]


async def test_an_owner_whose_ledgers_another_one_has_trimmed_says_nothing(
    cluster: Cluster, log: ManagedLedger
) -> None:
    await log.open_cursor("keeps all", EARLIEST)
    appends = Appends(log)
    await send(appends, b"1", b"2", b"3")
    other = await cluster.factory().open(NAME, CONFIG)  # the first one hasn't heard of it
    await other.delete_cursor("keeps all")
    await eventually(lambda: len(other.trimmer.deleted) > 0)
    with pytest.raises(TopicFencedError, match="another broker"):
        await ask(log)


async def test_a_log_that_is_closed_meanwhile(
    log: ManagedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(Appends(log), b"1")
    before_each_read(log, monkeypatch, log.close)
    with pytest.raises(TopicFencedError, match="being closed"):
        await ask(log)


async def compacted(log: ManagedLedger, entries: int) -> CompactedLedger:
    """As if a compaction had left so many entries."""
    writer = await log.client.create_ledger(LedgerConfig(1, 1, 1, b""))
    handle = WriteHandle(writer, 1024)
    await handle.append_all([b"entry"] * entries)
    await handle.close()
    place = (writer.ledger_id, log.last_confirmed)
    return CompactedLedger(log.client, log.offloads, *place, log.config.form)


async def test_what_a_compaction_left(log: ManagedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(Appends(log), b"1")
    old, new = await compacted(log, 2), await compacted(log, 3)
    topic = SimpleNamespace(ledger=log, name="persistent://t/ns/topic", compacted=None)

    async def answer(*, locations: bool) -> Any:
        asked = cast(PersistentTopic, topic)
        found = await topic_segments(asked, Directory(), -1, locations=locations, compacted=True)
        return (await whole(found))["compacted"]

    assert await answer(locations=True) is None
    topic.compacted = old
    row = await answer(locations=True)
    assert (row["ledgerId"], row["entries"]) == (old.ledger_id, 2)
    assert row["horizon"] == {"ledgerId": log.last_confirmed[0], "entryId": 0}
    assert row["metadata"]["ensembles"] == [{"firstEntry": 0, "bookies": ["b0"]}]
    assert "metadata" not in await answer(locations=False)

    async def replace_it() -> None:
        topic.compacted = new
        await old.delete()

    before_each_read(log, monkeypatch, replace_it)
    assert (await answer(locations=True))["ledgerId"] == new.ledger_id
    await new.delete()
    with pytest.raises(PersistenceError, match="doesn't exist"):
        await answer(locations=True)


async def test_an_outage_of_the_store(log: ManagedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(Appends(log), b"1")

    async def fail() -> None:
        raise StoreUnreachableError("zk:h", "down")

    before_each_read(log, monkeypatch, fail)
    with pytest.raises(PersistenceError, match="down"):
        await ask(log)


async def test_without_a_directory_nobody_is_reached(log: ManagedLedger) -> None:
    await send(Appends(log), b"1")
    answer = await whole(await topic_segments(asked_about(log), None, -1, locations=True))
    assert answer["bookies"] == {}
    assert "metadata" in answer["ledgers"][0]


async def test_very_many_ledgers_some_of_which_are_trimmed_meanwhile(
    log: ManagedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is lost where others get their turn."""
    rows = [LedgerInfo(n, 1, 7, 1) for n in range(3456)]
    packed = LedgerRows(rows[2500:], (PackedRows.of(rows[:1000]), PackedRows.of(rows[1000:2500])))
    monkeypatch.setattr(log.lists, "info", log.lists.info.with_rows(packed))
    monkeypatch.setattr(log, "offsets", LedgerOffsets((x.ledger_id, 1) for x in rows))
    answer = await ask(log, locations=False)
    assert [x["ledgerId"] for x in answer["ledgers"]] == list(range(3456))
    assert answer["lastConfirmed"] == {"ledgerId": 3455, "entryId": 0}
    answer = await ask(log, 1234, locations=False)
    assert [x["ledgerId"] for x in answer["ledgers"]] == list(range(1234, 3456))
    assert answer["first"] == {"ledgerId": 0, "entryId": 0}

    made: list[int] = []

    def trim_then_look(ledgers: Any, log: ManagedLedger) -> Any:
        made.append(len(ledgers))
        if len(made) == 3:  # two pieces are ready by now
            log.offsets.remove(range(1000))
        return left_of(ledgers, log)

    monkeypatch.setattr("magnetar.broker.http.topics.topic_segments.left_of", trim_then_look)
    answer = await ask(log, locations=False)
    assert made == [1000, 1000, 500, 956]
    assert [x["ledgerId"] for x in answer["ledgers"]] == list(range(1000, 3456))
    assert answer["first"] == {"ledgerId": 1000, "entryId": 0}
