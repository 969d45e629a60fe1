"""A tenth of all planted bugs in each run, so that ten runs in a row plant each of them once.

Which tenth it is depends on the commit: the number of commits before it, or ``MAGNETAR_ROTATION``.
``python -m tests.simulation.rotation [--all | --bug NAME]`` does the same from a shell. The lists
are those of ``planted_bugs`` (bookkeeper), ``apache_bugs`` (the client of Apache's bookies),
``managed_ledger_bugs``, ``service_bugs`` (dispatch, ownership, epochs), ``zookeeper_bugs`` and
``view_bugs`` (what looks at a broker), ``compaction_bugs``, ``pending_ack_bugs``,
``coordinator_bugs``, ``transfer_bugs``; ``naive_variants`` are all planted in each run.
"""

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.simulation import (
    apache_bugs,
    compaction_bugs,
    coordinator_bugs,
    managed_ledger_bugs,
    pending_ack_bugs,
    planted_bugs,
    service_bugs,
    transfer_bugs,
    view_bugs,
    zookeeper_bugs,
)
from tests.simulation.plant import Bugs, planted

TURNS: Final = 10
BROKEN_PLANT: Final = (
    *("TypeError(", "AttributeError(", "NameError(", "ImportError("),
    *("positional argument", "keyword argument", "has no attribute"),  # as another error's cause
)
"""Of a bug that doesn't fit the code any more: its error isn't a violation."""

#: Seeds that noticed when they were last looked for. The search begins there: a seed is another run
#: after each change of code or world, so it goes on elsewhere if need be.
NEAR: Final[dict[str, int]] = {
    "no_floor_for_the_lac": 22,
    "closed_before_it_is_written_again": 10,
    "length_of_another_entry": 7,
    "metadata_is_overwritten": 13,
    "a_lost_answer_is_a_success": 89,
    "fenced_answers_are_ignored": 367,
    "late_answers_count": 65,
    "confirmed_during_a_change": 13,
    "the_queue_stalls": 13,
    "the_writer_closes_in_spite_of_a_recovery": 20,
    "recovery_reads_do_not_fence": 0,
    "absence_needs_all_replicas": 1,
    "coverage_waits_for_all": 5,
    "no_answer_is_a_denial": 3,
    "a_damaged_copy_is_a_denial": 7,
    "a_newcomer_inherits_acks": 9,
    "any_password_will_do": 2,
    "a_restart_forgets_fences": 1,
    "the_journal_is_not_synced": 1,
    "the_mark_is_ahead": 1,
    "compaction_drops_entries": 1,
    "collection_believes_an_old_listing": 140,
    "any_disk_will_do": 2,
    "a_restart_forgets_explicit_lacs": 2,
    "a_restarted_bookie_vouches": 6,
    "a_force_does_not_wait": 6,
    "markers_are_cleared_unrepaired": 3,
    "the_target_is_listed_first": 3,
    "a_busy_target_counts_as_written": 54,
    "who_came_back_is_believed": 14,
    "repairs_respect_the_fence": 25,
    "replacements_ignore_zones": 1,
    "any_node_of_the_id_is_changed": 38,
    "the_scrub_is_blind": 66,
    "disputes_are_told_before_they_are_durable": 3,
    "the_last_entry_on_disk_is_not_compared": 69,
    "cursors_serve_without_a_look_at_the_list": 67,
    "sent_again_without_a_definite_end": 10,
    "acknowledgements_without_receipt_stay_unstored": 4,
    "a_close_drops_what_nobody_waits_for": 66,
    "a_reset_leaves_the_node_ahead": 49,
    "what_is_acknowledged_between_slices_is_in_no_increment": 49,
    "a_switch_goes_on_from_where_it_was": 3,
    "a_read_from_before_a_seek_is_taken": 174,
    "a_read_of_before_is_taken": 2,
    "a_bundle_that_is_expected_is_never_given_up": 9,
    "an_active_consumer_that_waits_is_said_to_have_no_permits": 1,
    "an_equal_value_proves": 47,
    "reconnect_not_announced": 20,
    "no_last_zxid": 286,
    "a_bad_request_is_a_denial": 94,
    "an_unknown_code_is_a_denial": 123,
    "the_first_reply_is_of_the_whole_request": 183,
    "digests_are_not_checked": 36,
    "the_next_record_is_replayed_before_the_last_slice": 67,
    "a_cut_does_not_wait_for_its_copies": 134,
    "the_old_ledger_is_deleted_first": 20,
    "the_horizon_moves_before_the_ledger_is_named": 118,
    "the_ledger_goes_when_it_is_not_known_whether_the_cursor_names_it": 348,
    "a_copy_is_open_again": 42,
    "behind_the_compacted_ledger_an_entry_is_left_out": 23,
    "what_the_cursor_passed_holds_others_up": 21,
    "what_the_cursor_passed_is_forgotten_before_that_is_durable": 28,
}
#: Where to look first, for bugs that several worlds may notice.
WORLD: Final[dict[str, str]] = {
    "a_lost_answer_means_not_listed": "race",
    "the_list_is_written_without_a_condition": "race",
    "a_refused_write_adopts_the_other_list": "takeover",
    "the_claim_ignores_who_was_faster": "race",
    "whoever_took_the_cursor_node_last_has_the_log": "cursor",
    "a_close_drops_what_nobody_waits_for": "cursor",
    "the_old_ledger_is_deleted_first": "compacting owners",
    "the_ledger_goes_when_it_is_not_known_whether_the_cursor_names_it": "compacting owners",
}

