"""The worlds of cursors and copies see: bugs are planted, and seeds of CI must notice them.

The whole table, of the log's worlds too: ``python -m tests.simulation.managed_ledger_bugs``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.managed_ledger_bugs import BUGS, planted, violation

SEEDS = 100
"""As many as CI runs of each world."""

#: In which world each is found; by one of the first seeds, so that CI can afford them.
FOUND_IN = {
    "the_cursor_node_is_not_written_by_the_next_owner": "cursor",
    "the_cursor_node_is_taken_without_a_condition": "cursor",
    "a_cursor_rewinds_on_a_transient_error": "cursor",
    "the_node_names_a_cursor_ledger_without_a_snapshot": "cursor",
    "the_old_cursor_ledger_is_deleted_first": "cursor",
    "acknowledged_when_sent": "cursor",
    "a_new_cursor_ledger_begins_without_the_holes": "cursor",
    "whoever_took_the_cursor_node_last_has_the_log": "cursor",
    "a_reset_leaves_the_node_ahead": "cursor",
    "acknowledgements_without_receipt_stay_unstored": "log",
    "a_close_drops_what_nobody_waits_for": "cursor",
    "what_is_acknowledged_between_slices_is_in_no_increment": "sliced",
    "a_chunk_is_deleted_before_the_node_lets_go_of_it": "chunks takeover",
    "the_node_is_written_before_its_chunk_is_stored": "chunks takeover",
    "a_chunk_that_may_yet_be_named_is_collected": "chunks takeover",
    "chunks_of_crashed_owners_stay": "chunks takeover",
    "bookies_forget_before_the_list_says_so": "offload",
    "a_copy_is_called_complete_when_it_begins": "offload",
    "a_doomed_copy_that_comes_late_stays": "offload late",
    "trimmed_by_the_position_in_memory": "takeover",
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", FOUND_IN)
def test_a_planted_bug_is_noticed(name: str) -> None:
    with planted(name) as worlds:
        assert FOUND_IN[name] in worlds
        found = any(violation(FOUND_IN[name], seed) for seed in range(SEEDS))
    assert found, f"{name}: none of {SEEDS} seeds notices"


@pytest.mark.parametrize("world", sorted(set(FOUND_IN.values())))
def test_what_was_planted_is_taken_out_again(world: str) -> None:
    with planted(next(name for name in FOUND_IN if FOUND_IN[name] == world)):
        pass
    for seed in range(3):
        assert violation(world, seed) is None
    assert set(FOUND_IN) <= set(BUGS)
