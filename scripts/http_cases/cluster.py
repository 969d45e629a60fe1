"""Clusters, brokers and their settings, bookies, quotas, bundles.

Never touches the servers' own cluster, and takes back every setting it changes.
"""

from http_cases import NS, Case, T

C = "/admin/v2/clusters"
B = "/admin/v2/brokers"
S = "/admin/v2/broker-stats"
R = "/admin/v2/resource-quotas"
STANDALONE = {"allowedClusters": ["standalone"]}
POLICY = {
    "namespaces": ["t/n.*"],
    "primary": ["b.*"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}
QUOTA = {"msgRateIn": 1, "msgRateOut": 2, "bandwidthIn": 3, "bandwidthOut": 4, "memory": 5}
# What both servers begin with: nothing changes for others who use them.
DEFAULT_QUOTA = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100000.0,
    "bandwidthOut": 300000.0,
    "memory": 80.0,
    "dynamic": True,
}
RACK = {"rack": "/r1", "hostname": "h"}


def requests(tenant: str) -> list[Case]:
    return [
        *_clusters(tenant),
        *_isolation(tenant),
        *_isolation_here(),
        *_brokers(),
        *_bookies(tenant),
        *_bundles(tenant),
        *_quotas_and_ends(tenant),
    ]


def _clusters(c: str) -> list[Case]:
    domains = f"{C}/{c}/failureDomains"
    return [
        ("PUT", f"{C}/{c}", {"serviceUrl": "h:1"}, ""),
        ("PUT", f"{C}/{c}", {"serviceUrlTls": "http://h:1"}, ""),
        ("PUT", f"{C}/{c}", {"brokerServiceUrl": "http://h:1"}, ""),
        ("PUT", f"{C}/{c}", {"brokerServiceUrlTls": "pulsar://h:1"}, ""),
        ("PUT", f"{C}/{c}", None, ""),
        ("PUT", f"{C}/bad%20name", {"serviceUrl": "http://h:1"}, ""),
        ("PUT", f"{C}/{c}", {"serviceUrl": "http://h:1", "brokerServiceUrl": "pulsar://h:2"}, ""),
        ("PUT", f"{C}/{c}", {"serviceUrl": "http://h:1"}, ""),
        ("GET", f"{C}/{c}", None, ""),
        ("POST", f"{C}/{c}", {"serviceUrl": "http://h:3"}, ""),
        ("POST", f"{C}/{c}", {"serviceUrl": "h:3"}, ""),
        ("POST", f"{C}/{c}x", {"serviceUrl": "http://h:3"}, ""),
        ("GET", f"{C}/{c}x", None, ""),
        ("GET", f"{C}/{c}/peers", None, "known: 204 when unset"),
        ("GET", f"{C}/{c}x/peers", None, ""),
        ("POST", f"{C}/{c}/peers", [c], ""),
        ("POST", f"{C}/{c}/peers", [f"{c}x"], ""),
        ("POST", f"{C}/{c}/peers", ["standalone"], ""),
        ("GET", f"{C}/{c}/peers", None, ""),
        ("POST", f"{C}/{c}x/peers", ["standalone"], ""),
        ("GET", domains, None, ""),
        ("GET", f"{C}/{c}x/failureDomains", None, ""),
        ("GET", f"{domains}/d1", None, ""),
        ("POST", f"{domains}/d1", {"brokers": ["a:1", "b:1"]}, ""),
        ("POST", f"{domains}/d2", {"brokers": ["a:1"]}, ""),
        ("POST", f"{domains}/d3", {}, ""),
        ("GET", domains, None, ""),
        ("GET", f"{domains}/d1", None, ""),
        ("POST", f"{C}/{c}x/failureDomains/d1", {"brokers": ["a:1"]}, ""),
        ("DELETE", f"{domains}/d1", None, "known: 204"),
        ("DELETE", f"{domains}/d3", None, "known: 204"),  # else Pulsar lists the cluster for ever
        ("DELETE", f"{domains}/d1", None, ""),
        ("DELETE", f"{C}/{c}x/failureDomains/d1", None, ""),
    ]


