"""Which test stands for which of docs/spec/storage.md, "Defects", and of its "Faults", 1 to 11.

The tables name tests; the tests below fail when one of them is gone. Tests of defects are in
``tests/simulation/naive_variants.py``. Bugs of most rows are also planted for the simulation to
find: ``tests/simulation/planted_bugs.py``.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.naive_variants import VARIANTS

_TESTS: Final = Path(__file__).parents[3]
_CLIENT: Final = "unit/bookkeeper/client"
_DEFECTS: Final = f"{_CLIENT}/test_known_defects.py"
_WRITER: Final = f"{_CLIENT}/test_ledger_writer.py"
_LIMITS: Final = f"{_CLIENT}/test_writer_limits.py"
_TIMERS: Final = f"{_CLIENT}/test_writer_timers.py"
_FAULTS: Final = f"{_CLIENT}/test_writer_faults.py"
_SHELL: Final = f"{_CLIENT}/test_client.py"
_POWER: Final = "simulation/test_bookie_power_loss.py"

#: Rows of the defect catalogue.
DEFECTS: Final = {
    *("#2614", "#2615", "BOOKKEEPER-355, -581", "BOOKKEEPER-365, #1067", "pulsar#6505"),
    *("BOOKKEEPER-150", "BOOKKEEPER-584, -112", "BOOKKEEPER-135", "BOOKKEEPER-500, -815"),
    *("#2612, BP-46", "#1380", "#2908", "PR #4462", "#2747, #2709", "PR #3917", "PR #4163"),
    *("#1390, #1395, #1591", "#3005", "#4097", "#4651", "#4261", "#4557", "#3952"),
    *("#4105, PR #2983, PR #3329, BOOKKEEPER-636", "PR #4607", "BOOKKEEPER-530"),
    *("BOOKKEEPER-62, -166", "BOOKKEEPER-795"),
}

#: Beside tests of naive variants: what none was tried on, as other processes and pure helpers.
MORE: Final[dict[str, tuple[str, ...]]] = {
    "BOOKKEEPER-135": (f"{_DEFECTS}::test_fencing_needs_the_password",),
    "#2747, #2709": (
        "integration/test_bookkeeper_tail.py::test_another_process_sees_every_acknowledged_entry",
    ),
    "PR #3917": (
        "unit/bookkeeper/replication/test_fragments.py"
        "::test_the_last_fragment_of_an_open_ledger_is_open",
    ),
    "#4105, PR #2983, PR #3329, BOOKKEEPER-636": (f"{_POWER}::test_every_sync_is_needed",),
}

#: Item of the fault list -> what of it -> tests.
FAULTS: Final[dict[int, dict[str, tuple[str, ...]]]] = {
    1: {
        "before any send, after sends to k bookies": (
            f"{_FAULTS}::test_crash_after_an_entry_reached_some_bookies",
        ),
        "after Qa acks before the callback": (
            f"{_FAULTS}::test_crash_after_the_quorum_before_anybody_was_told",
        ),
        "between callback and next LAC carrier": (
            f"{_FAULTS}::test_crash_before_the_next_entry_carried_the_lac",
        ),
    },
    2: {"each step of an ensemble change": (f"{_FAULTS}::test_crash_in_an_ensemble_change",)},
    3: {
        "before and after the write": (f"{_FAULTS}::test_crash_in_close",),
        "ambiguous result": (
            f"{_FAULTS}::test_the_answer_to_close_is_lost",
            f"{_CLIENT}/test_ledger_store.py::test_lost_answer_of_an_update",
        ),
    },
    4: {"pause over a recovery": (f"{_FAULTS}::test_a_writer_that_sleeps_over_a_recovery",)},
    5: {
        "two at the same time": (f"{_FAULTS}::test_two_of_three_bookies_fail",),
        "a second one during the change": (
            f"{_WRITER}::test_failures_during_a_change_make_a_second_change_with_the_same_key",
        ),
        "the replacement": (f"{_WRITER}::test_failure_of_the_replacement",),
        "reported twice": (f"{_WRITER}::test_same_bookie_reported_twice_is_one_change",),
        "replaced by auto-recovery": (
            f"{_DEFECTS}::test_repair_of_an_open_ledger_does_not_stop_its_writer",
        ),
    },
    6: {
        "late answers of a removed bookie": (
            f"{_WRITER}::test_late_answers_of_a_removed_bookie_are_ignored",
        ),
        "a repeated OK": (f"{_WRITER}::test_a_repeated_ok_counts_once",),
    },
    7: {
        "stored in spite of the timeout, repeated after fencing": (
            f"{_FAULTS}::test_an_add_that_timed_out_but_was_stored",
        ),
    },
    8: {
        "throttling, read-only": (f"{_FAULTS}::test_refusals_in_the_middle_of_writing",),
        "a storm": (f"{_FAULTS}::test_a_storm_of_refusals_ends_the_writer_and_loses_nothing",),
    },
    9: {
        "exactly E bookies": (f"{_SHELL}::test_no_bookie_left_fails_the_writer",),
        "partial replacement": (f"{_WRITER}::test_partial_replacement_tries_the_rest_again",),
    },
    10: {
        "late failure, silence, another loss": (
            f"{_FAULTS}::test_a_late_failure_of_an_idle_writer_and_then_another_loss",
        ),
    },
    11: {
        "append at the end of a change": (
            f"{_WRITER}::test_append_at_the_end_of_a_change_reaches_the_newcomer",
        ),
    },
}

#: Rules of the writer (2.4 to 2.9) that no fault of the list is about.
RULES: Final[dict[str, tuple[str, ...]]] = {
    "2.4 deferred sync": (
        f"{_LIMITS}::test_only_force_confirms",
        f"{_LIMITS}::test_a_force_counts_only_bookies_that_had_acknowledged_before_it",
        f"{_LIMITS}::test_a_failed_bookie_ends_a_deferred_writer",
        "integration/test_bookkeeper_deferred.py"
        "::test_a_power_cut_takes_what_was_not_forced_at_most",
    ),
    "2.5 quorum timeout": (f"{_TIMERS}::test_an_add_without_quorum_ends_the_writer",),
    "2.5 number of ensemble changes": (f"{_LIMITS}::test_so_many_changes_and_no_more",),
    "2.6 fatal codes": (f"{_WRITER}::test_a_request_every_bookie_would_refuse_is_fatal",),
    "2.6 delayed ensemble change": (
        f"{_LIMITS}::test_delay_goes_on_while_the_quorum_can_be_reached",
        f"{_LIMITS}::test_delay_replaces_all_that_failed_once_the_quorum_needs_it",
        f"{_LIMITS}::test_a_read_only_bookie_is_replaced_at_once",
    ),
    "2.8 close": (
        f"{_WRITER}::test_close_ends_at_the_last_confirmed_entry",
        f"{_SHELL}::test_close_drops_what_is_unconfirmed",
    ),
    "2.9 explicit LAC": (
        f"{_TIMERS}::test_an_idle_writer_tells_its_bookies_once",
        f"{_TIMERS}::test_nothing_is_told_that_an_add_has_carried",
    ),
}


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((_TESTS / path).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize(
    "tests",
    [
        *MORE.values(),
        *RULES.values(),
        *(tests for parts in FAULTS.values() for tests in parts.values()),
    ],
    ids=lambda tests: tests[0].rpartition("::")[2],
)
def test_every_named_test_exists(tests: tuple[str, ...]) -> None:
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        assert name in functions_of(path), test


def test_every_defect_has_a_naive_variant() -> None:
    """Whose tests must fail on it: ``tests/simulation/naive_variants.py`` names them."""
    assert {each.row for each in VARIANTS.values()} == DEFECTS
    assert MORE.keys() <= DEFECTS


def test_every_fault_of_writers_has_a_test() -> None:
    assert sorted(FAULTS) == list(range(1, 12))
