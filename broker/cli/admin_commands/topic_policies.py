"""Words of ``topicPolicies``."""

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

_PATH = "/admin/v2/{topic}"
_T = ("topic",)
_GLOBAL = Option(("-g", "--global"), "query:isGlobal", "of all clusters", "true")
_APPLIED = Option(("-ap", "--applied"), "query:applied", "what is in force", "true")
_SUB = Option(("-s", "--subscription"), "path:subscription", "of this subscription only")

_POLICIES: tuple[PolicyCommands, ...] = (
    PolicyCommands(
        "message-ttl",
        "/messageTTL",
        "seconds until a message counts as consumed",
        (
            Option(
                ("-t", "--ttl"), "query:messageTTL", "60s, 1h (seconds)", "seconds", required=True
            ),
        ),
        applied=True,
    ),
    PolicyCommands(
        "retention", "/retention", "how long acknowledged messages stay", retention(), applied=True
    ),
    PolicyCommands(
        "persistence", "/persistence", "copies of the data", persistence(), applied=True
    ),
    PolicyCommands(
        "delayed-delivery",
        "/delayedDelivery",
        "messages for later",
        delayed_delivery(),
        applied=True,
    ),
    PolicyCommands(
        "inactive-topic-policies",
        "/inactiveTopicPolicies",
        "what happens when it isn't used",
        inactive_topics(),
        applied=True,
    ),
    PolicyCommands(
        "offload-policies",
        "/offloadPolicies",
        "where old data go",
        offload_policies(),
        applied=True,
    ),
    switch("deduplication", "/deduplicationEnabled", "drop what comes again", applied=True),
    PolicyCommands(
        "deduplication-snapshot-interval",
        "/deduplicationSnapshotInterval",
        "seconds between snapshots of what producers sent",
        number(("-i", "--interval"), help="seconds"),
    ),
    PolicyCommands(
        "max-producers",
        "/maxProducers",
        "most producers",
        number(("-p", "--max-producers")),
        applied=True,
    ),
    PolicyCommands(
        "max-consumers",
        "/maxConsumers",
        "most consumers",
        number(("-c", "--max-consumers")),
        applied=True,
    ),
    PolicyCommands(
        "max-unacked-messages-per-consumer",
        "/maxUnackedMessagesOnConsumer",
        "most unacknowledged messages of a consumer",
        number(("-m", "--maxNum")),
        applied=True,
    ),
    PolicyCommands(
        "max-unacked-messages-per-subscription",
        "/maxUnackedMessagesOnSubscription",
        "most unacknowledged messages of a subscription",
        number(("-m", "--maxNum")),
        applied=True,
    ),
    PolicyCommands(
        "max-consumers-per-subscription",
        "/maxConsumersPerSubscription",
        "most consumers of a subscription",
        number(("-c", "--max-consumers-per-subscription")),
    ),
    PolicyCommands(
        "max-subscriptions-per-topic",
        "/maxSubscriptionsPerTopic",
        "most subscriptions",
        number(("-s", "--max-subscriptions-per-topic")),
    ),
    PolicyCommands(
        "max-message-size",
        "/maxMessageSize",
        "largest message in bytes",
        number(("-m", "--max-message-size"), help="bytes, 0: no limit of its own"),
    ),
    PolicyCommands("publish-rate", "/publishRate", "what its producers may send", publish_rate()),
    PolicyCommands(
        "dispatch-rate", "/dispatchRate", "what it may deliver", dispatch_rate(), applied=True
    ),
    PolicyCommands(
        "replicator-dispatch-rate",
        "/replicatorDispatchRate",
        "what a replicator may send",
        dispatch_rate(),
        applied=True,
    ),
    PolicyCommands(
        "subscribe-rate",
        "/subscribeRate",
        "how often a consumer may come",
        subscribe_rate(),
        applied=True,
    ),
    PolicyCommands(
        "compaction-threshold",
        "/compactionThreshold",
        "backlog that starts a compaction",
        (Option(("-t", "--threshold"), "body", "10M, 16G (bytes)", "bytes", required=True),),
        applied=True,
    ),
    PolicyCommands(
        "subscription-types-enabled",
        "/subscriptionTypesEnabled",
        "subscription types that are allowed",
        (Option(("-t", "--types"), "body", "Exclusive,Shared,Failover,Key_Shared", "list", True),),
    ),
    PolicyCommands(
        "replication-clusters",
        "/replication",
        "clusters it is in",
        (Option(("-c", "--clusters"), "body", "names", "list", required=True),),
        applied=True,
    ),
    PolicyCommands(
        "schema-compatibility-strategy",
        "/schemaCompatibilityStrategy",
        "which changes of its schema are allowed",
        (STRATEGY,),
        method="PUT",
        applied=True,
    ),
    switch(
        "schema-validation-enforce",
        "/schemaValidationEnforced",
        "refuse producers without a schema",
        applied=True,
    ),
    PolicyCommands(
        "entry-filters-per-topic",
        "/entryFilters",
        "filters that messages pass",
        (ENTRY_FILTERS,),
        applied=True,
    ),
    PolicyCommands(
        "auto-subscription-creation",
        "/autoSubscriptionCreation",
        "clients create subscriptions by using them",
        either("field:allowAutoSubscriptionCreation", "it"),
        applied=True,
    ),
)

_OTHERS: dict[str, AdminCommand] = {
    "get-backlog-quota": AdminCommand(
        "GET", _PATH + "/backlogQuotaMap", "limits of the backlog", _T, (_APPLIED, _GLOBAL)
    ),
    "set-backlog-quota": AdminCommand(
        "POST",
        _PATH + "/backlogQuota",
        "set: a limit of the backlog",
        _T,
        (*backlog_quota(), _GLOBAL),
    ),
    "remove-backlog-quota": AdminCommand(
        "DELETE",
        _PATH + "/backlogQuota",
        "unset: a limit of the backlog",
        _T,
        (BACKLOG_TYPE, _GLOBAL),
    ),
    "get-subscription-dispatch-rate": AdminCommand(
        "GET",
        _PATH + "/subscriptionDispatchRate",
        "what a subscription may deliver",
        _T,
        (_APPLIED, _SUB, _GLOBAL),
        step="of_subscription",
    ),
    "set-subscription-dispatch-rate": AdminCommand(
        "POST",
        _PATH + "/subscriptionDispatchRate",
        "set: what a subscription may deliver",
        _T,
        (*dispatch_rate(), _SUB, _GLOBAL),
        step="of_subscription",
    ),
    "remove-subscription-dispatch-rate": AdminCommand(
        "DELETE",
        _PATH + "/subscriptionDispatchRate",
        "unset: what a subscription may deliver",
        _T,
        (_SUB, _GLOBAL),
        step="of_subscription",
    ),
}

WORDS: dict[str, dict[str, AdminCommand]] = {
    "topicPolicies": {**commands_of_policies(_PATH, _T, _POLICIES, (_GLOBAL,)), **_OTHERS}
}
