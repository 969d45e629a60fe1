"""Reads one bookie's copies, digest-checked, and says what its answer proves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError, LedgerError
from magnetar.bookkeeper.packet import decode_header, is_intact
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.fragments import Run, join_runs, split_runs
from magnetar.bookkeeper.transport import ALL_ENTRIES, ReadRequest, Stripe


class ReplicaStatus(Enum):
    """What a bookie's answer says about its copy of an entry."""

    GOOD = "has it"
    ABSENT = "does not have it"  # an explicit negative
    CORRUPT = "has a damaged copy"
    UNKNOWN = "can't say if it has it"  # limbo: never a "no"
    SILENT = "does not answer"


@dataclass(frozen=True, slots=True)
class ReplicaRead:
    """Intact packets from the first entry asked for on; none unless GOOD.

    ``detail`` tells operators why one is SILENT: it may be access, not the network.
    """

    answer: ReplicaStatus
    packets: list[bytes]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.answer.value} ({self.detail})" if self.detail else self.answer.value


@dataclass(frozen=True, slots=True)
class EntrySet:
    """Which entries a bookie holds, durably.

    Attributes:
        answer: GOOD; or UNKNOWN: limbo or a damaged index, only reading tells; or SILENT.
        runs: ascending; none unless GOOD.
        detail: why it is silent.
    """

    answer: ReplicaStatus
    runs: tuple[Run, ...] = ()
    detail: str = ""


async def list_entries(
    bookies: BookiePool, bookie: str, ledger_id: int, timeout_s: float, creator: int
) -> EntrySet:
    """What the bookie says it holds of a ledger.

    One that reads entries out and doesn't list them isn't believed: what it reads may be in its
    memory only, and its journal wait for space.
    """
    try:
        async with asyncio.timeout(timeout_s):
            runs = await bookies.client(bookie).list_entries(ledger_id, creator=creator)
    except TimeoutError:
        return EntrySet(ReplicaStatus.SILENT, detail=f"for {timeout_s:g} s")
    except BookkeeperError as error:
        code = error.code if isinstance(error, LedgerError) else codes.UNAVAILABLE
        if code in (codes.UNKNOWN_LEDGER_STATE, codes.IO_ERROR):
            return EntrySet(ReplicaStatus.UNKNOWN)
        if codes.is_explicit_negative(code):
            return EntrySet(ReplicaStatus.GOOD)  # it holds another ledger with this id
        return EntrySet(ReplicaStatus.SILENT, detail=codes.code_name(code))
    return EntrySet(ReplicaStatus.GOOD, tuple(runs))


async def read_replica(
    bookies: BookiePool,
    bookie: str,
    ledger_id: int,
    first: int,
    count_max: int,
    bytes_max: int,
    timeout_s: float,
    stripe: Stripe = ALL_ENTRIES,
    *,
    creator: int = 0,
) -> ReplicaRead:
    """Packets of ``stripe`` from ``first`` on, up to the first that isn't there or isn't intact.

    A copy whose digest is wrong is reported to its bookie, which repairs it.
    """
    client = bookies.client(bookie)
    try:
        async with asyncio.timeout(timeout_s):
            reply = await client.read_entries(
                ReadRequest(ledger_id, first, count_max, bytes_max, stripe=stripe, creator=creator)
            )
    except TimeoutError:
        return ReplicaRead(ReplicaStatus.SILENT, [], f"for {timeout_s:g} s")
    except BookkeeperError as error:
        code = error.code if isinstance(error, LedgerError) else codes.UNAVAILABLE
        return ReplicaRead(ReplicaStatus.SILENT, [], codes.code_name(code))
    if reply.code != codes.OK:
        meaning = _meaning(reply.code)
        detail = codes.code_name(reply.code) if meaning is ReplicaStatus.SILENT else ""
        return ReplicaRead(meaning, [], detail)
    packets: list[bytes] = []
    for entry_id, packet in zip(stripe.ids(first), reply.packets[:count_max], strict=False):
        if not is_intact(packet) or decode_header(packet)[:2] != (ledger_id, entry_id):
            await _report(bookies, bookie, ledger_id, entry_id, timeout_s)
            break
        packets.append(bytes(packet))
    if packets:
        return ReplicaRead(ReplicaStatus.GOOD, packets)
    return ReplicaRead(ReplicaStatus.CORRUPT if reply.packets else ReplicaStatus.SILENT, [])


async def examine_replica(
    bookies: BookiePool,
    bookie: str,
    ledger_id: int,
    runs: Iterable[Run],
    config: ReplicationConfig,
    pace: Callable[[int], Awaitable[None]] | None = None,
    stripe: Stripe = ALL_ENTRIES,
    *,
    creator: int = 0,
) -> tuple[ReplicaStatus, list[Run]]:
    """Read all of ``runs``, which are of ``stripe``, from one bookie.

    Args:
        pace: awaited with the number of bytes after each read.

    Returns:
        GOOD, or what the last bad entry was, and which are bad. SILENT: it stopped answering, and
        nothing is said about the others. UNKNOWN: everything from the first doubt on counts as bad,
        as asking on entry by entry may take for ever.
    """
    worst, bad = ReplicaStatus.GOOD, list[Run]()
    pieces = split_runs(runs, config.batch_entries, stripe)
    for first, end in pieces:
        while first < end:
            found = await read_replica(
                bookies,
                bookie,
                ledger_id,
                first,
                stripe.count(first, end),
                config.batch_bytes,
                config.request_timeout_s,
                stripe,
                creator=creator,
            )
            if found.answer is ReplicaStatus.SILENT:
                return ReplicaStatus.SILENT, []
            if found.answer is ReplicaStatus.UNKNOWN:
                rest = (row for span in [(first, end), *pieces] for row in stripe.rows(*span))
                return ReplicaStatus.UNKNOWN, join_runs([*bad, *rest])
            if found.answer is not ReplicaStatus.GOOD:
                worst = found.answer
                bad.append((first, first + 1))
            elif pace is not None:
                await pace(sum(map(len, found.packets)))
            first = stripe.nth(first, max(1, len(found.packets)))
    return worst, join_runs(bad)


def _meaning(code: int) -> ReplicaStatus:
    if codes.is_explicit_negative(code):
        return ReplicaStatus.ABSENT
    if code == codes.UNKNOWN_LEDGER_STATE:
        return ReplicaStatus.UNKNOWN
    return ReplicaStatus.CORRUPT if code == codes.IO_ERROR else ReplicaStatus.SILENT


async def _report(
    bookies: BookiePool, bookie: str, ledger_id: int, entry_id: int, timeout_s: float
) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await bookies.client(bookie).report_corrupt(ledger_id, entry_id)
    except (BookkeeperError, TimeoutError):
        return  # its scrub will find it
