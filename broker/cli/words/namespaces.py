"""Words of ``namespaces``: life cycle, bundles, permissions, properties, policies."""

from __future__ import annotations

from broker.cli.words.model import Option, Word, either
from broker.cli.words.policies import (
    BACKLOG_TYPE,
    ENTRY_FILTERS,
    STRATEGY,
    Policy,
    backlog_quota,
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
    words_of_policies,
)

__all__ = ["WORDS"]

_PATH = "/admin/v2/namespaces/{namespace}"
_N = ("namespace",)
_FORCE = Option(("-f", "--force"), "query:force", "with everything in it", "true")
_BUNDLE = Option(("-b", "--bundle"), "path:bundle", "only this one: 0x00000000_0x40000000")
_SUB = Option(("-s", "--sub"), "path:subscription", "subscription", required=True)
_ROLE = Option(("--role",), "path:role", "role of clients", required=True)
_CLUSTERS = Option(("-c", "--clusters"), "body", "names", "list", required=True)
_KEY = Option(("-k", "--key"), "path:key", "name of the property", required=True)

_LIFE_CYCLE: dict[str, Word] = {
    "list": Word("GET", "/admin/v2/namespaces/{tenant}", "namespaces of a tenant", ("tenant",)),
    "policies": Word("GET", _PATH, "all policies", _N),
    "topics": Word(
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
    "bundles": Word("GET", _PATH + "/bundles", "boundaries of its bundles", _N),
    "create": Word(
        "PUT",
        _PATH,
        "create one",
        _N,
        (
            Option(("-b", "--bundles"), "field:bundles.numBundles", "number of bundles", "int"),
            Option(("-c", "--clusters"), "field:replication_clusters", "names", "list"),
        ),
    ),
    "delete": Word("DELETE", _PATH, "delete some", _N, (_FORCE,), many=True),
    "unload": Word(
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
    "split-bundle": Word(
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
    "get-topic-hash-positions": Word(
        "GET",
        _PATH + "/{bundle}/topicHashPositions",
        "where topics are in a bundle",
        _N,
        (
            Option(("-b", "--bundle"), "path:bundle", "the bundle", required=True),
            Option(("-t", "--topics"), "query:topics", "only these", "list"),
        ),
    ),
    "clear-backlog": Word(
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
    "unsubscribe": Word(
        "POST",
        _PATH + "/unsubscribe/{subscription}",
        "delete a subscription of all topics",
        _N,
        (_SUB, _BUNDLE),
        step="of_bundle",
    ),
    "permissions": Word("GET", _PATH + "/permissions", "actions by role", _N),
    "grant-permission": Word(
        "POST",
        _PATH + "/permissions/{role}",
        "let a role act",
        _N,
        (_ROLE, Option(("--actions",), "body", "produce,consume,...", "list", required=True)),
    ),
    "revoke-permission": Word(
        "DELETE", _PATH + "/permissions/{role}", "take a role's actions away", _N, (_ROLE,)
    ),
    "subscription-permission": Word(
        "GET", _PATH + "/permissions/subscription", "roles by subscription", _N
    ),
    "grant-subscription-permission": Word(
        "POST",
        _PATH + "/permissions/subscription/{subscription}",
        "let roles use a subscription",
        _N,
        (
            Option(("--subscription",), "path:subscription", "subscription", required=True),
            Option(("--roles",), "body", "names", "list", required=True),
        ),
    ),
    "revoke-subscription-permission": Word(
        "DELETE",
        _PATH + "/permissions/{subscription}/{role}",
        "take a subscription from a role",
        _N,
        (Option(("--subscription",), "path:subscription", "subscription", required=True), _ROLE),
    ),
    "get-anti-affinity-namespaces": Word(
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

_PROPERTIES: dict[str, Word] = {
    "get-property": Word("GET", _PATH + "/property/{key}", "one property", _N, (_KEY,)),
    "set-property": Word(
        "PUT",
        _PATH + "/property/{key}/{value}",
        "set one property",
        _N,
        (_KEY, Option(("-v", "--value"), "path:value", "its value", required=True)),
    ),
    "remove-property": Word("DELETE", _PATH + "/property/{key}", "remove one", _N, (_KEY,)),
    "get-properties": Word("GET", _PATH + "/properties", "all properties", _N),
    "set-properties": Word(
        "PUT",
        _PATH + "/properties",
        "set some properties",
        _N,
        (Option(("-p", "--properties"), "body", "a=1,b=2", "map", required=True),),
    ),
    "clear-properties": Word("DELETE", _PATH + "/properties", "remove all of them", _N),
}

_PLAIN: tuple[Policy, ...] = (
    Policy("clusters", "/replication", "clusters it is in", (_CLUSTERS,), remove=""),
    Policy(
        "allowed-clusters", "/allowedClusters", "clusters it may be in", (_CLUSTERS,), remove=""
    ),
    Policy("retention", "/retention", "how long acknowledged messages stay", retention()),
    Policy("persistence", "/persistence", "copies of the data", persistence()),
    Policy(
        "message-ttl",
        "/messageTTL",
        "seconds until a message counts as consumed",
        (Option(("-ttl", "--messageTTL"), "body", "60s, 1h (seconds)", "seconds", required=True),),
    ),
    Policy(
        "subscription-expiration-time",
        "/subscriptionExpirationTime",
        "minutes until an unused subscription goes",
        (Option(("-t", "--time"), "body", "60m, 2d (minutes)", "minutes", required=True),),
    ),
    switch("deduplication", "/deduplication", "drop what producers send again"),
    Policy(
        "deduplication-snapshot-interval",
        "/deduplicationSnapshotInterval",
        "seconds between snapshots of what producers sent",
        number(("-i", "--interval"), help="seconds"),
        remove="POST",
    ),
    Policy(
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
    Policy(
        "auto-subscription-creation",
        "/autoSubscriptionCreation",
        "clients create subscriptions by using them",
        either("field:allowAutoSubscriptionCreation", "it"),
    ),
    Policy("publish-rate", "/publishRate", "what a topic's producers may send", publish_rate()),
    Policy("dispatch-rate", "/dispatchRate", "what a topic may deliver", dispatch_rate()),
    Policy(
        "subscription-dispatch-rate",
        "/subscriptionDispatchRate",
        "what a subscription may deliver",
        dispatch_rate(),
    ),
    Policy(
        "replicator-dispatch-rate",
        "/replicatorDispatchRate",
        "what a replicator may send",
        dispatch_rate(),
    ),
    Policy("subscribe-rate", "/subscribeRate", "how often a consumer may come", subscribe_rate()),
    switch("encryption-required", "/encryptionRequired", "refuse plain messages", remove=""),
    Policy(
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
    Policy("delayed-delivery", "/delayedDelivery", "messages for later", delayed_delivery()),
    Policy(
        "inactive-topic-policies",
        "/inactiveTopicPolicies",
        "what happens to unused topics",
        inactive_topics(),
    ),
)

_LIMITS: tuple[Policy, ...] = (
    Policy(
        "max-producers-per-topic",
        "/maxProducersPerTopic",
        "most producers of a topic",
        number(("-p", "--max-producers-per-topic")),
    ),
    Policy(
        "max-consumers-per-topic",
        "/maxConsumersPerTopic",
        "most consumers of a topic",
        number(("-c", "--max-consumers-per-topic")),
    ),
    Policy(
        "max-consumers-per-subscription",
        "/maxConsumersPerSubscription",
        "most consumers of a subscription",
        number(("-c", "--max-consumers-per-subscription")),
    ),
    Policy(
        "max-unacked-messages-per-consumer",
        "/maxUnackedMessagesPerConsumer",
        "most unacknowledged messages of a consumer",
        number(
            # The third is pulsar-admin's own name for it.
            ("-c", "--max-unacked-messages-per-consumer", "--max-unacked-messages-per-topic")
        ),
    ),
    Policy(
        "max-unacked-messages-per-subscription",
        "/maxUnackedMessagesPerSubscription",
        "most unacknowledged messages of a subscription",
        number(("-c", "--max-unacked-messages-per-subscription")),
    ),
    Policy(
        "max-subscriptions-per-topic",
        "/maxSubscriptionsPerTopic",
        "most subscriptions of a topic",
        number(("-m", "--max-subscriptions-per-topic", "--maxSubscriptionsPerTopic")),
    ),
    Policy(
        "max-topics-per-namespace",
        "/maxTopicsPerNamespace",
        "most topics",
        number(("-t", "--max-topics-per-namespace")),
    ),
)

_STORAGE: tuple[Policy, ...] = (
    Policy(
        "compaction-threshold",
        "/compactionThreshold",
        "backlog that starts a compaction",
        (Option(("-t", "--threshold"), "body", "10M, 16G (bytes)", "bytes", required=True),),
        method="PUT",
    ),
    Policy(
        "offload-threshold",
        "/offloadThreshold",
        "size that starts an offload",
        (Option(("-s", "--size"), "body", "10M, 16G (bytes)", "bytes", required=True),),
        method="PUT",
        remove="",
    ),
    Policy(
        "offload-deletion-lag",
        "/offloadDeletionLagMs",
        "how long offloaded data keep their first copy",
        (Option(("-l", "--lag"), "body", "1h, 2d (seconds)", "millis", required=True),),
        method="PUT",
        remove_word="clear",
    ),
    Policy(
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
    Policy(
        "anti-affinity-group",
        "/antiAffinity",
        "namespaces that brokers keep apart",
        (Option(("-g", "--group"), "body", "name", required=True),),
        remove_word="delete",
    ),
)

_SCHEMAS: tuple[Policy, ...] = (
    Policy(
        "schema-compatibility-strategy",
        "/schemaCompatibilityStrategy",
        "which changes of schemas are allowed",
        (STRATEGY,),
        method="PUT",
        remove="",
    ),
    Policy(
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
    Policy(
        "subscription-types-enabled",
        "/subscriptionTypesEnabled",
        "subscription types that are allowed",
        (Option(("-t", "--types"), "body", "Exclusive,Shared,Failover,Key_Shared", "list", True),),
    ),
    Policy(
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

_OTHERS: dict[str, Word] = {
    "get-backlog-quotas": Word("GET", _PATH + "/backlogQuotaMap", "limits of the backlog", _N),
    "set-backlog-quota": Word(
        "POST", _PATH + "/backlogQuota", "set: a limit of the backlog", _N, backlog_quota()
    ),
    "remove-backlog-quota": Word(
        "DELETE", _PATH + "/backlogQuota", "unset: a limit of the backlog", _N, (BACKLOG_TYPE,)
    ),
    "get-offload-policies": Word("GET", _PATH + "/offloadPolicies", "where old data go", _N),
    "set-offload-policies": Word(
        "POST", _PATH + "/offloadPolicies", "set: where old data go", _N, offload_policies()
    ),
    "remove-offload-policies": Word(
        "DELETE", _PATH + "/removeOffloadPolicies", "unset: where old data go", _N
    ),
    "get-resource-group": Word("GET", _PATH + "/resourcegroup", "group that limits it", _N),
    "set-resource-group": Word(
        "POST",
        _PATH + "/resourcegroup/{resourcegroup}",
        "set: group that limits it",
        _N,
        (Option(("-rgn", "--resource-group-name"), "path:resourcegroup", "name", required=True),),
    ),
    "remove-resource-group": Word(
        "DELETE", _PATH + "/resourcegroup", "unset: group that limits it", _N
    ),
    "get-dispatcher-pause-on-ack-state-persistent": Word(
        "GET", _PATH + "/dispatcherPauseOnAckStatePersistent", "wait for cursor writes", _N
    ),
    "set-dispatcher-pause-on-ack-state-persistent": Word(
        "POST", _PATH + "/dispatcherPauseOnAckStatePersistent", "set: wait for them", _N
    ),
    "remove-dispatcher-pause-on-ack-state-persistent": Word(
        "DELETE", _PATH + "/dispatcherPauseOnAckStatePersistent", "unset: wait for them", _N
    ),
}

WORDS: dict[str, dict[str, Word]] = {
    "namespaces": {
        **_LIFE_CYCLE,
        **_PROPERTIES,
        **words_of_policies(_PATH, _N, _PLAIN + _LIMITS + _STORAGE + _SCHEMAS),
        **_OTHERS,
    }
}
