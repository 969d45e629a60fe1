"""Routes on the path as it came, so that an encoded slash stays inside its segment.

Servers hand on the decoded path, where ``a%2Fb`` has become two segments. ``route_path`` is the raw
one, which the outermost layer puts in its place for the router; ``form_decode`` then decodes each
segment once, by form rules (``+`` is a space).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Of a request. Without a trailing slash: Pulsar accepts both and redirects neither."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.split(b"?", 1)[0].decode("latin-1").rstrip("/") or "/"
