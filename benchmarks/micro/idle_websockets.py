#!/usr/bin/env python3
"""Memory of idle WebSockets: resident bytes of a standalone process before and after N of them.

    benchmarks/micro/idle_websockets.py [COUNT] [producer|consumer|reader] [TOPICS]

Default: 2000 consumers, Shared, on 10 topics. The sockets are opened by this process, which stays
connected until the figure is taken.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import psutil
from websockets.asyncio.client import ClientConnection, connect

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.standalone_process import StandaloneProcess

AT_ONCE = 50
SETTLE_S = 3.0  # the allocator and the garbage collector come to rest


async def open_all(base: str, count: int, kind: str, topics: int) -> list[ClientConnection]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> ClientConnection:
        topic = f"persistent/public/default/idle-{number % topics}"
        tail = "/s?subscriptionType=Shared" if kind == "consumer" else ""
        async with gate:
            return await connect(
                f"{base}/ws/v2/{kind}/{topic}{tail}", compression=None, ping_interval=None
            )

    return await asyncio.gather(*map(one, range(count)))


async def measure(process: StandaloneProcess, count: int, kind: str, topics: int) -> None:
    server = psutil.Process(process.pid)
    base = process.admin_url.replace("http", "ws")
    first = await open_all(base, topics, kind, topics)  # topics are loaded, code has run once
    await asyncio.sleep(SETTLE_S)
    before = server.memory_info().rss
    sockets = await open_all(base, count, kind, topics)
    await asyncio.sleep(SETTLE_S)
    after, used_s = server.memory_info().rss, server.cpu_times().user
    await asyncio.sleep(SETTLE_S)
    busy = (server.cpu_times().user - used_s) / SETTLE_S
    print(
        f"{count} idle {kind}s on {topics} topics: {(after - before) / 1e6:.1f} MB more "
        f"({(after - before) / count / 1024:.1f} KiB each), {before / 1e6:.0f} MB before, "
        f"{busy:.1%} of a core while idle"
    )
    await asyncio.gather(*(each.close() for each in (*first, *sockets)))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    kind = sys.argv[2] if len(sys.argv) > 2 else "consumer"
    topics = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    with (
        tempfile.TemporaryDirectory() as folder,
        StandaloneProcess(Path(folder) / "data") as process,
    ):
        asyncio.run(measure(process, count, kind, topics))


if __name__ == "__main__":
    main()
