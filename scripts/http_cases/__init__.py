"""What ``scripts/compare_http.py`` asks both servers, a module per area.

Each module has ``requests(tenant)``: the cases in order, in a tenant of its own that the first
cases create and the last ones delete. One with ``NEEDS_DOCUMENT`` gets Magnetar's OpenAPI document
as the second argument. One with ``view`` has values compared: of both answers it makes what must
be equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Case = tuple[str, str, Any, str]
"""Method, path, JSON body, Raw or None, note of a known difference or the empty text; or CLIENTS,
what they do, a Step, the empty text.
"""


@dataclass(frozen=True)
class Raw:
    """A body that is sent as it is."""

    data: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class Step:
    """What clients do on each server before the next case."""

    act: Callable[[str, str], None]
    """Gets the server's URL and the tenant."""


T = "/admin/v2/tenants"
NS = "/admin/v2/namespaces"
STATUS_ONLY = "status only"
"""Note of a case whose answer's body isn't compared."""
