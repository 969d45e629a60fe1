"""Tenants, namespaces, topics, subscriptions, lookup: the life cycle of each, in this order."""

from http_cases import NS, Case, T

CLUSTERS = {"allowedClusters": ["standalone"]}
EARLIEST = {"ledgerId": -1, "entryId": -1}
MESSAGES = {"messages": [{"payload": "x"}, {"payload": "y", "key": "k"}]}


def requests(tenant: str) -> list[Case]:
    a = f"/admin/v2/persistent/{tenant}/ns"
    n = f"/admin/v2/non-persistent/{tenant}/ns"
    return [
        *_tenant(tenant),
        *_clusters(),
        *_namespace(tenant),
        *_topic(a, tenant),
        *_subscription(a, f"/topics/persistent/{tenant}/ns/t"),
        *_partitioned_topic(a),
        *_ends(a, tenant),
        *_volatile_topic(n),
        *_lookup(tenant),
        *_brokers(),
        *_farewell(a, n, tenant),
    ]


def _tenant(tenant: str) -> list[Case]:
    return [
        ("GET", T, None, "other tenants"),
        ("GET", f"{T}/{tenant}", None, ""),
        ("PUT", f"{T}/{tenant}", None, ""),
        ("PUT", f"{T}/{tenant}", {"allowedClusters": []}, ""),
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["nowhere"]}, ""),
        ("PUT", f"{T}/{tenant}", CLUSTERS, ""),
        ("PUT", f"{T}/{tenant}", CLUSTERS, ""),
        ("PUT", f"{T}/bad%20name", CLUSTERS, ""),
        ("GET", f"{T}/{tenant}", None, ""),
        ("POST", f"{T}/{tenant}", {"adminRoles": ["a"], **CLUSTERS}, ""),
        ("POST", f"{T}/{tenant}", {}, ""),
        ("POST", f"{T}/{tenant}x", CLUSTERS, ""),
    ]


def _clusters() -> list[Case]:
    c = "/admin/v2/clusters"
    return [
        ("GET", c, None, ""),
        ("GET", f"{c}/standalone", None, "known: no Java key stores"),
        ("GET", f"{c}/nowhere", None, ""),
        ("GET", f"{c}/standalone/failureDomains", None, ""),
    ]


