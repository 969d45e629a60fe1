"""Lists in chunks: rows, crashes between a chunk and its node, lost and damaged chunks."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import accumulate
from zlib import crc32

import cramjam
import orjson
import pytest

from magnetar.managed_ledger import ledger_info_chunks, ledger_rows
from magnetar.managed_ledger.errors import ManagedLedgerFencedError, ManagedLedgerFormatError
from magnetar.managed_ledger.factory import ROOT
from magnetar.managed_ledger.ledger_info_chunks import (
    CHUNKS_ROOT,
    LedgerInfoChunks,
    chunks_path,
    read_list,
)
from magnetar.managed_ledger.ledger_info_store import LedgerInfoStore
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows, PackedRows, ids_gone
from magnetar.managed_ledger.managed_ledger_info import (
    ManagedLedgerInfo,
    decode_list_node,
    encode_info,
)
from magnetar.managed_ledger.offload.config import OffloadConfig
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.offload.policy import ledgers_to_release
from magnetar.managed_ledger.orphan_ledgers import collect_leaked_chunks
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import Versioned
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Cluster

PATH = f"/managed-ledgers/{NAME}"
CHUNKS = chunks_path(PATH)


def row(number: int, *, is_copied: bool = False) -> LedgerInfo:
    copy = LedgerCopy(number, f"uuid-{number}", "d", {"place": "p"})
    context = OffloadContext(copy, CopyState.SETTLED, 7, 50) if is_copied else None
    return LedgerInfo(number, 10, 100, 1000 + number, context)


def rows_of(count: int, *, is_copied: bool = False) -> LedgerRows:
    """In segments of four, and a tail."""
    every = [row(n, is_copied=is_copied and n % 2 == 0) for n in range(1, count + 1)]
    rows = LedgerRows(every)
    while (cut := rows.cut(4)) is not rows:
        rows = cut
    return rows


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_rows, "TAIL_ROWS_MAX", 4)
    monkeypatch.setattr(ledger_rows, "CHUNK_ROWS", 4)


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    found = EmbeddedMetadataStore.open(None)
    yield found
    await found.close()


# Rows


@pytest.mark.parametrize("is_copied", [False, True])
def test_rows_are_those_of_a_plain_list(is_copied: bool) -> None:
    rows = rows_of(15, is_copied=is_copied)
    plain = list(LedgerRows(rows))
    assert len(rows.segments) == 3
    assert list(rows) == plain == [rows[n] for n in range(15)]
    assert (rows[-1], rows[:2], len(rows)) == (plain[-1], tuple(plain[:2]), 15)
    assert rows == LedgerRows(plain)
    assert rows.size == 1500
    assert [rows.find(n) for n in (1, 6, 15)] == [plain[0], plain[5], plain[14]]
    assert (rows.find(0), rows.find(16), rows.has(0), rows.has(8)) == (None, None, False, True)
    assert list(rows.from_id(6)) == plain[5:]
    assert rows.select([14, 3, 99]) == [plain[2], plain[13]]
    assert rows.changed([6, 99], lambda x: x) is rows
    changed = rows.changed([6, 14], lambda x: replace(x, size=1))
    assert [x.size for x in changed] == [1 if x.ledger_id in (6, 14) else 100 for x in plain]
    assert changed.segments[0] is rows.segments[0]
    assert changed.segments[2] is rows.segments[2]
    assert sum(x.copied_size for x in rows.blocks()) == (700 if is_copied else 0)


@pytest.mark.parametrize("gone", [[1], [1, 2, 3, 4], [2], [4], [*range(1, 7)], [6, 14], [15]])
def test_rows_that_leave(gone: list[int]) -> None:
    rows = rows_of(15)
    left = rows.without(gone)
    assert [x.ledger_id for x in left] == [n for n in range(1, 16) if n not in gone]
    assert sorted(ids_gone(rows, left)) == gone
    assert ids_gone(left, left.with_row(LedgerInfo(99))) == []
    assert rows.without([99]) is rows


def test_what_is_cut_from_the_tail_is_not_gone() -> None:
    rows = LedgerRows(map(row, range(1, 9)))
    cut = rows.cut(4)
    assert (len(cut.segments), len(cut.tail)) == (1, 4)
    assert ids_gone(rows, cut) == []
    is_open = LedgerRows([LedgerInfo(1), *map(row, range(2, 9))])
    assert is_open.cut(4) is is_open, "its end isn't known"


# Joined and split segments


def in_state(number: int, state: int) -> LedgerInfo:
    """Args:
    state: of its copy; -1: it has none.
    """
    copy = LedgerCopy(number, f"uuid-{number}", "d", {"place": "p"})
    context = None if state < 0 else OffloadContext(copy, CopyState(state), number, 50)
    return LedgerInfo(number, 10, 100, 1000 + number, context)


def segments_of(*sizes: int, state: int = -1) -> tuple[PackedRows, ...]:
    ends = list(accumulate(sizes))
    spans = (range(end - size, end) for end, size in zip(ends, sizes, strict=True))
    return tuple(PackedRows.of([in_state(n, state) for n in span]) for span in spans)


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ((4, 4), (4, 4)),
        ((4, 4, 4), (12,)),
        ((3, 4, 1, 4), (8, 4)),
        ((5, 4, 4, 5), (5, 4, 4, 5)),
        ((12, 12, 12), (36,)),
        ((12, 4, 4, 12, 12, 5), (12, 4, 4, 29)),
        ((36, 36, 36, 4), (36, 36, 36, 4)),
    ],
)
@pytest.mark.parametrize("state", [-1, CopyState.COMPLETE])
def test_small_segments_that_lie_side_by_side_are_joined(
    sizes: tuple[int, ...], joined: tuple[int, ...], state: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_rows, "JOINED", 3)
    rows = LedgerRows([row(1000)], segments_of(*sizes, state=state))
    found = rows.joined()
    assert tuple(map(len, found.segments)) == joined
    assert list(found) == list(rows)
    assert found == rows
    assert ids_gone(rows, found) == []
    assert (found is rows) == (sizes == joined)


def test_segments_that_will_change_one_by_one_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_rows, "JOINED", 3)
    rows = LedgerRows((), segments_of(4, 4, 4, state=CopyState.COMPLETE))
    assert len(rows.changed([5], lambda x: in_state(5, CopyState.SETTLED)).joined().segments) == 3
    elsewhere = LedgerCopy(5, "u", "d", {"place": "q"})
    moved = OffloadContext(elsewhere, CopyState.COMPLETE, 5, 50)
    changed = rows.changed([4, 5, 6, 7], lambda x: replace(x, offload=moved))
    assert len(changed.joined().segments) == 3, "they are at another place"


@pytest.mark.parametrize("state", [-1, CopyState.COMPLETE])
def test_lists_are_compared_without_a_row_as_an_object(
    state: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer was lost after a join and a cut: a million rows as objects took 4 to 20 s."""
    monkeypatch.setattr(ledger_rows, "JOINED", 3)
    tail = [in_state(n, state) for n in range(24, 32)]
    rows = LedgerRows(tail, segments_of(4, 4, 4, 12, state=state))
    found = rows.cut(4).joined()
    other = found.with_row(row(40)).without([31])
    replaced = rows.changed([9], lambda x: replace(x, size=1))
    trimmed = LedgerRows(tail, (rows.segments[0].without_first(2), *rows.segments[1:]))
    again = LedgerRows(tail, (PackedRows.joined(trimmed.segments[:2]), *rows.segments[2:]))

    def never(*_: object) -> LedgerInfo:
        raise AssertionError("a row was made")

    monkeypatch.setattr(PackedRows, "__getitem__", never)
    assert tuple(map(len, found.segments)) == (12, 12, 4)
    assert found == rows
    assert rows == found
    assert other != rows
    assert replaced != found
    assert trimmed == again
    assert trimmed == LedgerRows(tail, tuple(PackedRows.joined([x]) for x in trimmed.segments))
    assert trimmed != rows


