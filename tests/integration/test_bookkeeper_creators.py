"""One bookie, and two ledgers that share an id: the metadata store went back to an older state."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.duplicate_adds import DuplicateCheck
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookkeeper.bookie.integrity.integrity_service import (
    IntegrityService,
    IntegrityServiceConfig,
)
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.errors import OtherCreatorError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, decode_header, encode_head
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.broker.http.metrics.bookie_metrics import add_bookie_metrics
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import KEY, Node, Registry, request

OLD, NEW = 17, 99  # tokens of the two creators
LEDGER = 1000


def theirs(entry_id: int) -> bytes:
    return b"BODY %d" % entry_id


def ours(entry_id: int) -> bytes:
    return b"body %d" % entry_id


async def add(
    bookie: Bookie,
    ids: Sequence[int],
    creator: int,
    body: Callable[[int], bytes] = ours,
    *,
    recovery: bool = False,
    lac: int | None = None,
) -> int:
    """Add entries of LEDGER and wait; ``lac``: rewritten in their headers."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    made = request(
        LEDGER, ids, body, lambda _request, code: answer.set_result(code), recovery=recovery
    )
    if lac is not None:
        made.heads = [
            encode_head(LEDGER, entry_id, lac, 0, b"head", sent)
            for entry_id, sent in zip(ids, made.bodies, strict=True)
        ]
    bookie.add_entries(replace(made, creator=creator))
    return await answer


async def payloads(bookie: Bookie, count: int, creator: int = 0) -> list[bytes]:
    found: list[bytes] = []
    for entry_id in range(count):
        reply = await bookie.read_entries(ReadRequest(LEDGER, entry_id, 1, 1, creator=creator))
        found += [bytes(packet[PACKET_HEADER_BYTES + 4 :]) for packet in reply.packets]
    return found


async def assert_denied(bookie: Bookie, creator: int, code: int = codes.OTHER_CREATOR) -> None:
    """Whatever ``creator`` asks of LEDGER."""
    assert await add(bookie, [0], creator, theirs) == code
    assert await add(bookie, [9], creator, theirs, recovery=True) == code
    assert await bookie.write_lac(LEDGER, 5, master_key=KEY, creator=creator) == code
    for fence in (False, True):
        read = await bookie.read_entries(
            ReadRequest(LEDGER, 0, 9, 999, fence=fence, master_key=KEY, creator=creator)
        )
        assert (read.code, read.packets) == (code, [])
        lac = await bookie.read_lac(LEDGER, fence=fence, master_key=KEY, creator=creator)
        assert (lac.code, lac.last_packet) == (code, None)
    assert (await bookie.wait_lac(LEDGER, 0, 30.0, creator=creator)).code == code
    assert (
        await bookie.read_heads(ReadRequest(LEDGER, 0, 9, head_bytes=4, creator=creator))
    ).code == code
    if code == codes.OTHER_CREATOR:
        with pytest.raises(OtherCreatorError, match="two ledgers share the id"):
            await bookie.list_entries(LEDGER, creator=creator)


async def test_a_ledger_is_its_creators_alone_over_restarts(
    tmp_path: Path, store: MetadataStore
) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, range(3), OLD) == codes.OK
    await assert_denied(bookie, NEW)
    assert not bookie.storage.ledgers[LEDGER].fenced  # nobody else ends its writer
    assert await add(bookie, [3], OLD) == codes.OK
    bookie.give_up(RuntimeError("killed"))  # only the journal knows
    await bookie.close()
    bookie = await node.start()
    await assert_denied(bookie, NEW)
    assert await add(bookie, [4], OLD) == codes.OK
    await bookie.close()
    bookie = await node.start()  # only the index knows
    await assert_denied(bookie, NEW)
    assert await payloads(bookie, 9, OLD) == [ours(entry_id) for entry_id in range(5)]
    await bookie.close()


