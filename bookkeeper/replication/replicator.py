"""Copies the share of one slot to a bookie, and names that bookie in the metadata afterwards.

What is written are the original packets, byte for byte, with recovery adds (the ledger is fenced or
closed). The metadata changes once, when every copy is confirmed, by one compare-and-set of one slot
of one segment, and only while the repair still has its lock: a bookie that collects what it holds
too much of takes the same lock, so it can't drop the copies in between.

Nor must the target have been started again since it was asked what it holds: it may have lost it.
One that is so in the very moment of the write keeps the ledger in limbo as long as that lock is
held, and then finds itself named (``bookie/integrity/integrity_check.py``).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    replace_members,
)
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.copy_source import CopySource
from magnetar.bookkeeper.replication.errors import (
    FragmentChangedError,
    NoTargetError,
    TargetFailedError,
    UnreadableEntryError,
)
from magnetar.bookkeeper.replication.fragments import (
    Fragment,
    Run,
    count_entries,
    join_runs,
    subtract_runs,
)
from magnetar.bookkeeper.replication.metrics import ReplicationMetrics
from magnetar.bookkeeper.replication.replica_reader import (
    ReplicaStatus,
    examine_replica,
    list_entries,
)
from magnetar.bookkeeper.transport import AddRequest

_WRITES_MAX: Final = 2  # requests to the target under way for one copy
_STEPS_MAX: Final = 8  # told of one ledger; a long one may have a thousand segments
_BUSY_ATTEMPTS: Final = 8  # of a request that the target had no room for

Check = Callable[[], None]
"""Raises RepairStoppedError when the repair must end; called before each step."""


@dataclass(slots=True)
class RepairReport:
    """What the repair of one ledger came to, over all attempts of one worker.

    Attributes:
        entries, bytes: copied, headers included; what a target had already isn't counted.
        steps: what was done, in words, in order.
    """

    entries: int = 0
    bytes: int = 0
    steps: list[str] = field(default_factory=list)

    def on_copied(self, entries: int, byte_count: int) -> None:
        """A request was confirmed by its target."""
        self.entries += entries
        self.bytes += byte_count

    def on_replaced(self, first_entry: int, gone: str, came: str) -> None:
        self.steps.append(f"segment {first_entry}: {gone} to {came}")

    def on_filled(self, first_entry: int, bookie: str) -> None:
        """It got what it missed, and stays."""
        self.steps.append(f"segment {first_entry}: {bookie} filled up")

    def on_closed(self) -> None:
        self.steps.append("closed by recovery")

    def text(self, ledger_id: int, seconds: float) -> str:
        """REQUIRES: ``steps`` isn't empty."""
        steps = "; ".join(self.steps[:_STEPS_MAX])
        if len(self.steps) > _STEPS_MAX:
            steps += f"; and {len(self.steps) - _STEPS_MAX} more"
        return (
            f"ledger {ledger_id} is repaired: {steps}; "
            f"{self.entries} entries, {self.bytes} bytes copied in {seconds:.1f} s"
        )


@dataclass(slots=True)
class _Write:
    """A request to the target and the future of its result code."""

    request: AddRequest
    code: asyncio.Future[int]