@pytest.mark.parametrize(
    ("number", "other"), [(3, -1), (3, CopyState.ONLY), (15, -1), (27, CopyState.ONLY)]
)
def test_lists_that_differ_in_one_copy_are_not_equal(number: int, other: int) -> None:
    rows = LedgerRows((), segments_of(4, 4, 4, 12, 4, state=CopyState.COMPLETE))
    changed = rows.changed([number], lambda x: in_state(x.ledger_id, other))
    assert changed != rows
    assert changed.changed([number], lambda x: in_state(x.ledger_id, CopyState.COMPLETE)) == rows
    uuid = LedgerCopy(number, f"uuid_{number}", "d", {"place": "p"})
    begun = OffloadContext(uuid, CopyState.COMPLETE, number, 50)
    assert rows.changed([number], lambda x: replace(x, offload=begun)) != rows


def test_copies_whose_columns_differ_are_compared_by_row() -> None:
    rows = LedgerRows((), segments_of(8, state=CopyState.COMPLETE))
    place = LedgerCopy(0, "u", "d", {"place": "q"})
    first = rows.changed([0], lambda x: replace(x, offload=OffloadContext(place)))
    both = PackedRows.of(list(first))
    halves = (both.replaced({0: in_state(0, CopyState.COMPLETE)}), both.replaced({0: both[0]}))
    assert LedgerRows((), tuple(halves[0])) == rows, "a part has places of rows that it hasn't"
    assert LedgerRows((), tuple(halves[1])) == first