def _isolation(c: str) -> list[Case]:
    policies = f"{C}/{c}/namespaceIsolationPolicies"
    no_primary = {**POLICY, "primary": []}
    shorter = "known: shorter reason"
    return [
        ("GET", policies, None, ""),
        ("GET", f"{C}/{c}x/namespaceIsolationPolicies", None, ""),
        ("GET", f"{policies}/p", None, ""),
        ("GET", f"{policies}/brokers", None, ""),
        ("GET", f"{C}/standalone/namespaceIsolationPolicies", None, ""),
        ("GET", f"{C}/standalone/namespaceIsolationPolicies/brokers/a:1", None, ""),
        ("POST", f"{policies}/p", POLICY, ""),
        ("POST", f"{policies}/q", no_primary, shorter),
        ("POST", f"{policies}/q", {}, shorter),
        ("POST", f"{C}/{c}x/namespaceIsolationPolicies/p", POLICY, ""),
        ("GET", policies, None, ""),
        ("GET", f"{policies}/p", None, ""),
        ("GET", f"{policies}/x", None, ""),
        ("GET", f"{policies}/brokers", None, ""),
        ("GET", f"{policies}/brokers/a:1", None, ""),
        ("DELETE", f"{policies}/x", None, ""),
        ("DELETE", f"{policies}/p", None, ""),
        ("DELETE", f"{C}/{c}x/namespaceIsolationPolicies/p", None, ""),
        ("GET", policies, None, ""),
        ("GET", f"{C}/{c}/migrate", None, ""),
        ("GET", f"{C}/{c}x/migrate", None, ""),
        ("GET", "/admin/v2/metadata/migration/status", None, ""),
        ("POST", "/admin/v2/metadata/migration/start", None, ""),
        ("POST", "/admin/v2/metadata/migration/start?target=x", None, "known: 501"),
        ("DELETE", f"{C}/{c}", None, ""),
        ("DELETE", f"{C}/{c}", None, ""),
    ]


def _isolation_here() -> list[Case]:
    """Of the asked broker's own cluster: what its brokers are in, whatever their names are.

    Ask a broker of ``magnetar cluster``: one that serves alone has no policies.
    """
    policies = f"{C}/standalone/namespaceIsolationPolicies"
    alone = "known: 501 of a broker that serves alone"
    everybody = {**POLICY, "primary": [".*"], "namespaces": ["none/of-these"]}
    helper = {**POLICY, "primary": ["nobody"], "secondary": [".*"], "namespaces": ["none/.*"]}
    return [
        *(
            ("POST", f"{policies}/p", {**everybody, **more}, alone)
            for more in ({}, {"unload_scope": "none"}, {"unload_scope": "all_matching"})
        ),
        ("POST", f"{policies}/p", {**everybody, "unload_scope": "some"}, "known: 400"),
        ("GET", policies, None, alone),
        ("GET", f"{policies}/p", None, alone),
        ("GET", f"{policies}/brokers", None, alone),
        ("GET", f"{policies}/brokers/a:1", None, alone),
        ("POST", f"{policies}/q", helper, alone),
        ("GET", f"{policies}/brokers", None, alone),
        ("DELETE", f"{policies}/p", None, alone),
        ("GET", f"{policies}/brokers", None, alone),
        ("DELETE", f"{policies}/q", None, alone),
        ("GET", f"{policies}/brokers", None, alone),
    ]


