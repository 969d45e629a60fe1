"""Every route of the OpenAPI document with what doesn't exist, isn't valid or isn't JSON.

Statuses only: reasons are compared where the other areas ask.
"""

import re
from collections.abc import Iterator
from typing import Any

from http_cases import NS, STATUS_ONLY, Case, Raw, T

NEEDS_DOCUMENT = True

# What stands for a name in a path when nothing is wrong with it; others get their own name.
NAMES = {
    "namespace": "ns",
    "topic": "t",
    "subscription": "s",
    "cluster": "standalone",
    "domain": "persistent",
    "bundle": "0x00000000_0x40000000",
    "broker": "nowhere:1",
    **dict.fromkeys(("timestamp", "seconds", "count", "nth", "version"), "5"),
    **dict.fromkeys(("partition", "entry_id", "index"), "0"),
    "ledger_id": "999999999",
}
# What is wrong: the names in the path that are others.
WRONG_NAMES = {
    "tenant": {"tenant": "nosuchtenant"},
    "namespace": {"namespace": "nope"},
    "bad name": {"namespace": "n%20s"},
    "topic": {"topic": "nope"},
    "partition": {"topic": "p-partition-7"},
    "partitioned": {"topic": "p"},
    "volatile": {"domain": "non-persistent", "topic": "np"},
    "domain": {"domain": "nope"},
    "subscription": {"subscription": "nope"},
    "cluster": {"cluster": "nowhere"},
}
WRONG_BODIES = {
    "malformed": Raw(b"{"),
    "wrong type": Raw(b'[["x"]]'),
    "declared as text": Raw(b'{"x": 1}', "text/plain"),
    "declared as a form": Raw(b"{}", "application/x-www-form-urlencoded"),
    "empty": None,
}
# Would make, change or end what others use, or what later requests need.
LEFT_OUT = re.compile(
    r"/admin/v2/brokers/(shutdown|health|configuration/.*)"
    r"|/admin/v2/clusters/{cluster}(/migrate|/peers|/failureDomains/{domain})?"
    r"|/admin/v2/metadata/.*|/admin/v2/resource-quotas|/topics/.*/subscription/.*"
    r"|/(docs|openapi|ready|metrics|status).*"
    r"|/admin/v3/transactions/.*"  # http_cases.transactions
)
MAKES = re.compile(
    r"PUT (/admin/v2/tenants/{tenant}|/admin/v2/namespaces/{tenant}/{namespace}"
    r"|.*/{topic}(/partitions|/subscription/{subscription})?)"
    r"|(DELETE|POST) .*/{topic}(/partitions)?|POST /admin/v2/tenants/{tenant}"
    r"|POST .*/(terminate|terminate/partitions)|DELETE .*/{tenant}(/{namespace})?"
)
# What is wrong, method and template, why the statuses differ: docs/reference/http-differences.md.
KNOWN = (
    (r".*/replicateSubscriptionState", "later versions have it"),
    (r".*DELETE .*/schemaValidationEnforced", "the Go client calls it"),
    (r".*/schemas/.*", "202 for writes; 404 where there is no schema"),
    (r"(bad name|domain): GET /lookup/.*", "500 there"),
    (r"(tenant|namespace): GET /lookup/.*/bundle", "a missing namespace is 404"),
    (r"(declared as .*|malformed|wrong type|empty|topic|volatile): POST /topics/.*/{partition}",
     "whether it is partitioned is looked at first"),
    (r"declared as text: .*", "what takes a number as text answers 500, or takes it for unset"),
    (r"(declared as .*|malformed|wrong type): .*/resource-quotas/.*", "the bundle comes first"),
    (r"empty: .*", "500, or nothing, where something was to be given"),
    (r"(tenant|namespace): \w+ (.*/resource-quotas/.*|/topics/.*)", "what is missing is named"),
    (r"(tenant|namespace): \w+ .*/(removeOffloadPolicies|entryFilters|migration|offloadPolicies"
     r"|permissions/subscription/.*|resourcegroup/.*|topicHashPositions|scanOffloadedLedgers"
     r"|unload)", "a missing namespace is 404"),
    (r".*/scanOffloadedLedgers", "501"),
    (r".*: DELETE .*/{topic}/(policies|properties)", "no key is 400, nothing there is 404"),
    (r".*: GET .*/{topic}/(backlog|internal-info)", "zeros or 500 where nothing is"),
    (r"partition: POST .*/expireMessages", "whether it is there is looked at first"),
    (r"(partitioned|subscription): GET .*", "204 for what isn't set"),
    (r"partitioned: \w+ .*/(dispatcherPauseOnAckStatePersistent|offloadPolicies|compaction"
     r"|shadowTopics)", "refused until the feature exists"),
    (r"partitioned: POST .*/trim", "204"),
    (r"subscription: POST .*/clearBacklog/.*", "topics without it are left alone"),
    (r"subscription: PUT .*", "Pulsar's peek has created it"),
    (r"volatile: .*", "405 whether it is loaded or not"),
)  # fmt: skip


def _filled(template: str, tenant: str, wrong: dict[str, str]) -> str:
    names = {"tenant": tenant, **NAMES, **wrong}
    return re.sub(r"{(\w+)}", lambda found: names.get(found[1], f"some-{found[1]}"), template)


def _note(kind: str, method: str, template: str) -> str:
    what = f"{kind}: {method} {template}"
    for pattern, note in KNOWN:
        if re.fullmatch(pattern, what):
            return f"known: {note}"
    return STATUS_ONLY


def _routes(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Method, template, body: an example, or None where the route takes none."""
    for template, operations in document["paths"].items():
        for name, operation in operations.items():
            method = name.upper()
            if LEFT_OUT.fullmatch(template) is None and method in ("GET", "PUT", "POST", "DELETE"):
                content = operation.get("requestBody", {}).get("content", {})
                yield method, template, content.get("application/json", {}).get("example")


def requests(tenant: str, document: dict[str, Any]) -> list[Case]:
    topics = f"/admin/v2/persistent/{tenant}/ns"
    cases: list[Case] = [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone"]}, ""),
        ("PUT", f"{NS}/{tenant}/ns", {"bundles": {"numBundles": 4}}, ""),
        ("PUT", f"{topics}/t", None, ""),
        ("PUT", f"{topics}/t/subscription/s", None, ""),
        ("PUT", f"{topics}/p/partitions", 2, ""),
        ("PUT", f"/admin/v2/non-persistent/{tenant}/ns/np", None, ""),
    ]
    for method, template, example in _routes(document):
        makes = MAKES.fullmatch(f"{method} {template}") is not None
        for kind, wrong in WRONG_NAMES.items():
            if all(f"{{{name}}}" in template for name in wrong) and not (
                makes and kind in ("namespace", "topic", "partition", "partitioned", "volatile")
            ):
                path = _filled(template, tenant, wrong)
                cases.append((method, path, example, _note(kind, method, template)))
        if example is not None:
            path = _filled(template, tenant, {})
            for kind, body in WRONG_BODIES.items():
                if not (makes and kind == "empty"):
                    cases.append((method, path, body, _note(kind, method, template)))
    return [
        *cases,
        ("DELETE", f"{topics}/t?force=true", None, ""),
        ("DELETE", f"{topics}/p/partitions?force=true", None, ""),
        ("DELETE", f"/admin/v2/non-persistent/{tenant}/ns/np?force=true", None, "known: unloaded"),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]