def test_what_is_asked_of_all_segments_is_known_once_they_are_read() -> None:
    """The ages of a million copies took a turn of 240 ms after the log was opened."""
    (segment,) = segments_of(4, state=CopyState.COMPLETE)
    value = segment.encode()
    stored = segment.stored_as("0000000001-a-1", crc32(value))
    found = PackedRows.decode(value, stored.ref())
    copies, found._copies = found._copies, None
    assert copies is not None
    assert (found.oldest_closed_ms, found.oldest_complete_ms) == (1000, 0)


@pytest.mark.parametrize(
    ("number", "changed", "left"),
    [
        (0, (4, 4, 4, 12, 12, 4), (35, 4)),
        (13, (12, 4, 4, 4, 12, 4), (12, 3, 4, 4, 12, 4)),
        (35, (12, 12, 4, 4, 4, 4), (12, 12, 4, 4, 3, 4)),
        (37, (36, 4), (36, 3)),
    ],
)
def test_a_change_makes_a_small_segment(
    number: int,
    changed: tuple[int, ...],
    left: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_rows, "JOINED", 3)
    rows = LedgerRows((), segments_of(36, 4, state=CopyState.COMPLETE))
    other = rows.changed([number], lambda x: in_state(x.ledger_id, CopyState.ONLY))
    assert tuple(map(len, other.segments)) == changed
    assert [int(x.offload.state) for x in other if x.offload] == [
        1 + (n == number) for n in range(40)
    ]
    assert tuple(map(len, rows.without([number]).segments)) == left


@pytest.mark.parametrize("state", [-1, CopyState.COMPLETE])
def test_segments_whose_first_rows_left(state: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_rows, "JOINED", 3)
    rows = LedgerRows([row(99)], segments_of(4, 4, 4, state=state)).without([0, 1, 4, 8, 9, 10])
    plain = [*(in_state(n, state) for n in (2, 3, 5, 6, 7, 11)), row(99)]
    for each in (rows, rows.joined()):
        assert list(each) == plain
        for start in range(13):
            assert list(each.from_id(start)) == [x for x in plain if x.ledger_id >= start]
    assert len(rows.joined().segments) == 1


