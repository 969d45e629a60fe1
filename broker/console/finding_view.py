"""What the overview shows of a finding: its mark, and a link to what it is about. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from magnetar.broker.console.formats import segment
from magnetar.broker.console.topic_path import TopicPath

_MARKS: Final = {"critical": "e", "warning": "w"}
"""By severity."""
_SUBSCRIPTION: Final = ", subscription "


@dataclass(frozen=True, slots=True)
class FindingRow:
    kind: str
    severity: str
    href: str
    """Below ``/console/``; "": there is no page of it."""
    link: str
    """The text of the link, with which the sentence begins."""
    text: str
    """The rest of the sentence."""
    command: str
    since_ms: int | None


def finding_rows(found: Iterable[Mapping[str, Any]]) -> list[FindingRow]:
    """Of the answer of ``doctor``."""
    return [_row(each) for each in found]


def subscription_marks(found: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Of the subscriptions that stand still or warn, by ``subscription_label``: the worst mark."""
    marks = dict[str, str]()
    for each in found:  # the worst first
        if each["severity"] in _MARKS:
            marks.setdefault(each.get("subject") or "", _MARKS[each["severity"]])
    return marks


def subscription_label(topic: object, subscription: str) -> str:
    """As a finding has it for its subject."""
    return f"{topic}{_SUBSCRIPTION}{subscription}"


def _row(finding: Mapping[str, Any]) -> FindingRow:
    sentence, subject = finding["sentence"], finding.get("subject") or ""
    href = link = ""
    if subject and sentence.startswith(subject):
        href, link, at = _place(finding.get("check", ""), subject)
        if href:
            sentence = at + sentence.removeprefix(subject)
    return FindingRow(
        kind=_MARKS.get(finding["severity"], "n"),
        severity=finding["severity"],
        href=href,
        link=link,
        text=sentence,
        command=finding.get("command", ""),
        since_ms=finding.get("sinceMs"),
    )


def _place(check: str, subject: str) -> tuple[str, str, str]:
    """The page of a subject, what to call it, and where it is; "": there is none."""
    if subject.startswith(("persistent://", "non-persistent://")):
        name, _, subscription = subject.partition(_SUBSCRIPTION)
        topic = TopicPath.parse(name)
        page = f"topic/{topic.rest}"
        if not subscription:
            return page, topic.path, ""
        return (
            f"{page}/subscriptions?open={quote(subscription, safe='')}",
            subscription,
            f" on {topic.path}",
        )
    if check.startswith("bundle-"):
        tenant, _, rest = subject.partition("/")
        return f"ns/{segment(tenant)}/{segment(rest.partition('/')[0])}", subject, ""
    if check.startswith("broker-"):
        return f"brokers/{segment(subject)}", subject, ""
    if check.startswith("bookie-") or check == "disk-full":
        return "bookies", subject, ""
    return "", "", ""
