"""Striped ledgers (E > Qw) read over the network: a request brings all that a bookie holds."""

import random

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.packet import decode_header
from magnetar.bookkeeper.transport import ReadRequest, Stripe
from tests.integration.bookkeeper_network import HEAD, Network, write

BOOKIES = 5

MANY_BYTES = 1 << 22


def bodies(count: int, size: int = 1000) -> list[bytes]:
    return [b"%08d" % n + random.Random(n).randbytes(size - 8) for n in range(count)]


async def read_all(reader: LedgerReader, sent: list[bytes], bytes_max: int = MANY_BYTES) -> int:
    """Read and compare all entries; the number of calls."""
    found: list[bytes] = []
    calls = 0
    while len(found) < len(sent):
        run = await reader.read(len(found), len(sent) - 1, bytes_max)
        found += [bytes(entry).removeprefix(HEAD) for entry in run.bodies]
        calls += 1
    assert found == sent
    return calls


def count_requests(network: Network) -> int:
    return sum(served.bookie.metrics.reads.count for served in network.served.values())


async def test_both_clients_answer_the_same_from_memory_and_from_the_disk(
    network: Network,
) -> None:
    sent = bodies(2000)
    ledger_id = (await write(network.client, LedgerConfig(1, 1, 1), sent, batch=100)).ledger_id
    (bookie_id,) = (await network.client.ledgers.require(ledger_id)).metadata.segment_of(0).bookies
    bookie = network.served[bookie_id].bookie
    remote, local = network.remote(bookie_id), bookie
    questions = [
        *((0, 500, MANY_BYTES, Stripe(3, 2, 2)), (4, 10, MANY_BYTES, Stripe(5, 4, 1))),
        *((0, 100, 5200, Stripe(3, 2, 2)), (0, 100, 0, Stripe(3, 2, 2))),
        *((1990, 100, MANY_BYTES, Stripe(4, 2, 1)), (3, 3, MANY_BYTES, Stripe(5, 0, 5))),
        *((2000, 1, 99, Stripe(4, 0, 1)), (1, 1, 99, Stripe(3, 2, 1)), (0, 1, 99, Stripe(3, 0, 4))),
    ]

    async def answers(client: BookieClient) -> list[tuple[int, list[int], list[bytes]]]:
        replies = [
            await client.read_entries(
                ReadRequest(ledger_id, first, count, bytes_max, stripe=stripe)
            )
            for first, count, bytes_max, stripe in questions
        ]
        return [
            (reply.code, [decode_header(p)[1] for p in reply.packets], [*map(bytes, reply.packets)])
            for reply in replies
        ]

    for _ in range(2):
        found = await answers(remote)
        assert found == await answers(local)
        ids = [ids for _, ids, _ in found]
        assert ids[0] == [n for n in range(750) if n % 3 in (0, 2)]
        assert ids[1] == list(range(4, 54, 5))
        assert ids[2] == [0, 2, 3, 5, 6]  # of 1,040 bytes each
        assert ids[3] == [0]
        assert ids[4] == [1990, 1994, 1998]
        assert ids[5] == [3, 4, 5]
        assert [code for code, _, _ in found[-3:]] == [
            *(codes.NO_ENTRY, codes.BAD_REQUEST, codes.BAD_REQUEST)
        ]
        await bookie.flush()  # then once more, from the entry log


@pytest.mark.parametrize("quorums", [(3, 2), (3, 1), (5, 3)])
async def test_few_requests_read_a_whole_ledger(network: Network, quorums: tuple[int, int]) -> None:
    sent = bodies(3000)
    ledger = await write(network.client, LedgerConfig(*quorums, quorums[1]), sent, batch=7)
    for _ in range(2):
        before = count_requests(network)
        calls = await read_all(ledger.reader(), sent)
        assert calls <= 3
        assert count_requests(network) - before <= calls * quorums[0]
        for served in network.served.values():
            await served.bookie.flush()  # then once more, from entry logs


async def test_entries_of_any_size_come_within_the_limit(network: Network) -> None:
    sent = [bytes([n % 251]) * (n * 7919 % 30_000) for n in range(200)]
    ledger = await write(network.client, LedgerConfig(3, 2, 2), sent, batch=3)
    reader, first = ledger.reader(), 0
    while first < 200:
        run = await reader.read(first, 199, 100_000)
        size = sum(map(len, run.bodies)) + 36 * len(run.bodies)
        assert size <= 100_000
        wanted = sent[first : first + len(run.bodies)]
        assert [bytes(entry) for entry in run.bodies] == [HEAD + body for body in wanted]
        first += len(run.bodies)
    before = count_requests(network)
    calls = await read_all(reader, sent, 100_000)
    assert count_requests(network) - before <= 2 * calls + 2
