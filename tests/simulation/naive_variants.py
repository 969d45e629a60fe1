"""The naive implementation of each row of the defect catalogue, and the tests that fail on it.

``python -m tests.simulation.naive_variants [--only NAME]``

A row (docs/spec/storage.md, "Defects") is a defect that the original protocol has had. Each variant
here is such a defect, planted into the product's code; each of its tests is then run as pytest runs
it, and must fail. ``test_tables.py`` asks that every test of every row is tried so. Bugs that a
whole simulation has to find are in ``planted_bugs.py``; those that a test notices at once are used
from there.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.gc import garbage_collector as garbage_collector
from magnetar.bookkeeper.bookie.gc import garbage_scan as garbage_scan
from magnetar.bookkeeper.bookie.journal import journal_reader as journal_reader
from magnetar.bookkeeper.bookie.storage import flush as flush
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage import storage_startup as storage_startup
from magnetar.bookkeeper.bookie.storage.directories import MultiDirFileSystem
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.client import ledger_store, quorum
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.explicit_lac import ExplicitLac
from magnetar.bookkeeper.client.ledger_recovery import LedgerRecovery
from magnetar.bookkeeper.client.ledger_tail import LedgerTail
from magnetar.bookkeeper.client.ledger_writer import LedgerWriter
from magnetar.bookkeeper.client.pending_adds import PendingAdds
from magnetar.bookkeeper.errors import CorruptFileError
from tests.memory_file_system import MemoryFile
from tests.simulation.plant import Plant
from tests.simulation.planted_bugs import BUGS

_ROOT: Final = Path(__file__).parents[2]
_CLIENT: Final = "unit/bookkeeper/client"
_DEFECTS: Final = f"{_CLIENT}/test_known_defects.py"
_WRITER: Final = f"{_CLIENT}/test_ledger_writer.py"
_SHELL: Final = f"{_CLIENT}/test_client.py"
_BOOKIE: Final = "integration/test_bookkeeper_bookie.py"
_INTEGRITY: Final = "integration/test_bookkeeper_integrity.py"
_DISK: Final = "simulation/test_bookie_disk_faults.py"
_POWER: Final = "simulation/test_bookie_power_loss.py"
_COMPACTION: Final = "simulation/test_bookie_compaction.py"

_PYTEST: Final = (
    *("-x", "-p", "no:cacheprovider"),
    # What is planted was imported before pytest was asked to look at its assertions.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)

#: A test that ends with one of these met a plant that doesn't fit the code any more.
_BROKEN_PLANT: Final = (TypeError, AttributeError, NameError, ImportError)


@dataclass(frozen=True)
class Variant:
    """``tests``: below tests/, as ``test_tables.py`` names them."""

    row: str
    plant: Callable[[Plant], None]
    tests: tuple[str, ...]


VARIANTS: Final[dict[str, Variant]] = {}


def naive(row: str, *tests: str) -> Callable[[Callable[[Plant], None]], Callable[[Plant], None]]:
    def register(plant: Callable[[Plant], None]) -> Callable[[Plant], None]:
        VARIANTS[plant.__name__] = Variant(row, plant, tests)
        return plant

    return register


def as_planted(row: str, bug: str, *tests: str) -> None:
    """A bug of the simulation that these tests notice, too."""
    VARIANTS[f"{bug}: {row}"] = Variant(row, BUGS[bug].plant, tests)


# Recovery

as_planted("#2614", "recovery_reads_do_not_fence", f"{_DEFECTS}::test_recovery_reads_fence")
as_planted(
    "#2615",
    "no_floor_for_the_lac",
    f"{_DEFECTS}::test_a_brand_new_last_segment_starts_at_its_floor",
)
as_planted(
    "BOOKKEEPER-355, -581",
    "recovery_publishes_its_segments_early",
    "simulation/test_ledger_protocol.py::test_ledger_protocol",
)
as_planted(
    "BOOKKEEPER-365, #1067",
    "absence_needs_all_replicas",
    f"{_DEFECTS}::test_absence_needs_only_qf_negatives",
)
as_planted(
    "pulsar#6505",
    "coverage_waits_for_all",
    f"{_DEFECTS}::test_coverage_counts_silent_bookies_per_write_set",
)
as_planted(
    "BOOKKEEPER-150",
    "closed_before_it_is_written_again",
    f"{_DEFECTS}::test_close_waits_for_the_rewrites",
)


@naive("BOOKKEEPER-355, -581", f"{_DEFECTS}::test_private_segments_until_the_close")
def reads_go_by_private_segments(plant: Plant) -> None:
    def on_replacements(self: Any, replacements: Any) -> None:
        old(self, replacements)
        self._bookies = tuple(self._adds.bookies)

    old = plant.set(LedgerRecovery, "on_replacements", on_replacements)


@naive("BOOKKEEPER-150", f"{_DEFECTS}::test_too_few_rewrites_abort")
def recovery_goes_on_with_too_few_bookies(plant: Plant) -> None:
    def give_up(self: Any, slots: Any) -> bool:
        old(self, slots)
        return True

    old = plant.set(PendingAdds, "give_up", give_up)


@naive("#3952", f"{_DEFECTS}::test_two_copies_one_ack_cannot_recover_with_one_down")
def one_denial_is_enough(plant: Plant) -> None:
    plant.set(quorum, "absence_quorum", lambda *_: 1)
    plant.set(quorum, "is_covered", lambda known, *_: bool(known))


# Metadata

as_planted(
    "BOOKKEEPER-584, -112",
    "metadata_is_overwritten",
    f"{_DEFECTS}::test_repair_of_an_open_ledger_does_not_stop_its_writer",
    f"{_CLIENT}/test_ledger_store.py::test_conflict_applies_the_change_to_what_is_stored",
)


@naive(
    "BOOKKEEPER-584, -112",
    f"{_DEFECTS}::test_repair_of_an_open_ledger_does_not_stop_its_writer",
    f"{_CLIENT}/test_ledger_store.py::test_conflict_applies_the_change_to_what_is_stored",
)
def a_conflict_is_fatal(plant: Plant) -> None:
    plant.set(ledger_store, "ATTEMPTS_MAX", 1)


# Fences and lost data

as_planted("BOOKKEEPER-135", "any_password_will_do", f"{_BOOKIE}::test_fencing_needs_the_password")
as_planted(
    "BOOKKEEPER-500, -815",
    "a_restart_forgets_fences",
    f"{_BOOKIE}::test_a_fence_survives_a_restart",
)
as_planted(
    "#2612, BP-46",
    "no_limbo",
    f"{_BOOKIE}::test_an_empty_disk_accepted_by_the_operator_is_in_limbo",
)
as_planted(
    "#1380", "no_limbo", f"{_INTEGRITY}::test_an_empty_disk_denies_nothing_and_is_filled_again"
)


@naive("BOOKKEEPER-500, -815", f"{_POWER}::test_nothing_acknowledged_is_lost")
def fences_are_not_replayed(plant: Plant) -> None:
    def apply(self: Any, record: Any) -> None:
        if record.kind != record_format.FENCE:
            old(self, record)

    old = plant.set(storage_startup._Replay, "apply", apply)


def _unknown_is_a_no(plant: Plant) -> None:
    def is_explicit_negative(code: int) -> bool:
        return bool(old(code)) or code == codes.UNKNOWN_LEDGER_STATE

    old = plant.set(codes, "is_explicit_negative", is_explicit_negative)


_EMPTY: Final = f"{_DEFECTS}::test_an_empty_bookie_in_limbo_hides_nothing"
_LOST: Final = f"{_INTEGRITY}::test_a_lost_disk_must_not_help_to_end_a_ledger_early"
VARIANTS["unknown_is_a_no: #2612"] = Variant("#2612, BP-46", _unknown_is_a_no, (_EMPTY, _LOST))
VARIANTS["unknown_is_a_no: #1380"] = Variant("#1380", _unknown_is_a_no, (_EMPTY,))


@naive(
    "#2908",
    f"{_DISK}::test_a_flipped_bit_in_an_entry_log_is_an_error_and_never_a_missing_entry",
    f"{_DISK}::test_a_flipped_bit_in_any_index_value_is_refused_or_an_error",
)
def damaged_records_are_missing(plant: Plant) -> None:
    def read_stored(self: Any, *arguments: Any) -> Any:
        try:
            return old(self, *arguments)
        except CorruptFileError:
            return []

    old = plant.set(LedgerStorage, "read_stored", read_stored)


@naive(
    "PR #4462",
    "integration/test_bookkeeper_collection.py"
    "::test_a_ledger_deleted_while_it_is_written_stays_deleted",
)
def deleted_ledgers_are_unknown_ones(plant: Plant) -> None:
    def add(self: Any, request: Any, **options: Any) -> int:
        self.deleted.pop(request.ledger_id, None)
        return int(old(self, request, **options))

    old = plant.set(LedgerStorage, "add", add)


# Last-add-confirmed


@naive("#2747, #2709", f"{_DEFECTS}::test_an_idle_writers_last_entry_becomes_visible")
def idle_writers_tell_nobody(plant: Plant) -> None:
    async def wait(self: Any, above: int, timeout_s: float) -> int:
        return int(await old(self, above, min(timeout_s, 1.0)))  # what never comes isn't waited for

    plant.set(ExplicitLac, "on_confirmed", lambda _: None)
    old = plant.set(LedgerTail, "wait", wait)


@naive("#2747, #2709", f"{_DEFECTS}::test_an_explicit_lac_counts")
def recoveries_ignore_explicit_lacs(plant: Plant) -> None:
    def on_lac(self: Any, slot: int, code: int, last_packet: Any, _: int) -> None:
        old(self, slot, code, last_packet, -1)

    old = plant.set(LedgerRecovery, "on_lac", on_lac)


@naive("PR #3917", f"{_DEFECTS}::test_a_lagging_lac_hides_no_earlier_segment")
def the_bound_is_what_bookies_say(plant: Plant) -> None:
    async def read_metadata(self: Any) -> None:
        before = self._last_confirmed
        await old(self)
        if not self.is_closed:
            self._last_confirmed = before

    old = plant.set(LedgerTail, "_read_metadata", read_metadata)


# Re-writes and repairs


@naive("PR #4163", f"{_DEFECTS}::test_rewrites_carry_the_recovery_flag")
def rewrites_respect_the_fence(plant: Plant) -> None:
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        old(self, *arguments, **{**named, "recovery": False})

    old = plant.set(PendingAdds, "__init__", init)


as_planted(
    "PR #4163",
    "repairs_respect_the_fence",
    "unit/bookkeeper/replication/test_worker.py::test_a_fenced_bookie_gets_its_entries_back",
)


# The writer


@naive("#1390, #1395, #1591", f"{_WRITER}::test_failure_after_the_quorum_waits_for_the_next_append")
def late_failures_are_forgotten(plant: Plant) -> None:
    def on_failure(self: Any, request: Any, code: int) -> None:
        if not self.is_satisfied(request.batch):
            old(self, request, code)

    old = plant.set(LedgerWriter, "_on_failure", on_failure)


as_planted(
    "#3005", "late_answers_count", f"{_WRITER}::test_late_answers_of_a_removed_bookie_are_ignored"
)
as_planted(
    "#4097",
    "a_newcomer_inherits_acks",
    f"{_WRITER}::test_a_replaced_bookies_acks_are_cleared_even_at_the_quorum",
)
as_planted(
    "#4651",
    "confirmed_during_a_change",
    f"{_WRITER}::test_failure_before_the_quorum_changes_the_ensemble_at_once",
)


@naive("#4261", f"{_WRITER}::test_failures_during_a_change_make_a_second_change_with_the_same_key")
def failures_during_a_change_are_dropped(plant: Plant) -> None:
    def on_failure(self: Any, request: Any, code: int) -> None:
        if not self.frozen:
            old(self, request, code)

    old = plant.set(LedgerWriter, "_on_failure", on_failure)


@naive("#4261", f"{_WRITER}::test_partial_replacement_tries_the_rest_again")
def who_stays_gets_nothing_again(plant: Plant) -> None:
    def replace(self: Any, bookies: Any, retry: Any = ()) -> None:
        for slot in retry:
            self.failed.pop(slot, None)
        self._find_live()
        old(self, bookies)

    old = plant.set(PendingAdds, "replace", replace)


@naive("#4557", f"{_SHELL}::test_answers_of_one_tick_are_one_watermark")
def owners_are_called_amid_the_answers(plant: Plant) -> None:
    def on_add_done(self: Any, request: Any, code: int) -> None:
        old(self, request, code)
        if self._core.has_effects:
            self._run()

    old = plant.set(AsyncLedgerWriter, "_on_add_done", on_add_done)


as_planted(
    "#4557",
    "the_queue_stalls",
    f"{_WRITER}::test_confirms_in_order_at_the_quorum",
    f"{_SHELL}::test_an_owner_that_appends_while_it_is_told_stalls_nothing",
)
as_planted(
    "BOOKKEEPER-795",
    "fenced_answers_are_ignored",
    f"{_WRITER}::test_fenced_fails_everything_pending",
)


# A bookie's disk

_MARKS: Final = "#4105, PR #2983, PR #3329, BOOKKEEPER-636"
_SEVERAL: Final = f"{_POWER}::test_nothing_acknowledged_is_lost_with_several_ledger_directories"
as_planted(_MARKS, "the_mark_is_ahead", f"{_POWER}::test_nothing_acknowledged_is_lost")


@naive(_MARKS, f"{_POWER}::test_nothing_acknowledged_is_lost")
def the_mark_moves_backwards(plant: Plant) -> None:
    """#4105: by a segment, whose file was removed by the checkpoint before."""

    def encode_mark(mark: Any, journal: int = 0) -> Any:
        return old((max(1, mark[0] - 1), 0), journal)

    old = plant.set(index_format, "encode_mark", encode_mark)