async def test_a_list_with_chunks_has_few_rows_outside(
    store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_rows, "TAIL_ROWS_MAX", 20)
    await store.put(PATH, encode_info(ManagedLedgerInfo(owner="me")))
    lists = await owner(store)
    tails: list[int] = []
    for number in range(30):
        await store_rows(lists, lists.info.ledgers.with_row(row(number)))
        tails.append(len(lists.info.ledgers.tail))
    assert tails == [*range(1, 21), 17, 14, 11, 8, 5, 6, 7, 8, 5, 6]


def test_copies_that_are_old_enough_are_found_without_a_row_as_an_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked at each change of the list: 47 ms with one of 10,000 that is due."""
    segments = segments_of(8, 4, state=CopyState.COMPLETE)
    rows = LedgerRows([in_state(12, CopyState.COMPLETE)], segments).without([0, 1])
    rows = rows.changed([9], lambda x: in_state(x.ledger_id, CopyState.ONLY))
    rows = rows.changed([11], lambda x: in_state(x.ledger_id, -1))
    monkeypatch.setattr(PackedRows, "__getitem__", None)
    lag = OffloadConfig(deletion_lag_ms=100)
    for until, due in ((1, []), (2, [2]), (9, [*range(2, 9)]), (99, [*range(2, 9), 10, 12])):
        assert ledgers_to_release(rows, lag, until + 100) == due


def figures(block: PackedRows) -> tuple[object, ...]:
    sums = (block.size, block.entries, block.copied_size, block.uncopied, block.started, block.only)
    times = (block.oldest_closed_ms, block.oldest_complete_ms)
    return (*sums, *times, block.entry_counts, block.sizes, block.ids, list(block))


def with_rows(rows: LedgerRows, other: dict[int, LedgerInfo]) -> LedgerRows:
    return rows.changed(other, lambda x: other[x.ledger_id])


async def store_rows(lists: LedgerInfoStore, rows: LedgerRows) -> None:
    await lists.update(lambda info: info.with_rows(rows))


@pytest.mark.parametrize("seed", range(20))
async def test_a_list_that_grows_changes_and_is_trimmed_is_a_plain_list(
    seed: int, store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are joined and split all the time; what is stored is that list, too."""
    monkeypatch.setattr(ledger_rows, "JOINED", 3)
    await store.put(PATH, encode_info(ManagedLedgerInfo(owner="me")))
    lists, rng = await owner(store), random.Random(seed)
    plain: list[LedgerInfo] = []
    is_offloaded, most = seed % 2 == 1, 0
    for number in range(200):
        before = lists.info.ledgers
        plain.append(in_state(number, -1))
        await store_rows(lists, LedgerRows((*before.tail, plain[-1]), before.segments))
        if rng.random() < 0.2:  # the first ones go; now and then others
            first = rng.randrange(3) if len(plain) > 40 else 0
            gone = {x.ledger_id for x in plain[:first]}
            gone |= {rng.choice(plain).ledger_id} if rng.random() < 0.1 else set()
            plain = [x for x in plain if x.ledger_id not in gone]
            await store_rows(lists, lists.info.ledgers.without(gone))
        if is_offloaded and rng.random() < 0.5:
            start, state = rng.randrange(len(plain)), rng.randrange(-1, 4)
            some = [x.ledger_id for x in plain[start : start + rng.choice((1, 1, 20))]]
            other = {n: in_state(n, state) for n in some}
            plain = [other.get(x.ledger_id, x) for x in plain]
            await store_rows(lists, with_rows(lists.info.ledgers, other))
        rows = lists.info.ledgers
        assert list(rows) == plain
        assert rows == LedgerRows(plain)
        assert {*before.ids()} - {*rows.ids()} == {*ids_gone(before, rows)}
        for block in rows.blocks():
            assert figures(block) == figures(PackedRows.of(list(block)))
        most = max(most, len(rows.segments))
        if number % 20 == 0:
            assert (await owner(store)).info == lists.info
    assert len(await names(store)) == len(lists.info.ledgers.segments)
    if not is_offloaded:  # two of each size that is joined, and those of which a row was removed
        assert most <= 2 + 2 + 200 // 36 + 4


