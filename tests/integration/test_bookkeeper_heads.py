"""Heads of entries over real sockets: what whole entries have, within the bookie's bounds."""

import asyncio
import random

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie.read_only_client import ReadOnlyBookieClient
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol import server
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig
from magnetar.bookkeeper.client.entry_prefix_reader import EntryPrefixReader
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.entry_prefixes import PIECE_BYTES_MAX, READ_BYTES_MAX, read_cut
from magnetar.bookkeeper.transport import (
    ALL_ENTRIES,
    EntryPrefixesReply,
    ReadRequest,
    Stripe,
    TruncatedReply,
)
from tests.integration.bookkeeper_network import Network, eventually, write

HEAD_BYTES = 4  # of the entries that ``write`` makes


def bodies(count: int, size: int = 1000) -> list[bytes]:
    return [b"%08d" % n + random.Random(n).randbytes(size - 8) for n in range(count)]


def heads_reader(
    client: BookKeeperClient, reader: LedgerReader, head_bytes: int = HEAD_BYTES
) -> EntryPrefixReader:
    return EntryPrefixReader(
        *(reader.metadata, reader.last_confirmed, client.ledgers, client.bookies),
        *(ClientConfig(), client.replicas),
        head_bytes=head_bytes,
    )


async def check_heads(
    reader: EntryPrefixReader, sent: list[bytes], head_bytes: int = HEAD_BYTES
) -> int:
    """Read and compare all heads; the number of runs."""
    heads: list[bytes] = []
    sizes: list[int] = []
    runs = 0
    async for run in reader.runs(0, len(sent)):
        heads += run.heads
        sizes += run.sizes
        runs += 1
    assert heads == [(b"head" + body)[:head_bytes] for body in sent]
    assert sizes == [4 + len(body) for body in sent]
    return runs


# ---- one bookie


async def test_both_clients_answer_the_same_from_memory_and_from_the_disk(
    network: Network,
) -> None:
    sent = bodies(3000)
    ledger_id = (await write(network.client, LedgerConfig(1, 1, 1), sent, batch=100)).ledger_id
    (bookie_id,) = (await network.client.ledgers.require(ledger_id)).metadata.segment_of(0).bookies
    bookie = network.served[bookie_id].bookie
    remote, local = network.remote(bookie_id), bookie
    questions = [
        *((0, 3000, 4, ALL_ENTRIES), (2990, 100, 20, ALL_ENTRIES), (7, 5, 0, ALL_ENTRIES)),
        *((0, 3000, 4, Stripe(3, 2, 2)), (4, 10, 2000, Stripe(5, 4, 1))),
        *((3000, 1, 4, ALL_ENTRIES), (-1, 1, 4, ALL_ENTRIES), (1, 1, 4, Stripe(3, 2, 1))),
    ]

    async def answers(client: BookieClient) -> list[EntryPrefixesReply]:
        return [
            await client.read_heads(
                ReadRequest(ledger_id, first, count, head_bytes=size, stripe=stripe)
            )
            for first, count, size, stripe in questions
        ]

    for _ in range(2):
        found = await answers(remote)
        assert found == await answers(local)
        assert [reply.code for reply in found[-3:]] == [
            *(codes.NO_ENTRY, codes.BAD_REQUEST, codes.BAD_REQUEST)
        ]
        assert found[0].heads == [b"head"] * 3000
        assert found[1].heads == [(b"head" + body)[:20] for body in sent[2990:]]
        assert found[3].heads == [b"head"] * 2000
        assert found[4].heads == [b"head" + sent[n] for n in range(4, 54, 5)]
        assert all(set(reply.sizes) <= {1004} for reply in found)
        await bookie.flush()  # then once more, from the entry log
    assert (
        await remote.read_heads(ReadRequest(ledger_id + 1, 0, 1, head_bytes=4))
    ).code == codes.NO_LEDGER
    await network.stop(bookie_id)
    assert (
        await remote.read_heads(ReadRequest(ledger_id, 0, 1, head_bytes=4))
    ).code == codes.UNAVAILABLE


async def test_a_request_reads_no_more_than_its_share(network: Network) -> None:
    sent = bodies(150, 100_000)
    ledger = await write(network.client, LedgerConfig(1, 1, 1), sent, batch=10)
    (bookie_id,) = ledger.metadata.segment_of(0).bookies
    bookie = network.served[bookie_id].bookie
    await bookie.flush()
    before = bookie.metrics.read_bytes
    reply = await network.remote(bookie_id).read_heads(
        ReadRequest(ledger.ledger_id, 0, 150, head_bytes=4)
    )
    assert reply.heads == [b"head"] * len(reply.heads)
    assert READ_BYTES_MAX <= bookie.metrics.read_bytes - before <= READ_BYTES_MAX + 100_040
    reader = heads_reader(network.client, ledger.reader())
    assert await check_heads(reader, sent) == 2


