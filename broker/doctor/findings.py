"""What the checks say: findings, and their order of harm. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

PER_CHECK_MAX: Final = 20
"""Findings of one check that are told one by one; the others are counted."""


class Severity(StrEnum):
    """How much harm is done."""

    CRITICAL = "critical"
    """Something doesn't work now."""
    WARNING = "warning"
    """All works, but one more fault, or time alone, ends that."""
    NOTE = "note"
    """Worth knowing; it may be meant."""


CHECKS: Final = (
    *("access-refused", "process-down", "broker-silent", "broker-not-ready", "leader-missing"),
    *("bookies-too-few", "bookie-groups-too-few", "ledgers-in-dispute"),
    *("ledgers-without-replica", "entries-damaged", "bookie-group-unknown"),
    *("bookie-lost", "bookie-silent", "bookie-in-limbo", "bookie-failing"),
    *("topic-fenced", "backlog-quota", "publish-stuck", "bundle-stuck"),
    *("coordinator-missing", "transaction-stuck", "subscription-stuck", "subscription-slow"),
    *("subscription-held-up", "transaction-long", "client-refused", "partition-idle"),
    *("certificate-end", "token-end", "clock-skew", "bookie-read-only", "disk-full"),
    *("broker-unreachable", "repair-off", "auditor-missing", "ledgers-under-replicated"),
    *("process-restarted", "settings-differ", "settings-at-odds", "broker-overloaded"),
    "bundle-moving",
    "bundle-hot",
    "offload-failing",
    *("publish-rate-limited", "versions-differ", "subscription-idle"),
)
"""All checks, from the one with the most harm to the one with the least."""
_RANKS: Final = {check: rank for rank, check in enumerate(CHECKS)}
_SEVERITIES: Final = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: which check found it, one of ``CHECKS``.
        subject: the broker, bookie, bundle, topic or file it is about.
        sentence: for people; begins with the subject.
        command: mends it, or shows more where only people can mend it; "": none does.
        since_ms: since when, milliseconds since 1970; None: not known.
        more: how many others of the check it stands for; 0: it is one itself.
    """

    check: str
    severity: Severity
    subject: str
    sentence: str
    command: str = ""
    since_ms: int | None = None
    more: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": str(self.severity),
            "subject": self.subject,
            "sentence": self.sentence,
            "command": self.command,
            "sinceMs": self.since_ms,
            "more": self.more,
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises KeyError, ValueError, TypeError: not what ``as_json`` makes."""
        since_ms = value["sinceMs"]
        return cls(
            str(value["check"]),
            Severity(value["severity"]),
            str(value["subject"]),
            str(value["sentence"]),
            str(value["command"]),
            None if since_ms is None else int(since_ms),
            int(value.get("more", 0)),
        )


def in_order_of_harm(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; of one check the oldest first, then those of unknown age."""
    # A newer broker may know more checks than this process.
    return sorted(
        findings,
        key=lambda each: (
            _SEVERITIES[each.severity],
            _RANKS.get(each.check, len(_RANKS)),
            each.more > 0,
            each.since_ms is None,
            each.since_ms or 0,
            each.subject,
        ),
    )


def bounded(findings: Iterable[Finding]) -> list[Finding]:
    """In order of harm, at most ``PER_CHECK_MAX`` of a check; one more counts the others."""
    told: list[Finding] = []
    counts: dict[tuple[str, Severity], int] = defaultdict(int)
    more: dict[tuple[str, Severity], int] = defaultdict(int)
    for each in in_order_of_harm(findings):
        kind = (each.check, each.severity)
        if each.more:  # of an earlier call
            more[kind] += each.more
        elif counts[kind] == PER_CHECK_MAX:
            more[kind] += 1
        else:
            counts[kind] += 1
            told.append(each)
    for (check, severity), count in more.items():
        text = f"{count} more like these: {check}"
        told.append(Finding(check, severity, "", text, more=count))
    return in_order_of_harm(told)


@dataclass(slots=True)
class Report:
    """What ``GET /admin/v2/doctor`` answers.

    Attributes:
        brokers: ``host:port`` of the web addresses of all that are registered.
        addresses: where clients connect to, ``pulsar://host:port``.
        not_looked_at: what couldn't be looked at, and why.
    """

    cluster: str = ""
    broker_id: str = ""
    checked_ms: int = 0
    brokers: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_looked_at: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "brokerId": self.broker_id,
            "checkedMs": self.checked_ms,
            "brokers": self.brokers,
            "addresses": self.addresses,
            "findings": [each.as_json() for each in bounded(self.findings)],
            "notLookedAt": sorted(set(self.not_looked_at)),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises KeyError, ValueError, TypeError."""
        return cls(
            str(value["cluster"]),
            str(value["brokerId"]),
            int(value["checkedMs"]),
            [str(each) for each in value["brokers"]],
            [str(each) for each in value["addresses"]],
            [Finding.of_json(each) for each in value["findings"]],
            [str(each) for each in value["notLookedAt"]],
        )

    @contextmanager
    def part(self, what: str, *errors: type[Exception]) -> Iterator[None]:
        """Look at something: one that fails with such an error is told, and hides no other."""
        try:
            yield
        except errors as error:
            self.not_looked_at.append(f"{what}: {str(error) or type(error).__name__}")