LISTS: Final[dict[str, Bugs]] = {
    "bookkeeper": planted_bugs.BUGS,
    "apache bookkeeper": apache_bugs.BUGS,
    "managed ledger": managed_ledger_bugs.BUGS,
    "service": service_bugs.BUGS,
    "zookeeper": zookeeper_bugs.BUGS,
    "views": view_bugs.BUGS,
    "compaction": compaction_bugs.BUGS,
    "pending acks": pending_ack_bugs.BUGS,
    "transactions": coordinator_bugs.BUGS,
    "transfers": transfer_bugs.BUGS,
}
ALL: Final = [(group, name) for group, names in LISTS.items() for name in names]


def turn() -> int:
    """The same in every process of a run; goes up by one with each commit."""
    if number := os.environ.get("MAGNETAR_ROTATION"):
        return int(number)
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(counted.stdout) if counted.returncode == 0 else 0  # an archive without history


def chosen(number: int) -> list[tuple[str, str]]:
    """What run ``number`` plants: every tenth bug, from another one on each time."""
    return ALL[number % TURNS :: TURNS]


def _seeds(name: str, count: int) -> Iterable[int]:
    near = NEAR.get(name, 0)
    yield near
    yield from (seed for seed in range(count) if seed != near)


def search(group: str, name: str, seeds: int = 400) -> str | None:
    """What the first seed that notices says; None: none of so many does."""
    bugs = LISTS[group]
    world = WORLD.get(name, bugs[name].worlds[0])
    with planted(bugs[name].plant):
        for seed in _seeds(name, seeds):
            if (told := bugs.violation(world, seed)) is not None:
                return f"{world} {seed}: {told}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.rotation")
    parser.add_argument("--all", action="store_true", help="not only the tenth of this commit")
    parser.add_argument("--bug", choices=[name for _, name in ALL])
    arguments = parser.parse_args()
    logging.disable()
    wanted = ALL if arguments.all else chosen(turn())
    if arguments.bug:
        wanted = [each for each in ALL if each[1] == arguments.bug]
    missed = []
    for group, name in wanted:
        told = search(group, name)
        print(f"{group}, {name}: {told or 'NOT FOUND'}", flush=True)
        if told is None or any(kind in told for kind in BROKEN_PLANT):
            missed.append(name)
    if missed:
        sys.exit(f"not found, or the plant doesn't fit: {', '.join(missed)}")


if __name__ == "__main__":
    main()
