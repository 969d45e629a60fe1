"""Words of ``clusters`` and ``ns-isolation-policy``."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option

_PATH = "/admin/v2/clusters/{cluster}"
_DOMAIN = _PATH + "/failureDomains/{domain}"
_POLICY = _PATH + "/namespaceIsolationPolicies/{policy}"
_C = ("cluster",)
_URLS = (
    Option(("--url",), "field:serviceUrl", "http://host:port"),
    Option(("--url-secure",), "field:serviceUrlTls", "https://host:port"),
    Option(("--broker-url",), "field:brokerServiceUrl", "pulsar://host:port"),
    Option(("--broker-url-secure",), "field:brokerServiceUrlTls", "pulsar+ssl://host:port"),
    Option(("--proxy-url",), "field:proxyServiceUrl", "clients go through this proxy"),
    Option(("--proxy-protocol",), "field:proxyProtocol", "how they do", choices=("SNI",)),
    Option(("--auth-plugin",), "field:authenticationPlugin", "for calls to this cluster"),
    Option(("--auth-parameters",), "field:authenticationParameters", "for calls to this cluster"),
    Option(("--listener-name",), "field:listenerName", "listener that clients of it ask for"),
)
_NAMED = ("cluster", "policy")
_DOMAIN_NAME = Option(("--domain-name",), "path:domain", "the failure domain", required=True)
_BROKER_LIST = Option(("--broker-list",), "field:brokers", "its brokers", "list", required=True)
_POLICY_OPTIONS = (
    Option(("--namespaces",), "field:namespaces", "expressions of names", "list", required=True),
    Option(("--primary",), "field:primary", "expressions of brokers", "list", required=True),
    Option(("--secondary",), "field:secondary", "the same, when those fail", "list", default=[]),
    Option(
        ("--auto-failover-policy-type",),
        "field:auto_failover_policy.policy_type",
        "when the secondary ones serve",
        choices=("min_available",),
        required=True,
    ),
    Option(
        ("--auto-failover-policy-params",),
        "field:auto_failover_policy.parameters",
        "min_limit=1,usage_threshold=80",
        "map",
        required=True,
    ),
    Option(
        ("--unload-scope",),
        "field:unload_scope",
        "which bundles move at once",
        choices=("all_matching", "changed", "none"),
    ),
)

WORDS: dict[str, dict[str, AdminCommand]] = {
    "clusters": {
        "list": AdminCommand(
            "GET",
            "/admin/v2/clusters",
            "names of all clusters",
            options=(Option(("-c", "--current"), "step:current", "mark the broker's own", "true"),),
            step="list_clusters",
        ),
        "get": AdminCommand("GET", _PATH, "one cluster's addresses", _C),
        "create": AdminCommand("PUT", _PATH, "make one known", _C, _URLS),
        "update": AdminCommand("POST", _PATH, "change the settings given", _C, _URLS, update=True),
        "delete": AdminCommand(
            "DELETE",
            _PATH,
            "forget one",
            _C,
            (Option(("-a", "--all"), "step:all", "with its tenants' namespaces", "true"),),
            step="delete_cluster",
        ),
        "get-peer-clusters": AdminCommand("GET", _PATH + "/peers", "its peers", _C),
        "update-peer-clusters": AdminCommand(
            "POST",
            _PATH + "/peers",
            "replace its peers",
            _C,
            (Option(("--peer-clusters",), "body", "names", "list", required=True),),
        ),
        "list-failure-domains": AdminCommand("GET", _PATH + "/failureDomains", "all of them", _C),
        "get-failure-domain": AdminCommand("GET", _DOMAIN, "one of them", _C, (_DOMAIN_NAME,)),
        "create-failure-domain": AdminCommand(
            "POST", _DOMAIN, "create one", _C, (_DOMAIN_NAME, _BROKER_LIST)
        ),
        "update-failure-domain": AdminCommand(
            "POST", _DOMAIN, "replace its brokers", _C, (_DOMAIN_NAME, _BROKER_LIST)
        ),
        "delete-failure-domain": AdminCommand("DELETE", _DOMAIN, "delete one", _C, (_DOMAIN_NAME,)),
        "get-cluster-migration": AdminCommand(
            "GET", _PATH + "/migrate", "state of its migration", _C
        ),
        "update-cluster-migration": AdminCommand(
            "POST",
            _PATH + "/migrate",
            "send its clients elsewhere",
            _C,
            (
                Option(("--migrated",), "query:isMigrated", "they are to go now", "true"),
                Option(("--service-url",), "field:serviceUrl", "http://host:port"),
                Option(("--service-url-secure",), "field:serviceUrlTls", "https://host:port"),
                Option(("--broker-url",), "field:brokerServiceUrl", "pulsar://host:port"),
                Option(("--broker-url-secure",), "field:brokerServiceUrlTls", "with TLS"),
            ),
        ),
    },
    "ns-isolation-policy": {
        "list": AdminCommand("GET", _PATH + "/namespaceIsolationPolicies", "all policies", _C),
        "get": AdminCommand("GET", _POLICY, "one policy", _NAMED),
        "set": AdminCommand("POST", _POLICY, "create or replace one", _NAMED, _POLICY_OPTIONS),
        "delete": AdminCommand("DELETE", _POLICY, "delete one", _NAMED),
        "brokers": AdminCommand(
            "GET", _PATH + "/namespaceIsolationPolicies/brokers", "brokers and what they serve", _C
        ),
        "broker": AdminCommand(
            "GET",
            _PATH + "/namespaceIsolationPolicies/brokers/{broker}",
            "what one broker serves",
            _C,
            (Option(("--broker",), "path:broker", "host:port of its HTTP", required=True),),
        ),
    },
}