@naive(_MARKS, f"{_POWER}::test_nothing_acknowledged_is_lost")
def the_mark_does_not_wait_for_the_sync(plant: Plant) -> None:
    """PR #2983."""
    plant.set(LedgerStorage, "flush_is_ready", lambda self, job: True)


@naive(
    _MARKS,
    f"{_POWER}::test_nothing_acknowledged_is_lost",
    f"{_POWER}::test_nothing_acknowledged_is_lost_with_several_journals",
)
def the_marked_journal_file_is_removed(plant: Plant) -> None:
    """BOOKKEEPER-636."""

    def retire(files: Any, mark: Any, *rest: Any) -> None:
        old(files, (mark[0] + 1, 0), *rest)

    old = plant.set(flush, "retire_segments", retire)


@naive(_MARKS, _SEVERAL)
def the_mark_is_ahead_of_other_directories(plant: Plant) -> None:
    """PR #3329: it follows the flush of the first directory."""

    def sync(self: Any, sync_point: str) -> None:
        if not self._inode.path.startswith("disk-"):
            old(self, sync_point)

    old = plant.set(MemoryFile, "sync", sync)


@naive(_MARKS, _SEVERAL)
def names_in_other_directories_are_not_synced(plant: Plant) -> None:
    """PR #3329, of the directories themselves."""

    def sync_dir(self: Any, path: str, sync_point: str) -> None:
        self._main.sync_dir(path, sync_point)

    plant.set(MultiDirFileSystem, "sync_dir", sync_dir)


