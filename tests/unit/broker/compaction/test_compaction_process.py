"""The process that compacts, as the broker asks it: a log in frames, and what comes back."""

import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from magnetar.broker.compaction.compacted_entry import decode_compacted, encode_compacted
from magnetar.broker.compaction.compaction_process import IdleTurns
from magnetar.broker.compaction.process_link import CompactionProcess, Given
from magnetar.broker.compaction.work_frames import COMPACTED
from magnetar.broker.errors import CompactionProcessError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import HEAD_BYTES, make_header
from magnetar.broker.protocol.stored_entries import encode_broker_metadata
from magnetar.managed_ledger.entry_batch import Buffer
from tests.unit.broker.compaction.test_two_passes import compacted, single

PARTITION = 3


@pytest.fixture
async def process() -> AsyncIterator[CompactionProcess]:
    made = CompactionProcess(PARTITION, False)
    yield made
    made.kill()


async def take(
    process: CompactionProcess, ledger_id: int, first: int, entries: Given
) -> list[Buffer]:
    """All that is kept."""
    found: list[Buffer] = []

    async def keep(portion: Sequence[Buffer]) -> None:
        assert portion, "an empty portion is no news"
        found.extend(portion)

    await process.take(ledger_id, first, entries, keep)
    return found


async def test_it_keeps_what_two_passes_keep(process: CompactionProcess) -> None:
    rng = random.Random(3)
    log = [single(f"k{rng.randrange(30)}", "x" * rng.randrange(5000)) for _ in range(600)]
    old = [((1, at * 2), single(f"k{at}", "old")) for at in range(40)]
    encoded = [encode_compacted(position, PARTITION, b"", body) for position, body in old]
    runs = [(COMPACTED, 0, encoded), (5, 0, log[:1]), (5, 1, log[1:400]), (8, 0, log[400:])]
    for run in runs:
        await process.note(*run)
    removed = await process.choose()
    kept = [entry for run in runs for entry in await take(process, *run)]
    positions = [(1, at * 2) for at in range(40)]
    positions += [*((5, at) for at in range(400)), *((8, at) for at in range(200))]
    bodies = [body for _, body in old] + log
    left = compacted(bodies)
    assert [bytes(decode_compacted(entry)[1]) for entry in kept] == left
    assert [bodies[positions.index(decode_compacted(entry)[0])] for entry in kept] == left
    assert removed == len(bodies) - len(left)
    assert kept[0] == encode_compacted((1, 60), PARTITION, b"", old[30][1])


async def test_what_lies_before_a_body_stays_but_for_heads_of_earlier_releases(
    process: CompactionProcess,
) -> None:
    prefix = encode_broker_metadata(pb.BrokerEntryMetadata(index=7))
    old_head = make_header(pb.MessageMetadata(), 0)
    assert len(old_head) == HEAD_BYTES
    a, b = single("a", "1"), single("b", "1")
    await process.note(5, 0, [prefix + a, old_head + b])
    assert await process.choose() == 0
    kept = [*await take(process, 5, 0, [prefix + a]), *await take(process, 5, 1, [old_head + b])]
    assert [bytes(decode_compacted(entry)[1]) for entry in kept] == [prefix + a, b]


@pytest.mark.parametrize("more", [0, 300])
async def test_one_that_can_not_go_on_says_why(process: CompactionProcess, more: int) -> None:
    """Also when the broker is ahead: the reason is read once nothing can be sent any more."""
    await process.note(COMPACTED, 0, [b"no entry of a compacted ledger"])

    async def go_on() -> None:
        for _ in range(more):
            await process.note(5, 0, [bytes(100_000)])
        await process.choose()

    with pytest.raises(CompactionProcessError, match=r"has failed: CompactedEntryError: \w"):
        await go_on()


async def test_it_imports_little(process: CompactionProcess) -> None:
    """Its memory is for keys; the whole broker would be 60 MB more."""
    await process.note(5, 0, [single("a", "1")])
    await process.choose()
    maps = _maps_of(process.popen.pid)
    assert "_upb" in maps
    assert not any(name in maps for name in ("grpc", "uvloop", "lmdb"))


def test_pieces_are_for_the_idle_thread_unless_it_waited_in_vain() -> None:
    turns = IdleTurns()
    assert turns.is_idle(0.0)
    turns.on_answer(1.0, 0.01)
    assert turns.is_idle(1.0), "it computed, and hardly waited"
    turns.on_answer(2.0, 3.0)
    assert not turns.is_idle(2.0)
    assert not turns.is_idle(4.9)
    assert turns.is_idle(5.0), "it has its turn again after as long"


async def test_a_thread_gives_way_to_all_others_and_one_does_not(
    process: CompactionProcess,
) -> None:
    await process.note(5, 0, [single("a", "1")])
    await process.choose()
    policies = _policies_of(process.popen.pid)
    assert policies.pop(process.popen.pid) == os.SCHED_OTHER
    assert list(policies.values()) == [os.SCHED_IDLE]


def _policies_of(pid: int) -> dict[int, int]:
    """By thread."""
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    return {thread: os.sched_getscheduler(thread) for thread in threads}


def _maps_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()
