"""Answers to requests for pages of the console: what browsers may do with them, and refusals."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response

from magnetar.broker.http.responses import JsonResponse

if TYPE_CHECKING:
    from starlette.types import Scope

PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>{status}</title></head>
<body><h1>{status}</h1><p>{reason}</p><p><a href="{start}">Console</a></p></body></html>
"""


def refusal_for(scope: Scope, refusal: Response) -> Response:
    """The refusal as a page where a browser asks for one of the console; else as it is.

    It needs no template, which may be what has failed.

    """
    if not isinstance(refusal, JsonResponse) or not _is_of_console(scope):
        return refusal
    found: Response = refusal
    if any(name == b"accept" and b"text/html" in value for name, value in scope["headers"]):
        reason = orjson.loads(refusal.body)["reason"]
        raw: bytes = scope["raw_path"]
        depth = raw.partition(b"?")[0].count(b"/")
        start = "../" * (depth - 1) + "console/"
        content = _PAGE.format(status=found.status_code, reason=escape(reason), start=start)
        kept = {
            name: value
            for name, value in refusal.headers.items()
            if name not in ("content-type", "content-length")
        }
        found = Response(content, refusal.status_code, kept, "text/html")
    found.headers.update({**PAGE_HEADERS, "Cache-Control": "no-store"})
    return found


def _is_of_console(scope: Scope) -> bool:
    path: str = scope["path"]
    return path in ("/", "/console") or path.startswith("/console/")
