"""One log line for each change that was asked for over the admin API, whatever became of it, and
for each read of what messages hold.

Logger ``magnetar.broker.audit``, level INFO, so that it can be sent elsewhere or switched off
on its own. The last ones are kept in memory, for those who ask over HTTP (routes/audit.py).
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from magnetar.bookkeeper.auth.refusal_log import one_value

if TYPE_CHECKING:
    from starlette.types import Scope

logger = logging.getLogger("magnetar.broker.audit")

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
ANONYMOUS: Final = "anonymous"
_PATH_MAX: Final = 1000
# Addresses may hold secrets that no route asks for: credentials in a query, and the value of a
# setting that a client takes for a dynamic one.
_SECRETS: Final = re.compile(
    rb"(?i)([?&](?:token|password|authorization)="
    rb"|/brokers/configuration/[^/?]*(?:secret|password|token|auth)[^/?]*/)[^&?/#]+"
)
_TOKEN: Final = re.compile(rb"((?:^|&)token=)[^&]*")
CHANGES_MAX: Final = 1000
_READ: Final = "messages_read"


def note_read(scope: Scope, messages: Sequence[Mapping[str, Any]]) -> None:
    """The answer to a request tells what these messages hold, as ``.../messages`` has them."""
    if messages:
        read = scope["state"].setdefault(_READ, {"messages": 0, "first": messages[0]["messageId"]})
        read["messages"] += len(messages)
        read["last"] = messages[-1]["messageId"]


def is_audited(scope: Scope) -> bool:
    """Whether a request that was answered gets a line."""
    return scope["method"] not in SAFE_METHODS or _READ in scope["state"]


class AuditLog:
    """Logs changes and reads, and keeps the last changes: 2 MiB at most, where paths are long."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_MAX)
        self._began_ms = int(clock_s() * 1000)

    def clear(self) -> None:
        """Forget the changes that are kept."""
        self._changes.clear()
        self._began_ms = int(self._clock_s() * 1000)

    @property
    def since_ms(self) -> int:
        """All changes since then are kept."""
        is_full = len(self._changes) == CHANGES_MAX
        return int(self._changes[0]["at"]) if is_full else self._began_ms

    def changes(self, role: str, path: str) -> Iterator[dict[str, Any]]:
        """Those that are kept, the youngest first.

        Args:
            role: only of this one, or in its name; "": of all.
            path: only those whose address has this text.
        """
        for change in reversed(self._changes):
            is_its = role in ("", change["role"], change.get("originalRole"))
            if is_its and path in change["path"]:
                yield change

    def add(self, scope: Scope, status: int, request_id: str) -> None:
        """Log and keep who asked for what, and the answer's status (0: the client left before it).

        Reads are logged only: there may be many, and changes are what is looked for afterwards.

        REQUIRES: ``is_audited``; only paths of the admin API count.
        """
        if (path := _shown_path(scope)) is None:
            return
        client, state = scope.get("client"), scope["state"]
        change = {
            "at": int(self._clock_s() * 1000),
            "role": state.get("role", ANONYMOUS),
            "method": scope["method"],
            "path": path,
            "status": status,
            "request": request_id,
            "address": f"{client[0]}:{client[1]}" if client else "unknown",
        }
        if (original := state.get("original_role")) is not None:
            change["originalRole"] = original
        if (told_for := state.get("forwarded_for")) is not None:
            change["forwardedFor"] = told_for
        if scope["method"] not in SAFE_METHODS:
            self._changes.append(change)
        _log(change | state.get(_READ, {}))


def _shown_path(scope: Scope) -> str | None:
    """The address without secrets, fit for a line; None: not of the admin API."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    if not raw.startswith(b"/admin/"):
        return None
    if query := scope.get("query_string"):
        # Pulsar takes tokens in addresses of HTTP calls, so some will be sent here, in vain.
        raw += b"?" + _TOKEN.sub(rb"\1******", query)
    raw = _SECRETS.sub(rb"\1******", raw)
    # As it came: percent-encoded. Anything else (a proxy may be careless) can't forge a line.
    path = raw.decode("ascii", "backslashreplace")[:_PATH_MAX]
    return path if path.isprintable() else path.encode("unicode_escape").decode()


def _log(change: dict[str, Any]) -> None:
    hidden = ("at", "originalRole", "forwardedFor")
    fields = {key: value for key, value in change.items() if key not in hidden}
    fields["role"] = one_value(change["role"])
    speaks_for = ""
    if (original := change.get("originalRole")) is not None:
        fields["original_role"] = one_value(original)
        speaks_for = " original_role=%(original_role)s"
    via = ""
    if (told_for := change.get("forwardedFor")) is not None:
        fields["forwarded_for"] = one_value(told_for)
        via = " forwarded_for=%(forwarded_for)s"
    read = " messages=%(messages)d first=%(first)s last=%(last)s" if "messages" in change else ""
    logger.info(
        f"role=%(role)s{speaks_for} method=%(method)s path=%(path)s status=%(status)d"
        f" request=%(request)s address=%(address)s{via}{read}",
        fields,
        extra={"fields": fields},
    )
