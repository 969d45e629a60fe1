"""The words of ``magnetar admin``: which HTTP call each one is. Pure data and argparse.

``{topic}`` in a path is a full or short topic name turned into ``domain/tenant/ns/topic``;
``{namespace}`` is ``tenant/ns``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

__all__ = ["WORDS", "Option", "Word", "add_admin"]


@dataclass(frozen=True, slots=True)
class Option:
    """``to``: "query:NAME", "path:NAME", "body" (the value is it), "list:NAME" (comma list), or
    "bundles", "message-id", "ago", which `admin_command` knows.
    """

    flags: tuple[str, ...]
    to: str
    help: str = ""
    kind: str = "text"  # text, int, true
    required: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    method: str
    path: str
    help: str
    positionals: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    body: dict[str, Any] = field(default_factory=dict)  # fields that are always sent


_FORCE = Option(("-f", "--force"), "query:force", "also what is in use", "true")
_SUB = Option(("-s", "--subscription"), "path:subscription", "subscription", required=True)
_PARTITIONS = Option(("-p", "--partitions"), "body", "number of partitions", "int", required=True)
_TENANT_OPTIONS = (
    Option(("-r", "--admin-roles"), "list:adminRoles", "comma list"),
    Option(("-c", "--allowed-clusters"), "list:allowedClusters", "comma list (the broker's own)"),
)
_T, _N, _TOPIC = ("tenant",), ("namespace",), ("topic",)

WORDS: dict[str, dict[str, Word]] = {
    "tenants": {
        "list": Word("GET", "/admin/v2/tenants", "names of all tenants"),
        "get": Word("GET", "/admin/v2/tenants/{tenant}", "one tenant", _T),
        "create": Word("PUT", "/admin/v2/tenants/{tenant}", "create one", _T, _TENANT_OPTIONS),
        "update": Word("POST", "/admin/v2/tenants/{tenant}", "replace one", _T, _TENANT_OPTIONS),
        "delete": Word("DELETE", "/admin/v2/tenants/{tenant}", "delete one", _T, (_FORCE,)),
    },
    "clusters": {
        "list": Word("GET", "/admin/v2/clusters", "names of all clusters"),
        "get": Word("GET", "/admin/v2/clusters/{cluster}", "one cluster", ("cluster",)),
    },
    "namespaces": {
        "list": Word("GET", "/admin/v2/namespaces/{tenant}", "namespaces of a tenant", _T),
        "policies": Word("GET", "/admin/v2/namespaces/{namespace}", "all policies", _N),
        "topics": Word("GET", "/admin/v2/namespaces/{namespace}/topics", "topics", _N),
        "bundles": Word("GET", "/admin/v2/namespaces/{namespace}/bundles", "bundles", _N),
        "permissions": Word(
            "GET", "/admin/v2/namespaces/{namespace}/permissions", "actions by role", _N
        ),
        "create": Word(
            "PUT",
            "/admin/v2/namespaces/{namespace}",
            "create one",
            _N,
            (
                Option(("-b", "--bundles"), "bundles", "number of bundles", "int"),
                Option(("-c", "--clusters"), "list:replication_clusters", "comma list"),
            ),
        ),
        "delete": Word("DELETE", "/admin/v2/namespaces/{namespace}", "delete one", _N, (_FORCE,)),
        "unload": Word("PUT", "/admin/v2/namespaces/{namespace}/unload", "unload its topics", _N),
    },
    "topics": {
        "list": Word("GET", "/admin/v2/persistent/{namespace}", "topics of a namespace", _N),
        "list-partitioned-topics": Word(
            "GET", "/admin/v2/persistent/{namespace}/partitioned", "partitioned topics", _N
        ),
        "create": Word("PUT", "/admin/v2/{topic}", "create one without partitions", _TOPIC),
        "delete": Word("DELETE", "/admin/v2/{topic}", "delete one", _TOPIC, (_FORCE,)),
        "unload": Word("PUT", "/admin/v2/{topic}/unload", "close it, to be loaded again", _TOPIC),
        "stats": Word("GET", "/admin/v2/{topic}/stats", "statistics", _TOPIC),
        "stats-internal": Word(
            "GET", "/admin/v2/{topic}/internalStats", "ledgers and cursors", _TOPIC
        ),
        "partitioned-stats": Word(
            "GET",
            "/admin/v2/{topic}/partitioned-stats",
            "sum of all partitions",
            _TOPIC,
            (Option(("--per-partition",), "query:perPartition", "also each one", "true"),),
        ),
        "last-message-id": Word("GET", "/admin/v2/{topic}/lastMessageId", "last id", _TOPIC),
        "lookup": Word("GET", "/lookup/v2/topic/{topic}", "the broker that serves it", _TOPIC),
        "bundle-range": Word(
            "GET", "/lookup/v2/topic/{topic}/bundle", "the bundle it is in", _TOPIC
        ),
        "terminate": Word(
            "POST", "/admin/v2/{topic}/terminate", "take no more messages, for good", _TOPIC
        ),
        "create-partitioned-topic": Word(
            "PUT", "/admin/v2/{topic}/partitions", "create one", _TOPIC, (_PARTITIONS,)
        ),
        "update-partitioned-topic": Word(
            "POST", "/admin/v2/{topic}/partitions", "more partitions", _TOPIC, (_PARTITIONS,)
        ),
        "get-partitioned-topic-metadata": Word(
            "GET", "/admin/v2/{topic}/partitions", "number of partitions", _TOPIC
        ),
        "delete-partitioned-topic": Word(
            "DELETE", "/admin/v2/{topic}/partitions", "delete one", _TOPIC, (_FORCE,)
        ),
        "create-missed-partitions": Word(
            "POST", "/admin/v2/{topic}/createMissedPartitions", "create what is missing", _TOPIC
        ),
        "subscriptions": Word("GET", "/admin/v2/{topic}/subscriptions", "names", _TOPIC),
        "create-subscription": Word(
            "PUT",
            "/admin/v2/{topic}/subscription/{subscription}",
            "create one",
            _TOPIC,
            (
                _SUB,
                Option(("-m", "--messageId"), "message-id", "latest, earliest or ledger:entry"),
            ),
        ),
        "unsubscribe": Word(
            "DELETE",
            "/admin/v2/{topic}/subscription/{subscription}",
            "delete a subscription",
            _TOPIC,
            (_SUB, _FORCE),
        ),
        "skip": Word(
            "POST",
            "/admin/v2/{topic}/subscription/{subscription}/skip/{count}",
            "skip messages",
            _TOPIC,
            (
                _SUB,
                Option(("-n", "--count"), "path:count", "how many", "int", required=True),
            ),
        ),
        "clear-backlog": Word(
            "POST",
            "/admin/v2/{topic}/subscription/{subscription}/skip_all",
            "acknowledge everything",
            _TOPIC,
            (_SUB,),
        ),
        "reset-cursor": Word(
            "POST",
            "/admin/v2/{topic}/subscription/{subscription}/resetcursor",
            "continue at a time or a message id",
            _TOPIC,
            (
                _SUB,
                Option(("-t", "--time"), "ago", "so long ago: 90s, 10m, 3h, 2d, 1w"),
                Option(("-m", "--messageId"), "message-id", "latest, earliest or ledger:entry"),
            ),
        ),
    },
    "brokers": {
        "list": Word("GET", "/admin/v2/brokers", "active brokers"),
        "leader-broker": Word("GET", "/admin/v2/brokers/leaderBroker", "the leader"),
        "healthcheck": Word("GET", "/admin/v2/brokers/health", "write and read back a message"),
        "version": Word("GET", "/admin/v2/brokers/version", "its version"),
        "get-runtime-config": Word(
            "GET", "/admin/v2/brokers/configuration/runtime", "settings in force"
        ),
        "get-internal-config": Word(
            "GET", "/admin/v2/brokers/internal-configuration", "where the metadata lives"
        ),
        "list-dynamic-config": Word(
            "GET", "/admin/v2/brokers/configuration", "settings that can change at run time"
        ),
    },
}


def add_admin(parser: argparse.ArgumentParser, default_url: str) -> None:
    """The groups of ``magnetar admin``; their words are parsed when one is called."""
    parser.add_argument("--admin-url", default=default_url, help=f"({default_url})")
    parser.add_argument("--request-timeout", type=float, default=60.0, help="seconds (60)")
    parser.add_argument("group", choices=sorted(WORDS), metavar="GROUP", help=", ".join(WORDS))
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD ...", help="see GROUP -h")
