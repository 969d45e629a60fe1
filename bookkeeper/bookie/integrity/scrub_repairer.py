"""Keeps the list of what is damaged here, and repairs it from the other replicas.

Whoever says that something is damaged, the bookie looks for itself first. What can't be repaired
stays on the list, is answered with an I/O error (never with "no such entry"), and is tried again.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.integrity.integrity_listener import IntegrityMetrics
from magnetar.bookkeeper.bookie.integrity.replica_source import ReplicaSource
from magnetar.bookkeeper.bookie.integrity.scrub import DamagedRange, check_entries_steps
from magnetar.bookkeeper.bookie.integrity.scrub_repair import RepairCopies, repair_steps
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.entry_log import log_id_of
from magnetar.bookkeeper.errors import BookieClosedError, BookkeeperError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.replication.fragments import fragments_of
from magnetar.metadata.errors import MetadataError

_log = logging.getLogger(__name__)

_DAMAGES_MAX: Final = 10_000  # ranges on the list; more are left to the next pass of the scrub
_SUSPECTS_MAX: Final = 1_000  # reported by others and not looked at yet
_REPORTS_PER_S: Final = 20.0
_COPIES_MAX: Final = 4096  # entries in one go
_REASONS_MAX: Final = 3
_COPY_BYTES_MAX: Final = 8 * 1024 * 1024
_RETRY_FIRST_S: Final = 30.0
_RETRY_MAX_S: Final = 3600.0


@dataclass(slots=True)
class DamageRecord:
    """A damage on the list. ``why``: it isn't repaired; "": not tried yet."""

    damage: DamagedRange
    why: str = ""
    attempts: int = 0
    due_s: float = 0.0  # loop time


