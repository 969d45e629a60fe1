"""``magnetar admin``: one HTTP call with the standard library, its answer as JSON or lines."""

from __future__ import annotations

import argparse
import http.client
import json
import time
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from broker.cli.admin_words import WORDS, Option, Word
from broker.cli.errors import CliError

__all__ = ["run_admin"]

REDIRECTS_MAX = 5
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LATEST = 2**63 - 1


def run_admin(options: argparse.Namespace) -> int:
    """Raises CliError: the call failed; the text holds the server's reason."""
    name, arguments = _parse_word(options.group, options.words)
    word = WORDS[options.group][name]
    path, body = _request_of(word, arguments, options.admin_url, options.request_timeout)
    status, answer = _call(options.admin_url, word.method, path, body, options.request_timeout)
    if not 200 <= status < 300:
        raise CliError(f"HTTP {status}\nReason: {_reason(answer)}")
    _print(answer)
    return 0


def _parse_word(group: str, words: list[str]) -> tuple[str, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog=f"magnetar admin {group}")
    commands = parser.add_subparsers(dest="word", metavar="WORD", required=True)
    for name, word in WORDS[group].items():
        command = commands.add_parser(name, help=word.help, description=word.help)
        for positional in word.positionals:
            command.add_argument(positional)
        for option in word.options:
            _add_option(command, option)
    arguments = parser.parse_args(words)
    return arguments.word, arguments


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    if option.kind == "true":
        parser.add_argument(*option.flags, action="store_true", help=option.help)
        return
    kind = int if option.kind == "int" else str
    parser.add_argument(*option.flags, type=kind, help=option.help, required=option.required)


def _request_of(
    word: Word, arguments: argparse.Namespace, admin_url: str, timeout_s: float
) -> tuple[str, Any]:
    """Path with query, and the body (None: no body)."""
    segments = {name: _segment(name, getattr(arguments, name)) for name in word.positionals}
    query: dict[str, str] = {}
    fields: dict[str, Any] = dict(word.body)
    body: Any = None
    suffix = ""
    for option in word.options:
        value = getattr(arguments, option.flags[-1].lstrip("-").replace("-", "_"))
        kind, _, name = option.to.partition(":")
        if value is None or value is False:
            continue
        if kind == "query":
            query[name] = "true" if value is True else str(value)
        elif kind == "path":
            segments[name] = quote(str(value), safe="")
        elif kind == "list":
            fields[name] = [part.strip() for part in value.split(",") if part.strip()]
        elif kind == "bundles":
            fields["bundles"] = {"numBundles": value}
        elif kind == "message-id":
            body = _message_id(value)
        elif kind == "ago":
            suffix = f"/{int((time.time() - _seconds(value)) * 1000)}"
        else:
            body = value
    if any(option.to == "list:allowedClusters" for option in word.options):
        fields.setdefault("adminRoles", [])
        if "allowedClusters" not in fields:
            _, answer = _call(admin_url, "GET", "/admin/v2/clusters", None, timeout_s)
            fields["allowedClusters"] = json.loads(answer)
    path = word.path.format(**segments) + suffix
    return f"{path}?{urlencode(query)}" if query else path, fields or body


def _segment(name: str, text: str) -> str:
    if name == "topic":
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
        parts = rest.split("/", 2)
        if len(parts) == 1 and not separator:
            parts = ["public", "default", *parts]
        if len(parts) != 3:
            raise CliError(f"{text}: not a topic name (domain://tenant/namespace/topic)")
        return "/".join(quote(part, safe="") for part in (domain, *parts))
    if name == "namespace":
        tenant, separator, local = text.partition("/")
        if not separator or "/" in local:
            raise CliError(f"{text}: not a namespace (tenant/namespace)")
        return f"{quote(tenant, safe='')}/{quote(local, safe='')}"
    return quote(text, safe="")


def _message_id(text: str) -> dict[str, int]:
    if text == "latest":
        return {"ledgerId": _LATEST, "entryId": _LATEST, "partitionIndex": -1}
    if text == "earliest":
        return {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    ledger, _, entry = text.partition(":")
    try:
        return {"ledgerId": int(ledger), "entryId": int(entry), "partitionIndex": -1}
    except ValueError:
        raise CliError(f"{text}: not a message id (latest, earliest or ledger:entry)") from None


def _seconds(text: str) -> int:
    unit = _SECONDS.get(text[-1:].lower())
    number = text[:-1] if unit else text
    if not number.isdigit():
        raise CliError(f"{text}: not a duration (90s, 10m, 3h, 2d, 1w)")
    return int(number) * (unit or 1)


def _call(
    url: str, method: str, path: str, body: Any, timeout_s: float, redirects: int = REDIRECTS_MAX
) -> tuple[int, bytes]:
    """One request; follows 307 with method and body.

    Raises:
        CliError: no connection, or no answer in time.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    headers = {"Accept": "application/json"}
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        answer = response.read()
    except (TimeoutError, OSError, http.client.HTTPException) as error:
        raise CliError(f"{url} does not answer: {error}") from error
    finally:
        connection.close()
    if response.status == 307 and redirects:
        target = urlsplit(response.headers.get("Location", ""))
        path = f"{target.path}?{target.query}" if target.query else target.path
        new_url = f"{target.scheme}://{target.netloc}"
        return _call(new_url, method, path, body, timeout_s, redirects - 1)
    return response.status, answer


def _reason(answer: bytes) -> str:
    text = answer.decode(errors="replace").strip()
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text or "none given"


def _print(answer: bytes) -> None:
    text = answer.decode(errors="replace")
    if not text:
        return
    try:
        value = json.loads(text)
    except ValueError:
        print(text)
        return
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        for item in value:
            print(item)
    else:
        print(json.dumps(value, indent=2, ensure_ascii=False))
