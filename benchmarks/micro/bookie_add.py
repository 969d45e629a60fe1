"""Cost of an add in the bookie: journal, write cache and flush on a real disk, groups as they come.

    python benchmarks/micro/bookie_add.py [--seconds 3] [--dir PATH]

A client keeps ``--in-flight`` bytes pending in requests of ``--batch`` entries; packets are encoded
before the clock starts, so the figures are the bookie's own. "loop us" is CPU time of the loop
thread per entry, "all us" that of the process.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore

KEY = bytes(20)
LEDGERS = 8
CASES = ((100, 100), (100, 10), (100, 1), (1024, 100), (1024, 1), (131072, 4))


@dataclass
class Load:
    """One case; ``entries`` counts what was acknowledged."""

    body_bytes: int
    batch: int
    in_flight_bytes: int
    seconds: float
    entries: int = 0
    refused: int = 0


class Client:
    """Keeps a window of requests pending over a few ledgers."""

    def __init__(self, bookie: Bookie, load: Load) -> None:
        self.bookie = bookie
        self.load = load
        self.body = b"x" * load.body_bytes
        self.heads = [
            packet.encode_head(1, entry_id, -1, 0, b"h" * 32, self.body)
            for entry_id in range(load.batch)
        ]
        self.next_entry = [0] * LEDGERS
        self.pending = 0
        self.deadline = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> float:
        start = time.perf_counter()
        self.deadline = start + self.load.seconds
        request_bytes = (self.load.body_bytes + 68) * self.load.batch
        for number in range(max(1, self.load.in_flight_bytes // request_bytes)):
            self.send(number % LEDGERS)
        await self.finished
        return time.perf_counter() - start

    def send(self, ledger: int) -> None:
        load = self.load
        first = self.next_entry[ledger]
        self.next_entry[ledger] = first + load.batch
        self.pending += 1
        request = AddRequest(
            ledger + 1,
            KEY,
            range(first, first + load.batch),
            list(self.heads),
            [self.body] * load.batch,
            (load.body_bytes + 68) * load.batch,
            False,
            self.on_done,
        )
        self.bookie.add_entries(request)

    def on_done(self, request: AddRequest, code: int) -> None:
        self.pending -= 1
        if code == codes.OK:
            self.load.entries += len(request.entry_ids)
        else:
            self.load.refused += 1
        if time.perf_counter() < self.deadline:
            self.send(request.ledger_id - 1)
        elif self.pending == 0:
            self.finished.set_result(None)


async def measure(load: Load, directory: Path) -> None:
    store = EmbeddedMetadataStore.open(None)
    bookie = await open_bookie(BookieConfig("bench", directory), OsFileSystem(directory), store)
    client = Client(bookie, load)
    cpu, loop_cpu = time.process_time(), time.thread_time()
    elapsed = await client.run()
    cpu, loop_cpu = time.process_time() - cpu, time.thread_time() - loop_cpu
    await bookie.close()
    await store.close()
    megabytes = load.entries * load.body_bytes / 1e6
    print(
        f"{load.body_bytes:>7} B x{load.batch:<4} {load.entries / elapsed:>10,.0f} entries/s "
        f"{megabytes / elapsed:>7,.0f} MB/s  wall {elapsed / load.entries * 1e6:6.2f} us  "
        f"loop {loop_cpu / load.entries * 1e6:6.2f} us  all {cpu / load.entries * 1e6:6.2f} us  "
        f"refused {load.refused}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--in-flight", type=int, default=16 << 20)
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0005)
    for body_bytes, batch in CASES:
        directory = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=arguments.dir))
        # At most 4,000 requests pending: what a broker's window of one-entry requests looks like.
        window = min(arguments.in_flight, 4000 * batch * (body_bytes + 68))
        try:
            uvloop.run(measure(Load(body_bytes, batch, window, arguments.seconds), directory))
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
