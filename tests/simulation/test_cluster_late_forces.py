"""A late answer to a force says nothing of the next one.

The bug that the world finds is ``late_answers_to_forces_count`` (``test_rotation.py``).
"""

from tests.simulation.worlds import LATE_FORCES, run_seed


def test_a_late_answer_counts_for_no_other_force() -> None:
    for seed in range(5):
        outcome = run_seed(LATE_FORCES, seed)
        assert outcome.violations == [], f"seed {seed}"
        assert outcome.counters["state: late answer to a force"] == 1
