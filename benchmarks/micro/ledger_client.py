"""Cost of the ledger client without disk or network: appends an entry, packets, and read calls.

Run: python -m benchmarks.micro.ledger_client
"""

import asyncio
import random
import time
import timeit
from itertools import islice
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import (
    ClientConfig,
    LedgerConfig,
    ReadConfig,
    SpeculationConfig,
)
from magnetar.bookkeeper.client.ledger_reader import LedgerReader, split_packets
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool, UnreachableBookie
from magnetar.bookkeeper.packet import encode_heads
from magnetar.bookkeeper.transport import ALL_ENTRIES, AddRequest, ReadReply, ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore

ROUNDS: Final = 7
READS: Final = 5_000
HEAD: Final = bytes(32)
READERS: Final = {
    "as it comes": ClientConfig(),
    "by place": ClientConfig(reads=ReadConfig(reorder=True, network_location="/zone-1")),
    "with speculation": ClientConfig(reads=ReadConfig(speculation=SpeculationConfig(2000))),
}


class InstantBookie(UnreachableBookie):
    """Answers every add of a tick with one callback, like a journal group does; ``packets`` are
    those of every ledger, given within the call.
    """

    def __init__(self, bookie_id: str, packets: dict[int, list[bytes | memoryview]]) -> None:
        super().__init__(bookie_id)
        self._queue: list[AddRequest] = []
        self._packets = packets

    def add_entries(self, request: AddRequest) -> None:
        self._queue.append(request)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        queue, self._queue = self._queue, []
        for request in queue:
            request.done(request, codes.OK)

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        packets = self._packets[request.ledger_id]
        first, count_max = request.first, request.count_max
        if request.stripe is ALL_ENTRIES:
            return ReadReply(codes.OK, first, packets[first : first + count_max])
        ids = islice(request.stripe.ids(first), count_max)
        return ReadReply(codes.OK, first, [packets[entry_id] for entry_id in ids])


async def append_cost(
    client: BookKeeperClient, config: LedgerConfig, per_append: int, appends: int, body: bytes
) -> float:
    """Microseconds per entry of append and confirmation, best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        writer = await client.create_ledger(config)
        batches = [([HEAD] * per_append, [body] * per_append) for _ in range(appends)]
        done = asyncio.Event()
        count = per_append * appends

        def on_confirmed(upto: int, last: int = count - 1, done: asyncio.Event = done) -> None:
            if upto == last:
                done.set()

        writer.on_confirmed = on_confirmed
        begin = time.perf_counter()
        for place, (heads, bodies) in enumerate(batches):
            writer.append(heads, bodies)
            if place % 16 == 15:
                await asyncio.sleep(0)
        await done.wait()
        best = min(best, time.perf_counter() - begin)
    return best / count * 1e6


def packets_of(ledger_id: int, count: int, body: bytes) -> list[bytes | memoryview]:
    encoded, _ = encode_heads(ledger_id, 0, -1, 0, [HEAD] * count, [body] * count)
    return [head + body for head in encoded]


def split_cost(count: int, body: bytes, as_view: bool) -> float:
    """Microseconds per entry from packets to bodies."""
    packets = packets_of(1, count, body)
    if as_view:
        packets = [memoryview(packet) for packet in packets]
    times = timeit.repeat(lambda: split_packets(1, 0, packets), repeat=ROUNDS, number=1)
    return min(times) / count * 1e6


async def read_cost(reader: LedgerReader, entries: int) -> float:
    """Microseconds of one read of so many entries, best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(READS // entries):
            await reader.read(0, entries - 1, 1 << 20)
        best = min(best, time.perf_counter() - begin)
    return best / (READS // entries) * 1e6


async def main() -> None:
    store, pool, rng = EmbeddedMetadataStore.open(None), BookiePool(), random.Random(1)
    packets: dict[int, list[bytes | memoryview]] = {}
    for number in range(5):
        pool.add(InstantBookie(f"b{number}", packets))
    clients = {
        name: BookKeeperClient(
            store, pool, RandomPlacement(rng), clock=lambda: 0, rng=rng, config=config
        )
        for name, config in READERS.items()
    }
    client = clients["as it comes"]
    print("append + confirm, 1 KiB bodies, 32-byte heads: microseconds per entry")
    for triple in [(1, 1, 1), (3, 3, 2), (5, 3, 2)]:
        costs = []
        for size in (1, 10, 100):
            cost = await append_cost(
                client, LedgerConfig(*triple), size, 20_000 // size, bytes(1024)
            )
            costs.append(f"{size:3} per append {cost:6.3f}")
        print(f"  {triple}: " + "   ".join(costs))
    print("packets to heads and bodies")
    for body_bytes in (100, 1024, 16 * 1024, 128 * 1024):
        for as_view in (False, True):
            cost = split_cost(max(20, 2_000_000 // body_bytes), bytes(body_bytes), as_view)
            kind = "views" if as_view else "bytes"
            print(f"  {body_bytes:7} bytes, {kind}: {cost:7.3f} us, {body_bytes / cost:8.0f} MB/s")
    print("reads: microseconds of a call")
    for name, each in clients.items():
        for triple in [(1, 1, 1), (3, 3, 2)]:
            writer = await each.create_ledger(LedgerConfig(*triple))
            packets[writer.ledger_id] = packets_of(writer.ledger_id, 10, bytes(100))
            confirmed = asyncio.Event()
            writer.on_confirmed = lambda _, confirmed=confirmed: confirmed.set()
            writer.append([HEAD] * 10, [bytes(100)] * 10)
            await confirmed.wait()
            costs = [f"{n} entries {await read_cost(writer.reader(), n):6.2f}" for n in (1, 10)]
            print(f"  {name}, {triple}: " + "   ".join(costs))
    begin = time.perf_counter()
    for _ in range(200):
        await client.create_ledger(LedgerConfig())
    print(f"create_ledger: {(time.perf_counter() - begin) / 200 * 1e6:.0f} us (in-memory metadata)")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
