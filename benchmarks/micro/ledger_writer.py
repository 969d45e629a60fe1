"""Cost of the ledger client per entry: append + confirm, and cold reads, without disk or network.

Run: .venv/bin/python -m benchmarks.micro.ledger_writer
"""

import asyncio
import random
import time
from collections.abc import Callable

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_reader import split_packets
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool, UnreachableBookie
from magnetar.bookkeeper.packet import encode_heads
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore

ROUNDS = 7


class InstantBookie(UnreachableBookie):
    """Answers every add of a tick with one callback, like a journal group does."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id)
        self._queue: list[AddRequest] = []

    def add_entries(self, request: AddRequest) -> None:
        self._queue.append(request)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        queue, self._queue = self._queue, []
        for request in queue:
            request.done(request, codes.OK)


async def append_cost(
    client: BookKeeperClient, config: LedgerConfig, per_append: int, appends: int, body: bytes
) -> float:
    """Microseconds per entry of append and confirmation, best of several rounds."""
    head = bytes(32)
    best = float("inf")
    for _ in range(ROUNDS):
        writer: AsyncLedgerWriter = await client.create_ledger(config)
        batches = [([head] * per_append, [body] * per_append) for _ in range(appends)]
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


def read_cost(count: int, body: bytes, as_view: bool) -> float:
    """Microseconds per entry from packets to bodies."""
    heads, bodies = [bytes(32)] * count, [body] * count
    encoded, _ = encode_heads(1, 0, -1, 0, heads, bodies)
    packets: list[bytes | memoryview] = [h + b for h, b in zip(encoded, bodies, strict=True)]
    if as_view:
        packets = [memoryview(packet) for packet in packets]
    return best_of(lambda: split_packets(1, 0, packets)) / count * 1e6


def best_of(run: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


async def main() -> None:
    store = EmbeddedMetadataStore.open(None)
    pool = BookiePool()
    for number in range(5):
        pool.add(InstantBookie(f"b{number}"))
    rng = random.Random(1)
    client = BookKeeperClient(store, pool, RandomPlacement(rng), clock=lambda: 0, rng=rng)
    body = bytes(1024)
    print("append + confirm, 1 KiB bodies, 32-byte heads: microseconds per entry")
    for triple in [(1, 1, 1), (3, 3, 2), (5, 3, 2)]:
        costs = []
        for per_append in (1, 10, 100):
            appends = 20_000 // per_append
            cost = await append_cost(client, LedgerConfig(*triple), per_append, appends, body)
            costs.append(f"{per_append:3} per append {cost:6.3f}")
        print(f"  {triple}: " + "   ".join(costs))
    print("packets to heads and bodies")
    for body_bytes in (100, 1024, 16 * 1024, 128 * 1024):
        for as_view in (False, True):
            cost = read_cost(max(20, 2_000_000 // body_bytes), bytes(body_bytes), as_view)
            kind = "views" if as_view else "bytes"
            print(f"  {body_bytes:7} bytes, {kind}: {cost:7.3f} us, {body_bytes / cost:8.0f} MB/s")
    begin = time.perf_counter()
    for _ in range(200):
        await client.create_ledger(LedgerConfig())
    print(f"create_ledger: {(time.perf_counter() - begin) / 200 * 1e6:.0f} us (in-memory metadata)")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
