"""Every operation, read and round of upkeep, on storage that fails at its k-th call.

See ``tests/failing_operations.py`` for what is tried and how it is judged. CI runs a part, chosen
by the commit; MAGNETAR_FAILURES=N runs N, "all" every operation with every fault at every call
(``make test-failures``). MAGNETAR_FAILURES_SEED chooses another part, MAGNETAR_FAILURES_ONLY=TEXT
the operations whose name has it.
"""

import os
import random
import re
import subprocess
from pathlib import Path

from tests.failing_operations import (
    LACKING,
    Call,
    FaultChecker,
    calls_of,
    document,
    reads_of,
    way_of,
)
from tests.failing_world import FAULTS, Fault

COUNT = os.environ.get("MAGNETAR_FAILURES", "24")
ONLY = os.environ.get("MAGNETAR_FAILURES_ONLY", "")
#: What reads ask for and a world hasn't: schemas, isolation policies, groups, other brokers,
#: transactions.
_NOTHING_THERE = re.compile(
    r"not (exist|found|allowed|support|counted)|No offload driver|valid integer|Invalid allocator"
    r"|Tenant should not be null|transactionCoordinatorEnabled"
)


def _seed() -> str:
    if seed := os.environ.get("MAGNETAR_FAILURES_SEED"):
        return seed
    root = Path(__file__).parent.parent.parent
    asked = ("git", "-C", str(root), "rev-parse", "HEAD")
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return found or "no commit"


def _operations() -> dict[str, list[Call]]:
    return {name: ways for name, ways in calls_of(*document()).items() if ONLY in name}


def _ways(
    operations: dict[str, list[Call]], lacking: re.Pattern[str]
) -> tuple[dict[str, Call], list[str]]:
    """How each is asked for; and those nobody knows to ask for."""
    found: dict[str, Call] = {}
    unknown = []
    for name, ways in operations.items():
        call, reason = way_of(ways)
        if call is not None:
            found[name] = call
        elif not lacking.search(reason):
            unknown.append(f"{name}: {reason}")
    return found, unknown


def _check(operations: dict[str, list[Call]], lacking: re.Pattern[str]) -> tuple[int, int]:
    """Try a part of them with a fault each, or all with all; answers how many of both there were.

    Args:
        lacking: of refusals: it is no wonder that no way is known to ask for such an operation.
    """
    rng = None if COUNT == "all" else random.Random(_seed())
    if rng is not None and len(operations) > int(COUNT):
        operations = {name: operations[name] for name in rng.sample(sorted(operations), int(COUNT))}
    calls, unknown = _ways(operations, lacking)
    assert not unknown, "no way is known to ask for:\n" + "\n".join(unknown)
    wrong, ran = [], 0
    for name, call in calls.items():
        for checker, fault in _faults(call, rng):
            ran += 1
            wrong += [f"{name} ({call.path}), {fault}: {each}" for each in checker.check(fault)]
    print(f"{ran} faults of {len(calls)} operations, seed {_seed()}")
    assert not wrong, "\n".join(wrong)
    return len(calls), ran


def _faults(call: Call, rng: random.Random | None) -> list[tuple[FaultChecker, Fault]]:
    """All that can happen to an operation, or one of these."""
    checker = FaultChecker(call)
    calls = {where: checker.calls(where) for where in {where for where, *_ in FAULTS}}
    found = [
        (checker, Fault(where, is_lost=is_lost, lasts=lasts, at=at))
        for where, is_lost, lasts in FAULTS
        for at in range(calls[where])
    ]
    return found if rng is None or not found else [rng.choice(found)]


def test_what_was_or_what_was_asked_for() -> None:
    operations = _operations()
    assert ONLY or len(operations) > 200, "the document and the table of rounds"
    count, ran = _check(operations, LACKING)
    assert ran >= count // 3 or count < 20  # of a few that somebody chose perhaps none writes


def test_reads_find_what_is_there_or_can_not_tell_now() -> None:
    """No 500, no 404 of what there is, nothing half; nothing moves, and once more all is there."""
    reads = {name: ways for name, ways in reads_of(document()[0]).items() if ONLY in name}
    assert ONLY or len(reads) > 150
    count, ran = _check(reads, _NOTHING_THERE)
    # Four of ten ask the storage: one of twenty does, of a few that somebody chose perhaps none.
    assert ran or count < 20
