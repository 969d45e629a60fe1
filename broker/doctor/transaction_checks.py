"""Checks of transactions: ends that don't come, and coordinators that nobody has. Pure.

A transaction's facts are made from its TransactionMetadata, so they are the same of a broker of
Pulsar, which doesn't tell why an end is late.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.dispatch.explanation import duration
from magnetar.broker.doctor.findings import Finding, Severity

LONG_MS: Final = 3_600_000
"""A transaction that is open for longer: messages behind it wait."""
LATE_MS: Final = 60_000
"""Ends that take longer are stuck, and so are time-outs that come later."""


@dataclass(frozen=True, slots=True)
class TransactionFacts:
    """One that hasn't ended.

    Attributes:
        name: coordinator and number there.
        status: ``OPEN``, ``COMMITTING`` or ``ABORTING``.
        start_ms: when it began.
        timeout_ms: how long it may be open.
        participants: topics, or topic and subscription.
        ending_ms: since when its end is under way; None: not known.
        errors: by participant: why it couldn't take the end.
    """

    name: tuple[int, int]
    status: str
    start_ms: int
    timeout_ms: int
    participants: Sequence[tuple[str, ...]] = ()
    ending_ms: int | None = None
    errors: Mapping[tuple[str, ...], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionsFacts:
    """Of the coordinators of one broker, or of all.

    Attributes:
        transactions: those that are open for long, and those whose ends are late.
        unlisted: how many of these aren't among them.
        closed: coordinators that nobody has, and why.
        unopened: coordinators of Apache Pulsar that wait for their first client.
    """

    now_ms: int
    transactions: Sequence[TransactionFacts] = ()
    unlisted: int = 0
    closed: Mapping[int, str] = field(default_factory=dict)
    unopened: Sequence[int] = ()


def transaction_facts(name: str, metadata: Mapping[str, Any]) -> TransactionFacts:
    """Of TransactionMetadata by its name ``(0,39)``. Raises KeyError, TypeError, ValueError."""
    most, _, least = name.strip("()").partition(",")
    acked = metadata.get("ackedPartitions") or {}
    return TransactionFacts(
        (int(most), int(least)),
        str(metadata["status"]),
        int(metadata["openTimestamp"]),
        int(metadata["timeoutAt"]),
        [
            *((topic,) for topic in metadata.get("producedPartitions") or {}),
            *((topic, subscription) for topic, each in acked.items() for subscription in each),
        ],
    )


def check_transactions(facts: TransactionsFacts) -> Iterator[Finding]:
    for number, why in facts.closed.items():
        yield Finding(
            "coordinator-missing",
            Severity.CRITICAL,
            f"coordinator {number}",
            f"coordinator {number} of transactions: {why}. Its transactions neither end nor time"
            " out, and messages behind them wait",
            f"magnetar admin transactions coordinator-stats -c {number}",
        )
    for number in facts.unopened:
        yield Finding(
            "coordinator-missing",
            Severity.NOTE,
            f"coordinator {number}",
            f"coordinator {number} of transactions: no client has used it since its broker started."
            " Transactions of before, if there were some, neither end nor time out until one does",
            f"magnetar admin transactions coordinator-stats -c {number}",
        )
    for each in facts.transactions:
        if (finding := _late(each, facts.now_ms) or _long(each, facts.now_ms)) is not None:
            yield finding


def _late(each: TransactionFacts, now_ms: int) -> Finding | None:
    """One whose end, or time-out, doesn't come."""
    label, due_ms = _label(each), each.start_ms + each.timeout_ms
    if each.status == "OPEN":
        if now_ms - due_ms < LATE_MS:
            return None
        return Finding(
            "transaction-stuck",
            Severity.CRITICAL,
            label,
            f"{label}: its time was over {duration(now_ms - due_ms)} ago, and its coordinator has"
            " not aborted it",
            f"magnetar admin transactions abort-transaction {_options(each)}",
            due_ms,
        )
    since_ms = each.ending_ms
    if since_ms is None:
        since_ms = each.start_ms  # not later: Pulsar doesn't tell
    if now_ms - since_ms < LATE_MS:
        return None
    why = "its coordinator doesn't tell which of its topics can't take the end"
    command = f"magnetar admin transactions transaction-metadata {_options(each)}"
    if each.errors:
        (topic, *subscription), error = next(iter(each.errors.items()))
        where = topic + "".join(f", subscription {name}" for name in subscription)
        more = f", and {len(each.errors) - 1} more can't either" if len(each.errors) > 1 else ""
        why = f"{where} can't take the end ({error}){more}"
        command = f"magnetar admin topics unload {shlex.quote(topic)}"
    return Finding(
        "transaction-stuck",
        Severity.CRITICAL,
        label,
        f"{label}: {each.status} for {duration(now_ms - since_ms)}, because {why}; messages behind"
        " it wait",
        command,
        since_ms,
    )


def _long(each: TransactionFacts, now_ms: int) -> Finding | None:
    """One that its client keeps open."""
    if each.status != "OPEN" or now_ms - each.start_ms < LONG_MS:
        return None
    label, left_ms = _label(each), each.start_ms + each.timeout_ms - now_ms
    return Finding(
        "transaction-long",
        Severity.WARNING,
        label,
        f"{label}: open for {duration(now_ms - each.start_ms)}, and for {duration(left_ms)} more"
        f" unless its client ends it; messages behind it wait{_in(each)}",
        f"magnetar admin transactions abort-transaction {_options(each)}",
        each.start_ms,
    )


def _in(each: TransactionFacts) -> str:
    topics = list(dict.fromkeys(topic for topic, *_ in each.participants))
    if not topics:
        return ""
    return f" in {topics[0]}" + (f" and {len(topics) - 1} more" if len(topics) > 1 else "")


def _label(each: TransactionFacts) -> str:
    return f"transaction ({each.name[0]},{each.name[1]})"


def _options(each: TransactionFacts) -> str:
    return f"-m {each.name[0]} -l {each.name[1]}"
