"""What the console changes: each step is shown with what it loses before it is done.

A step is a page with one form, so that it works without a script; the form holds a token that only
pages of this process have, beside the check of the request's origin. The call itself is the admin
API's, made as the visitor.
"""

from __future__ import annotations

import hmac
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.formats import number, plural, segment, size
from magnetar.broker.console.topic_path import TopicPath

Json = Mapping[str, Any]


class ActionError(Exception):
    """What was typed isn't what the step needs."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a step is about, and its statistics."""

    topic: TopicPath
    partitions: int
    stats: Json
    subscription: str = ""

    @property
    def name(self) -> str:
        """That is typed to confirm."""
        return self.subscription or self.topic.local

    @property
    def path(self) -> str:
        """Below ``/admin/v2``."""
        tail = f"/subscription/{segment(self.subscription)}" if self.subscription else ""
        return self.topic.rest + tail

    @property
    def of_subscription(self) -> Json:
        found: Json = self.stats.get("subscriptions", {}).get(self.subscription, {})
        return found


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    command: str
    """What does the same on a command line."""


@dataclass(frozen=True, slots=True)
class Action:
    key: str
    title: str
    loses: Callable[[Subject], str]
    """What it costs, in numbers."""
    call: Callable[[Subject, str], Call]
    """Of what was typed into its field. Raises ActionError."""
    field: str = ""
    """Label of what is to be typed; empty: nothing."""
    hint: str = ""
    is_typed: bool = False
    """Whether the name has to be typed: what it loses is gone for good."""


def _command(words: str, subject: Subject, *more: str) -> str:
    parts = ["magnetar", "topics", *words.split(), str(subject.topic)]
    if subject.subscription:
        parts += ["-s", subject.subscription]
    return shlex.join([*parts, *more])


def _skipped(subject: Subject) -> str:
    count = subject.of_subscription.get("msgBacklog", 0)
    return f"{plural(count, 'message')} of {subject.subscription} are skipped."


def _stored(subject: Subject) -> str:
    subscriptions = subject.stats.get("subscriptions", {})
    largest = max((each.get("msgBacklog", 0) for each in subscriptions.values()), default=0)
    return (
        f"{size(subject.stats.get('storageSize', 0))} of messages are deleted; "
        f"{plural(len(subscriptions), 'subscription')} with at most {number(largest)} unread."
    )


def seconds_of(text: str) -> int:
    """Of ``90``, ``90s``, ``5m``, ``2h`` or ``3d``. Raises ActionError."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
    text = text.strip()
    factor = units.get(text[-1:], 0)
    digits = text[:-1] if factor else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise ActionError("a time is a number and s, m, h or d: 90s, 5m, 2h, 3d")
    return int(digits) * (factor or 1)


def _reset(subject: Subject, text: str) -> Call:
    at_ms = int((time.time() - seconds_of(text)) * 1000)
    path = f"{subject.path}/resetcursor/{at_ms}"
    return Call("POST", path, _command("reset-cursor", subject, "-t", text.strip()))


def _expire(subject: Subject, text: str) -> Call:
    path = f"{subject.path}/expireMessages/{seconds_of(text)}"
    return Call("POST", path, _command("expire-messages", subject, "-t", text.strip()))


def _simple(method: str, tail: str, words: str) -> Callable[[Subject, str], Call]:
    return lambda subject, _: Call(method, subject.path + tail, _command(words, subject))


def _whole(method: str, tail: str, words: str, of_all: tuple[str, str]) -> Any:
    """Of a topic, and of one with partitions: tail and words."""

    def call(subject: Subject, _: str) -> Call:
        end, command = of_all if subject.partitions else (tail, words)
        return Call(method, subject.path + end, _command(command, subject))

    return call


SUBSCRIPTION_ACTIONS: Final = (
    Action(
        "skip",
        "Skip all",
        _skipped,
        _simple("POST", "/skip_all", "clear-backlog"),
    ),
    Action(
        "reset",
        "Reset cursor",
        lambda subject: (
            f"{subject.subscription} reads again, or skips: from then on. "
            "Consumers are disconnected and come back."
        ),
        _reset,
        "Back to, before now",
        "2h",
    ),
    Action(
        "expire",
        "Expire",
        lambda subject: (
            "Older messages count as acknowledged by "
            f"{subject.subscription}, which has {plural(_backlog(subject), 'message')} unread."
        ),
        _expire,
        "Older than",
        "1d",
    ),
    Action(
        "unsubscribe",
        "Delete subscription",
        lambda subject: (
            f"{subject.subscription} is gone, with {plural(_backlog(subject), 'unread message')}."
        ),
        _simple("DELETE", "", "unsubscribe"),
        is_typed=True,
    ),
)
TOPIC_ACTIONS: Final = (
    Action(
        "unload",
        "Unload",
        lambda _: "Clients are disconnected and come back; nothing is lost.",
        _simple("PUT", "/unload", "unload"),
    ),
    Action(
        "truncate",
        "Truncate",
        _stored,
        _simple("DELETE", "/truncate", "truncate"),
        is_typed=True,
    ),
    Action(
        "terminate",
        "Terminate",
        lambda _: "It takes no more messages, for good.",
        _whole(
            "POST", "/terminate", "terminate", ("/terminate/partitions", "partitioned-terminate")
        ),
        is_typed=True,
    ),
    Action(
        "delete",
        "Delete topic",
        _stored,
        _whole("DELETE", "", "delete", ("/partitions", "delete-partitioned-topic")),
        is_typed=True,
    ),
)


def _backlog(subject: Subject) -> int:
    return int(subject.of_subscription.get("msgBacklog", 0))


def find_action(key: str, subscription: str) -> Action:
    """Raises AdminError: 404 there is none."""
    actions = SUBSCRIPTION_ACTIONS if subscription else TOPIC_ACTIONS
    for each in actions:
        if each.key == key:
            return each
    raise AdminError(404, f"there is no step {key}")


def call_of(action: Action, subject: Subject, fields: Mapping[str, str]) -> Call:
    """What was asked for by the fields ``value`` and ``name``.

    Raises:
        ActionError: something else was to be typed.
    """
    if action.is_typed and fields.get("name", "") != subject.name:
        raise ActionError(f"type the name to confirm: {subject.name}")
    return action.call(subject, fields.get("value", ""))


def check_token(fields: Mapping[str, str], token: str) -> None:
    """Raises AdminError: 403 the form isn't ours."""
    given = fields.get("token", "").encode(errors="replace")
    if not hmac.compare_digest(given, token.encode()):
        raise AdminError(403, "the form is too old, or another's: try again")