@dataclass(eq=False)
class Replicator:
    """Copies for all repairs of one worker.

    Args:
        started: reads what changes when a bookie is started again.
        throttle: shared, so that all of them together keep the limit.
        location: ``/zone/upgrade-domain`` of this process; near sources are preferred.
    """

    _ledgers: LedgerStore
    _bookies: BookiePool
    _placement: EnsemblePlacementPolicy
    _throttle: "ReplicationThrottle"
    _config: ReplicationConfig
    _metrics: ReplicationMetrics
    _started: Callable[[str], Awaitable[object]]
    _location: str = ""

    def choose_target(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        slot: int,
        excluded: Collection[str],
        preferred: str | None = None,
    ) -> str:
        """A bookie that may take the place of the one at ``slot``.

        Args:
            preferred: has copies from an earlier attempt; taken if the policy still allows it.
        Raises:
            NoTargetError: there is none now.
        """
        writable = self._bookies.writable
        barred = {*excluded, *fragment.bookies}
        candidates = writable - barred
        placement = self._placement.for_ledger(metadata.custom_metadata)
        choose = partial(placement.replace_bookie, slot, fragment.bookies, metadata.write_quorum)
        target = choose({preferred}) if preferred in candidates else None
        target = target or choose(candidates)
        if target is None:
            raise NoTargetError(
                f"segment {fragment.first_entry}: no bookie may take the place of "
                f"{fragment.bookies[slot]}: {len(writable)} accept writes, "
                f"{len(candidates)} of them hold no copy and have not failed"
            )
        return target

    async def replace(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        slot: int,
        target: str,
        check: Check,
        report: RepairReport,
    ) -> LedgerMetadata:
        """Give ``target`` everything ``slot`` owns, then its place. REQUIRES: a closed fragment.

        Args:
            report: is told what was done.
        Returns:
            The metadata as stored.
        Raises:
            UnreadableEntryError, TargetFailedError, FragmentChangedError, RepairStoppedError.
            NoSuchLedgerError: it was deleted meanwhile. MetadataError: the store failed.
        """
        assert fragment.is_closed, "an open one still grows"
        start = await self._started(target)
        missing, rotten = await self._lacking(fragment, slot, target, check)
        await self.fill(metadata, fragment, slot, target, missing, check, report)
        if rotten:
            kept = await self._examine(fragment, slot, target, rotten, check)
            if kept != (ReplicaStatus.GOOD, []):
                raise TargetFailedError(target, "it keeps damaged copies")
        if await self._started(target) != start:
            raise FragmentChangedError(f"{target} was started again, and may have lost copies")
        stored = await self._ledgers.update(
            fragment.ledger_id,
            lambda current: _with_target(current, fragment, slot, target, check),
        )
        self._metrics.members_replaced += 1
        report.on_replaced(fragment.first_entry, fragment.bookies[slot], target)
        return stored.metadata

    async def _lacking(
        self, fragment: Fragment, slot: int, target: str, check: Check
    ) -> tuple[list[Run], list[Run]]:
        """What the target must be given, and what of it was there, but damaged.

        The rest it has from an earlier attempt, or from a time when it was a member already.
        """
        owned = list(fragment.runs_of(slot))
        held = await list_entries(
            *(self._bookies, target, fragment.ledger_id, self._config.request_timeout_s),
            fragment.creator,
        )
        if not owned or not held.runs:  # what it can't list (limbo, an error) it is given again
            return owned, []
        absent = list(subtract_runs(owned, held.runs))
        there = list(subtract_runs(owned, absent))
        # Read: old copies may have rotted, and they weren't checked since it left.
        answer, bad = await self._examine(fragment, slot, target, there, check)
        if answer is ReplicaStatus.SILENT:
            raise TargetFailedError(target, "no answer")
        self._metrics.entries_resumed += count_entries(there) - count_entries(bad)
        return join_runs([*absent, *bad]), bad

    async def _examine(
        self, fragment: Fragment, slot: int, target: str, runs: Iterable[Run], check: Check
    ) -> tuple[ReplicaStatus, list[Run]]:
        async def pace(byte_count: int) -> None:
            await self._throttle.take(byte_count)
            check()

        return await examine_replica(
            *(self._bookies, target, fragment.ledger_id, runs, self._config, pace),
            stripe=fragment.stripe_of(slot),
            creator=fragment.creator,
        )

    async def fill(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        slot: int,
        target: str,
        runs: Iterable[Run],
        check: Check,
        report: RepairReport,
    ) -> None:
        """Copy ``runs``, which ``slot`` owns, to ``target``; all are durable there on return.

        Raises:
            UnreadableEntryError, TargetFailedError, RepairStoppedError.
        """
        assert fragment.is_closed, "an open one still grows"
        source = CopySource(self._bookies, fragment, slot, self._config, self._location)
        key = metadata.master_key
        writes: deque[_Write] = deque()
        try:
            async for ids, packets in source.batches(runs):
                check()
                byte_count = sum(map(len, packets))
                await self._throttle.take(byte_count)
                check()
                if len(writes) == _WRITES_MAX:
                    await self._finish(target, fragment, writes.popleft(), check, report)
                writes.append(self._send(target, fragment, key, ids, packets))
            while writes:
                await self._finish(target, fragment, writes.popleft(), check, report)
        except UnreadableEntryError:
            self._metrics.unreadable_entries += 1
            raise

    def _send(
        self, target: str, fragment: Fragment, key: bytes, ids: list[int], packets: list[bytes]
    ) -> _Write:
        code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(_: AddRequest, result: int) -> None:
            if not code.done():
                code.set_result(result)

        contiguous = ids[-1] - ids[0] == len(ids) - 1
        request = AddRequest(
            fragment.ledger_id,
            key,
            range(ids[0], ids[-1] + 1) if contiguous else ids,
            [packet[:PACKET_HEADER_BYTES] for packet in packets],
            [packet[PACKET_HEADER_BYTES:] for packet in packets],
            sum(map(len, packets)),
            True,
            done,
            creator=fragment.creator,
        )
        self._bookies.client(target).add_entries(request)
        return _Write(request, code)

    async def _finish(
        self, target: str, fragment: Fragment, write: _Write, check: Check, report: RepairReport
    ) -> None:
        """Wait for the answer; a target without room is asked again, a few times."""
        pause_s = self._config.busy_pause_s
        for _ in range(_BUSY_ATTEMPTS):
            try:
                async with asyncio.timeout(self._config.request_timeout_s):
                    code = await write.code
            except TimeoutError:
                raise TargetFailedError(target, "no answer") from None
            if code != codes.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(pause_s)
            check()
            pause_s *= 2
            request = write.request
            packets = [h + b for h, b in zip(request.heads, request.bodies, strict=True)]
            write = self._send(
                target, fragment, request.master_key, list(request.entry_ids), packets
            )
        if code != codes.OK:
            raise TargetFailedError(target, codes.code_name(code))
        self._metrics.entries_copied += len(write.request.entry_ids)
        self._metrics.bytes_copied += write.request.body_bytes
        report.on_copied(len(write.request.entry_ids), write.request.body_bytes)


