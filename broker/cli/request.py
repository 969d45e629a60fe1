"""Makes the HTTP request of an admin command and its arguments. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from magnetar.broker.cli.admin_commands import AdminCommand
from magnetar.broker.cli.errors import CliError

_PLACE: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """An HTTP request. ``path`` is quoted, without the query; values of ``query`` may be lists."""

    method: str
    path: str
    query: dict[str, Any]
    body: Any = None

    @property
    def target(self) -> str:
        """Return the path with the query."""
        if not self.query:
            return self.path
        return f"{self.path}?{urlencode({k: _text(v) for k, v in self.query.items()}, doseq=True)}"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that a user gave: positionals by name, options by where they go."""

    word: AdminCommand
    positionals: Mapping[str, str]
    options: Mapping[str, Any]

    def given(self, step: str) -> Any:
        """Value of an option for the word's own step; None when it isn't there."""
        return self.options.get(f"step:{step}")

    @property
    def topic(self) -> str | None:
        """The topic that it is about, as it was given."""
        return self.positionals.get("topic", self.options.get("path:plain_topic"))

    def segment(self, name: str) -> str:
        """A positional, or an option that goes into a path, quoted for it; "" when not given."""
        text = self.positionals.get(name, self.options.get(f"path:{name}"))
        if text is None:
            return ""
        segment = _segment(name, str(text))
        # Decoded twice below topics, once below namespaces.
        twice = name == "subscription" and self.topic is not None
        return quote(segment, safe="") if twice else segment

    def path(self) -> str:
        """Template of the first path of which every place is given; else the last one's.

        Raises:
            CliError: an option says nothing without another one.
        """
        asked = {option.to.removeprefix("path:"): option for option in self.word.options}
        given = {"plain_topic", *self.positionals}
        given |= {to.removeprefix("path:") for to in self.options if to.startswith("path:")}
        places = [(set(_PLACE.findall(path)), path) for path in self.word.paths]
        found, path = next((each for each in places if each[0] <= given), places[-1])
        if (given - found).intersection(asked):
            flags = [asked[name].flags[0] for name in asked if name in places[0][0]]
            raise CliError(f"{' and '.join(flags)} belong together")
        return path


def request_of(arguments: Arguments, path: str | None = None) -> AdminRequest:
    """The request of a word that is one plain call.

    Args:
        path: template to fill in instead of the word's own.
    Raises:
        CliError: not a topic name, or not a namespace.
    """
    query: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for to, value in arguments.options.items():
        kind, _, name = to.partition(":")
        if value is None:
            continue
        if kind == "query":
            query[name] = value
        elif kind == "field":
            _put(fields, name, value)
    template = arguments.path() if path is None else path
    filled = template.format_map(_Segments(arguments))
    body = arguments.options.get("body", fields or None)
    return AdminRequest(arguments.word.method, filled, query, body)


def topic_parts(text: str) -> tuple[str, str, str, str]:
    """Domain, tenant, namespace and local name of a full or short topic name.

    Raises:
        CliError: it is neither.
    """
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = "persistent", text
    parts = rest.split("/", 2)
    if len(parts) == 1 and not separator:
        parts = ["public", "default", *parts]
    if len(parts) != 3 or not all(parts) or domain not in ("persistent", "non-persistent"):
        raise CliError(f"{text}: not a topic name (domain://tenant/namespace/topic)")
    return domain, parts[0], parts[1], parts[2]


class _Segments(dict[str, str]):
    """Fills a template: each name is quoted as what it is."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self._arguments = arguments

    def __missing__(self, name: str) -> str:
        if name == "plain_topic":
            return _quoted(topic_parts(self._arguments.topic or "")[1:])
        text = self._arguments.segment(name)
        if not text:
            raise CliError(f"{name} must not be empty")
        return text


def _segment(name: str, text: str) -> str:
    if name == "topic":
        return _quoted(topic_parts(text))
    if name == "namespace":
        tenant, separator, local = text.partition("/")
        if not separator or "/" in local or not tenant or not local:
            raise CliError(f"{text}: not a namespace (tenant/namespace)")
        return _quoted((tenant, local))
    return quote(text, safe="")


def _quoted(parts: tuple[str, ...]) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _put(fields: dict[str, Any], name: str, value: Any) -> None:
    *above, last = name.split(".")
    for part in above:
        fields = fields.setdefault(part, {})
    fields[last] = value


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
