"""What the console changes: each step is shown with what it loses before it is done.

A step is a page with one form, so that it works without a script; the form holds a token that only
pages of this process have, beside the check of the request's origin. The call itself is the admin
API's, made as the visitor.
"""

import hmac
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.formats import number, plural, segment, size
from magnetar.broker.console.schema_form import ActionError, value_of
from magnetar.broker.console.topic_path import TopicPath

Json = Mapping[str, Any]


class Target(Protocol):
    """What a step is about."""

    @property
    def name(self) -> str:
        """That is typed to confirm."""

    @property
    def url(self) -> str:
        """Of its page, below ``/console/``."""

    @property
    def trail(self) -> Sequence[tuple[str, str]]:
        """Pages above a step's, down to its own: title, and URL below ``/console/``."""

    @property
    def menu(self) -> str:
        """Key of the entry of the menu."""


S = TypeVar("S", bound=Target)


def subscription_path(topic: TopicPath, subscription: str) -> str:
    """Below ``/admin/v2``, of the topic itself if there is no subscription.

    Brokers decode the name twice there.
    """
    return topic.rest + (
        f"/subscription/{segment(quote(subscription, safe=''))}" if subscription else ""
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic or one of its subscriptions, and the statistics."""

    topic: TopicPath
    partitions: int
    stats: Json
    subscription: str = ""
    menu: str = "topics"
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of the other subscriptions, by name, and by number of the partition, "" without; only of a
    step that needs them: the last message up to which all are acknowledged.
    """

    @property
    def name(self) -> str:
        return self.subscription or self.topic.local

    @property
    def url(self) -> str:
        return f"topic/{self.topic.rest}"

    @property
    def trail(self) -> Sequence[tuple[str, str]]:
        return (("Topics", "topics"), (self.topic.path, self.url))

    @property
    def path(self) -> str:
        """Below ``/admin/v2``."""
        return subscription_path(self.topic, self.subscription)

    @property
    def of_subscription(self) -> Json:
        found: Json = self.stats.get("subscriptions", {}).get(self.subscription, {})
        return found


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    """Below ``/admin/`` and the version."""
    command: str
    """What does the same on a command line."""
    query: Mapping[str, str | int | bool] = field(default_factory=dict)
    body: Any = None
    then: str = ""
    """URL of the page to go to when it is done, below ``/console/``; empty: where one came from."""
    version: str = "v2"
    """Of the admin API."""


@dataclass(frozen=True, slots=True)
class Action(Generic[S]):
    """A step: what it costs, what it asks for, and its call."""

    key: str
    title: str
    loses: Callable[[S], str]
    """What it costs, in numbers; of one that creates, what comes."""
    call: Callable[[S, Any], Call]
    """Of what was typed, a value of the schema. Raises ActionError."""
    schema: Callable[[S], Json | None] = lambda _: None
    """JSON schema of what is asked for; None: nothing."""
    is_typed: bool = False
    """Whether the name has to be typed: what it loses is gone for good."""
    is_costly: bool = False
    """Whether it has to be where the cluster is marked red: clients notice it."""
    tab: str = ""
    """Below the URL of what it is about: where one comes from."""
    answer: Callable[[Json], Sequence[tuple[str, str]]] | None = None
    """Names and texts of what its call answers, shown in its place; None: one goes back."""

    def call_for(self, subject: S, typed: Mapping[str, str]) -> Call:
        """Raises ActionError: something else was to be typed."""
        schema = self.schema(subject)
        return self.call(subject, None if schema is None else value_of(schema, typed))

    def back(self, subject: S) -> str:
        """URL of that page, below ``/console/``."""
        return "/".join(each for each in (subject.url, self.tab) if each)


def _text(title: str, example: str) -> Callable[[Any], Json]:
    """Schema of a single text."""
    return lambda _: {"type": "string", "title": title, "examples": [example]}


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


def _skip(subject: Subject, text: str) -> Call:
    count = text.strip()
    if not (count.isascii() and count.isdecimal() and 0 < len(count) < 10):
        raise ActionError("a number of messages: 1, 100")
    return Call("POST", f"{subject.path}/skip/{count}", _command("skip", subject, "-n", count))


def _simple(method: str, tail: str, words: str) -> Callable[[Subject, Any], Call]:
    return lambda subject, _: Call(method, subject.path + tail, _command(words, subject))


def _whole(
    method: str, tail: str, words: str, of_all: tuple[str, str], then: str = ""
) -> Callable[[Subject, Any], Call]:
    """Of a topic, and of one with partitions: tail and words."""

    def call(subject: Subject, _: Any) -> Call:
        end, command = of_all if subject.partitions else (tail, words)
        return Call(method, subject.path + end, _command(command, subject), then=then)

    return call


SUBSCRIPTION_ACTIONS: Final[tuple[Action[Subject], ...]] = (
    Action(
        "skip",
        "Skip all",
        _skipped,
        _simple("POST", "/skip_all", "clear-backlog"),
        is_costly=True,
        tab="subscriptions",
    ),
    Action(
        "skip-some",
        "Skip messages",
        lambda subject: (
            f"The next messages count as acknowledged by {subject.subscription}, "
            f"which has {plural(_backlog(subject), 'message')} unread. A batch counts as one."
        ),
        _skip,
        _text("How many", "1"),
        is_costly=True,
        tab="subscriptions",
    ),
    Action(
        "reset",
        "Reset cursor",
        lambda subject: (
            f"{subject.subscription} reads again, or skips: from then on. "
            "Consumers are disconnected and come back."
        ),
        _reset,
        _text("Back to, before now", "2h"),
        is_costly=True,
        tab="subscriptions",
    ),
    Action(
        "expire",
        "Expire",
        lambda subject: (
            "Older messages count as acknowledged by "
            f"{subject.subscription}, which has {plural(_backlog(subject), 'message')} unread."
        ),
        _expire,
        _text("Older than", "1d"),
        is_costly=True,
        tab="subscriptions",
    ),
    Action(
        "unsubscribe",
        "Delete subscription",
        lambda subject: (
            f"{subject.subscription} is gone, with {plural(_backlog(subject), 'unread message')}."
        ),
        _simple("DELETE", "", "unsubscribe"),
        is_typed=True,
        tab="subscriptions",
    ),
)
TOPIC_ACTIONS: Final[tuple[Action[Subject], ...]] = (
    Action(
        "unload",
        "Unload",
        lambda _: "Clients are disconnected and come back; nothing is lost.",
        _simple("PUT", "/unload", "unload"),
        is_costly=True,
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
        _whole("DELETE", "", "delete", ("/partitions", "delete-partitioned-topic"), "topics"),
        is_typed=True,
    ),
)


def _backlog(subject: Subject) -> int:
    return int(subject.of_subscription.get("msgBacklog", 0))


def call_of(action: Action[S], subject: S, typed: Mapping[str, str]) -> Call:
    """What was asked for.

    Raises:
        ActionError: something else was to be typed.
    """
    if action.is_typed and typed.get("name", "") != subject.name:
        raise ActionError(f"type the name to confirm: {subject.name}", "name")
    return action.call_for(subject, typed)


def check_token(fields: Mapping[str, str], token: str) -> None:
    """Raises AdminError: 403 the form isn't ours."""
    given = fields.get("token", "").encode(errors="replace")
    if not hmac.compare_digest(given, token.encode()):
        raise AdminError(403, "the form is too old, or another's: try again")
