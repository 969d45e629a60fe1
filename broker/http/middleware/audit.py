"""One log line for each change that was asked for over the admin API, whatever became of it.

Logger ``magnetar.broker.audit``, level INFO, so that it can be sent elsewhere or switched off
on its own.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

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


def audit(scope: Scope, status: int, request_id: str) -> None:
    """Log who asked for what, and the answer's status (0: the client left before it).

    REQUIRES: the method changes something; only paths of the admin API are logged.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    if not raw.startswith(b"/admin/"):
        return
    if query := scope.get("query_string"):
        # Pulsar takes tokens in addresses of HTTP calls, so some will be sent here, in vain.
        raw += b"?" + _TOKEN.sub(rb"\1******", query)
    raw = _SECRETS.sub(rb"\1******", raw)
    # As it came: percent-encoded. Anything else (a proxy may be careless) can't forge a line.
    path = raw.decode("ascii", "backslashreplace")[:_PATH_MAX]
    if not path.isprintable():
        path = path.encode("unicode_escape").decode()
    client = scope.get("client")
    fields = {
        "role": one_value(scope["state"].get("role", ANONYMOUS)),
        "method": scope["method"],
        "path": path,
        "status": status,
        "request": request_id,
        "address": f"{client[0]}:{client[1]}" if client else "unknown",
    }
    speaks_for = ""
    if (original := scope["state"].get("original_role")) is not None:
        fields["original_role"] = one_value(original)
        speaks_for = " original_role=%(original_role)s"
    logger.info(
        f"role=%(role)s{speaks_for} method=%(method)s path=%(path)s status=%(status)d"
        " request=%(request)s address=%(address)s",
        fields,
        extra={"fields": fields},
    )
