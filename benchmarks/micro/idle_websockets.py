#!/usr/bin/env python3
"""Memory of idle WebSockets: resident bytes of a server before and after N of them.

    benchmarks/micro/idle_websockets.py [COUNT] [producer|consumer|reader] [TOPICS]
    benchmarks/micro/idle_websockets.py [COUNT] [KIND] [TOPICS] --url http://HOST:PORT --pid PID

Default: 2000 consumers, Shared, on 10 topics of a fresh Magnetar process. With --url and --pid any
server that runs on this machine is measured, Apache Pulsar for one. Of a Java process the used heap
is told as well, after a full collection (jcmd): its resident size says how much it has ever used,
rather than what it needs. The sockets are opened by this process, which stays connected until the
figure is taken; topics of a given server are deleted again.
"""

import argparse
import asyncio
import re
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from websockets.asyncio.client import ClientConnection, connect

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.standalone_process import StandaloneProcess

AT_ONCE = 50
SETTLE_S = 3.0  # the allocator and the garbage collector come to rest
_USED = re.compile(r"used (\d+)([KMG])")  # the heap's line is the first one
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Load:
    count: int
    kind: str
    topics: list[str]

    @classmethod
    def make(cls, count: int, kind: str, topics: int) -> "Load":
        run = secrets.token_hex(3)
        names = [f"persistent/public/default/idle-{run}-{number}" for number in range(topics)]
        return cls(count, kind, names)


async def open_all(base: str, load: Load, count: int) -> list[ClientConnection]:
    gate = asyncio.Semaphore(AT_ONCE)
    tail = "/s?subscriptionType=Shared" if load.kind == "consumer" else ""

    async def one(number: int) -> ClientConnection:
        topic = load.topics[number % len(load.topics)]
        async with gate:
            return await connect(
                f"{base}/ws/v2/{load.kind}/{topic}{tail}", compression=None, ping_interval=None
            )

    return await asyncio.gather(*map(one, range(count)))


def java_heap(process: psutil.Process) -> int | None:
    """Bytes in use after a full collection; None: not a Java process, or no jcmd here."""
    if process.name() != "java" or (jcmd := shutil.which("jcmd")) is None:
        return None
    subprocess.run([jcmd, str(process.pid), "GC.run"], check=True, capture_output=True)
    told = subprocess.run(
        [jcmd, str(process.pid), "GC.heap_info"], check=True, capture_output=True, text=True
    ).stdout
    found = _USED.search(told)
    return int(found[1]) * _UNITS[found[2]] if found else None


async def measure(server: psutil.Process, base: str, load: Load) -> None:
    first = await open_all(base, load, len(load.topics))  # topics are loaded, code has run once
    await asyncio.sleep(SETTLE_S)
    heap_before, before = java_heap(server), server.memory_info().rss
    sockets = await open_all(base, load, load.count)
    await asyncio.sleep(SETTLE_S)
    after, used_s = server.memory_info().rss, server.cpu_times().user
    await asyncio.sleep(SETTLE_S)
    busy = (server.cpu_times().user - used_s) / SETTLE_S
    heap = ""
    if heap_before is not None and (heap_after := java_heap(server)) is not None:
        grown = heap_after - heap_before
        heap = f", heap {grown / 1e6:.1f} MB more ({grown / load.count / 1024:.1f} KiB each)"
    print(
        f"{load.count} idle {load.kind}s on {len(load.topics)} topics: "
        f"{(after - before) / 1e6:.1f} MB more ({(after - before) / load.count / 1024:.1f} KiB "
        f"each), {before / 1e6:.0f} MB before{heap}, {busy:.1%} of a core while idle"
    )
    await asyncio.gather(*(each.close() for each in (*first, *sockets)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=2000)
    parser.add_argument("kind", nargs="?", default="consumer")
    parser.add_argument("topics", nargs="?", type=int, default=10)
    parser.add_argument("--url", help="http://host:port of a running server")
    parser.add_argument("--pid", type=int, help="its process")
    options = parser.parse_args()
    if (options.url is None) != (options.pid is None):
        parser.error("--url and --pid belong together")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    load = Load.make(options.count, options.kind, options.topics)
    if options.url is None:
        with (
            tempfile.TemporaryDirectory() as folder,
            StandaloneProcess(Path(folder) / "data") as process,
        ):
            base = process.admin_url.replace("http", "ws")
            asyncio.run(measure(psutil.Process(process.pid), base, load))
        return
    try:
        base = options.url.replace("http", "ws")
        asyncio.run(measure(psutil.Process(options.pid), base, load))
    finally:
        for topic in load.topics:
            httpx.delete(f"{options.url}/admin/v2/{topic}?force=true", timeout=60)


if __name__ == "__main__":
    main()