@naive("PR #4607", f"{_COMPACTION}::test_compaction_keeps_what_lives_and_frees_the_rest")
def a_live_log_is_taken_for_garbage(plant: Plant) -> None:
    def remove_unreferenced_logs(storage: Any) -> Any:
        """As with another log's map in the shared buffer."""
        logs = storage.logs.logs
        min(logs.values(), key=lambda log: log.live or 1 << 60).live = 0
        return old(storage)

    old = plant.set(garbage_scan, "remove_unreferenced_logs", remove_unreferenced_logs)


@naive("PR #4607", f"{_BOOKIE}::test_collection_deletes_nothing_without_proof")
def what_a_listing_misses_is_deleted(plant: Plant) -> None:
    async def find(local: set[int], registry: Any) -> list[int]:
        listed: set[int] = set()
        async for found in registry.ranges():
            listed.update(found.ledger_ids)
        return sorted(local - listed)

    plant.set(garbage_collector, "find_deleted_ledgers", find)


as_planted(
    "BOOKKEEPER-530",
    "compaction_drops_entries",
    f"{_COMPACTION}::test_power_fails_in_every_call_of_a_compaction",
    f"{_COMPACTION}::test_a_flush_or_a_deletion_between_any_two_steps",
)


@naive("BOOKKEEPER-62, -166", f"{_DISK}::test_a_torn_tail_at_every_byte_keeps_all_groups_before")
def a_torn_tail_is_damage(plant: Plant) -> None:
    def check_tail(file: Any, header: Any, path: str, offset: int, *_: Any) -> None:
        raise CorruptFileError(path, offset, "an unreadable group")

    plant.set(journal_reader, "_check_tail", check_tail)


