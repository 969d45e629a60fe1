"""What is done now and then is in a table of rounds, which ``tests/failing_operations.py`` walks.

A loop with a pause that is none of those runs untested on storage that fails: put its work into a
table (``BackgroundTasks.rounds``, ``ManagedLedgerFactory.rounds``, ``LoadManager.rounds``), or say
here what it waits for.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    *(
        f"broker/{name}"
        for name in ("cluster", "connection", "listener", "producer", "rate_limits")
    ),
    *(f"broker/{name}" for name in ("schema", "service", "subscription", "topic")),
    *("managed_ledger", "bundles", "loadbalance"),
)
RUN_ROUNDS = {
    "broker/service/periodic_tasks.py PeriodicTasks._run",
    "loadbalance/leader_tasks.py LeaderTasks.run",
    "loadbalance/reporter.py LoadReporter.run",
}
WAIT = {
    # until the store or another process answers
    "broker/cluster/peer_failure_detector.py PeerFailureDetector._follow",
    "broker/cluster/peer_failure_detector.py PeerFailureDetector._publish_record",
    "broker/cluster/peer_failure_detector.py PeerFailureDetector._watch",
    "bundles/local_policies.py BundleFactory._copy_later",
    "bundles/ownership.py OwnershipService._expect",
    "loadbalance/leader_tasks.py LeaderTasks._begin",
    "loadbalance/registry.py BrokerRegistry._register_again",
    "loadbalance/registry.py BrokerRegistry.follow_property",
    "loadbalance/registry.py BrokerRegistry.register",
    # until another caller's load of the topic is done
    "broker/topic/topic_loader.py TopicLoader.load",
    # until the end of a ledger is known
    "broker/producer/deduplication.py Deduplication._find_end",
}


def pausing_loops() -> Iterator[str]:
    """Functions with a loop in which they sleep, or wait with a deadline."""
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            for owner in ast.walk(ast.parse(path.read_text())):
                if not isinstance(owner, ast.ClassDef | ast.Module):
                    continue
                for function in owner.body:
                    if isinstance(function, ast.AsyncFunctionDef) and _pauses(function):
                        within = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
                        yield f"{path.relative_to(ROOT)} {within}{function.name}"


def _pauses(function: ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at")
        and ast.unparse(call.args[0]) != "0"
        for loop in ast.walk(function)
        if isinstance(loop, ast.While)
        for call in ast.walk(loop)
    )


def test_every_loop_with_a_pause_runs_rounds_or_waits() -> None:
    assert set(pausing_loops()) == RUN_ROUNDS | WAIT