async def test_who_does_not_say_who_made_a_ledger_is_served_as_before(
    tmp_path: Path, store: MetadataStore
) -> None:
    """Old clients with new ledgers, and new clients with what an older bookie stored."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, [0], OLD) == codes.OK
    assert await add(bookie, [1], 0) == codes.OK
    assert await payloads(bookie, 9) == [ours(0), ours(1)]
    bookie.storage.ledgers[LEDGER].creator = 0
    assert await add(bookie, [2], NEW) == codes.OK
    assert await add(bookie, [3], OLD) == codes.OK
    assert bookie.storage.ledgers[LEDGER].creator == 0  # nobody can take it over
    await bookie.close()


async def test_a_denial_holds_after_a_crash(tmp_path: Path, store: MetadataStore) -> None:
    """A recovery counts on it: the first ledger's record must not be lost when power fails."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    adding = asyncio.ensure_future(add(bookie, [0], OLD))  # accepted, and not durable yet
    await asyncio.sleep(0)
    reply = await bookie.read_lac(LEDGER, fence=True, master_key=KEY, creator=NEW)
    assert reply.code == codes.OTHER_CREATOR
    shutil.copytree(tmp_path / "b1", tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    assert await adding == codes.OK
    bookie.give_up(RuntimeError("killed"))
    await bookie.close()
    bookie = await Node(tmp_path / "copy", store).start()
    assert await add(bookie, [0], NEW, theirs) == codes.OTHER_CREATOR
    await bookie.close()


async def test_a_bookie_that_lost_data_denies_nothing(tmp_path: Path, store: MetadataStore) -> None:
    """It may have held the other ledger before."""
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, [0], OLD) == codes.OK
    bookie.storage.set_limbo(LEDGER)
    await assert_denied(bookie, NEW, codes.UNKNOWN_LEDGER_STATE)
    assert await payloads(bookie, 9, OLD) == [ours(0)]
    await bookie.close()


@pytest.mark.parametrize("where", ["memory", "entry log", "both"])
async def test_what_is_stored_stays(tmp_path: Path, store: MetadataStore, where: str) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, range(4), 0) == codes.OK
    if where != "memory":
        await bookie.flush()
    if where == "both":
        assert await add(bookie, range(4, 6), 0) == codes.OK
    before = [ours(entry_id) for entry_id in range(6 if where == "both" else 4)]
    for creator in (0, OLD):
        assert await add(bookie, [2], creator, theirs) == codes.ENTRY_DIFFERS
        assert await add(bookie, range(3, 9), creator, theirs) == codes.ENTRY_DIFFERS
        assert await add(bookie, [1], creator, lambda _: b"", recovery=True) == codes.ENTRY_DIFFERS
    assert await payloads(bookie, 9) == before
    assert await add(bookie, range(1, 4), 0) == codes.OK  # once more
    assert await add(bookie, [3], 0, recovery=True, lac=3) == codes.OK  # by a recovery
    (packet,) = (await bookie.read_entries(ReadRequest(LEDGER, 3, 1, 1))).packets
    assert decode_header(packet).lac == 3
    bookie.give_up(RuntimeError("killed"))
    await bookie.close()
    bookie = await node.start()
    assert await payloads(bookie, 9) == before
    assert await add(bookie, [0], 0, theirs) == codes.ENTRY_DIFFERS
    await bookie.close()


async def test_another_length_is_another_entry(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, [0], 0) == codes.OK
    head = encode_head(LEDGER, 0, -1, 77, b"head", ours(0))
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        AddRequest(
            *(LEDGER, KEY, [0], [head], [ours(0)], len(head) + 6, True),
            lambda _request, code: answer.set_result(code),
        )
    )
    assert await answer == codes.ENTRY_DIFFERS
    await bookie.close()


async def test_a_damaged_copy_stands_in_nobodys_way(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, range(3), 0) == codes.OK
    await bookie.flush()
    (log,) = (tmp_path / "b1").rglob("*.log")
    data = bytearray(log.read_bytes())
    data[data.index(ours(1))] ^= 1
    log.write_bytes(data)
    assert await add(bookie, [1], 0, theirs, recovery=True) == codes.OK
    assert await payloads(bookie, 9) == [ours(0), theirs(1), ours(2)]
    await bookie.close()


