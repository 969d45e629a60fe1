"""Our connection to ZooKeeper beside kazoo's: `python -m benchmarks.micro.metadata_zookeeper`.

One real server without fsync, values of 200 bytes. Latency of one operation at a time, and rate and
CPU time of this process with all operations under way at once; then again beside work that keeps
the loop busy, as in a loaded broker. At last: what the event of a change costs that nobody here
watches.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from kazoo.client import KazooClient

from magnetar.metadata.zookeeper.settings import ZooKeeperSettings
from magnetar.metadata.zookeeper.store import ZooKeeperStore
from tests.zookeeper_process import ZooKeeperProcess

ALONE, TOGETHER = 300, 5000
VALUE = bytes(200)
Operation = Callable[[int], Awaitable[object]]


async def busy_loop() -> None:
    """1.8 ms of work, then a turn for the others, again and again."""
    while True:
        until = time.perf_counter() + 0.0018
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


async def measure(name: str, operation: Operation) -> None:
    latencies = list[float]()
    for number in range(ALONE):
        began = time.perf_counter()
        await operation(-1 - number)
        latencies.append((time.perf_counter() - began) * 1e3)
    latencies.sort()
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(operation(number) for number in range(TOGETHER)))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(
        f"{name:16} p50 {latencies[ALONE // 2]:5.2f} ms, p99 {latencies[-ALONE // 100]:5.2f} ms;"
        f" {TOGETHER / seconds:7,.0f}/s, {cpu / TOGETHER * 1e6:4.0f} us CPU each"
    )


class Kazoo:
    """kazoo's client as an asyncio program would use it: its threads answer, one call each."""

    def __init__(self, port: int) -> None:
        self.client = KazooClient(hosts=f"127.0.0.1:{port}")
        self._loop = asyncio.get_running_loop()

    def wait(self, result: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()

        def finish() -> None:
            if result.exception is not None:
                future.set_exception(result.exception)
            else:
                future.set_result(result.value)

        result.rawlink(lambda _: self._loop.call_soon_threadsafe(finish))
        return future


async def measure_event(store: ZooKeeperStore, settings: ZooKeeperSettings) -> None:
    idle = await ZooKeeperStore.connect(settings)
    idle.watch("/elsewhere", lambda _: None)
    events = list[Any]()
    idle._link._on_node_event = events.append
    await asyncio.gather(*(store.put("/watched", VALUE) for _ in range(1000)))
    await idle.put("/elsewhere", b"")  # own writes come after the events before them
    began = time.perf_counter()
    for event in events:
        idle._on_node_event(event)
    print(f"an event without interest: {(time.perf_counter() - began) / len(events) * 1e6:.1f} us")
    await idle.close()


async def main(server: ZooKeeperProcess) -> None:
    settings = ZooKeeperSettings.parse(server.url("/ours"))
    store, kazoo = await ZooKeeperStore.connect(settings), Kazoo(server.port)
    client = kazoo.client
    client.start()
    await store.put("/node", VALUE)
    client.create("/kazoo/node", VALUE, makepath=True)
    for busy in (False, True):
        print("beside a busy loop" if busy else "on an idle loop")
        work = asyncio.ensure_future(busy_loop()) if busy else None
        await measure("  get", lambda _: store.get("/node"))
        await measure("  get, kazoo", lambda _: kazoo.wait(client.get_async("/kazoo/node")))
        await measure("  create", lambda n, b=busy: store.put(f"/{b}{n}", VALUE, -1))  # type: ignore[misc]
        await measure(
            "  create, kazoo",
            lambda n, b=busy: kazoo.wait(  # type: ignore[misc]
                client.create_async(f"/kazoo/{b}{n}", VALUE, include_data=True)
            ),
        )
        if work is not None:
            work.cancel()
    await measure_event(store, settings)
    client.stop()
    client.close()
    await store.close()


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    with (
        tempfile.TemporaryDirectory() as folder,
        ZooKeeperProcess(Path(folder) / "zookeeper", tick_ms=2000) as process,
    ):
        uvloop.run(main(process))
