"""The outcome of `magnetar verify` as JSON and as text."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from magnetar.broker.cli.verify.run import Outcome
from magnetar.broker.dispatch.explanation import counted
from magnetar.broker.verify.history import PROMISES, Violation

VIOLATIONS_SHOWN = 10


def as_json(outcome: Outcome) -> dict[str, Any]:
    """``violations`` of each topic; ``promises``: how often each was broken."""
    broken = broken_promises(outcome)
    return {
        "verdict": verdict_of(outcome),
        "serviceUrl": outcome.service_url,
        "namespace": outcome.settings.namespace,
        "seed": outcome.settings.seed,
        "messages": outcome.settings.messages,
        "started": started(outcome),
        "seconds": round(outcome.seconds, 1),
        "rounds": outcome.rounds,
        "totals": totals(outcome),
        "disturbances": dict(outcome.disturbances),
        "unchecked": outcome.unchecked,
        "waits": outcome.waits,
        "unjudged": outcome.unjudged,
        "promises": {rule.value: broken[rule.value] for rule in PROMISES},
        "topics": [asdict(verdict) for verdict in outcome.verdicts],
    }


def verdict_of(outcome: Outcome) -> str:
    """``violated``, ``unknown`` or ``clean``."""
    if outcome.violations:
        return "violated"
    return "unknown" if outcome.unjudged else "clean"


def started(outcome: Outcome) -> str:
    return datetime.fromtimestamp(outcome.started_s, UTC).isoformat(timespec="seconds")


def broken_promises(outcome: Outcome) -> Counter[str]:
    """How often each was."""
    return Counter(each.rule.value for each in violations_of(outcome))


def violations_of(outcome: Outcome) -> Iterator[Violation]:
    for verdict in outcome.verdicts:
        yield from verdict.violations


def totals(outcome: Outcome) -> dict[str, int]:
    """Of all topics."""
    names = ("sent", "stored", "repeated", "delivered", "redelivered", "read", "missed")
    return {name: sum(getattr(each, name) for each in outcome.verdicts) for name in names}


def as_text(outcome: Outcome) -> Iterator[str]:
    """Lines for a terminal."""
    counts = totals(outcome)
    not_kept = sum(each.sent for each in outcome.verdicts if each.topic.startswith("non-"))
    yield (
        f"{counted(counts['sent'], 'message')} sent ({not_kept:,} of them to non-persistent "
        f"topics), {counts['stored']:,} stored ({counts['repeated']:,} of them sent again), "
        f"{counts['delivered']:,} delivered ({counts['redelivered']:,} of them again), "
        f"{counts['read']:,} read by readers, {counts['missed']:,} lost by non-persistent topics, "
        "as they may be"
    )
    for what, count in sorted(outcome.disturbances.items()):
        yield f"{counted(count, 'time')}: {what}"
    for what in outcome.unchecked:
        yield f"not checked: {what}"
    for what in outcome.waits:
        yield f"waited {what}"
    shown = 0
    for violation in violations_of(outcome):
        shown += 1
        if shown > VIOLATIONS_SHOWN:
            break
        yield ""
        yield f"{violation.rule}: {violation.text}"
        yield f"  {place_of(violation)}"
        yield from (f"  {line}" for line in violation.story)
    if outcome.violations > shown:
        yield f"and {outcome.violations - VIOLATIONS_SHOWN} more"
    yield ""
    for name, count in sorted(broken_promises(outcome).items()):
        yield f"broken {counted(count, 'time')}: {name}"
    yield conclusion(outcome)


def of_rounds(outcome: Outcome) -> str:
    """A line when a round is over."""
    so_far = {
        "clean": "clean",
        "violated": counted(outcome.violations, "violation"),
        "unknown": "nobody can say",
    }
    return f"round {outcome.rounds}, {outcome.seconds:.0f} s: {so_far[verdict_of(outcome)]}"


def place_of(violation: Violation) -> str:
    where = f", subscription {violation.subscription}" if violation.subscription else ""
    return f"{violation.topic}{where}"


def conclusion(outcome: Outcome) -> str:
    """One sentence."""
    rounds = f"{counted(outcome.rounds, 'round')} in {outcome.seconds:.0f} s"
    how = f"{rounds}, seed {outcome.settings.seed}"
    match verdict_of(outcome):
        case "violated":
            return f"Violated: {counted(outcome.violations, 'time')} ({how})."
        case "unknown":
            return f"Nobody can say: {outcome.unjudged} ({how})."
        case _:
            return f"Clean: every promise was kept ({how})."
