"""Words of ``namespaces``: life cycle, bundles, permissions, properties, policies."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option, either
from magnetar.broker.cli.admin_commands.policies import (
    BACKLOG_TYPE,
    ENTRY_FILTERS,
    STRATEGY,
    PolicyCommands,
    backlog_quota,
    commands_of_policies,
    delayed_delivery,
    dispatch_rate,
    inactive_topics,
    number,
    offload_policies,
    persistence,
    publish_rate,
    retention,
    subscribe_rate,
    switch,
)

_PATH = "/admin/v2/namespaces/{namespace}"
_N = ("namespace",)
_FORCE = Option(("-f", "--force"), "query:force", "with everything in it", "true")
_BUNDLE = Option(("-b", "--bundle"), "path:bundle", "only this one: 0x00000000_0x40000000")
_SUB = Option(("-s", "--sub"), "path:subscription", "subscription", required=True)
_ROLE = Option(("--role",), "path:role", "role of clients", required=True)
_CLUSTERS = Option(("-c", "--clusters"), "body", "names", "list", required=True)
_KEY = Option(("-k", "--key"), "path:key", "name of the property", required=True)

_LIFE_CYCLE: dict[str, AdminCommand] = {
    "list": AdminCommand(
        "GET", "/admin/v2/namespaces/{tenant}", "namespaces of a tenant", ("tenant",)
    ),
    "policies": AdminCommand("GET", _PATH, "all policies", _N),
    "topics": AdminCommand(
        "GET",
        _PATH + "/topics",
        "topics in it",
        _N,
        (
            Option(
                ("-m", "--mode"),
                "query:mode",
                "which ones",
                choices=("PERSISTENT", "NON_PERSISTENT", "ALL"),
            ),
            Option(
                ("-ist", "--include-system-topic"),
                "query:includeSystemTopic",
                "also the system's own",
                "true",
            ),
        ),
    ),
    "bundles": AdminCommand("GET", _PATH + "/bundles", "boundaries of its bundles", _N),
    "create": AdminCommand(
        "PUT",
        _PATH,
        "create one",
        _N,
        (
            Option(("-b", "--bundles"), "field:bundles.numBundles", "number of bundles", "int"),
            Option(("-c", "--clusters"), "field:replication_clusters", "names", "list"),
        ),
    ),
    "delete": AdminCommand("DELETE", _PATH, "delete some", _N, (_FORCE,), many=True),
    "unload": AdminCommand(
        "PUT",
        _PATH + "/unload",
        "close its topics, to be loaded again",
        _N,
        (
            _BUNDLE,
            Option(
                ("-d", "--destinationBroker"),
                "query:destinationBroker",
                "who is to serve the bundle",
            ),
        ),
        step="of_bundle",
    ),
    "split-bundle": AdminCommand(
        "PUT",
        _PATH + "/{bundle}/split",
        "make two bundles of one",
        _N,
        (
            Option(
                ("-b", "--bundle"),
                "path:bundle",
                "0x00000000_0x40000000, LARGEST or HOT",
                required=True,
            ),
            Option(("-u", "--unload"), "query:unload", "and unload them", "true"),
            Option(
                ("-san", "--split-algorithm-name"),
                "query:splitAlgorithmName",
                "where to cut",
                choices=(
                    "range_equally_divide",
                    "topic_count_equally_divide",
                    "specified_positions_divide",
                    "flow_or_qps_equally_divide",
                ),
            ),
            Option(("-sbn", "--split-boundaries"), "body", "positions, for the third", "list"),
        ),
        step="split_bundle",
    ),
    "get-topic-hash-positions": AdminCommand(
        "GET",
        _PATH + "/{bundle}/topicHashPositions",
        "where topics are in a bundle",
        _N,
        (
            Option(("-b", "--bundle"), "path:bundle", "the bundle", required=True),
            Option(("-t", "--topics"), "query:topics", "only these", "list"),
        ),
    ),
    "clear-backlog": AdminCommand(
        "POST",
        _PATH + "/clearBacklog",
        "acknowledge everything",
        _N,
        (
            Option(("-s", "--sub"), "path:subscription", "only of this subscription"),
            _BUNDLE,
            Option(("-f", "-force", "--force"), "step:force", "don't ask", "true"),
        ),
        step="clear_namespace_backlog",
    ),
    "unsubscribe": AdminCommand(
        "POST",
        _PATH + "/unsubscribe/{subscription}",
        "delete a subscription of all topics",
        _N,
        (_SUB, _BUNDLE),
        step="of_bundle",
    ),
    "permissions": AdminCommand("GET", _PATH + "/permissions", "actions by role", _N),
    "grant-permission": AdminCommand(
        "POST",
        _PATH + "/permissions/{role}",
        "let a role act",
        _N,
        (_ROLE, Option(("--actions",), "body", "produce,consume,...", "list", required=True)),
    ),
    "revoke-permission": AdminCommand(
        "DELETE", _PATH + "/permissions/{role}", "take a role's actions away", _N, (_ROLE,)
    ),
    "subscription-permission": AdminCommand(
        "GET", _PATH + "/permissions/subscription", "roles by subscription", _N
    ),
    "grant-subscription-permission": AdminCommand(
        "POST",
        _PATH + "/permissions/subscription/{subscription}",
        "let roles use a subscription",
        _N,
        (
            Option(("--subscription",), "path:subscription", "subscription", required=True),
            Option(("--roles",), "body", "names", "list", required=True),
        ),
    ),
    "revoke-subscription-permission": AdminCommand(
        "DELETE",
        _PATH + "/permissions/{subscription}/{role}",
        "take a subscription from a role",
        _N,
        (Option(("--subscription",), "path:subscription", "subscription", required=True), _ROLE),
    ),
    "get-anti-affinity-namespaces": AdminCommand(
        "GET",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        "namespaces of an anti-affinity group",
        (),
        (
            Option(("-c", "--cluster"), "path:cluster", "cluster", required=True),
            Option(("-g", "--group"), "path:group", "the group", required=True),
            Option(("-p", "--tenant"), "query:tenant", "of this tenant", required=True),
        ),
    ),
}

_PROPERTIES: dict[str, AdminCommand] = {
    "get-property": AdminCommand("GET", _PATH + "/property/{key}", "one property", _N, (_KEY,)),
    "set-property": AdminCommand(
        "PUT",
        _PATH + "/property/{key}/{value}",
        "set one property",
        _N,
        (_KEY, Option(("-v", "--value"), "path:value", "its value", required=True)),
    ),
    "remove-property": AdminCommand("DELETE", _PATH + "/property/{key}", "remove one", _N, (_KEY,)),
    "get-properties": AdminCommand("GET", _PATH + "/properties", "all properties", _N),
    "set-properties": AdminCommand(
        "PUT",
        _PATH + "/properties",
        "set some properties",
        _N,
        (Option(("-p", "--properties"), "body", "a=1,b=2", "map", required=True),),
    ),
    "clear-properties": AdminCommand("DELETE", _PATH + "/properties", "remove all of them", _N),
}

_PLAIN: tuple[PolicyCommands, ...] = (
    PolicyCommands("clusters", "/replication", "clusters it is in", (_CLUSTERS,), remove=""),
    PolicyCommands(
        "allowed-clusters", "/allowedClusters", "clusters it may be in", (_CLUSTERS,), remove=""
    ),
    PolicyCommands("retention", "/retention", "how long acknowledged messages stay", retention()),
    PolicyCommands("persistence", "/persistence", "copies of the data", persistence()),
    PolicyCommands(
        "message-ttl",
        "/messageTTL",
        "seconds until a message counts as consumed",
        (Option(("-ttl", "--messageTTL"), "body", "60s, 1h (seconds)", "seconds", required=True),),
    ),
    PolicyCommands(
        "subscription-expiration-time",
        "/subscriptionExpirationTime",
        "minutes until an unused subscription goes",
        (Option(("-t", "--time"), "body", "60m, 2d (minutes)", "minutes", required=True),),
    ),
    switch("deduplication", "/deduplication", "drop what producers send again"),
    PolicyCommands(
        "deduplication-snapshot-interval",
        "/deduplicationSnapshotInterval",
        "seconds between snapshots of what producers sent",
        number(("-i", "--interval"), help="seconds"),
        remove="POST",
    ),
    PolicyCommands(
        "auto-topic-creation",
        "/autoTopicCreation",
        "clients create topics by using them",
        (
            *either("field:allowAutoTopicCreation", "it"),
            Option(
                ("-t", "--type"),
                "field:topicType",
                "what they create (non-partitioned)",
                default="non-partitioned",
                choices=("partitioned", "non-partitioned"),
            ),
            Option(("-n", "--num-partitions"), "field:defaultNumPartitions", "how many", "int"),
        ),
    ),
    PolicyCommands(
        "auto-subscription-creation",
        "/autoSubscriptionCreation",
        "clients create subscriptions by using them",
        either("field:allowAutoSubscriptionCreation", "it"),
    ),
    PolicyCommands(
        "publish-rate", "/publishRate", "what a topic's producers may send", publish_rate()
    ),
    PolicyCommands("dispatch-rate", "/dispatchRate", "what a topic may deliver", dispatch_rate()),
    PolicyCommands(
        "subscription-dispatch-rate",
        "/subscriptionDispatchRate",
        "what a subscription may deliver",
        dispatch_rate(),
    ),
    PolicyCommands(
        "replicator-dispatch-rate",
        "/replicatorDispatchRate",
        "what a replicator may send",
        dispatch_rate(),
    ),
    PolicyCommands(
        "subscribe-rate", "/subscribeRate", "how often a consumer may come", subscribe_rate()
    ),
    switch("encryption-required", "/encryptionRequired", "refuse plain messages", remove=""),
    PolicyCommands(
        "subscription-auth-mode",
        "/subscriptionAuthMode",
        "which subscriptions a role may use",
        (
            Option(
                ("-m", "--subscription-auth-mode"),
                "body",
                "the mode",
                required=True,
                choices=("None", "Prefix"),
            ),
        ),
        remove="",
    ),
    PolicyCommands(
        "delayed-delivery", "/delayedDelivery", "messages for later", delayed_delivery()
    ),
    PolicyCommands(
        "inactive-topic-policies",
        "/inactiveTopicPolicies",
        "what happens to unused topics",
        inactive_topics(),
    ),
)

_LIMITS: tuple[PolicyCommands, ...] = (
    PolicyCommands(
        "max-producers-per-topic",
        "/maxProducersPerTopic",
        "most producers of a topic",
        number(("-p", "--max-producers-per-topic")),
    ),
    PolicyCommands(
        "max-consumers-per-topic",
        "/maxConsumersPerTopic",
        "most consumers of a topic",
        number(("-c", "--max-consumers-per-topic")),
    ),
    PolicyCommands(
        "max-consumers-per-subscription",
        "/maxConsumersPerSubscription",
        "most consumers of a subscription",
        number(("-c", "--max-consumers-per-subscription")),
    ),
    PolicyCommands(
        "max-unacked-messages-per-consumer",
        "/maxUnackedMessagesPerConsumer",
        "most unacknowledged messages of a consumer",
        number(
            # The third is pulsar-admin's own name for it.
            ("-c", "--max-unacked-messages-per-consumer", "--max-unacked-messages-per-topic")
        ),
    ),
    PolicyCommands(
        "max-unacked-messages-per-subscription",
        "/maxUnackedMessagesPerSubscription",
        "most unacknowledged messages of a subscription",
        number(("-c", "--max-unacked-messages-per-subscription")),
    ),
    PolicyCommands(
        "max-subscriptions-per-topic",
        "/maxSubscriptionsPerTopic",
        "most subscriptions of a topic",
        number(("-m", "--max-subscriptions-per-topic", "--maxSubscriptionsPerTopic")),
    ),
    PolicyCommands(
        "max-topics-per-namespace",
        "/maxTopicsPerNamespace",
        "most topics",
        number(("-t", "--max-topics-per-namespace")),
    ),
)

_STORAGE: tuple[PolicyCommands, ...] = (
    PolicyCommands(
        "compaction-threshold",
        "/compactionThreshold",
        "backlog that starts a compaction",
        (Option(("-t", "--threshold"), "body", "10M, 16G (bytes)", "bytes", required=True),),
        method="PUT",
    ),
    PolicyCommands(
        "offload-threshold",
        "/offloadThreshold",
        "size that starts an offload",
        (Option(("-s", "--size"), "body", "10M, 16G (bytes)", "bytes", required=True),),
        method="PUT",
        remove="",
    ),
    PolicyCommands(
        "offload-deletion-lag",
        "/offloadDeletionLagMs",
        "how long offloaded data keep their first copy",
        (Option(("-l", "--lag"), "body", "1h, 2d (seconds)", "millis", required=True),),
        method="PUT",
        remove_word="clear",
    ),
    PolicyCommands(
        "bookie-affinity-group",
        "/persistence/bookieAffinity",
        "which bookies hold the data",
        (
            Option(
                ("-pg", "--primary-group"),
                "field:bookkeeperAffinityGroupPrimary",
                "rack group",
                required=True,
            ),
            Option(
                ("-sg", "--secondary-group"),
                "field:bookkeeperAffinityGroupSecondary",
                "when that one is full",
            ),
        ),
        remove_word="delete",
    ),
    PolicyCommands(
        "anti-affinity-group",
        "/antiAffinity",
        "namespaces that brokers keep apart",
        (Option(("-g", "--group"), "body", "name", required=True),),
        remove_word="delete",
    ),
)

_SCHEMAS: tuple[PolicyCommands, ...] = (
    PolicyCommands(
        "schema-compatibility-strategy",
        "/schemaCompatibilityStrategy",
        "which changes of schemas are allowed",
        (STRATEGY,),
        method="PUT",
        remove="",
    ),
    PolicyCommands(
        "schema-autoupdate-strategy",
        "/schemaAutoUpdateCompatibilityStrategy",
        "the same by its old name",
        (
            Option(
                ("-c", "--compatibility"),
                "body",
                "Full, Backward, Forward or None",
                "old-strategy",
                required=True,
                group="s",
            ),
            Option(
                ("-d", "--disabled"),
                "body",
                "no change is allowed",
                "true",
                required=True,
                const="AutoUpdateDisabled",
                group="s",
            ),
        ),
        method="PUT",
        remove="",
    ),
    switch(
        "is-allow-auto-update-schema",
        "/isAllowAutoUpdateSchema",
        "producers may bring new schemas",
        remove="",
    ),
    switch(
        "schema-validation-enforce",
        "/schemaValidationEnforced",
        "refuse producers without a schema",
        remove="",
        applied=True,
    ),
    PolicyCommands(
        "subscription-types-enabled",
        "/subscriptionTypesEnabled",
        "subscription types that are allowed",
        (Option(("-t", "--types"), "body", "Exclusive,Shared,Failover,Key_Shared", "list", True),),
    ),
    PolicyCommands(
        "entry-filters",
        "/entryFilters",
        "filters that messages pass",
        (ENTRY_FILTERS,),
    ),
    switch(
        "replicate-subscription-state",
        "/replicateSubscriptionState",
        "copy subscriptions between clusters",
        remove="",
    ),
)

_OTHERS: dict[str, AdminCommand] = {
    "get-backlog-quotas": AdminCommand(
        "GET", _PATH + "/backlogQuotaMap", "limits of the backlog", _N
    ),
    "set-backlog-quota": AdminCommand(
        "POST", _PATH + "/backlogQuota", "set: a limit of the backlog", _N, backlog_quota()
    ),
    "remove-backlog-quota": AdminCommand(
        "DELETE", _PATH + "/backlogQuota", "unset: a limit of the backlog", _N, (BACKLOG_TYPE,)
    ),
    "get-offload-policies": AdminCommand(
        "GET", _PATH + "/offloadPolicies", "where old data go", _N
    ),
    "set-offload-policies": AdminCommand(
        "POST", _PATH + "/offloadPolicies", "set: where old data go", _N, offload_policies()
    ),
    "remove-offload-policies": AdminCommand(
        "DELETE", _PATH + "/removeOffloadPolicies", "unset: where old data go", _N
    ),
    "get-resource-group": AdminCommand("GET", _PATH + "/resourcegroup", "group that limits it", _N),
    "set-resource-group": AdminCommand(
        "POST",
        _PATH + "/resourcegroup/{resourcegroup}",
        "set: group that limits it",
        _N,
        (Option(("-rgn", "--resource-group-name"), "path:resourcegroup", "name", required=True),),
    ),
    "remove-resource-group": AdminCommand(
        "DELETE", _PATH + "/resourcegroup", "unset: group that limits it", _N
    ),
    "get-dispatcher-pause-on-ack-state-persistent": AdminCommand(
        "GET", _PATH + "/dispatcherPauseOnAckStatePersistent", "wait for cursor writes", _N
    ),
    "set-dispatcher-pause-on-ack-state-persistent": AdminCommand(
        "POST", _PATH + "/dispatcherPauseOnAckStatePersistent", "set: wait for them", _N
    ),
    "remove-dispatcher-pause-on-ack-state-persistent": AdminCommand(
        "DELETE", _PATH + "/dispatcherPauseOnAckStatePersistent", "unset: wait for them", _N
    ),
}

WORDS: dict[str, dict[str, AdminCommand]] = {
    "namespaces": {
        **_LIFE_CYCLE,
        **_PROPERTIES,
        **commands_of_policies(_PATH, _N, _PLAIN + _LIMITS + _STORAGE + _SCHEMAS),
        **_OTHERS,
    }
}