def _brokers() -> list[Case]:
    configuration = f"{B}/configuration"
    text = "known: text/plain"
    own = "known: figures of this process"
    return [
        ("GET", B, None, ""),
        ("GET", f"{B}/nope", None, ""),
        ("GET", configuration, None, ""),
        ("POST", f"{configuration}/nope/1", None, ""),
        ("POST", f"{configuration}/clusterName/x", None, ""),
        ("POST", f"{configuration}/flowOrQpsDifferenceThresholdPercentage/11", None, ""),
        ("GET", f"{configuration}/values", None, ""),
        ("DELETE", f"{configuration}/flowOrQpsDifferenceThresholdPercentage", None, ""),
        ("DELETE", f"{configuration}/flowOrQpsDifferenceThresholdPercentage", None, ""),
        ("DELETE", f"{configuration}/nope", None, ""),
        ("GET", f"{configuration}/runtime", None, "known: other settings"),
        ("GET", f"{B}/standalone/nope:8080/ownedNamespaces", None, ""),
        ("GET", f"{B}/internal-configuration", None, ""),
        ("GET", f"{B}/leaderBroker", None, ""),
        ("GET", f"{B}/health?topicVersion=V2", None, text),
        ("GET", f"{B}/backlog-quota-check", None, ""),
        ("GET", f"{S}/topics", None, own),
        ("GET", f"{S}/destinations", None, "known: older clients ask for it"),
        ("GET", f"{S}/metrics", None, own),
        ("GET", f"{S}/mbeans", None, own),
        ("GET", f"{S}/allocator-stats/default", None, own),
        ("GET", f"{S}/allocator-stats/ml-cache", None, own),
        ("GET", f"{S}/allocator-stats/nope", None, ""),
        ("GET", f"{S}/load-report", None, "known: other bundles, no load manager"),
        ("GET", f"{S}/broker-resource-availability/public/default", None, "known: other reason"),
        ("GET", f"{S}/bookieops", None, "known: not counted"),
        ("GET", "/admin/v3/functions/public/default", None, ""),
        ("GET", "/admin/v3/sources/public/default", None, ""),
        ("GET", "/admin/v3/sinks/public/default", None, ""),
        ("GET", "/admin/v3/packages/function/public/default", None, ""),
        ("GET", "/admin/v2/worker/cluster", None, ""),
        ("GET", "/admin/v2/worker-stats/metrics", None, ""),
        ("GET", "/admin/v2/proxy-stats/stats", None, "known: reason instead of HTML"),
    ]


def _bookies(name: str) -> list[Case]:
    k = "/admin/v2/bookies"
    rack = f"{k}/racks-info/{name}:3181"
    groups, no_groups = "/admin/v2/resourcegroups", "known: resource groups are refused"
    return [
        ("GET", f"{k}/all", None, ""),
        ("GET", rack, None, ""),
        ("POST", rack, RACK, ""),
        ("POST", f"{rack}?group=g1", {"rack": "/r1/x"}, "known: shorter reason"),
        ("POST", f"{rack}?group=g1", None, "known: 400 instead of an HTML page"),
        ("POST", f"{rack}?group=g1", RACK, ""),
        ("GET", rack, None, ""),
        ("GET", f"{k}/racks-info", None, ""),
        ("DELETE", rack, None, ""),
        ("DELETE", rack, None, ""),
        ("GET", groups, None, ""),
        ("GET", f"{groups}/{name}", None, ""),
        ("DELETE", f"{groups}/{name}", None, "known: 404 instead of 500"),
        ("PUT", f"{groups}/{name}", {"publishRateInMsgs": 5}, no_groups),
        ("GET", f"{groups}/{name}", None, no_groups),
        ("DELETE", f"{groups}/{name}", None, no_groups),
    ]


