"""Checks of the groups of bookies that ledgers are kept on. Pure."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.client.placement.isolation import ALL_BOOKIES, IsolationGroups
from magnetar.broker.doctor.findings import Finding, Severity

_PLACES: Final = "magnetar admin bookies racks-placement"
_NEW_BOOKIE: Final = "magnetar bookie --config bookie.conf"


@dataclass(frozen=True, slots=True)
class GroupedLedgers:
    """Ledgers that are kept on some bookies only.

    Attributes:
        subject: the namespace they are of, or what those of several have in common.
        ensemble: bookies that a new one needs at least.
        is_strict: ``strictBookieAffinityEnabled`` is why: their namespaces have no groups.
    """

    subject: str
    groups: IsolationGroups
    ensemble: int
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """
    Attributes:
        groups: of each bookie that is registered or has a cookie.
        writable: location by bookie, of those that take new ledgers.
    """

    ledgers: tuple[GroupedLedgers, ...] = ()
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    writable: Mapping[str, str] = field(default_factory=dict)


def check_groups(facts: GroupFacts) -> Iterator[Finding]:
    known = frozenset[str]().union(*facts.groups.values(), {ALL_BOOKIES})
    for each in facts.ledgers:
        unknown = sorted((each.groups.first | each.groups.second) - known)
        nobody = f"no bookie is in group {', '.join(unknown)}" if unknown else ""
        yield from _check_writable(each, facts, nobody) or _check_unknown(each, facts, nobody)


def _check_writable(each: GroupedLedgers, facts: GroupFacts, nobody: str) -> list[Finding]:
    """Whether enough bookies of the groups take new ledgers; none: they do."""
    groups, needed = each.groups, f"each new ledger needs {each.ensemble}"
    if ALL_BOOKIES in groups.first:
        return []
    nobody = f"; {nobody}" if nobody else ""
    allowed = groups.allowed(facts.writable, each.ensemble, facts.groups.__getitem__)
    if len(allowed) < each.ensemble:
        why = " by strictBookieAffinityEnabled" if each.is_strict else ""
        sentence = (
            f"{each.subject}: {len(allowed)} of {len(facts.writable)} bookies that take new ledgers"
            f" may be taken{why}, {groups}; {needed}{nobody}: topics stop taking messages when"
            " their ledger ends"
        )
        return [_few(Severity.CRITICAL, each, sentence, _NEW_BOOKIE)]
    first = [bookie for bookie in allowed if facts.groups[bookie] & groups.first]
    if not groups.first or len(first) >= each.ensemble:
        return []
    short = (
        f"{each.subject}: {len(first)} bookies of group {', '.join(sorted(groups.first))} take new"
        f" ledgers, and {needed}{nobody}"
    )
    loose = sorted(bookie for bookie in allowed if not facts.groups[bookie])
    if not loose:
        second = ", ".join(sorted(groups.second))
        return [_few(Severity.NOTE, each, f"{short}: group {second} is used, too", _PLACES)]
    command = _put(loose[0], each, facts)
    sentence = f"{short}: bookies of no group are used, too, so its data isn't kept apart"
    return [_few(Severity.WARNING, each, sentence, command)]


def _check_unknown(each: GroupedLedgers, facts: GroupFacts, nobody: str) -> list[Finding]:
    if not nobody:
        return []
    loose = sorted(bookie for bookie in facts.writable if not facts.groups[bookie])
    command = _put(loose[0], each, facts) if loose else _PLACES
    text = f"{each.subject}: {nobody}, which its ledgers are to be kept on"
    return [Finding("bookie-group-unknown", Severity.WARNING, each.subject, text, command)]


def _few(severity: Severity, each: GroupedLedgers, sentence: str, command: str) -> Finding:
    return Finding("bookie-groups-too-few", severity, each.subject, sentence, command)


def _put(bookie: str, each: GroupedLedgers, facts: GroupFacts) -> str:
    """Puts the bookie into a group of the ledgers: one that is empty, if there is one."""
    names = sorted(each.groups.first | each.groups.second)
    known = frozenset[str]().union(*facts.groups.values())
    group = min(names, key=lambda name: (name in known, name not in each.groups.first, name))
    rack = facts.writable[bookie] or "/default-rack"
    return (
        f"magnetar admin bookies set-bookie-rack --bookie {shlex.quote(bookie)}"
        f" --rack {shlex.quote(rack)} --group {shlex.quote(group)}"
    )