async def test_adds_wait_behind_a_look_and_keep_their_order(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is asked in a thread; what comes meanwhile must meet what was compared."""
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, range(3), 0) == codes.OK
    await bookie.flush()
    run = DuplicateCheck.run
    going, may_go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(self: DuplicateCheck) -> int:
        loop.call_soon_threadsafe(going.set)
        asyncio.run_coroutine_threadsafe(may_go.wait(), loop).result()
        return run(self)

    monkeypatch.setattr(DuplicateCheck, "run", slow)
    adds = [asyncio.ensure_future(add(bookie, range(2, 5), 0))]
    await going.wait()
    for ids, body in ((range(4, 6), theirs), (range(5, 7), ours), ([6], theirs)):
        adds.append(asyncio.ensure_future(add(bookie, ids, 0, body)))
    await asyncio.sleep(0)
    assert bookie.storage.ledgers[LEDGER].last_entry == 2  # nobody went past the line
    monkeypatch.setattr(DuplicateCheck, "run", run)
    may_go.set()
    assert await asyncio.gather(*adds) == [
        *(codes.OK, codes.ENTRY_DIFFERS, codes.OK, codes.ENTRY_DIFFERS)
    ]
    assert await payloads(bookie, 9) == [ours(entry_id) for entry_id in range(7)]
    assert not bookie._duplicates.lines
    await bookie.close()


@pytest.mark.parametrize("flushed", [False, True])
async def test_of_two_versions_in_a_journal_the_first_stays(
    tmp_path: Path, store: MetadataStore, *, flushed: bool
) -> None:
    """Programs from before the rule let the newest win."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, range(4), 0) == codes.OK
    if flushed:
        await bookie.flush()
    bookie.storage.ledgers[LEDGER].last_entry = 0  # what makes it look
    assert await add(bookie, range(1, 6), 0, theirs) == codes.OK
    bookie.give_up(RuntimeError("killed"))
    await bookie.close()
    bookie = await node.start()
    expected = [*map(ours, range(4)), *map(theirs, range(4, 6))]
    assert await payloads(bookie, 9) == expected
    await bookie.flush()
    assert await payloads(bookie, 9) == expected
    await bookie.close()


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_an_id_in_dispute_is_not_collected(
    tmp_path: Path, store: MetadataStore, is_flushed: bool
) -> None:
    """What the store says of it now is about the other ledger."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, [0], OLD) == codes.OK
    if is_flushed:  # the index has the creator, and nothing of a dispute
        await bookie.flush()
    assert await add(bookie, [0], NEW, theirs) == codes.OTHER_CREATOR
    bookie.give_up(RuntimeError("killed"))
    await bookie.close()
    for _ in range(2):  # from the journal, from the index
        bookie = await node.start()
        collector = GarbageCollector(bookie, Registry(7))
        collector.ledger_deleted_hint(LEDGER)
        await collector.collect()
        assert await payloads(bookie, 9, OLD) == [ours(0)]
        await collector.close()
        page = PrometheusPage("test")
        add_bookie_metrics(page, bookie, (1, 2), 60)
        assert b'bookie_DISPUTED_LEDGERS{cluster="test"} 1\n' in b"".join(page.pieces())
        status = IntegrityService(bookie, None, IntegrityServiceConfig()).status()
        assert (status["ledgersInDispute"], status["disputes"]) == (1, [LEDGER])
        await bookie.close()
    # One that nobody disputes is.
    bookie = await node.start()
    bookie.storage.ledgers[LEDGER].disputed = False
    await GarbageCollector(bookie, Registry(7)).collect()
    assert LEDGER not in bookie.storage.ledgers
    assert not bookie.storage.disputed
    await bookie.close()


async def test_limbo_takes_the_creator_from_the_metadata(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    bookie.storage.set_limbo(LEDGER, KEY, OLD)
    assert await add(bookie, [0], NEW, theirs, recovery=True) == codes.UNKNOWN_LEDGER_STATE
    assert await add(bookie, [0], OLD, recovery=True) == codes.OK
    await store.put(ledger_path(LEDGER), b"metadata")
    await bookie.close()


async def test_a_deleted_ledgers_id_is_still_its_creators(
    tmp_path: Path, store: MetadataStore
) -> None:
    """For a week: its own late writer is fenced, another creator needs another id."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, [0], OLD) == codes.OK
    await GarbageCollector(bookie, Registry(7)).collect()
    for _ in range(2):
        assert await add(bookie, [1], OLD) == codes.FENCED
        assert await add(bookie, [1], 0) == codes.FENCED  # as far as anybody knows
        assert await add(bookie, [0], NEW, theirs) == codes.OTHER_CREATOR
        await bookie.close()
        bookie = await node.start()
    await GarbageCollector(bookie, Registry(7), now_s=lambda: 1e10).collect()
    assert await add(bookie, [0], NEW, theirs) == codes.OK
    assert bookie.storage.ledgers[LEDGER].creator == NEW
    await bookie.close()


async def test_what_the_store_has_given_to_nobody_is_not_collected(
    tmp_path: Path, store: MetadataStore
) -> None:
    """It went back, and may yet come to the right state."""
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, [0], OLD) == codes.OK
    registry = Registry(7)
    registry.end = LEDGER
    collector = GarbageCollector(bookie, registry)
    assert (await collector.collect()).ledgers_dropped == 0
    registry.end = LEDGER + 1
    assert (await collector.collect()).ledgers_dropped == 1
    await bookie.close()