@naive(
    "BOOKKEEPER-62, -166",
    f"{_DISK}::test_a_flipped_bit_in_the_middle_of_the_journal_is_refused_by_name_and_offset",
)
def damage_is_a_torn_tail(plant: Plant) -> None:
    plant.set(journal_reader, "_check_tail", lambda *_: None)


class _Failures:
    """A pytest plugin: how tests failed."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []
        self.elsewhere = ""  # an error before the test itself

    def pytest_exception_interact(self, node: Any, call: pytest.CallInfo[Any], report: Any) -> None:
        assert call.excinfo is not None
        if call.when == "call":
            self.found.append(call.excinfo.value)
        else:
            self.elsewhere = f"{node.nodeid}: {call.excinfo.value!r}"


def verdict(variant: Variant, test: str) -> str:
    """ "": the test fails on the variant, as it should; else what is wrong."""
    plant, failures, output = Plant(), _Failures(), io.StringIO()
    try:
        variant.plant(plant)
        with contextlib.redirect_stdout(output):
            ended = pytest.main([*_PYTEST, str(_ROOT / "tests" / test)], [failures])
    finally:
        plant.undo()
    if failures.found and isinstance(failures.found[0], _BROKEN_PLANT):
        return f"the plant doesn't fit: {failures.found[0]!r}"
    if ended == pytest.ExitCode.TESTS_FAILED and failures.found:
        return ""
    return failures.elsewhere or f"it passes ({ended!r})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.naive_variants")
    parser.add_argument("--only", choices=list(VARIANTS))
    wanted = parser.parse_args().only
    chosen = {n: v for n, v in VARIANTS.items() if wanted in (None, n)}
    for test in {test for variant in chosen.values() for test in variant.tests}:
        # Before anything is planted: what a module takes by name would stay in it.
        path = Path("tests") / test.partition("::")[0]
        importlib.import_module(".".join(path.with_suffix("").parts))
    for name, variant in chosen.items():
        for test in variant.tests:
            print(json.dumps([name, test, verdict(variant, test)]), flush=True)
    sys.stdout.flush()
    os._exit(0)  # tests that failed may have left threads behind


if __name__ == "__main__":
    main()
