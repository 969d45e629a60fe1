"""Dispatch from a cache slice to MESSAGE frames, with acknowledgments; µs per entry.

Run: python -m benchmarks.micro.dispatch
"""

import itertools
import timeit
from collections.abc import Callable

from magnetar.broker.connection.consumer_sink import MessageFrames
from magnetar.broker.dispatch.interfaces import (
    ConsumerState,
    Deliver,
    DispatchLimits,
    DispatchReadRequest,
)
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata
from magnetar.managed_ledger.entry_batch import EntryBatch

ENTRIES = 200
ROUNDS = 1_000


def batch_at(first: int, messages: int) -> EntryBatch:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if messages > 1:
        metadata.num_messages_in_batch = messages
    return EntryBatch(77, first, [make_header(metadata)] * ENTRIES, [b"x" * 1_100] * ENTRIES)


def shared(consumers: int, messages: int) -> Callable[[int], None]:
    """Assign, frame and acknowledge one slice per call."""
    core = SharedDispatcher(DispatchLimits(unacked_per_subscription=0, unacked_per_consumer=0))
    members = [ConsumerState(f"c{number}") for number in range(consumers)]
    frames = {member: MessageFrames(number, -1) for number, member in enumerate(members)}
    for member in members:
        core.add_consumer(member)
        core.on_flow(member, 1 << 60)

    def turn(number: int) -> None:
        batch = batch_at(number * ENTRIES, messages)
        core.on_entries(
            DispatchReadRequest(None, 1000, False, core.generation), batch, None, None, 0
        )
        for effect in core.take_effects():
            assert isinstance(effect, Deliver)
            frames[effect.consumer].build(effect.batch, effect.picks)
            picks = range(ENTRIES) if effect.picks is None else effect.picks
            core.on_acked(effect.consumer, [(77, batch.first + index) for index in picks])

    return turn


def exclusive(messages: int) -> Callable[[int], None]:
    core = SingleActiveDispatcher(DispatchLimits(), failover=False, topic="t", partition_index=-1)
    member = ConsumerState("c")
    core.add_consumer(member, 0)
    core.on_flow(member, 1 << 60)
    frames = MessageFrames(1, -1)

    def turn(number: int) -> None:
        batch = batch_at(number * ENTRIES, messages)
        core.on_entries(
            DispatchReadRequest(None, 1000, False, core.generation), batch, None, None, 0
        )
        for effect in core.take_effects():
            assert isinstance(effect, Deliver)
            frames.build(effect.batch, effect.picks)

    return turn


def measure(name: str, turn: Callable[[int], None]) -> None:
    numbers = itertools.count()
    best = min(timeit.repeat(lambda: turn(next(numbers)), repeat=3, number=ROUNDS))
    print(f"{name:<44}{best / ROUNDS / ENTRIES * 1e6:.3f}")


def main() -> None:
    measure("exclusive, single messages", exclusive(1))
    measure("exclusive, batches of 100", exclusive(100))
    measure("shared, 1 consumer, with acks", shared(1, 1))
    measure("shared, 10 consumers, with acks", shared(10, 1))
    measure("shared, 10 consumers, batches of 100, acks", shared(10, 100))


if __name__ == "__main__":
    main()
