"""Cost of a read call of the ledger client beside its entries, without disk or network.

Run: .venv/bin/python -m benchmarks.micro.ledger_reader
"""

import asyncio
import random
import time
from itertools import islice

from benchmarks.micro.ledger_writer import InstantBookie
from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import (
    ClientConfig,
    LedgerConfig,
    ReadConfig,
    SpeculationConfig,
)
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.packet import encode_heads
from magnetar.bookkeeper.transport import ALL_ENTRIES, ReadReply, ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore

ROUNDS = 9
READS = 5000
BODY = bytes(100)


class FullBookie(InstantBookie):
    """Has every entry of every ledger, and gives them within the call."""

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        packets, first, count_max = PACKETS[request.ledger_id], request.first, request.count_max
        if request.stripe is ALL_ENTRIES:
            return ReadReply(codes.OK, first, packets[first : first + count_max])
        ids = islice(request.stripe.ids(first), count_max)
        return ReadReply(codes.OK, first, [packets[entry_id] for entry_id in ids])


PACKETS: dict[int, list[bytes | memoryview]] = {}


async def read_cost(reader: LedgerReader, entries: int) -> float:
    """Microseconds of one read of so many entries, best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(READS // entries):
            await reader.read(0, entries - 1, 1 << 20)
        best = min(best, time.perf_counter() - begin)
    return best / (READS // entries) * 1e6


async def make_reader(client: BookKeeperClient, config: LedgerConfig, count: int) -> LedgerReader:
    writer = await client.create_ledger(config)
    heads, bodies = [bytes(32)] * count, [BODY] * count
    encoded, _ = encode_heads(writer.ledger_id, 0, -1, 0, heads, bodies)
    PACKETS[writer.ledger_id] = [h + b for h, b in zip(encoded, bodies, strict=True)]
    confirmed = asyncio.Event()
    writer.on_confirmed = lambda _upto: confirmed.set()
    writer.append(heads, bodies)
    await confirmed.wait()
    return writer.reader()


async def main() -> None:
    store = EmbeddedMetadataStore.open(None)
    pool = BookiePool()
    for number in range(3):
        pool.add(FullBookie(f"b{number}"))
    rng = random.Random(1)
    for name, config in CONFIGS.items():
        client = BookKeeperClient(
            store, pool, RandomPlacement(rng), clock=lambda: 0, rng=rng, config=config
        )
        for triple in [(1, 1, 1), (3, 3, 2)]:
            reader = await make_reader(client, LedgerConfig(*triple), 10)
            costs = [f"{n} entries {await read_cost(reader, n):6.2f}" for n in (1, 10)]
            print(f"{name}, {triple}: microseconds per read: " + "   ".join(costs))
    await store.close()


CONFIGS = {
    "as it comes": ClientConfig(),
    "by place": ClientConfig(reads=ReadConfig(reorder=True, network_location="/zone-1")),
    "with speculation": ClientConfig(reads=ReadConfig(speculation=SpeculationConfig(2000))),
}

if __name__ == "__main__":
    asyncio.run(main())