# Chunks


async def write(
    store: EmbeddedMetadataStore, info: ManagedLedgerInfo, version: int = -1
) -> ManagedLedgerInfo:
    chunks = LedgerInfoChunks(store, PATH, "t0")
    for segments in range(1, 1 + len(info.ledgers)):  # one a write
        info, value = await chunks.write(info, version)
        version = (await store.put(PATH, value, version)).stat.version
        if len(info.ledgers.segments) < segments:
            break
    return info


async def names(store: EmbeddedMetadataStore) -> list[str]:
    return await store.children(CHUNKS)


async def owner(store: EmbeddedMetadataStore) -> LedgerInfoStore:
    found = await read_list(store, PATH)
    assert found is not None
    chunks = LedgerInfoChunks(store, PATH, found.info.owner)
    assert (await read_list(store, PATH, chunks)) == found
    return LedgerInfoStore(store, PATH, found.info.owner, found.info, found.stat.version, 0, chunks)


def plain(count: int, *, is_copied: bool = False) -> ManagedLedgerInfo:
    every = (row(n, is_copied=is_copied and n % 2 == 0) for n in range(1, count + 1))
    return ManagedLedgerInfo(owner="me", ledgers=LedgerRows(every))


async def test_a_short_list_is_written_as_ever(store: EmbeddedMetadataStore) -> None:
    info = await write(store, plain(4))
    stored = await store.get(PATH)
    assert stored is not None
    assert orjson.loads(stored.value)["format"] == 1
    assert decode_list_node(stored.value, PATH).info == info
    assert await names(store) == []


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_long_list_is_read_again(store: EmbeddedMetadataStore, is_copied: bool) -> None:
    info = plain(15, is_copied=is_copied)
    written = await write(store, info)
    found = await read_list(store, PATH)
    assert found is not None
    assert found.info == written
    assert list(found.info.ledgers) == list(info.ledgers)
    assert len(await names(store)) == len(found.info.ledgers.segments) == 3
    lists = await owner(store)
    await lists.update(lambda x: x.without([1, 2]).forget([1, 2]))
    assert (await owner(store)).info == lists.info, "two rows of the first chunk are trimmed"
    assert len(await names(store)) == 3
    await lists.update(lambda x: x.without([3, 4, 5]).forget([3, 4, 5]))
    assert len(await names(store)) == 2
    assert (await owner(store)).info == lists.info
    await lists.update(lambda x: x.without(range(1, 13)).forget(range(1, 13)))
    assert await names(store) == []
    stored = await store.get(PATH)
    assert stored is not None
    await lists.update(lambda x: x.with_properties({"a": "b"}))
    stored = await store.get(PATH)
    assert stored is not None
    assert orjson.loads(stored.value)["format"] == (2 if is_copied else 1), "it fits again"


def form_of(value: bytes) -> int:
    return int(orjson.loads(value)["format"])