def _with_target(
    current: LedgerMetadata, fragment: Fragment, slot: int, target: str, check: Check
) -> LedgerMetadata | None:
    """The change to store; its predicate is that the segment is still the one that was copied."""
    check()  # right before the write
    first = fragment.first_entry
    segment = current.segment_of(first)
    if segment.first_entry != first:
        raise FragmentChangedError(f"there is no segment {first} any more")
    if segment.bookies[slot] == target:
        return None  # our own write, whose answer was lost, or another worker's
    closed = current.state is LedgerState.CLOSED
    next_key = current.segment_end(first)
    end = next_key if next_key is not None else (current.last_entry + 1 if closed else None)
    if end is None or max(end, first) != fragment.end:
        raise FragmentChangedError(f"segment {first} does not end at {fragment.end} any more")
    if segment.bookies[slot] != fragment.bookies[slot]:
        raise FragmentChangedError(f"segment {first} has another bookie at slot {slot} already")
    try:
        return replace_members(current, first, {slot: (fragment.bookies[slot], target)})
    except LedgerMetadataError as error:  # another worker gave the target another slot
        raise FragmentChangedError(str(error)) from error


class ReplicationThrottle:
    """Lets ``bytes_per_s`` through on average, in the order of the calls; 0: no limit.

    What was let through is paid for by the next one, so a single batch never waits for itself.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0  # time of the loop

    async def take(self, byte_count: int) -> None:
        """Wait until ``byte_count`` more bytes may be copied."""
        if not self._bytes_per_s:
            return
        now = asyncio.get_running_loop().time()
        wait_s = self._free_at - now
        # Reserved before the wait: later callers queue up behind.
        self._free_at = max(now, self._free_at) + byte_count / self._bytes_per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)
