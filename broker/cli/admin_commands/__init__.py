"""The words of ``magnetar admin`` as data: one module a resource, imported when its group is used.

Help texts, completion, docs/reference/cli.md and the calls themselves all come from these tables.
"""

from __future__ import annotations

from importlib import import_module

from magnetar.broker.cli.admin_commands.model import AdminCommand

GROUPS: dict[str, tuple[str, str]] = {
    "tenants": ("tenants", "tenants and their clusters"),
    "clusters": ("clusters", "clusters, peers and failure domains"),
    "ns-isolation-policy": ("clusters", "which brokers serve which namespaces"),
    "namespaces": ("namespaces", "namespaces and their policies"),
    "topics": ("topics", "topics: life cycle, statistics, messages, subscriptions"),
    "topicPolicies": ("topic_policies", "policies of one topic"),
    "subscriptions": ("subscriptions", "subscriptions of a topic"),
    "schemas": ("schemas", "schemas of a topic"),
    "brokers": ("brokers", "brokers and their settings"),
    "broker-stats": ("brokers", "statistics of one broker"),
    "bookies": ("bookies", "storage nodes and their racks"),
    "resource-quotas": ("bookies", "load quotas of bundles"),
    "resourcegroups": ("bookies", "groups of namespaces that share limits"),
}
"""Group -> (module of its words, help)."""


def commands_of(group: str) -> dict[str, AdminCommand]:
    """Every word of one group.

    REQUIRES: ``group`` in GROUPS.
    """
    module = import_module(f"magnetar.broker.cli.admin_commands.{GROUPS[group][0]}")
    words: dict[str, AdminCommand] = module.WORDS[group]
    return words
