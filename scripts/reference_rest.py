"""``docs/reference/rest.md``: every call of a broker's HTTP port, from its OpenAPI document."""

import re
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.http.openapi import TAGS, operations
from magnetar.broker.http.routing.route import declared_routes
from magnetar.broker.http.server.app import create_app

_HEAD: Final = """\
# REST calls

<!-- written by scripts/reference_pages.py from the OpenAPI document -->

Every call of a broker's HTTP port. `GET /openapi.json` has bodies, parameters and examples, and
`/docs` shows them in a browser. "Permission" is what a role needs when `authorizationEnabled` is
true; superusers may call everything.
[HTTP and WebSocket](../guides/http.md) explains the calls that aren't Pulsar's.
"""


def rest_page() -> str:
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    service: Any = SimpleNamespace(config=BrokerConfig(), access=None, schemas=None)
    app = create_app(service)
    permissions = {
        (route.method, route.path_format): route.access.permission.name.lower().replace("_", " ")
        for route in declared_routes(app)
    }
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = defaultdict(list)
    for method, path, operation in operations(app.state.openapi()):
        by_tag[operation["tags"][0]].append((method, path, operation))
    yield _HEAD.rstrip("\n")
    for tag, text in TAGS.items():
        if tag not in by_tag:
            continue
        yield f"\n## {tag[:1].upper()}{tag[1:]}\n"
        yield f"{text.rstrip('.')}.\n"
        yield "| method | path | what it does | permission |"
        yield "|---|---|---|---|"
        for method, path, operation in by_tag[tag]:
            summary = re.sub(r"\s+", " ", operation.get("summary", "")).replace("|", "\\|")
            permission = permissions[method.upper(), path]
            yield f"| {method.upper()} | `{path}` | {summary} | {permission} |"