def _bundles(tenant: str) -> list[Case]:
    n = f"{NS}/{tenant}/ns"
    low, high = f"{n}/0x00000000_0x80000000", f"{n}/0x80000000_0xffffffff"
    broken = "known: 412 instead of 500"
    positions = "splitAlgorithmName=specified_positions_divide"
    return [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone", ""]}, ""),
        ("PUT", f"{T}/{tenant}", {"adminRoles": [" a"], **STANDALONE}, ""),
        ("PUT", f"{T}/{tenant}", STANDALONE, ""),
        ("PUT", n, {"bundles": {"numBundles": 2}}, ""),
        *(("PUT", f"/admin/v2/persistent/{tenant}/ns/t{i}", None, "") for i in range(6)),
        ("GET", f"/lookup/v2/topic/persistent/{tenant}/ns/t0?listenerName=nope", None, broken),
        ("GET", f"{n}/bundles", None, ""),
        ("GET", f"{high}/topicHashPositions", None, "known: unowned bundles too"),
        ("GET", f"{n}/0x00000000_0x80000001/topicHashPositions", None, ""),
        ("PUT", f"{low}/unload", None, ""),
        ("PUT", f"{low}/unload", None, ""),
        ("PUT", f"{n}/0x00000000_0x80000001/unload", None, ""),
        ("PUT", f"{n}/0x00000001_0x80000000/unload", None, ""),
        ("PUT", f"{n}/xyz/unload", None, broken),
        ("PUT", f"{NS}/{tenant}/nope/0x00000000_0x80000000/unload", None, ""),
        ("PUT", f"{low}/unload?destinationBroker=nope:8080", None, ""),
        ("PUT", f"{low}/split?splitAlgorithmName=nope", None, ""),
        ("PUT", f"{low}/split", None, ""),
        ("GET", f"{n}/bundles", None, ""),
        ("PUT", f"{low}/split", None, ""),
        ("PUT", f"{n}/xyz/split", None, ""),
        ("PUT", f"{n}/HOT/split", None, ""),
        (
            "PUT",
            f"{high}/split?splitAlgorithmName=topic_count_equally_divide&unload=true",
            None,
            "",
        ),
        ("GET", f"{n}/bundles", None, ""),
        ("PUT", f"{n}/0x00000000_0x40000000/split?{positions}", None, ""),
        ("PUT", f"{n}/0x40000000_0x80000000/split?{positions}", [1], ""),
        ("PUT", f"{NS}/{tenant}/nope/0x00000000_0xffffffff/split", None, ""),
        ("DELETE", low, None, ""),
        ("DELETE", f"{n}/xyz", None, ""),
        ("DELETE", f"{NS}/{tenant}/nope/0x00000000_0x80000000", None, ""),
        ("PUT", f"{n}/unload", None, ""),
        ("PUT", f"{NS}/{tenant}/nope/unload", None, ""),
        ("GET", f"{NS}/standalone/antiAffinity/g1?tenant={tenant}", None, ""),
        ("GET", f"{NS}/standalone/antiAffinity/g1", None, ""),
        ("GET", f"{NS}/nowhere/antiAffinity/g1?tenant={tenant}", None, ""),
    ]


def _quotas_and_ends(tenant: str) -> list[Case]:
    one = f"{tenant}/one/0x00000000_0xffffffff"
    return [
        ("PUT", f"{NS}/{tenant}/one", {"bundles": {"numBundles": 1}}, ""),
        ("GET", R, None, ""),
        ("POST", R, DEFAULT_QUOTA, ""),
        ("GET", R, None, ""),
        ("GET", f"{R}/{one}", None, ""),
        ("GET", f"{R}/{tenant}/one/0x00000000_0x80000000", None, ""),
        ("GET", f"{R}/{tenant}/one/xyz", None, ""),
        ("POST", f"{R}/{one}", QUOTA, ""),
        ("GET", f"{R}/{one}", None, ""),
        ("DELETE", f"{R}/{one}", None, ""),
        ("DELETE", f"{R}/{one}", None, "known: other reason"),
        ("DELETE", f"{NS}/{one}", None, "known: 204 when nobody owns it"),
        ("PUT", f"{NS}/{tenant}/one/LARGEST/split?unload=true", None, "known: unowned ones too"),
        ("GET", f"{NS}/{tenant}/one/bundles", None, ""),
        *(("DELETE", f"/admin/v2/persistent/{tenant}/ns/t{i}", None, "") for i in range(6)),
        ("DELETE", f"{NS}/{tenant}/one", None, ""),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]
