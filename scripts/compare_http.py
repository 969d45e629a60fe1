#!/usr/bin/env python3
"""Run the same requests against two servers and compare the answers.

    scripts/compare_http.py http://127.0.0.1:8080 http://127.0.0.1:8081 [AREA ...]

The first is Pulsar, the second Magnetar; an area is a module of ``http_cases``, without one all are
run. Compared: status, content type, names of X-Pulsar headers, JSON keys and types, the reason.
Requests run in order on both, in a tenant made for this run. Prints one line each; deliberate
differences are in docs/reference/http-differences.md and are marked "known" here. Exit code 1
when another difference is left. Standard library only, but for the area ``statistics``.
"""

import http.client
import importlib
import json
import pkgutil
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import http_cases
from http_cases import STATUS_ONLY, Case, Raw, Step


@dataclass
class Answer:
    status: int
    content_type: str
    body: bytes
    headers: frozenset[str]  # X-Pulsar-...

    def shape(self) -> Any:
        """JSON keys and types; the reason as it is; texts as their type."""
        try:
            value = json.loads(self.body) if self.body else None
        except ValueError:
            return "text"
        if isinstance(value, dict) and value.keys() == {"reason"}:
            return value
        return shape_of(value)


def shape_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value).__name__


def ask(url: str, method: str, path: str, body: Any) -> Answer:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    if body is not None and not isinstance(body, Raw):
        body = Raw(json.dumps(body).encode())
    data, headers = (None, {}) if body is None else (body.data, {"Content-Type": body.content_type})
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        names = frozenset(n.lower() for n in response.headers if n.lower().startswith("x-pulsar-"))
        return Answer(response.status, kind, response.read(), names)
    except TimeoutError:  # Pulsar's way to refuse some bodies
        return Answer(0, "", b"", frozenset())
    finally:
        connection.close()


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """What the second lacks, has too much or has otherwise."""
    if isinstance(left, dict) and isinstance(right, dict):
        found = [f"lacks {where}{key}" for key in left.keys() - right.keys()]
        found += [f"adds {where}{key}" for key in right.keys() - left.keys()]
        for key in sorted(left.keys() & right.keys()):
            found += differences(left[key], right[key], f"{where}{key}.")
        return found
    if isinstance(left, list) and isinstance(right, list):
        # Shapes show one item of a list at most: that there is none says nothing of the others.
        pairs = enumerate(zip(left, right, strict=False))
        found = [x for n, pair in pairs for x in differences(*pair, f"{where}[{n}].")]
        if len(left) != len(right) and max(len(left), len(right)) > 1:
            found.append(f"{where.rstrip('.')}: {len(left)} / {len(right)} items")
        return found
    return [] if left == right else [f"{where.rstrip('.') or 'body'}: {left} / {right}"]


def differences_of(
    first: Answer, second: Answer, view: Callable[[Any], Any] | None = None
) -> list[str]:
    """Of all that is compared but the status."""
    found = []
    if first.content_type != second.content_type:
        found.append(f"type {first.content_type or '-'} / {second.content_type or '-'}")
    found += differences(dict.fromkeys(first.headers), dict.fromkeys(second.headers))
    if view is not None and all(each.content_type.endswith("json") for each in (first, second)):
        values = [view(json.loads(each.body)) if each.body else None for each in (first, second)]
        return found + differences(values[0], values[1])
    return found + differences(first.shape(), second.shape())


def compare(pulsar: str, magnetar: str, area: str) -> tuple[int, int]:
    """Ask both the requests of one area; how many, and how many differ without a known reason."""
    tenant = f"cmp{secrets.token_hex(3)}"
    module = importlib.import_module(f"http_cases.{area}")
    more = []
    if getattr(module, "NEEDS_DOCUMENT", False):
        more.append(json.loads(ask(magnetar, "GET", "/openapi.json", None).body))
    cases: list[Case] = module.requests(tenant, *more)
    unexplained = 0
    for method, path, body, note in cases:
        if isinstance(body, Step):
            for url in (pulsar, magnetar):
                body.act(url, tenant)
            continue
        first, second = (ask(url, method, path, body) for url in (pulsar, magnetar))
        found = []
        if first.status != second.status:
            found.append(f"status {first.status} / {second.status}")
        if note != STATUS_ONLY:
            found += differences_of(first, second, getattr(module, "view", None))
        verdict = "same" if not found else "known" if note not in ("", STATUS_ONLY) else "DIFFERS"
        unexplained += verdict == "DIFFERS"
        short = path.replace(tenant, "T")
        print(f"{verdict:8}{first.status:4} {method:7}{short:60} {'; '.join(found):.400}")
    return len(cases), unexplained


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    areas = sys.argv[3:] or [module.name for module in pkgutil.iter_modules(http_cases.__path__)]
    totals = [compare(sys.argv[1], sys.argv[2], area) for area in areas]
    unexplained = sum(row[1] for row in totals)
    print(f"{sum(row[0] for row in totals)} requests, {unexplained} unexplained differences")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