async def test_while_an_earlier_release_lives_only_what_a_node_cannot_hold_goes_to_chunks(
    store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_rows, "CHUNK_ROWS", 10)
    full = encode_info(plain(60))
    monkeypatch.setattr(ledger_info_chunks, "VALUE_BYTES_MAX", len(full))
    monkeypatch.setattr(ledger_info_chunks, "NODE_BYTES", len(full) // 2)
    chunks = LedgerInfoChunks(store, PATH, "t0", lambda: False)
    info, value = await chunks.write(plain(60), -1)
    assert (info, value) == (plain(60), full), "as an earlier release stores it"
    assert await names(store) == []
    info, value = await chunks.write(plain(61), -1)
    assert (form_of(value), len(value) <= len(full)) == (3, True)
    assert len(await names(store)) == len(info.ledgers.segments) == 1
    monkeypatch.setattr(ledger_rows, "TAIL_ROWS_MAX", 60)
    _, value = await LedgerInfoChunks(store, PATH, "t1", lambda: True).write(plain(60), -1)
    assert (form_of(value), len(value) <= len(full) // 2) == (3, True)


async def test_a_list_goes_to_chunks_once_all_read_them_and_keeps_those_it_has(
    cluster: Cluster,
) -> None:
    store, factory = cluster.store, cluster.factory()
    factory.are_chunks_read = False
    await store.put(PATH, encode_info(plain(9)))
    log = await factory.open(NAME, replace(CONFIG, retention_ms=-1, retention_bytes=-1))
    ids = [*log.lists.info.ledgers.ids()]

    async def stored_after_a_change(value: str) -> tuple[int, int]:
        """The form of the list's node, and the chunks."""
        await log.set_properties({"x": value})
        found = await store.get(PATH)
        assert found is not None
        return form_of(found.value), len(await names(store))

    assert await stored_after_a_change("earlier releases live") == (1, 0)
    factory.are_chunks_read = True
    assert await stored_after_a_change("they are gone") == (3, 1)
    factory.are_chunks_read = False
    assert await stored_after_a_change("one came back") == (3, 1), "there are rows for another"
    factory.are_chunks_read = True
    assert await stored_after_a_change("it is gone") == (3, 2)
    assert [*log.lists.info.ledgers.ids()] == ids


async def test_an_open_leaves_the_form_that_an_earlier_release_reads(cluster: Cluster) -> None:
    await cluster.store.put(PATH, encode_info(plain(9)))
    for are_read, form in ((False, 1), (True, 3), (False, 3)):
        factory = cluster.factory()
        factory.are_chunks_read = are_read
        log = await factory.open(NAME, replace(CONFIG, retention_ms=-1, retention_bytes=-1))
        found = await cluster.store.get(PATH)
        assert found is not None
        assert form_of(found.value) == form
        await log.close()


async def test_a_change_of_a_copy_makes_another_chunk(store: EmbeddedMetadataStore) -> None:
    await write(store, plain(9))
    before = await names(store)
    lists = await owner(store)
    await lists.update(lambda x: x.with_copy_started(LedgerCopy(6, "u", "d")))
    after = await names(store)
    assert len(after) == len(before)
    assert len({*after} & {*before}) == len(before) - 1
    found = (await owner(store)).info.find(6)
    assert found is not None
    assert found.offload == OffloadContext(LedgerCopy(6, "u", "d"))


async def test_a_crash_between_chunk_and_node_leaves_the_list_as_it_was(
    store: EmbeddedMetadataStore,
) -> None:
    await write(store, plain(9))
    before = await read_list(store, PATH)
    assert before is not None
    named = await names(store)
    crashed = LedgerInfoChunks(store, PATH, "gone")
    version = before.stat.version
    info = before.info.with_rows(before.info.ledgers.changed([2], lambda x: replace(x, size=1)))
    await crashed.write(info, version)
    await crashed.write(info, version + 1)  # as one would who had the next version at hand
    assert len(await names(store)) == len(named) + 2
    assert await read_list(store, PATH) == before
    lists = await owner(store)
    await lists.update(lambda x: x.with_properties({"a": "b"}))
    await lists.chunks.find_unnamed(lists.info, lists.version)
    await lists.chunks.settle(lists.info, lists.version)
    left = {*await names(store)} - {*named}
    assert [int(x.split("-")[0]) for x in left] == [version + 2], "that one may still be named"


async def test_a_lost_answer_to_a_chunk_is_no_second_chunk_of_that_name(
    store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, plain(8))
    lists = await owner(store)
    put, tries = store.put, list[str]()

    async def losing(path: str, value: bytes, version: int | None = None) -> object:
        stored = await put(path, value, version)
        if path != PATH:
            tries.append(path)
            if len(tries) == 1:
                raise MetadataError("answer lost")
        return stored

    monkeypatch.setattr("magnetar.managed_ledger.ledger_info_store.RETRY_DELAY_S", 0)
    monkeypatch.setattr(store, "put", losing)
    await lists.update(lambda x: x.with_copy_started(LedgerCopy(2, "u", "d")))
    assert len({*tries}) == len(tries) == 2
    assert len(await names(store)) == len(lists.info.ledgers.segments)
    assert (await owner(store)).info == lists.info


async def test_a_refused_node_leaves_no_second_chunk_of_the_same_rows(
    store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, plain(8))
    lists = await owner(store)
    before, put = await names(store), store.put

    async def refusing(path: str, value: bytes, version: int | None = None) -> object:
        if path == PATH:
            raise MetadataError("not written")
        return await put(path, value, version)

    monkeypatch.setattr("magnetar.managed_ledger.ledger_info_store.RETRY_DELAY_S", 0)
    with monkeypatch.context() as patch:
        patch.setattr(store, "put", refusing)
        for _ in range(2):
            with pytest.raises(MetadataError, match="not written"):
                await lists.update(lambda x: x.with_copy_started(LedgerCopy(2, "u", "d")))
    assert len(await names(store)) == len(before) + 1
    await lists.update(lambda x: x.with_copy_started(LedgerCopy(2, "u", "d")))
    assert len(await names(store)) == len(before)
    assert (await owner(store)).info == lists.info


async def test_the_list_is_looked_at_again_after_a_chunk(
    store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is deleted and made anew may have the old one's version."""
    await write(store, plain(8))
    lists = await owner(store)
    put = store.put

    async def made_anew(path: str, value: bytes, version: int | None = None) -> object:
        stored = await put(path, value, version)
        if path != PATH:
            await store.delete(PATH)
            other = encode_info(ManagedLedgerInfo(owner="other"))
            while (await put(PATH, other)).stat.version < lists.version:
                pass
        return stored

    monkeypatch.setattr(store, "put", made_anew)
    with pytest.raises(ManagedLedgerFencedError):
        await lists.update(lambda x: x.with_copy_started(LedgerCopy(2, "u", "d")))
    found = await read_list(store, PATH)
    assert found is not None
    assert (found.info.owner, found.stat.version) == ("other", lists.version)


async def test_a_ledger_that_may_be_in_another_owner_s_chunk_counts_as_listed(
    store: EmbeddedMetadataStore,
) -> None:
    await write(store, plain(4))
    lists = await owner(store)
    theirs = LedgerInfoChunks(store, PATH, "t1")
    info, value = await theirs.write(replace(plain(9), owner="other"), lists.version)
    await store.put(PATH, value, lists.version)
    with pytest.raises(ManagedLedgerFencedError):
        await lists.update(lambda x: x.with_ledger(5))
    assert [x.ledger_id for x in info.ledgers.tail] == [5, 6, 7, 8, 9]
    assert [x for x in range(1, 12) if lists.is_unlisted(x)] == [10, 11]


async def test_a_settlement_that_is_cancelled_is_made_up_for(
    store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, plain(15))
    lists = await owner(store)
    gone = range(1, 13)

    async def cancelled(path: str, version: int | None = None) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await lists.update(lambda x: x.without(gone).forget(gone))
    assert await names(store) != []
    await lists.update(lambda x: x.with_properties({"a": "b"}))
    assert await names(store) == []


async def test_leaked_chunks_are_collected(store: EmbeddedMetadataStore) -> None:
    await write(store, plain(9))
    named = await names(store)
    found = await read_list(store, PATH)
    assert found is not None
    late = f"{found.stat.version + 1:010d}-gone-1"
    for name in ("0000000000-gone-1", late, "what is it?"):
        await store.put(f"{CHUNKS}/{name}", b"x")
    assert await collect_leaked_chunks(store, ROOT) == ["0000000000-gone-1"]
    assert {*await names(store)} == {*named, late, "what is it?"}
    assert await read_list(store, PATH) == found
    assert (await owner(store)).info == found.info, "a claim meets them, too"
    await store.delete(PATH)
    assert {*await collect_leaked_chunks(store, ROOT)} == {*named, late, "what is it?"}
    assert await store.children(CHUNKS_ROOT) == []


async def test_a_deletion_leaves_the_chunks_of_a_log_made_anew(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    store, new = log.store, f"{CHUNKS}/0000000001-other-1"
    children = store.children

    async def made_anew(path: str) -> list[str]:
        if path == CHUNKS:
            await store.delete(PATH)
            await store.put(PATH, encode_info(ManagedLedgerInfo(owner="other")))
            await store.put(new, b"x")
        return await children(path)

    store.children = made_anew  # type: ignore[method-assign]
    await log.delete()
    assert await store.exists(new)
    found = await read_list(store, PATH)
    assert found is not None
    assert found.info.owner == "other"


async def test_a_reader_of_a_list_that_changes_all_the_time_tells_a_lost_chunk(
    store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, plain(9))
    lost = f"{CHUNKS}/{(await names(store))[0]}"
    await store.delete(lost)
    get = store.get

    async def changing(path: str) -> Versioned | None:
        found = await get(path)
        if path == PATH and found is not None:
            await store.put(path, found.value)
        return found

    monkeypatch.setattr(store, "get", changing)
    with pytest.raises(ManagedLedgerFormatError, match=f"chunk {lost} is lost"):
        await read_list(store, PATH)


async def test_a_log_with_a_damaged_chunk_is_not_opened(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await log.close()
    found = await read_list(cluster.store, PATH)
    assert found is not None
    info = replace(plain(9), owner=found.info.owner)
    written = await write(cluster.store, info, found.stat.version)
    path = f"{CHUNKS}/{written.ledgers.segments[0].name}"
    await cluster.store.put(path, b"?")
    before = await cluster.store.get(PATH)
    with pytest.raises(ManagedLedgerFormatError, match=f"^{PATH}: chunk {path} is damaged"):
        await cluster.factory().open(NAME, CONFIG)
    assert await cluster.store.get(PATH) == before


async def test_a_lost_or_damaged_chunk_is_named(store: EmbeddedMetadataStore) -> None:
    await write(store, plain(9))
    path = f"{CHUNKS}/{(await names(store))[0]}"
    stored = await store.get(path)
    assert stored is not None
    other_frame = bytes(cramjam.zstd.compress(cramjam.zstd.decompress(stored.value), 1))
    assert other_frame != stored.value, "the same rows: only the checksum tells"
    for damaged in (stored.value[:-1], b"", stored.value[:9] + b"\0", other_frame):
        await store.put(path, damaged)
        with pytest.raises(ManagedLedgerFormatError, match=f"^{PATH}: chunk {path} is damaged"):
            await read_list(store, PATH)
    await store.delete(path)
    with pytest.raises(ManagedLedgerFormatError, match=f"^{PATH}: chunk {path} is lost"):
        await read_list(store, PATH)


def test_a_chunk_that_is_not_what_the_node_says() -> None:
    segment = PackedRows.of([row(1), row(2)])
    value = segment.encode()
    stored = segment.stored_as("n", crc32(value))
    assert PackedRows.decode(value, stored.ref()) == segment
    ref = stored.ref()
    others = (ref._replace(first=2), ref._replace(rows=3), ref._replace(trimmed=2))
    for other in (*others, ref._replace(trimmed=-1), ref._replace(size=5)):
        with pytest.raises(ValueError, match="not the rows"):
            PackedRows.decode(value, other)


def test_a_list_that_is_half_deleted_is_refused_by_earlier_releases() -> None:
    """They would delete its node once what is doomed is gone, and leak the rest."""
    info = plain(2).with_properties({"pulsar.deleting": "true"})
    assert orjson.loads(encode_info(info))["format"] == 3
    assert decode_list_node(encode_info(info), PATH).info == info
