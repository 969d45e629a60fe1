"""Resident memory of a standalone process before, during and after loads; one line each.

    python benchmarks/memory.py [--rounds 2] [--seconds 10]

The loads are those of ``benchmarks/run.py``. After each round the process is left alone until its
memory has not fallen for a while: caches are let go in steps, up to some two minutes after the last
message. ``warm`` is taken after one message of each kind, so that what the first use of the code
costs isn't counted as kept by the load. What later rounds add over the first would be a leak.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.run import in_and_out, produce, synchronous
from tests.standalone_process import StandaloneProcess

QUIET_S = 75.0
"""The longest pause between two steps in which caches are let go and the heap is trimmed."""
SETTLE_MAX_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each load")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-memory-") as folder,
        StandaloneProcess(Path(folder) / "data") as process,
        Memory(process.pid) as memory,
    ):
        client = pulsar.Client(
            process.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        memory.report("start")
        loads(client, 0.1)
        memory.report("warm", settled=settle(memory))
        for number in range(1, options.rounds + 1):
            memory.highest = 0
            loads(client, options.seconds)
            memory.report(f"loaded-{number}", highest=memory.highest)
            memory.report(f"after-{number}", settled=settle(memory))
        client.close()
    return 0


def loads(client: pulsar.Client, seconds: float) -> None:
    """Every load of ``make bench``, one after the other, each on a topic of its own."""
    for size, batching in ((1024, True), (100, False), (1024, False), (131_072, False)):
        produce(client, size, batching, seconds)
    synchronous(client, 1024, seconds)
    in_and_out(client, 1024, seconds)


class Memory:
    """Resident bytes of one process, sampled beside the loads."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.highest = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(0.2):
            self.highest = max(self.highest, self.now())

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def report(self, name: str, **more: float) -> None:
        row = {"rss_mb": self.now() / 1e6}
        if "highest" in more:
            row["highest_mb"] = more["highest"] / 1e6
        if "settled" in more:
            row["settled_after_s"] = more["settled"]
        print(name, json.dumps({key: round(value, 1) for key, value in row.items()}), flush=True)


def settle(memory: Memory) -> float:
    """Wait until memory has stopped falling; how long that took, in seconds."""
    start = fell_at = time.monotonic()
    lowest = memory.now()
    while (now := time.monotonic()) - fell_at < QUIET_S and now - start < SETTLE_MAX_S:
        time.sleep(1)
        if memory.now() < lowest - (1 << 20):
            lowest, fell_at = memory.now(), time.monotonic()
    return fell_at - start


if __name__ == "__main__":
    sys.exit(main())
