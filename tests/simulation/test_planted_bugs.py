"""The judges aren't blind: bugs that few seeds suffice for are planted and must be noticed.

The others take turns: ``test_rotation.py``.
"""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.plant import planted
from tests.simulation.rotation import LISTS, WORLD, search

BUGS = LISTS["bookkeeper"]
#: Found by one of the first seeds, so that CI can afford them.
QUICK = (
    *("recovery_reads_do_not_fence", "recovery_publishes_its_segments_early"),
    *("absence_needs_all_replicas", "coverage_waits_for_all", "no_answer_is_a_denial"),
    *("length_of_another_entry", "metadata_is_overwritten", "a_newcomer_inherits_acks"),
    *("confirmed_during_a_change", "any_password_will_do", "a_restart_forgets_fences"),
    *("no_limbo", "whoever_comes_gets_the_ledger", "recovery_does_not_say_whose_ledger_it_reads"),
    *("a_recovery_writes_for_whoever_has_the_id", "the_newest_payload_wins"),
    *("only_memory_is_compared", "a_restart_forgets_creators", "ids_in_dispute_are_collected"),
)
QUICK_MANAGED = (
    *("the_cursor_node_is_not_written_by_the_next_owner",),
    *("the_cursor_node_is_taken_without_a_condition", "a_cursor_rewinds_on_a_transient_error"),
    *("the_node_names_a_cursor_ledger_without_a_snapshot",),
    *("the_old_cursor_ledger_is_deleted_first", "acknowledged_when_sent"),
    *("a_new_cursor_ledger_begins_without_the_holes",),
    *("whoever_took_the_cursor_node_last_has_the_log", "a_reset_leaves_the_node_ahead"),
    *("acknowledgements_without_receipt_stay_unstored", "a_close_drops_what_nobody_waits_for"),
    *("what_is_acknowledged_between_slices_is_in_no_increment",),
    *("a_chunk_is_deleted_before_the_node_lets_go_of_it",),
    *("the_node_is_written_before_its_chunk_is_stored",),
    *("a_chunk_that_may_yet_be_named_is_collected", "chunks_of_crashed_owners_stay"),
    *("bookies_forget_before_the_list_says_so", "a_copy_is_called_complete_when_it_begins"),
    *("a_doomed_copy_that_comes_late_stays", "trimmed_by_the_position_in_memory"),
)

#: What must have a bug planted for it: a part of docs/spec/storage.md, and how it is named in
#: ``Bug.defect`` or in docs/internals/simulation.md's table of invariants.
CLASSES = {
    "recovery: fencing, floors, absence, coverage, length": (
        *("recovery_reads_do_not_fence", "no_floor_for_the_lac", "absence_needs_all_replicas"),
        *("coverage_waits_for_all", "length_of_another_entry", "closed_before_it_is_written_again"),
    ),
    "unknown and damaged are never absent": (
        *("no_answer_is_a_denial", "a_damaged_copy_is_a_denial", "damage_is_no_entry", "no_limbo"),
    ),
    "metadata: conditions and lost answers": (
        *("metadata_is_overwritten", "a_lost_answer_is_a_success"),
        "recovery_publishes_its_segments_early",
    ),
    "the writer: fences, late answers, ensemble changes": (
        *("fenced_answers_are_ignored", "late_answers_count", "a_newcomer_inherits_acks"),
        *("confirmed_during_a_change", "the_writer_closes_in_spite_of_a_recovery"),
    ),
    "liveness of confirmations": ("the_queue_stalls",),
    "what readers get": ("readers_show_damaged_bytes",),
    "passwords": ("any_password_will_do",),
    "durability: syncs and marks": ("the_journal_is_not_synced", "the_mark_is_ahead"),
    "side state: fences, limbo, LACs": (
        *("a_restart_forgets_fences", "limbo_ends_at_once", "limbo_is_not_finished"),
        *("an_explicit_lac_goes_back", "a_restart_forgets_explicit_lacs"),
    ),
    "compaction and collection": ("compaction_drops_entries", "collection_believes_an_old_listing"),
    "cookies": ("any_disk_will_do",),
    "deferred adds and force": (
        *("a_restarted_bookie_vouches", "a_force_does_not_wait", "late_answers_to_forces_count"),
    ),
    "repair: copied, durable, listed, marked, in this order": (
        *("markers_are_cleared_unrepaired", "who_came_back_is_believed"),
        *("the_target_is_listed_first", "a_busy_target_counts_as_written"),
        *("repairs_respect_the_fence", "listed_before_it_is_durable"),
    ),
    "ledgers that share an id": (
        *("whoever_comes_gets_the_ledger", "recovery_does_not_say_whose_ledger_it_reads"),
        *("a_recovery_writes_for_whoever_has_the_id", "the_newest_payload_wins"),
        *("only_memory_is_compared", "a_restart_forgets_creators", "ids_in_dispute_are_collected"),
        *("any_node_of_the_id_is_changed", "disputes_are_told_before_they_are_durable"),
        *("a_restart_forgets_disputes", "the_last_entry_on_disk_is_not_compared"),
    ),
    "scrub": ("the_scrub_is_blind",),
    "zones": ("replacements_ignore_zones", "a_zone_is_repaired_at_once"),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("group", "name"),
    [("bookkeeper", name) for name in QUICK] + [("managed ledger", name) for name in QUICK_MANAGED],
)
def test_a_planted_bug_is_noticed(group: str, name: str) -> None:
    assert search(group, name) is not None, f"{name}: nobody notices"


def test_there_is_a_bug_for_each_class() -> None:
    """And each bug belongs to one, so that who adds one says what it is for."""
    listed = [name for names in CLASSES.values() for name in names]
    assert all(CLASSES.values())
    assert sorted(listed) == sorted(BUGS)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("bookkeeper", "length_of_another_entry"),
        *(("managed ledger", name) for name in QUICK_MANAGED[-8::2]),
        ("zookeeper", "an_equal_value_proves"),
    ],
)
def test_what_was_planted_is_taken_out_again(group: str, name: str) -> None:
    bugs = LISTS[group]
    with planted(bugs[name].plant):
        pass
    for seed in range(3):
        assert bugs.violation(WORLD.get(name, bugs[name].worlds[0]), seed) is None