class ScrubRepairer:
    """``suspect`` and ``add`` put something on the list; one task works it off.

    Args:
        replica_source: None: damage is only reported.
    """

    def __init__(
        self, bookie: Bookie, replica_source: ReplicaSource | None, metrics: IntegrityMetrics
    ) -> None:
        self._bookie = bookie
        self._replica_source = replica_source
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._known: dict[tuple[int, int], DamageRecord] = {}  # by ledger and first entry
        self._suspects: dict[tuple[int, int], None] = {}
        self._reports_left = _REPORTS_PER_S
        self._reports_at_s = self._loop.time()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def damages(self) -> list[DamageRecord]:
        """What is damaged now, as far as it is known."""
        return list(self._known.values())

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- what comes in

    def suspect(self, ledger_id: int, entry_id: int) -> None:
        """Look at this entry soon."""
        if len(self._suspects) < _SUSPECTS_MAX:
            self._suspects[ledger_id, entry_id] = None
            self._run_soon()

    def report(self, ledger_id: int, entry_id: int) -> bool:
        """The same for clients, only so often."""
        now_s = self._loop.time()
        earned = (now_s - self._reports_at_s) * _REPORTS_PER_S
        self._reports_left = min(_REPORTS_PER_S, self._reports_left + earned)
        self._reports_at_s = now_s
        if self._reports_left < 1 or len(self._suspects) >= _SUSPECTS_MAX:
            return False
        self._reports_left -= 1
        self.suspect(ledger_id, entry_id)
        return True

    def add(self, damages: Iterable[DamagedRange]) -> None:
        """Damage that the bookie has seen itself."""
        for damage in damages:
            key = damage.ledger_id, damage.first
            known = self._known.get(key)
            if known is not None:
                known.damage = damage
            elif len(self._known) < _DAMAGES_MAX:
                _log.error("damaged: %s", damage)
                self._known[key] = DamageRecord(damage)
                self._metrics.damaged_entries += damage.end - damage.first
        if self._known:
            self._run_soon()

    def retry(self) -> None:
        """Try everything on the list again, now."""
        for known in self._known.values():
            known.due_s = 0.0
        self._run_soon()

    # ---- the task

    def _run_soon(self) -> None:
        if not self._closed and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                if self._suspects:
                    await self._look()
                elif (due := self._due()) is not None:
                    await self._repair(due)
                else:
                    break
        except BookieClosedError:
            return
        self._arm()

    def _due(self) -> DamageRecord | None:
        now_s = self._loop.time()
        return next((known for known in self._known.values() if known.due_s <= now_s), None)

    def _arm(self) -> None:
        """Wake up for the next one that is to be tried again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._known and not self._closed:
            due_s = min(known.due_s for known in self._known.values())
            self._timer = self._loop.call_at(due_s, self._run_soon)

    async def _look(self) -> None:
        """Find out which suspects are damaged."""
        suspects, self._suspects = self._suspects, {}
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in suspects:
            if ledger_id in self._bookie.storage.ledgers:
                by_ledger.setdefault(ledger_id, []).append(entry_id)
        for ledger_id, entry_ids in by_ledger.items():
            self.add(await self._check(ledger_id, entry_ids))

    async def _check(self, ledger_id: int, entry_ids: Iterable[int]) -> list[DamagedRange]:
        found: list[DamagedRange] = []
        steps = check_entries_steps(self._bookie.storage, ledger_id, sorted(entry_ids), found)
        await self._bookie.run_maintenance(steps)
        return found

    async def _repair(self, known: DamageRecord) -> None:
        damage = known.damage
        rest, stored, why = [damage], 0, ""
        try:
            rest, stored, why = await self._repair_from_peers(damage)
        except BookieClosedError:
            raise
        except (BookkeeperError, MetadataError, OSError) as error:
            why = str(error)
        except Exception as error:  # a bug here must not leave the others unrepaired
            _log.exception("repair of %s failed", damage)
            why = repr(error)
        self._known.pop((damage.ledger_id, damage.first), None)
        if stored:
            self._metrics.repaired_entries += stored
            _log.warning("repaired %d entries: %s", stored, damage)
        attempts = 0 if stored and not why else known.attempts + 1
        pause_s = min(_RETRY_FIRST_S * 2 ** (attempts - 1), _RETRY_MAX_S) if attempts else 0.0
        if rest and why != known.why:
            _log.error("not repaired: %s: %s", damage, why)
        if not rest and all(other.damage.path != damage.path for other in self._known.values()):
            # Nothing points to its damaged records any more: compaction may take the log.
            log_id = log_id_of(damage.path.rpartition("/")[2])
            self._bookie.storage.damaged_logs.pop(-1 if log_id is None else log_id, None)
        for each in rest:
            again = DamageRecord(each, why, attempts, self._loop.time() + pause_s)
            self._known[each.ledger_id, each.first] = again

    async def _repair_from_peers(self, damage: DamagedRange) -> tuple[list[DamagedRange], int, str]:
        """Repair a range: what of it is damaged still, entries repaired, why not more."""
        storage, ledger_id = self._bookie.storage, damage.ledger_id
        before = await self._check(ledger_id, range(damage.first, damage.end))
        rest = _overlapping(before, damage)
        if ledger_id not in storage.ledgers or not rest:
            return [], 0, ""  # deleted, or written again meanwhile
        if self._replica_source is None:
            return rest, 0, "there is no other copy"
        metadata = await self._replica_source.metadata(ledger_id)
        if metadata is None:
            return [], 0, ""  # deleted: the collector takes it away
        if storage.is_other(ledger_id, metadata.creator_token):
            return rest, 0, "two ledgers share the id, and the other one is elsewhere"
        owned = owned_entries(metadata, self._bookie.bookie_id, damage.first, damage.end)
        whole = list(range(damage.first, damage.end)) if owned is None else owned
        packets, reason = await self._fetch(self._replica_source, metadata, whole, damage.end)
        tag = record_format.make_tag(0, random.SystemRandom().getrandbits(32))
        copies = RepairCopies(ledger_id, packets, tag, whole)
        await self._bookie.run_maintenance(repair_steps(storage, copies))
        rest = _overlapping(await self._check(ledger_id, range(damage.first, damage.end)), damage)
        if rest and not reason and not copies.stored:
            reason = "the copies could not be stored"
        return rest, len(copies.stored), reason

    async def _fetch(
        self,
        replica_source: ReplicaSource,
        metadata: LedgerMetadata,
        wanted: Sequence[int],
        end: int,
    ) -> tuple[dict[int, bytes], str]:
        """Packets by entry, and why some of ``wanted`` could not be had."""
        packets: dict[int, bytes] = {}
        reasons: list[str] = []
        size = 0
        for entry_id in wanted:
            if entry_id in packets:
                continue
            fetched = await replica_source.fetch(metadata, entry_id, end)
            packets.update(enumerate(fetched.packets, entry_id))
            size += sum(map(len, fetched.packets))
            if fetched.reason:
                reasons.append(f"entry {entry_id}: {fetched.reason}")
            if len(reasons) > _REASONS_MAX or size > _COPY_BYTES_MAX or len(packets) > _COPIES_MAX:
                break
        return packets, "; ".join(reasons)


def owned_entries(
    metadata: LedgerMetadata, bookie_id: str, first: int, end: int
) -> list[int] | None:
    """Entries of ``first <= id < end`` that the bookie should hold by the metadata.

    None: not known, as the ledger still grows there or doesn't name the bookie.
    """
    owned: list[int] = []
    for fragment in fragments_of(metadata):
        if fragment.is_last and not fragment.is_closed and end > fragment.first_entry:
            return None
        if bookie_id in fragment.bookies:
            slot = fragment.bookies.index(bookie_id)
            for low, high in fragment.runs_of(slot):
                owned += range(max(low, first), min(high, end))
    return owned or None


def _overlapping(damages: Iterable[DamagedRange], wanted: DamagedRange) -> list[DamagedRange]:
    return [each for each in damages if each.first < wanted.end and wanted.first < each.end]
