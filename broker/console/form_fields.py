"""The fields of a form that a browser sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from starlette.requests import Request

_BODY_MAX: Final = 64 * 1024


async def form_fields(request: Request) -> dict[str, str]:
    """Of a body of at most 64 KiB, which is more than any form of ours has; else none."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_MAX:
            return {}
    found = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=100)
    return {name: values[0] for name, values in found.items()}
