"""MESSAGE headers of one batch: prepared pieces against a re-used upb BaseCommand; µs per entry.

Run: python -m benchmarks.micro.delivery
"""

import time
from collections.abc import Callable
from struct import Struct

from magnetar.broker.connection.consumer_sink import MessageFrames
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.managed_ledger.entry_batch import EntryBatch

ENTRIES = 1_000


def with_upb(batch: EntryBatch) -> list[bytes | memoryview]:
    """One BaseCommand, only the entry id changes."""
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 7
    message_id = command.message.message_id
    message_id.ledgerId = batch.ledger_id
    pack, serialize = Struct(">II").pack, command.SerializeToString
    out: list[bytes | memoryview] = []
    for entry_id, body in enumerate(batch.bodies, batch.first):
        message_id.entryId = entry_id
        text = serialize()
        out.append(pack(4 + len(text) + len(body), len(text)) + text)
        out.append(body)
    return out


def measure(call: Callable[[], object], rounds: int = 500) -> float:
    """Best of five, in microseconds per entry."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            call()
        best = min(best, time.perf_counter() - start)
    return best / rounds / ENTRIES * 1e6


def main() -> None:
    frames = MessageFrames(7, -1)
    batch = EntryBatch(123_456, 20_000, [b""] * ENTRIES, [b"x" * 1_100] * ENTRIES)
    assert frames.build(batch) == with_upb(batch)
    counts = [1] * ENTRIES
    twenty = range(40, 60)
    print(f"upb, re-used command       {measure(lambda: with_upb(batch)):.3f}")
    print(f"prepared pieces            {measure(lambda: frames.build(batch)):.3f}")
    everything = list(range(ENTRIES))
    picked = measure(lambda: frames.build(batch, everything))
    short = measure(lambda: frames.build(batch, twenty)) * ENTRIES / len(twenty)
    print(f"prepared, list of picks    {picked:.3f}")
    print(f"prepared, 20 at a time     {short:.3f}")
    print(f"with redelivery counts     {measure(lambda: frames.build(batch, None, counts)):.3f}")


if __name__ == "__main__":
    main()
