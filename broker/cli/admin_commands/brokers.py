"""Words of ``brokers`` and ``broker-stats``."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option

_PATH = "/admin/v2/brokers"
_STATS = "/admin/v2/broker-stats"
_CONFIG = Option(("-c", "--config"), "path:name", "the setting", required=True)
_INDENT = Option(("-i", "--indent"), "step:indent", "always: it is", "true")

WORDS: dict[str, dict[str, AdminCommand]] = {
    "brokers": {
        "list": AdminCommand("GET", _PATH, "active brokers", ("[cluster]",), step="list_brokers"),
        "leader-broker": AdminCommand("GET", _PATH + "/leaderBroker", "the leader"),
        "namespaces": AdminCommand(
            "GET",
            _PATH + "/{cluster}/{broker}/ownedNamespaces",
            "bundles that a broker serves",
            ("cluster",),
            (Option(("-u", "--url"), "path:broker", "host:port of its HTTP", required=True),),
        ),
        "update-dynamic-config": AdminCommand(
            "POST",
            _PATH + "/configuration/{name}/{value}",
            "change a setting of all brokers",
            (),
            (_CONFIG, Option(("-v", "--value"), "path:value", "its value", required=True)),
        ),
        "delete-dynamic-config": AdminCommand(
            "DELETE", _PATH + "/configuration/{name}", "back to the file's value", (), (_CONFIG,)
        ),
        "list-dynamic-config": AdminCommand(
            "GET", _PATH + "/configuration", "settings that can change at run time"
        ),
        "get-all-dynamic-config": AdminCommand(
            "GET", _PATH + "/configuration/values", "those that were changed"
        ),
        "get-runtime-config": AdminCommand(
            "GET", _PATH + "/configuration/runtime", "settings in force"
        ),
        "get-internal-config": AdminCommand(
            "GET", _PATH + "/internal-configuration", "where the metadata live"
        ),
        "healthcheck": AdminCommand(
            "GET",
            _PATH + "/health",
            "write and read back a message",
            (),
            (
                Option(
                    ("-tv", "--topic-version"),
                    "query:topicVersion",
                    "name of its topic",
                    choices=("V1", "V2"),
                ),
            ),
        ),
        "backlog-quota-check": AdminCommand(
            "GET", _PATH + "/backlog-quota-check", "look at all quotas now"
        ),
        "version": AdminCommand("GET", _PATH + "/version", "its version"),
        "shutdown": AdminCommand(
            "POST",
            _PATH + "/shutdown",
            "end the broker in order",
            (),
            (
                Option(
                    ("-m", "--max-concurrent-unload-per-sec"),
                    "query:maxConcurrentUnloadPerSec",
                    "topics a second, 0: no limit",
                    "int",
                ),
                Option(
                    ("-f", "--forced-terminate-topic"),
                    "query:forcedTerminateTopic",
                    "don't wait for clients",
                    "true",
                ),
            ),
        ),
    },
    "broker-stats": {
        "monitoring-metrics": AdminCommand("GET", _STATS + "/metrics", "metrics", (), (_INDENT,)),
        "mbeans": AdminCommand(
            "GET", _STATS + "/mbeans", "what the process measures", (), (_INDENT,)
        ),
        "topics": AdminCommand(
            "GET", _STATS + "/topics", "statistics of all topics served here", (), (_INDENT,)
        ),
        "allocator-stats": AdminCommand(
            "GET", _STATS + "/allocator-stats/{allocator}", "memory", ("allocator",)
        ),
        "load-report": AdminCommand(
            "GET", _STATS + "/load-report", "what it tells the load manager"
        ),
    },
}
