#!/usr/bin/env python3
"""Run the same requests against two servers and compare the answers.

    scripts/compare_http.py http://127.0.0.1:8080 http://127.0.0.1:8081

The first is Pulsar, the second Magnetar. Compared: status, content type, JSON keys and types, the
reason text. Requests run in order on both, in a tenant made for this run. Prints one line each;
deliberate differences are in docs/http-differences.md and are marked "known" here. Exit code 1 when
another difference is left. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import secrets
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TENANT = f"cmp{secrets.token_hex(3)}"
A = f"/admin/v2/persistent/{TENANT}/ns"
N = f"/admin/v2/non-persistent/{TENANT}/ns"
T = "/admin/v2/tenants"
NS = "/admin/v2/namespaces"
CLUSTERS = {"allowedClusters": ["standalone"]}
EARLIEST = {"ledgerId": -1, "entryId": -1}
MESSAGES = {"messages": [{"payload": "x"}, {"payload": "y", "key": "k"}]}

# (method, path, JSON body or None, note of a known difference or "")
REQUESTS: list[tuple[str, str, Any, str]] = [
    ("GET", T, None, "other tenants"),
    ("GET", f"{T}/{TENANT}", None, ""),
    ("PUT", f"{T}/{TENANT}", None, ""),
    ("PUT", f"{T}/{TENANT}", {"allowedClusters": []}, ""),
    ("PUT", f"{T}/{TENANT}", {"allowedClusters": ["nope"]}, ""),
    ("PUT", f"{T}/{TENANT}", CLUSTERS, ""),
    ("PUT", f"{T}/{TENANT}", CLUSTERS, ""),
    ("PUT", f"{T}/bad%20name", CLUSTERS, ""),
    ("GET", f"{T}/{TENANT}", None, ""),
    ("POST", f"{T}/{TENANT}", {"adminRoles": ["a"], **CLUSTERS}, ""),
    ("POST", f"{T}/{TENANT}", {}, ""),
    ("POST", f"{T}/{TENANT}x", CLUSTERS, ""),
    ("GET", "/admin/v2/clusters", None, ""),
    ("GET", "/admin/v2/clusters/standalone", None, "known: no Java key stores"),
    ("GET", "/admin/v2/clusters/nope", None, ""),
    ("GET", "/admin/v2/clusters/standalone/failureDomains", None, ""),
    ("GET", f"{NS}/{TENANT}", None, ""),
    ("GET", f"{NS}/{TENANT}x", None, ""),
    ("PUT", f"{NS}/{TENANT}/ns", None, ""),
    ("PUT", f"{NS}/{TENANT}/ns", None, ""),
    ("PUT", f"{NS}/{TENANT}x/ns", None, ""),
    ("PUT", f"{NS}/{TENANT}/n%20s", None, ""),
    ("GET", f"{NS}/{TENANT}/ns", None, ""),
    ("GET", f"{NS}/{TENANT}/nope", None, ""),
    ("GET", f"{NS}/{TENANT}/ns/bundles", None, ""),
    ("GET", f"{NS}/{TENANT}/ns/topics", None, ""),
    ("GET", f"{NS}/{TENANT}/ns/permissions", None, ""),
    ("GET", f"{NS}/{TENANT}/ns/replication", None, ""),
    ("DELETE", f"{NS}/{TENANT}/ns?force=true", None, ""),
    ("DELETE", f"{T}/{TENANT}", None, ""),
    ("GET", f"{A}/t/stats", None, ""),
    ("GET", f"{A}/t/partitions", None, ""),
    ("GET", f"{A}/t/partitions?checkAllowAutoCreation=true", None, ""),
    ("DELETE", f"{A}/t", None, ""),
    ("PUT", f"{A}/t", None, ""),
    ("PUT", f"{A}/t", None, ""),
    ("PUT", f"{A}/a%2Fb", None, ""),
    ("PUT", f"{A}/x-partition-0", None, ""),
    ("GET", f"{A}", None, ""),
    ("GET", f"/admin/v2/persistent/{TENANT}/nope", None, ""),
    ("GET", f"{A}/t/stats", None, ""),
    ("GET", f"{A}/t/internalStats", None, ""),
    ("GET", f"{A}/t/lastMessageId", None, ""),
    ("GET", f"{A}/t/partitions", None, ""),
    ("PUT", f"{A}/t/partitions", 3, ""),
    ("PUT", f"{A}/t/subscription/s", None, ""),
    ("PUT", f"{A}/t/subscription/s", None, ""),
    ("GET", f"{A}/t/subscriptions", None, ""),
    ("GET", f"{A}/t/stats", None, "known: no type before the first consumer"),
    ("POST", f"{A}/t/subscription/nope/skip_all", None, ""),
    ("POST", f"{A}/t/subscription/s/skip_all", None, ""),
    ("POST", f"{A}/t/subscription/s/skip/2", None, ""),
    ("POST", f"{A}/t/subscription/s/resetcursor", EARLIEST, ""),
    ("POST", f"{A}/t/subscription/s/resetcursor/5", None, ""),
    ("POST", f"/topics/persistent/{TENANT}/ns/t", MESSAGES, ""),
    ("POST", f"/topics/persistent/{TENANT}/ns/t", {"messages": []}, "known: empty is refused"),
    ("DELETE", f"{A}/t/subscription/nope", None, ""),
    ("DELETE", f"{A}/t/subscription/s", None, ""),
    ("PUT", f"{A}/p/partitions", 0, ""),
    ("PUT", f"{A}/p/partitions", "x", "known: reason instead of plain text"),
    ("PUT", f"{A}/p/partitions", 2, ""),
    ("PUT", f"{A}/p/partitions", 2, ""),
    ("PUT", f"{A}/p", None, ""),
    ("GET", f"{A}/p/partitions", None, ""),
    ("GET", f"{A}/partitioned", None, ""),
    ("GET", f"{A}/p/stats", None, ""),
    ("GET", f"{A}/p/partitioned-stats", None, ""),
    ("GET", f"{A}/t/partitioned-stats", None, ""),
    ("POST", f"{A}/p/partitions", 4, ""),
    ("POST", f"{A}/p/partitions", 3, ""),
    ("POST", f"{A}/q/partitions", 3, ""),
    ("POST", f"{A}/p/terminate", None, ""),
    ("DELETE", f"{A}/p", None, ""),
    ("DELETE", f"{A}/t/partitions", None, ""),
    ("DELETE", f"{A}/q/partitions", None, ""),
    ("PUT", f"{A}/t/unload", None, ""),
    ("POST", f"{A}/t/terminate", None, ""),
    ("DELETE", f"{NS}/{TENANT}/ns", None, ""),
    ("PUT", f"{N}/np", None, ""),
    ("GET", f"{N}/np/stats", None, "known: one field more"),
    ("PUT", f"{N}/np/subscription/s", None, ""),
    ("GET", f"/lookup/v2/topic/persistent/{TENANT}/ns/t", None, ""),
    ("GET", f"/lookup/v2/topic/persistent/{TENANT}/ns/t/bundle", None, "known: text/plain"),
    ("GET", f"/lookup/v2/topic/persistent/{TENANT}/nope/t", None, ""),
    ("GET", "/admin/v2/brokers", None, ""),
    ("GET", "/admin/v2/brokers/standalone", None, ""),
    ("GET", "/admin/v2/brokers/leaderBroker", None, ""),
    ("GET", "/admin/v2/brokers/health", None, "known: text/plain"),
    ("GET", "/admin/v2/brokers/ready", None, "known: text/plain"),
    ("GET", "/admin/v2/brokers/version", None, "known: text/plain"),
    ("GET", "/admin/v2/brokers/configuration/values", None, ""),
    ("GET", "/admin/v2/brokers/internal-configuration", None, ""),
    ("GET", "/status.html", None, "known: OK by default"),
    ("GET", "/metrics", None, "known: no redirect"),
    ("GET", "/admin/v2/nonsense", None, "known: reason instead of HTML"),
    ("POST", T, {}, "known: reason instead of HTML"),
    ("DELETE", f"{N}/np?force=true", None, ""),
    ("DELETE", f"{A}/p/partitions", None, ""),
    ("DELETE", f"{A}/t?force=true", None, ""),
    ("DELETE", f"{NS}/{TENANT}/ns", None, ""),
    ("DELETE", f"{T}/{TENANT}", None, ""),
    ("DELETE", f"{T}/{TENANT}", None, ""),
]


@dataclass
class Answer:
    status: int
    content_type: str
    body: bytes

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
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    data = None if body is None else json.dumps(body)
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        return Answer(response.status, kind, response.read())
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
        return differences(left[0], right[0], f"{where}[].") if left and right else []
    return [] if left == right else [f"{where.rstrip('.') or 'body'}: {left} / {right}"]


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    unknown = 0
    for method, path, body, note in REQUESTS:
        first, second = (ask(url, method, path, body) for url in sys.argv[1:])
        found = []
        if first.status != second.status:
            found.append(f"status {first.status} / {second.status}")
        if first.content_type != second.content_type:
            found.append(f"type {first.content_type or '-'} / {second.content_type or '-'}")
        found += differences(first.shape(), second.shape())
        verdict = "same" if not found else "known" if note else "DIFFERS"
        unknown += verdict == "DIFFERS"
        short = path.replace(TENANT, "T")
        print(f"{verdict:8}{first.status:4} {method:7}{short:60.60} {'; '.join(found):.400}")
    print(f"{len(REQUESTS)} requests, {unknown} unexplained differences")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
