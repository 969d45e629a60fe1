"""The fields of a form that a browser sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from starlette.requests import Request

BODY_MAX: Final = 64 * 1024
_FIELDS_MAX: Final = 100
LONG_BODY_MAX: Final = 1024 * 1024
"""Of a form with a message in it, of which each byte may be three letters there."""


async def form_fields(request: Request, bytes_max: int = BODY_MAX) -> dict[str, str]:
    """Of a body of at most so many bytes and 100 fields; else none."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            return {}
    if len(body) <= BODY_MAX:
        return _fields(body)
    return await asyncio.to_thread(_fields, body)


def _fields(body: bytes) -> dict[str, str]:
    text = body.decode(errors="replace")
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:  # more
        return {}
    return {name: values[0] for name, values in found.items()}
