"""Planted bugs of topic compaction: what is kept, in which order a run is published, and views.

``rotation.py`` plants them. Worlds are ``test_topic_compaction.py`` and tests of the two passes.
"""

from collections.abc import Callable
from typing import Any, Final

from magnetar.bookkeeper.transport import StoredRun
from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.compacted_view import CompactedLog
from magnetar.broker.compaction.compaction_process import CompactionWork
from magnetar.broker.compaction.latest_keys import LatestKeys, MessageBits
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.compaction.two_passes import TwoPasses
from magnetar.broker.compaction.work_frames import LocatedEntries
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.orphan_ledgers import COMPACTED_LEDGER
from magnetar.managed_ledger.position import Position
from tests.simulation import test_topic_compaction
from tests.simulation.plant import Bugs, Plant
from tests.simulation.simulator import run_simulation
from tests.simulation.test_topic_compaction import FAILURES, Failure
from tests.unit.broker.compaction import test_two_passes


def _passes(seed: int) -> None:
    test_two_passes.test_random_logs_in_one_run_in_several_and_with_little_memory(seed)


def _chunks(seed: int) -> None:
    test_two_passes.test_all_chunks_of_the_newest_message_stay()
    test_two_passes.test_chunks_of_a_message_that_is_not_complete_yet_stay()


def _owners(seed: int) -> None:
    run_simulation(seed, test_topic_compaction.come_and_go)


def _crash(seed: int) -> None:
    run_simulation(seed, lambda each: test_topic_compaction.crash_while_compacting(each, 10 + seed))


def _failures(seed: int) -> None:
    at, kind = divmod(seed, len(FAILURES))
    failure = Failure(*FAILURES[kind], at)
    run_simulation(
        at,
        lambda each: test_topic_compaction.fail_at(each, failure, dies="storage" in FAILURES[kind]),
    )


WORLDS: Final[dict[str, Callable[[int], None]]] = {
    "passes": _passes,
    "chunks": _chunks,
    "compacting owners": _owners,
    "crash while compacting": _crash,
    "failures": _failures,
}

BUGS: Final = Bugs(lambda world, seed: WORLDS[world](seed))
bug: Final = BUGS.of


# What is kept


@bug("passes")
def the_first_message_of_a_key_stays(plant: Plant) -> None:
    def add(self: LatestKeys, key: bytes, number: int, *, removes: bool) -> None:
        if key not in seen:
            old(self, key, number, removes=removes)
        seen.add(key)

    seen: set[bytes] = set()
    old = plant.set(LatestKeys, "add", add)


@bug("passes")
def a_key_that_was_removed_comes_back(plant: Plant) -> None:
    def add(self: LatestKeys, key: bytes, number: int, *, removes: bool) -> None:
        if not removes:
            old(self, key, number, removes=removes)

    old = plant.set(LatestKeys, "add", add)


@bug("passes")
def what_is_in_files_wins(plant: Plant) -> None:
    """The keys in memory are looked at as if they were older than those that went to files."""

    def finish(self: LatestKeys) -> MessageBits:
        for part in self._parts:
            part.seek(0)
            data = part.read()
            rows = [data[at : at + 24] for at in range(0, len(data), 24)]
            part.seek(0)
            part.write(b"".join(reversed(rows)))
        found: MessageBits = old(self)
        return found

    old = plant.set(LatestKeys, "finish", finish)


@bug("passes")
def messages_of_a_batch_share_a_number(plant: Plant) -> None:
    def contains(self: MessageBits, number: int) -> bool:
        return bool(old(self, number) or old(self, max(0, number - 1)))

    old = plant.set(MessageBits, "__contains__", contains)


@bug("chunks")
def only_the_last_chunk_stays(plant: Plant) -> None:
    plant.set(TwoPasses, "_is_complete", lambda self, chunk, number: chunk[1] == chunk[2] - 1)


# A run, and how it is published


@bug("crash while compacting", "compacting owners")
def the_old_ledger_is_deleted_first(plant: Plant) -> None:
    async def publish(self: Any, cursor: Cursor, new: CompactedLedger) -> None:
        if self.current is not None:
            await self._delete(self.current)
        await old(self, cursor, new)

    old = plant.set(TopicCompaction, "_publish", publish)


@bug("crash while compacting", "compacting owners")
def the_horizon_moves_before_the_ledger_is_named(plant: Plant) -> None:
    async def publish(self: Any, cursor: Cursor, new: CompactedLedger) -> None:
        cursor.ack_cumulative(new.horizon, dict(cursor.state.properties))
        await cursor.flush()
        cursor.ack_cumulative(new.horizon, {COMPACTED_LEDGER: new.ledger_id})
        await cursor.flush()
        self.current = new

    plant.set(TopicCompaction, "_publish", publish)


@bug("compacting owners")
def the_horizon_is_the_end_when_it_is_published(plant: Plant) -> None:
    async def publish(self: Any, cursor: Cursor, new: CompactedLedger) -> None:
        new.horizon = self.log.last_confirmed
        await old(self, cursor, new)

    old = plant.set(TopicCompaction, "_publish", publish)


@bug("failures", "compacting owners")
def the_ledger_goes_when_it_is_not_known_whether_the_cursor_names_it(plant: Plant) -> None:
    async def publish(self: Any, cursor: Cursor, new: CompactedLedger) -> None:
        try:
            await old(self, cursor, new)
        except BaseException:
            self._delete_later(new)
            raise

    old = plant.set(TopicCompaction, "_publish", publish)


@bug("failures", "compacting owners")
def a_run_reads_the_log_only(plant: Plant) -> None:
    async def give_all(self: Any, give: Any, compacted: Any, *positions: Position) -> None:
        await old(self, give, None, *positions)

    old = plant.set(TopicCompaction, "_give_all", give_all)


@bug("compacting owners", "failures")
def what_is_gone_counts_as_done(plant: Plant) -> None:
    """Entries whose file was compacted away by the time."""

    def on_run(self: Any, kind: int, ledger_id: int, run: StoredRun) -> list[Buffer]:
        found: list[Buffer] | None = old(self, kind, ledger_id, run)
        return found or []

    old = plant.set(CompactionWork, "on_run", on_run)


@bug("compacting owners", "failures")
def runs_behind_one_that_is_gone_are_done_twice(plant: Plant) -> None:
    def count(self: LocatedEntries, runs: int) -> int:
        found: int = old(self, max(runs - 1, 0) if runs < len(self.runs) else runs)
        return found

    old = plant.set(LocatedEntries, "count", count)


# Views


@bug("compacting owners")
def a_reader_stays_with_the_ledger_that_it_began_with(plant: Plant) -> None:
    def current(self: Any, position: Position) -> CompactedLedger | None:
        found: CompactedLedger | None = self._of or old(self, position)
        return None if found is None or position > found.horizon else found

    old = plant.set(CompactedLog, "_current", current)


@bug("compacting owners", "failures")
def behind_the_compacted_ledger_an_entry_is_left_out(plant: Plant) -> None:
    async def read(self: Any, position: Position, *limits: int) -> Any:
        compacted = self._compacted()
        if compacted is not None and position <= compacted.horizon:
            run = await compacted.read(await compacted.find(position), 1 << 20)
            if not run.batches:
                position = self.log.offsets.position_after(compacted.horizon, 2)
        return await old(self, position, *limits)

    old = plant.set(CompactedLog, "read", read)