class Meter(ByteSemaphore):
    """Remembers how much was let in at most."""

    peak = 0

    async def acquire(self, size: int) -> None:
        await super().acquire(size)
        self.peak = max(self.peak, self.used)

    def grow(self, size: int) -> None:
        super().grow(size)
        self.peak = max(self.peak, self.used)


async def test_readers_of_heads_wait_in_the_line_of_all_reads(network: Network) -> None:
    sent = bodies(2000)
    ledger = await write(network.client, LedgerConfig(1, 1, 1), sent, batch=100)
    (bookie_id,) = ledger.metadata.segment_of(0).bookies
    limit = 4 * PIECE_BYTES_MAX  # two requests: each has a piece and up to 1 MiB of heads
    meter = network.served[bookie_id].entries.reads = Meter(limit)
    remote = network.remote(bookie_id)
    reads = [
        remote.read_heads(ReadRequest(ledger.ledger_id, 0, 2000, head_bytes=200)) for _ in range(12)
    ]
    for reply in await asyncio.gather(*reads):
        assert reply.heads == [(b"head" + body)[:200] for body in sent]
    assert 2 * PIECE_BYTES_MAX <= meter.peak <= limit
    await eventually(lambda: meter.used == 0)


async def test_heads_of_other_entries_are_not_believed(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await write(network.client, LedgerConfig(1, 1, 1), bodies(5))

    async def swapped(*args: object, **options: object) -> TruncatedReply:
        reply: TruncatedReply = await read_cut(*args, **options)  # type: ignore[arg-type]  # as given
        reply.packets.reverse()
        return reply

    client = network.remote(ledger.metadata.segment_of(0).bookies[0])
    assert (
        await client.read_heads(ReadRequest(ledger.ledger_id, 0, 5, head_bytes=4))
    ).code == codes.OK
    monkeypatch.setattr(server, "read_cut", swapped)
    assert (
        await client.read_heads(ReadRequest(ledger.ledger_id, 0, 5, head_bytes=4))
    ).code == codes.UNAVAILABLE


async def test_a_port_for_readers_gives_heads_of_their_ledgers_only(network: Network) -> None:
    ledgers = [await write(network.client, LedgerConfig(1, 1, 1), bodies(5)) for _ in range(2)]
    own, foreign = (ledger.ledger_id for ledger in ledgers)

    async def reader_check(ledger_id: int) -> int:
        return codes.OK if ledger_id == own else codes.UNAUTHORIZED

    (bookie_id,) = ledgers[0].metadata.segment_of(0).bookies
    served = network.served[bookie_id]
    readers = ReadOnlyBookieClient(served.bookie, reader_check)
    served.entries.serve(readers, await read_instance_id(network.store))
    for client in (network.remote(bookie_id), readers):
        reply = await client.read_heads(ReadRequest(own, 0, 5, head_bytes=HEAD_BYTES))
        assert (reply.code, reply.heads) == (codes.OK, [b"head"] * 5)
        reply = await client.read_heads(ReadRequest(foreign, 0, 5, head_bytes=HEAD_BYTES))
        assert (reply.code, reply.heads, reply.sizes) == (codes.UNAUTHORIZED, [], [])


async def test_an_open_ledger_is_read_as_far_as_it_is_confirmed(network: Network) -> None:
    sent = bodies(300)
    ledger = await write(network.client, LedgerConfig(3, 2, 2), sent[:200])
    other = await network.client.open_ledger(ledger.ledger_id, recover=False)
    reader = heads_reader(network.client, ledger.reader())
    assert reader.last_confirmed == 199
    await check_heads(reader, sent[:200])
    ledger.append([b"head"] * 100, sent[200:])
    await eventually(lambda: ledger.last_confirmed == 299)
    await other.refresh()  # a bookie knows 199 for sure: the append carried it
    assert other.last_confirmed >= 199
    reader.last_confirmed = ledger.last_confirmed
    await check_heads(reader, sent)
    ledger.append([b"head"], [b"go on"])  # nobody was fenced
    await eventually(lambda: ledger.last_confirmed == 300)
