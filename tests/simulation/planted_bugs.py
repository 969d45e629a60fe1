"""Does the simulation bite? Bugs of ledgers and bookies, which ``rotation.py`` plants.

Most are defects that the original protocol has had (docs/spec/storage.md, "Defects"); some were
found here. The table is in docs/internals/simulation.md.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie import cookie, duplicate_adds, open_bookie
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.deferred_sync import DeferredAdds
from magnetar.bookkeeper.bookie.gc import compaction as compactions
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector, MetadataFreshnessCheck
from magnetar.bookkeeper.bookie.integrity import scrub as scrub
from magnetar.bookkeeper.bookie.integrity.integrity_check import IntegrityCheck
from magnetar.bookkeeper.bookie.integrity.integrity_service import IntegrityService
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import ledger_storage as storages
from magnetar.bookkeeper.bookie.storage.flush import replace_runs
from magnetar.bookkeeper.bookie.storage.ledger_descriptor import LedgerDescriptor as StoredState
from magnetar.bookkeeper.bookie.storage.location_runs import to_ranges
from magnetar.bookkeeper.client import async_ledger_recovery as recoveries
from magnetar.bookkeeper.client import async_ledger_writer as writers
from magnetar.bookkeeper.client import client, ledger_reader, quorum
from magnetar.bookkeeper.client.force_rounds import ForceRounds
from magnetar.bookkeeper.client.ledger_recovery import LedgerRecovery, RecoveryPhase, ReplaceBookies
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.ledger_writer import LedgerWriter
from magnetar.bookkeeper.client.pending_adds import PendingAdds, SendAdds
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.placement.zone_aware import ZoneAwarePlacement
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    with_segment,
)
from magnetar.bookkeeper.replication import ledger_repair
from magnetar.bookkeeper.replication import replicator as replicators
from magnetar.bookkeeper.replication.errors import TargetFailedError
from magnetar.bookkeeper.replication.ledger_checker import LedgerChecker
from magnetar.bookkeeper.replication.replicator import Replicator
from magnetar.bookkeeper.replication.zones import Zones
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.errors import OutcomeUnknownError
from tests.memory_file_system import MemoryFileSystem
from tests.simulation.plant import Bugs, Plant, Planter
from tests.simulation.worlds import (
    CLUSTER,
    DECAY,
    LATE_FORCES,
    PROTOCOL,
    RESTORED,
    RETURNS,
    SLOW_TARGET,
    SURVIVORS,
    ZONES,
    check_seed,
)

BUGS: Final = Bugs(check_seed)


def bug(world: str, defect: str) -> Callable[[Planter], Planter]:
    """``defect``: of docs/spec/storage.md, "Defects", or the heading of the broken rule."""
    return BUGS.of(world, defect=defect)


# Recovery


@bug(PROTOCOL, "#2614")
def recovery_reads_do_not_fence(plant: Plant) -> None:
    async def unfenced(self: Any, effect: Any) -> None:
        client = self._bookies.client(effect.bookie)
        reply = await client.read_entries(
            ReadRequest(self._ledger_id, effect.first, effect.count_max, 1 << 20)
        )
        self._core.on_read(effect, reply.code, reply.packets)
        self._perform()

    plant.set(recoveries._Attempt, "_read_entries", unfenced)


@bug(PROTOCOL, "#2615")
def no_floor_for_the_lac(plant: Plant) -> None:
    def begin_reading(self: Any) -> None:
        metadata = self.metadata
        first = metadata.last_segment.first_entry
        old(self)
        if self._lac < first - 1:
            self.base_lac = self._lac
            self._adds.last_written = self._lac
            self._effects.clear()
            self._ask(self._lac + 1)

    old = plant.set(LedgerRecovery, "_begin_reading", begin_reading)


@bug(PROTOCOL, "BOOKKEEPER-355, -581")
def recovery_publishes_its_segments_early(plant: Plant) -> None:
    stores: dict[int, LedgerStore] = {}

    async def recover(ledger_id: int, ledgers: LedgerStore, *rest: Any) -> Any:
        stores[ledger_id] = ledgers
        return await old_recover(ledger_id, ledgers, *rest)

    def perform(self: Any, effect: Any) -> None:
        old_perform(self, effect)
        segments = self._core._segments
        if isinstance(effect, ReplaceBookies) and segments:
            self._start(publish(self._ledger_id, segments[-1]))

    async def publish(ledger_id: int, segment: EnsembleSegment) -> None:
        def change(metadata: Any) -> Any:
            last = metadata.last_segment
            if metadata.state is not LedgerState.IN_RECOVERY or segment == last:
                return None
            return replace(metadata, segments=with_segment(metadata.segments, segment))

        await stores[ledger_id].update(ledger_id, change)

    old_recover = plant.set(recoveries, "recover_ledger", recover)
    plant.set(client, "recover_ledger", recover)
    old_perform = plant.set(recoveries._Attempt, "_perform_one", perform)


@bug(PROTOCOL, "BOOKKEEPER-365, #1067")
def absence_needs_all_replicas(plant: Plant) -> None:
    def init(self: Any, metadata: Any, *rest: Any, **named: Any) -> None:
        old(self, metadata, *rest, **named)
        self._absence_quorum = metadata.write_quorum

    old = plant.set(LedgerRecovery, "__init__", init)


@bug(PROTOCOL, "pulsar#6505")
def coverage_waits_for_all(plant: Plant) -> None:
    plant.set(quorum, "is_covered", lambda known, size, *_: len(known) == size)


@bug(PROTOCOL, "BOOKKEEPER-150")
def closed_before_it_is_written_again(plant: Plant) -> None:
    def finish(self: Any) -> None:
        self._adds.last_written = max(self._adds.last_written, self._end)
        old(self)

    old = plant.set(LedgerRecovery, "_finish_rewrites", finish)


@bug(PROTOCOL, "Quorums: unknown is never absent")
def no_answer_is_a_denial(plant: Plant) -> None:
    def on_read(self: Any, read: Any, code: int, packets: Any) -> None:
        old(self, read, codes.NO_ENTRY if code == codes.UNAVAILABLE else code, packets)

    old = plant.set(LedgerRecovery, "on_read", on_read)


@bug(PROTOCOL, "Quorums: a bad digest is never absent")
def a_damaged_copy_is_a_denial(plant: Plant) -> None:
    def on_read(self: Any, read: Any, code: int, packets: Any) -> None:
        bad = code == codes.OK and not self._intact_run(read.first, packets)
        old(self, read, codes.NO_ENTRY if bad else code, packets)

    old = plant.set(LedgerRecovery, "on_read", on_read)


@bug(PROTOCOL, "Recovery")
def length_of_another_entry(plant: Plant) -> None:
    def close(self: Any, length: int) -> None:
        if self.phase is RecoveryPhase.LENGTH and self._lengths:
            length = max(self._lengths.values())
        old(self, length)

    old = plant.set(LedgerRecovery, "_close", close)


@bug(PROTOCOL, "BOOKKEEPER-584")
def metadata_is_overwritten(plant: Plant) -> None:
    class Overwriting:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def put(self, path: str, value: bytes, expected: int | None = None) -> Any:
            is_change = expected is not None and expected >= 0
            return await self._store.put(path, value, None if is_change else expected)

    def init(self: Any, store: Any, *rest: Any) -> None:
        old(self, store, *rest)
        self._store = Overwriting(store)

    old = plant.set(LedgerStore, "__init__", init)


@bug(PROTOCOL, "Compare-and-set: an ambiguous write is read back")
def a_lost_answer_is_a_success(plant: Plant) -> None:
    class Trusting:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def put(self, path: str, value: bytes, expected: int | None = None) -> Any:
            try:
                return await self._store.put(path, value, expected)
            except OutcomeUnknownError:
                found = await self._store.get(path)
                if found is None:
                    raise
                return found

    def init(self: Any, store: Any, *rest: Any) -> None:
        old(self, store, *rest)
        self._store = Trusting(store)

    old = plant.set(LedgerStore, "__init__", init)


# The writer


@bug(PROTOCOL, "BOOKKEEPER-795")
def fenced_answers_are_ignored(plant: Plant) -> None:
    def on_add_done(self: Any, request: SendAdds, code: int) -> None:
        if code != codes.FENCED:
            old(self, request, code)

    old = plant.set(LedgerWriter, "on_add_done", on_add_done)


@bug(PROTOCOL, "#3005: late answers of replaced bookies")
def late_answers_count(plant: Plant) -> None:
    def on_stored(self: Any, request: SendAdds) -> bool:
        request.generation = self._generations[request.slot]
        return bool(old(self, request))

    old = plant.set(PendingAdds, "on_stored", on_stored)


@bug(PROTOCOL, "#4097: acks survive a replacement")
def a_newcomer_inherits_acks(plant: Plant) -> None:
    def replace_bookies(self: Any, bookies: Any, retry: Any = ()) -> None:
        acks = [batch.acks for batch in self.pending]
        old(self, bookies, retry)
        for batch, before in zip(self.pending, acks, strict=True):
            batch.acks = before

    old = plant.set(PendingAdds, "replace", replace_bookies)


@bug(PROTOCOL, "#4651: entries complete while the ensemble changes")
def confirmed_during_a_change(plant: Plant) -> None:
    def complete(self: Any) -> bool:
        frozen, self.frozen = self.frozen, False
        try:
            return bool(old(self))
        finally:
            self.frozen = frozen

    old = plant.set(PendingAdds, "complete", complete)


@bug(PROTOCOL, "#4557: the queue stalls")
def the_queue_stalls(plant: Plant) -> None:
    """Who is answered looks at the head only: what was complete behind it waits for ever."""

    def complete(self: Any) -> bool:
        rest = self.pending[1:]
        del self.pending[1:]
        try:
            return bool(old(self))
        finally:
            self.pending += rest

    old = plant.set(PendingAdds, "complete", complete)


@bug(PROTOCOL, "Ledger states: a writer that meets IN_RECOVERY is fenced")
def the_writer_closes_in_spite_of_a_recovery(plant: Plant) -> None:
    def close(metadata: Any, last_entry: int, length: int) -> Any:
        if metadata.state is LedgerState.IN_RECOVERY:
            metadata = replace(metadata, state=LedgerState.OPEN)
        return old(metadata, last_entry, length)

    old = plant.set(writers, "close_by_writer", close)


# Readers


@bug(CLUSTER, "Reads: digests are checked")
def readers_show_damaged_bytes(plant: Plant) -> None:
    def split(_: int, __: int, packets: Any, ___: Any) -> Any:
        return [bytes(p[36:]) for p in packets]

    plant.set(ledger_reader, "split_packets", split)
    plant.set(Bookie, "_read", _read_unchecked)


async def _read_unchecked(self: Any, state: Any, first: int, count: int, size: int) -> Any:
    """As a bookie that trusts its disk."""
    storage, ledger_id = self.storage, state.ledger_id
    packets = storage.read_cached(ledger_id, first, count, size)
    run = None if packets else storage.find_run(ledger_id, first)
    if run is not None:
        name = f"entry-log/{run.log_id:016x}.log"
        at = run.offset + sum(s + 16 for s in run.sizes[: first - run.first] if s) + 16
        data = storage.file_system.open(name).pread(run.sizes[first - run.first], at)
        packets = [data]
    if packets:
        return codes.OK, packets
    return (codes.UNKNOWN_LEDGER_STATE if state.limbo else codes.NO_ENTRY), []


# Bookies


@bug(CLUSTER, "BOOKKEEPER-135")
def any_password_will_do(plant: Plant) -> None:
    plant.set(storages, "_accepts", lambda state, key: True)


@bug(CLUSTER, "BOOKKEEPER-500, -815")
def a_restart_forgets_fences(plant: Plant) -> None:
    def from_record(cls: Any, ledger_id: int, record: Any) -> Any:
        state = old(cls, ledger_id, record)
        state.fenced = state.fence_durable = False
        return state

    old = plant.set(StoredState, "from_record", classmethod(from_record))


@bug(CLUSTER, "#2612, #1380: a bookie that lost its disk answers as if it hadn't")
def no_limbo(plant: Plant) -> None:
    plant.set(storages.LedgerStorage, "set_limbo", lambda self, *_: None)
    plant.set(storages.LedgerStorage, "is_unknown", lambda self, _: False)


@bug(CLUSTER, "limbo ends before anything was copied")
def limbo_ends_at_once(plant: Plant) -> None:
    async def fill(self: Any, metadata: Any, **_: Any) -> str:
        return ""

    plant.set(IntegrityCheck, "_fill", fill)


@bug(CLUSTER, "a start in the middle of limbo")
def limbo_is_not_finished(plant: Plant) -> None:
    async def skip(bookie: Any, ledgers: Any) -> None:
        return

    plant.set(open_bookie, "enter_limbo", skip)


@bug(DECAY, "#2908")
def damage_is_no_entry(plant: Plant) -> None:
    async def read(self: Any, *arguments: Any) -> Any:
        code, packets = await old(self, *arguments)
        return (codes.NO_ENTRY if code == codes.IO_ERROR else code), packets

    old = plant.set(Bookie, "_read", read)


@bug(CLUSTER, "Bookies: acknowledged before it is synced")
def the_journal_is_not_synced(plant: Plant) -> None:
    plant.set(MemoryFileSystem, "ignores", lambda self, point: point == "journal.group")


@bug(CLUSTER, "#4105, PR #2983: the mark is ahead of the data")
def the_mark_is_ahead(plant: Plant) -> None:
    plant.set(MemoryFileSystem, "ignores", lambda self, point: point == "entry-log.data")


@bug(CLUSTER, "BOOKKEEPER-530")
def compaction_drops_entries(plant: Plant) -> None:
    def move(storage: Any, ledger_id: int, first: int, *rest: Any) -> int:
        if first % 3 == 0:
            return int(old(storage, ledger_id, first, *rest))
        key = index_format.run_key(ledger_id, first)
        _, run = index_format.decode_run(key, storage.index.get(key))
        _, changes, live_delta = rest
        replace_runs(ledger_id, [run], [], changes, live_delta)
        return run.bytes

    old = plant.set(compactions, "_move_run", move)


@bug(CLUSTER, "Garbage collection: PR #4607: live data is collected")
def collection_believes_an_old_listing(plant: Plant) -> None:
    async def check(self: Any) -> None:
        return

    plant.set(MetadataFreshnessCheck, "check", check)


@bug(CLUSTER, "Cookies: cookies")
def any_disk_will_do(plant: Plant) -> None:
    async def check(
        files: Any, store: Any, bookie_id: str, *, accept_data_loss: bool, **more: Any
    ) -> Any:
        local = cookie.read_local_cookie(files)
        if local is not None and local.state is cookie.DirectoryState.COMPLETE:
            return local
        return await old(files, store, bookie_id, accept_data_loss=True, **more)

    old = plant.set(cookie, "check_cookie", check)


@bug(CLUSTER, "Last confirmed entry: an explicit LAC goes back when an old one comes late")
def an_explicit_lac_goes_back(plant: Plant) -> None:
    def write_lac(self: Any, ledger_id: int, key: bytes, lac: int, *rest: Any) -> int:
        code = int(old(self, ledger_id, key, lac, *rest))
        if code == codes.OK:
            self.ledgers[ledger_id].explicit_lac = lac
        return code

    old = plant.set(storages.LedgerStorage, "write_lac", write_lac)


@bug(CLUSTER, "Last confirmed entry: an explicit LAC is lost in a restart")
def a_restart_forgets_explicit_lacs(plant: Plant) -> None:
    def from_record(cls: Any, ledger_id: int, record: Any) -> Any:
        state = old(cls, ledger_id, record)
        state.explicit_lac = -1
        return state

    old = plant.set(StoredState, "from_record", classmethod(from_record))


# Deferred adds


@bug(CLUSTER, "Adds: a bookie vouches for what it lost in a restart")
def a_restarted_bookie_vouches(plant: Plant) -> None:
    async def force(self: Any, ledger_id: int, first: int) -> int:
        self._first[ledger_id] = min(first, self._first.get(ledger_id, first))
        return int(await old(self, ledger_id, first))

    old = plant.set(DeferredAdds, "force", force)


@bug(CLUSTER, "Adds: a force that doesn't wait for the disk")
def a_force_does_not_wait(plant: Plant) -> None:
    async def force(self: Any, ledger_id: int, first: int) -> int:
        return codes.OK

    plant.set(DeferredAdds, "force", force)


@bug(LATE_FORCES, "found here: a late answer counts for the next force")
def late_answers_to_forces_count(plant: Plant) -> None:
    def on_answer(self: Any, sent: Any, is_ok: bool, adds: Any) -> Any:
        number = 0 if self._round is None else self._round.number
        return old(self, replace(sent, number=number), is_ok, adds)

    old = plant.set(ForceRounds, "on_answer", on_answer)


# Repairs


@bug(CLUSTER, "Repair: a marker is cleared after the repair")
def markers_are_cleared_unrepaired(plant: Plant) -> None:
    async def clear(self: Any, marker: Any, metadata: Any) -> Any:
        return await self._clear(marker)

    plant.set(ledger_repair._Attempt, "_round", clear)


@bug(RETURNS, "Repair: an open segment isn't compared")
def who_came_back_is_believed(plant: Plant) -> None:
    async def behind(self: Any, metadata: Any, named: Any) -> list[Any]:
        return []

    plant.set(LedgerChecker, "behind", behind)


@bug(CLUSTER, "Repair: copied before it is listed")
def the_target_is_listed_first(plant: Plant) -> None:
    async def fill(self: Any, *_: Any) -> None:
        return

    plant.set(Replicator, "fill", fill)


@bug(CLUSTER, "Repair: a target that stays busy is counted as written")
def a_busy_target_counts_as_written(plant: Plant) -> None:
    async def finish(self: Any, *arguments: Any) -> None:
        try:
            await old(self, *arguments)
        except TargetFailedError as error:
            if codes.code_name(codes.TOO_MANY_REQUESTS) not in str(error):
                raise

    old = plant.set(Replicator, "_finish", finish)


@bug(CLUSTER, "PR #4163")
def repairs_respect_the_fence(plant: Plant) -> None:
    def request(*arguments: Any, **named: Any) -> Any:
        made = old(*arguments, **named)
        made.recovery = False
        return made

    old = plant.set(replicators, "AddRequest", request)


@bug(SLOW_TARGET, "found here: counted as a copy before it is durable")
def listed_before_it_is_durable(plant: Plant) -> None:
    async def held(self: Any, ledger_id: int) -> Any:
        runs = self.storage.stored_runs(ledger_id)
        ids = self.storage.cached_ids(ledger_id)
        return to_ranges(ids.union(*(run.entry_ids() for run in runs)))

    plant.set(Bookie, "held_entries", held)


@bug(DECAY, "Limbo: scrub")
def the_scrub_is_blind(plant: Plant) -> None:
    plant.set(scrub, "find_damage", lambda *_: [])
    plant.set(IntegrityService, "on_damaged", lambda self, *_: None)
    plant.set(IntegrityService, "on_report", lambda self, *_: True)


@bug(CLUSTER, "Zones")
def replacements_ignore_zones(plant: Plant) -> None:
    def choose(self: Any, *arguments: Any) -> Any:
        return RandomPlacement(self._selection).replace_bookie(*arguments)

    plant.set(ZoneAwarePlacement, "replace_bookie", choose)


@bug(ZONES, "Lost zones")
def a_zone_is_repaired_at_once(plant: Plant) -> None:
    plant.set(Zones, "on_counts", lambda self, *_: [])


# Two ledgers with one id


@bug(RESTORED, "0034: a ledger is its creator's")
def whoever_comes_gets_the_ledger(plant: Plant) -> None:
    plant.set(StoredState, "is_of", lambda *_: True)


@bug(RESTORED, "0034")
def recovery_does_not_say_whose_ledger_it_reads(plant: Plant) -> None:
    def init(self: Any, *rest: Any) -> None:
        old(self, *rest)
        self._creator = 0

    old = plant.set(recoveries._Attempt, "__init__", init)


@bug(RESTORED, "0034")
def a_recovery_writes_for_whoever_has_the_id(plant: Plant) -> None:
    def init(self: Any, *rest: Any, **named: Any) -> None:
        old(self, *rest, **{**named, "creator": 0})

    old = plant.set(PendingAdds, "__init__", init)


@bug(RESTORED, "0034: what is stored stays")
def the_newest_payload_wins(plant: Plant) -> None:
    plant.set(duplicate_adds, "is_same_entry", lambda *_: True)


@bug(RESTORED, "0034: what is stored stays")
def only_memory_is_compared(plant: Plant) -> None:
    def init(self: Any, *rest: Any) -> None:
        old(self, *rest)
        self._missing = []

    old = plant.set(duplicate_adds.DuplicateCheck, "__init__", init)


@bug(RESTORED, "0034: old journals and indexes")
def a_restart_forgets_creators(plant: Plant) -> None:
    def journal(self: Any, state: Any, waiting: Any = None) -> None:
        creator, state.creator = state.creator, 0
        old(self, state, waiting)
        state.creator = creator

    old = plant.set(storages.LedgerStorage, "_journal_creator", journal)


@bug(RESTORED, "0034: ids in dispute")
def ids_in_dispute_are_collected(plant: Plant) -> None:
    async def drop(self: Any, ledger_ids: Any) -> Any:
        for ledger_id in ledger_ids:
            if (state := self._bookie.storage.ledgers.get(ledger_id)) is not None:
                state.disputed = False
        return await old(self, ledger_ids)

    old = plant.set(GarbageCollector, "_drop", drop)


@bug(RESTORED, "0034: ids in dispute")
def disputes_are_told_before_they_are_durable(plant: Plant) -> None:
    def note(self: Any, ledger_id: int, waiting: Any = None) -> bool:
        if not old(self, ledger_id):
            return False
        if waiting is not None:
            asyncio.get_running_loop().call_soon(waiting, codes.OK)
        return True

    old = plant.set(storages.LedgerStorage, "note_dispute", note)


@bug(RESTORED, "0034: ids in dispute")
def a_restart_forgets_disputes(plant: Plant) -> None:
    def journal(self: Any, state: Any, waiting: Any = None) -> None:
        disputed, state.disputed = state.disputed, False
        old(self, state, waiting)
        state.disputed = disputed

    old = plant.set(storages.LedgerStorage, "_journal_creator", journal)


@bug(RESTORED, "0034: what is stored stays")
def the_last_entry_on_disk_is_not_compared(plant: Plant) -> None:
    def init(self: Any, storage: Any, request: Any) -> None:
        old(self, storage, request)
        last = storage.ledgers[request.ledger_id].flushed_last
        self._missing = [at for at in self._missing if request.entry_ids[at] != last]

    old = plant.set(duplicate_adds.DuplicateCheck, "__init__", init)


@bug(SURVIVORS, "0034: handles of the first ledger")
def any_node_of_the_id_is_changed(plant: Plant) -> None:
    plant.set(LedgerMetadata, "require_creator", lambda *_: None)
