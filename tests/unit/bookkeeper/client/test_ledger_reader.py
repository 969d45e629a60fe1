"""Packets to heads and bodies, bounds, batch reads, moved replicas."""

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_reader import VIEW_BYTES_MIN, split_packets
from magnetar.bookkeeper.errors import BookieIoError, NoSuchEntryError
from magnetar.bookkeeper.ledger_metadata import replace_members
from magnetar.bookkeeper.packet import encode_heads
from magnetar.bookkeeper.transport import ReadReply
from tests.unit.bookkeeper.client.conftest import Cluster
from tests.unit.bookkeeper.client.test_client import entries, write, written


def packets(bodies: list[bytes], ledger_id: int = 1, first: int = 0) -> list[bytes | memoryview]:
    heads, _ = encode_heads(ledger_id, first, -1, 0, [b""] * len(bodies), bodies)
    return [head + body for head, body in zip(heads, bodies, strict=True)]


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_split(kind: type) -> None:
    bodies = [b"", b"x" * 100, b"y" * VIEW_BYTES_MIN]
    split = split_packets(1, 0, [kind(packet) for packet in packets(bodies)])
    assert [bytes(body) for body in split] == bodies
    # A small body must not pin the buffer of the whole read.
    assert [type(body) for body in split] == [bytes, bytes, memoryview]


@pytest.mark.parametrize("at", range(37))
def test_any_flipped_byte_ends_the_run(at: int) -> None:
    good = packets([b"a", b"b", b"c"])
    bad = bytearray(good[1])
    bad[at] ^= 0x10
    assert split_packets(1, 0, [good[0], bytes(bad), good[2]]) == [b"a"]


def test_foreign_entries_are_not_ours() -> None:
    assert split_packets(1, 0, packets([b"a"], ledger_id=2)) == []
    assert split_packets(1, 0, packets([b"a"], first=1)) == []
    assert split_packets(1, 0, [b"short"]) == []


async def test_one_request_reads_a_run(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 100, per_append=50)
    run = await writer.reader().read(10, 99, 1 << 20)
    assert (run.first, run.bodies) == (10, entries(10, 90))
    assert cluster.clients["b0"].reads == [(10, 90)]


async def test_bytes_max_still_gives_one(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 10)
    assert len((await writer.reader().read(3, 9, 1)).bodies) == 1


async def test_a_run_ends_at_its_segment(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(2, 2, 2), 10, bookies=3)
    cluster.bookies[writer.metadata.last_segment.bookies[0]].up = False
    await write(writer, 20)
    for bookie in cluster.bookies.values():
        bookie.up = True
    run = await writer.reader().read(5, 19, 1 << 20)
    assert (run.first, len(run.bodies)) == (5, 5)


async def test_no_such_entry_only_if_all_say_so(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(2, 2, 2), 3)
    for bookie in cluster.bookies.values():
        del bookie.ledgers[writer.ledger_id].entries[1]
    with pytest.raises(NoSuchEntryError):
        await writer.reader().read(1, 1, 100)
    first = cluster.clients["b0"].bookie

    def fail(*args: object, **options: object) -> object:
        return ReadReply(codes.IO_ERROR, 1, [])

    first.read = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(BookieIoError):
        await writer.reader().read(1, 1, 100)


async def test_moved_replica_is_found(cluster: Cluster) -> None:
    """4.1: when all candidates are exhausted the metadata is read again, once."""
    cluster.add_bookies(2)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 5)
    await writer.close()
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    (old,) = writer.metadata.last_segment.bookies
    new = next(name for name in cluster.bookies if name != old)
    cluster.bookies[new].ledgers = cluster.bookies[old].ledgers
    cluster.bookies[old].up = False
    await cluster.client.ledgers.update(
        writer.ledger_id, lambda metadata: replace_members(metadata, 0, {0: (old, new)})
    )
    assert len((await reader.read(0, 4, 1 << 20)).bodies) == 5
    assert reader.metadata.last_segment.bookies == (new,)


async def test_bounds(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 5)
    reader = writer.reader()
    for first, last in [(-1, 3), (3, 2)]:
        with pytest.raises(ValueError, match="range"):
            await reader.read(first, last, 100)
    with pytest.raises(NoSuchEntryError):
        await reader.read(4, 5, 100)