def _namespace(tenant: str) -> list[Case]:
    ns = f"{NS}/{tenant}/ns"
    return [
        ("GET", f"{NS}/{tenant}", None, ""),
        ("GET", f"{NS}/{tenant}x", None, ""),
        ("PUT", ns, None, ""),
        ("PUT", ns, None, ""),
        ("PUT", f"{NS}/{tenant}x/ns", None, ""),
        ("PUT", f"{NS}/{tenant}/n%20s", None, ""),
        ("GET", ns, None, ""),
        ("GET", f"{NS}/{tenant}/nope", None, ""),
        *(("GET", f"{ns}/{name}", None, "") for name in ("bundles", "topics", "permissions")),
        ("GET", f"{ns}/replication", None, ""),
        ("DELETE", f"{ns}?force=true", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]


def _topic(a: str, tenant: str) -> list[Case]:
    return [
        ("GET", f"{a}/t/stats", None, ""),
        ("GET", f"{a}/t/partitions", None, ""),
        ("GET", f"{a}/t/partitions?checkAllowAutoCreation=true", None, ""),
        ("DELETE", f"{a}/t", None, ""),
        ("PUT", f"{a}/t", None, ""),
        ("PUT", f"{a}/t", None, ""),
        ("PUT", f"{a}/a%2Fb", None, ""),
        ("PUT", f"{a}/x-partition-0", None, ""),
        ("GET", a, None, ""),
        ("GET", f"/admin/v2/persistent/{tenant}/nope", None, ""),
        ("GET", f"{a}/t/stats", None, ""),
        ("GET", f"{a}/t/internalStats", None, ""),
        ("GET", f"{a}/t/lastMessageId", None, ""),
        ("GET", f"{a}/t/partitions", None, ""),
        ("PUT", f"{a}/t/partitions", 3, ""),
    ]


def _subscription(a: str, rest: str) -> list[Case]:
    s = f"{a}/t/subscription"
    return [
        ("PUT", f"{s}/s", None, ""),
        ("PUT", f"{s}/s", None, ""),
        ("GET", f"{a}/t/subscriptions", None, ""),
        ("GET", f"{a}/t/stats", None, "known: no type before the first consumer"),
        ("POST", f"{s}/nope/skip_all", None, ""),
        ("POST", f"{s}/s/skip_all", None, ""),
        ("POST", f"{s}/s/skip/2", None, ""),
        ("POST", f"{s}/s/resetcursor", EARLIEST, ""),
        ("POST", f"{s}/s/resetcursor/5", None, ""),
        ("POST", rest, MESSAGES, ""),
        ("POST", rest, {"messages": []}, "known: empty is refused"),
        ("DELETE", f"{s}/nope", None, ""),
        ("DELETE", f"{s}/s", None, ""),
    ]


def _partitioned_topic(a: str) -> list[Case]:
    return [
        ("PUT", f"{a}/p/partitions", 0, ""),
        ("PUT", f"{a}/p/partitions", "x", "known: reason instead of plain text"),
        ("PUT", f"{a}/p/partitions", 2, ""),
        ("PUT", f"{a}/p/partitions", 2, ""),
        ("PUT", f"{a}/p", None, ""),
        ("GET", f"{a}/p/partitions", None, ""),
        ("GET", f"{a}/partitioned", None, ""),
        ("GET", f"{a}/p/stats", None, ""),
        ("GET", f"{a}/p/partitioned-stats", None, ""),
        ("GET", f"{a}/t/partitioned-stats", None, ""),
        ("POST", f"{a}/p/partitions", 4, ""),
        ("POST", f"{a}/p/partitions", 3, ""),
        ("POST", f"{a}/q/partitions", 3, ""),
        ("POST", f"{a}/p/terminate", None, ""),
    ]


def _ends(a: str, tenant: str) -> list[Case]:
    return [
        ("DELETE", f"{a}/p", None, ""),
        ("DELETE", f"{a}/t/partitions", None, ""),
        ("DELETE", f"{a}/q/partitions", None, ""),
        ("PUT", f"{a}/t/unload", None, ""),
        ("POST", f"{a}/t/terminate", None, ""),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
    ]


def _volatile_topic(n: str) -> list[Case]:
    return [
        ("PUT", f"{n}/np", None, ""),
        ("GET", f"{n}/np/stats", None, "known: one field more"),
        ("PUT", f"{n}/np/subscription/s", None, ""),
    ]


def _lookup(tenant: str) -> list[Case]:
    found, older = "/lookup/v2/topic", "known: older clients ask for it"
    ns = f"persistent/{tenant}"
    return [
        ("GET", f"{found}/{ns}/ns/t", None, ""),
        ("GET", f"{found}/{ns}/ns/t/bundle", None, "known: text/plain"),
        ("GET", f"{found}/{ns}/nope/t", None, ""),
        ("GET", f"/lookup/v2/destination/{ns}/ns/t", None, older),
    ]


def _brokers() -> list[Case]:
    b, text = "/admin/v2/brokers", "known: text/plain"
    return [
        ("GET", b, None, ""),
        ("GET", f"{b}/standalone", None, ""),
        ("GET", f"{b}/leaderBroker", None, ""),
        *(("GET", f"{b}/{name}", None, text) for name in ("health", "ready", "version")),
        ("GET", f"{b}/configuration/values", None, ""),
        ("GET", f"{b}/internal-configuration", None, ""),
        ("GET", "/status.html", None, "known: OK by default"),
        ("GET", "/metrics", None, "known: no redirect"),
        ("GET", "/admin/v2/nonsense", None, "known: reason instead of HTML"),
        ("POST", T, {}, "known: reason instead of HTML"),
    ]


def _farewell(a: str, n: str, tenant: str) -> list[Case]:
    return [
        ("DELETE", f"{n}/np?force=true", None, ""),
        ("DELETE", f"{a}/p/partitions", None, ""),
        ("DELETE", f"{a}/t?force=true", None, ""),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]
