"""Every test of the defect catalogue fails on the naive implementation of its row."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.naive_variants import VARIANTS

pytestmark = pytest.mark.slow
TRIALS = [(name, test) for name, variant in VARIANTS.items() for test in variant.tests]


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], str]:
    """Of all variants, in a process of their own: nothing planted may stay behind here."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.simulation.naive_variants"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MAGNETAR_TEST_DEADLINE_S": "15"},
    )
    found = {}
    for line in ended.stdout.splitlines():
        name, test, verdict = json.loads(line)
        found[name, test] = verdict
    assert ended.returncode == 0, ended.stderr
    return found


@pytest.mark.parametrize(("name", "test"), TRIALS, ids=[f"{n}-{t}" for n, t in TRIALS])
def test_it_fails_on_the_naive_variant(
    verdicts: dict[tuple[str, str], str], name: str, test: str
) -> None:
    assert verdicts[name, test] == ""
