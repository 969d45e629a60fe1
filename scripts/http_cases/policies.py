"""Policies of namespaces and topics, permissions, properties."""

from typing import Any

from http_cases import NS, Case, T

UNSET = "known: 204 for what isn't set"
NULL = "known: null is no number and no boolean"
NOT_HERE = "known: refused until the feature exists"
FILLED = "known: asking Pulsar for a topic's applied quotas fills in its namespace's"
STRICT = "known: a bad value is refused"
NEWER = "known: later versions have it"
REASON = "known: reason instead of plain text or HTML"

SIZES = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}
DISPATCH = {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 2}
AFFINITY = {"bookkeeperAffinityGroupPrimary": "ssd", "bookkeeperAffinityGroupSecondary": "hdd"}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": True,
}
QUOTA = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
AUTO_TOPIC = {
    "allowAutoTopicCreation": True,
    "topicType": "partitioned",
    "defaultNumPartitions": 3,
}
FILTERS = {"entryFilterNames": "nope"}
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}

# name at namespaces, name at topics, values that both servers answer alike
Row = tuple[str, str, list[Any]]
ROWS: list[Row] = [
    ("subscriptionExpirationTime", "", [5, 0, -1]),
    ("autoTopicCreation", "", [AUTO_TOPIC, {**AUTO_TOPIC, "defaultNumPartitions": 0}, {}]),
    ("autoTopicCreation", "", [{**AUTO_TOPIC, "topicType": "x"}]),
    ("autoTopicCreation", "", [{**AUTO_TOPIC, "topicType": "non-partitioned"}]),
    ("autoTopicCreation", "", [{"allowAutoTopicCreation": True, "topicType": "partitioned"}]),
    ("autoSubscriptionCreation", "autoSubscriptionCreation", [{}]),
    ("publishRate", "publishRate", [{"publishThrottlingRateInMsg": 5}, {}]),
    ("dispatchRate", "dispatchRate", [DISPATCH, {}]),
    ("subscriptionDispatchRate", "subscriptionDispatchRate", [DISPATCH]),
    ("subscribeRate", "subscribeRate", [{"subscribeThrottlingRatePerConsumer": 5}, {}]),
    ("retention", "retention", [RETENTION, {"retentionTimeInMinutes": 1}, {}]),
    ("retention", "retention", [{"retentionTimeInMinutes": -2, "retentionSizeInMB": -1}]),
    ("persistence", "persistence", [SIZES, {**SIZES, "bookkeeperWriteQuorum": 2}]),
    ("persistence", "persistence", [{**SIZES, "bookkeeperEnsemble": 6}, None]),
    ("delayedDelivery", "delayedDelivery", [{"tickTime": 1000, "active": True}, {}]),
    ("inactiveTopicPolicies", "inactiveTopicPolicies", [INACTIVE, {}]),
    ("maxProducersPerTopic", "maxProducers", [5, -1, 0]),
    ("maxConsumersPerTopic", "maxConsumers", [5, -1]),
    ("maxConsumersPerSubscription", "maxConsumersPerSubscription", [5, -1]),
    ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", [5, -1]),
    ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", [5, -1]),
    ("maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription", [5, -1]),
    ("maxTopicsPerNamespace", "", [5, -1]),
    ("", "maxMessageSize", [500, -1, 6_000_000]),
    ("subscriptionTypesEnabled", "subscriptionTypesEnabled", [["Shared", "Exclusive"], []]),
    ("deduplication", "deduplicationEnabled", [False]),
    ("deduplicationSnapshotInterval", "deduplicationSnapshotInterval", [0, -1]),
    ("entryFilters", "entryFilters", [FILTERS, {"entryFilterNames": ""}]),
]
APPLIED = [
    *("messageTTL", "retention", "persistence", "delayedDelivery", "inactiveTopicPolicies"),
    *("deduplicationEnabled", "maxProducers", "maxConsumers", "maxUnackedMessagesOnConsumer"),
    *("maxUnackedMessagesOnSubscription", "dispatchRate", "subscriptionDispatchRate"),
    *("replicatorDispatchRate", "sub/dispatchRate", "subscribeRate", "compactionThreshold"),
    *("replication", "schemaCompatibilityStrategy", "schemaValidationEnforced", "entryFilters"),
    *("autoSubscriptionCreation", "dispatcherPauseOnAckStatePersistent", "backlogQuotaMap"),
]
# Answered with something while not set; the others with nothing.
_ANSWERED = {"maxTopicsPerNamespace", "subscriptionTypesEnabled"}
_NO_DELETE = {"deduplicationSnapshotInterval"}


def _row(base: str, name: str, values: list[Any]) -> list[Case]:
    path = f"{base}/{name}"
    note = "" if name in _ANSWERED else UNSET
    cases: list[Case] = [("GET", path, None, note)]
    for value in values:
        cases += [("POST", path, value, ""), ("GET", path, None, note)]
    if not (name in _NO_DELETE and base.startswith(NS)):
        cases += [("DELETE", path, None, ""), ("GET", path, None, note)]
    return cases


def _table(ns: str, topic: str) -> list[Case]:
    cases: list[Case] = []
    for of_namespace, of_topic, values in ROWS:
        if of_namespace:
            cases += _row(ns, of_namespace, values)
        if of_topic:
            cases += _row(topic, of_topic, values)
    for name in APPLIED:
        cases.append(("GET", f"{topic}/{name}?applied=true", None, ""))
    return cases


def _time_to_live(ns: str, topic: str) -> list[Case]:
    path = f"{topic}/messageTTL"
    return [
        ("POST", f"{ns}/messageTTL", 60, ""),
        ("GET", f"{ns}/messageTTL", None, ""),
        ("GET", f"{path}?applied=true", None, ""),
        ("POST", f"{ns}/messageTTL", -1, ""),
        ("POST", f"{ns}/messageTTL", "x", REASON),
        ("POST", f"{ns}/messageTTL", 2**40, REASON),
        ("POST", f"{path}?messageTTL=5", None, ""),
        ("GET", path, None, ""),
        ("POST", f"{path}?messageTTL=-1", None, ""),
        ("POST", f"{path}?messageTTL=x", None, STRICT),
        ("GET", f"{path}?applied=true", None, ""),
        ("DELETE", path, None, ""),
        ("DELETE", f"{ns}/messageTTL", None, ""),
        ("GET", path, None, UNSET),
    ]


def _expiration(ns: str, topic: str) -> list[Case]:
    path = f"{topic}/subscriptionExpirationTime"
    return [
        ("POST", f"{path}?subscriptionExpirationTime=5", None, ""),
        ("GET", path, None, ""),
        ("GET", f"{path}?applied=true", None, ""),
        ("POST", f"{path}?subscriptionExpirationTime=-1", None, ""),
        ("POST", f"{path}?subscriptionExpirationTime=x", None, STRICT),
        ("DELETE", path, None, ""),
        ("GET", path, None, UNSET),
        ("POST", f"{ns}/subscriptionExpirationTime", 7, ""),
        ("GET", f"{path}?applied=true", None, ""),
        ("DELETE", f"{ns}/subscriptionExpirationTime", None, ""),
    ]


def _quotas(ns: str, topic: str) -> list[Case]:
    big, fits = {**QUOTA, "limitSize": 20 << 20}, {**QUOTA, "limitSize": (20 << 20) - 1}
    long = {"limitSize": -1, "limitTime": 600, "policy": "producer_exception"}
    small = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    cases: list[Case] = []
    for base in (ns, topic):
        path, types = f"{base}/backlogQuota", f"{base}/backlogQuotaMap"
        filled = FILLED if base == ns else ""
        cases += [
            ("GET", types, None, filled),
            ("POST", path, QUOTA, ""),
            ("POST", path, {"limit": 7, "policy": "producer_request_hold"}, ""),
            ("GET", types, None, filled),
            ("POST", path, {"limitSize": 7}, ""),
            ("POST", path, {"limitSize": 7, "policy": "x"}, ""),
            ("POST", f"{path}?backlogQuotaType=message_age", QUOTA, ""),
            ("GET", types, None, ""),
            ("POST", f"{path}?backlogQuotaType=x", QUOTA, STRICT),
            ("DELETE", f"{path}?backlogQuotaType=message_age", None, ""),
            ("DELETE", path, None, ""),
            ("GET", types, None, ""),
            ("POST", f"{base}/retention", RETENTION, ""),
            ("POST", path, big, ""),
            ("POST", path, long, ""),
            ("POST", path, fits, ""),
            ("POST", f"{base}/retention", small, ""),
            ("DELETE", path, None, ""),
            ("POST", f"{base}/retention", small, ""),
            ("DELETE", f"{base}/retention", None, ""),
        ]
    return cases


def _one_level(ns: str, topic: str) -> list[Case]:
    """What only namespaces, or only topics have."""
    return [
        ("GET", f"{ns}/encryptionRequired", None, ""),
        ("POST", f"{ns}/encryptionRequired", "true", ""),
        ("GET", f"{ns}/encryptionRequired", None, ""),
        ("POST", f"{ns}/encryptionRequired", False, ""),
        ("POST", f"{ns}/encryptionRequired", "x", REASON),
        ("GET", f"{ns}/subscriptionAuthMode", None, ""),
        ("POST", f"{ns}/subscriptionAuthMode", "Prefix", ""),
        ("GET", f"{ns}/subscriptionAuthMode", None, ""),
        ("POST", f"{ns}/subscriptionAuthMode", "x", STRICT),
        ("POST", f"{ns}/subscriptionAuthMode", "None", ""),
        ("GET", f"{ns}/schemaCompatibilityStrategy", None, ""),
        ("PUT", f"{ns}/schemaCompatibilityStrategy", "BACKWARD", ""),
        ("GET", f"{ns}/schemaCompatibilityStrategy", None, ""),
        ("GET", f"{topic}/schemaCompatibilityStrategy?applied=true", None, ""),
        ("PUT", f"{topic}/schemaCompatibilityStrategy", "FULL", ""),
        ("GET", f"{topic}/schemaCompatibilityStrategy", None, ""),
        ("DELETE", f"{topic}/schemaCompatibilityStrategy", None, ""),
        ("GET", f"{topic}/schemaCompatibilityStrategy", None, UNSET),
        ("POST", f"{topic}/schemaCompatibilityStrategy", "FULL", REASON),
        ("POST", f"{topic}/schemaValidationEnforced", True, ""),
        ("GET", f"{topic}/schemaValidationEnforced", None, ""),
        ("GET", f"{topic}/sub/dispatchRate", None, UNSET),
        ("POST", f"{topic}/sub/dispatchRate", DISPATCH, ""),
        ("GET", f"{topic}/sub/dispatchRate", None, ""),
        ("GET", f"{topic}/sub/dispatchRate?applied=true", None, ""),
        ("DELETE", f"{topic}/sub/dispatchRate", None, ""),
    ]


def _one_level_of_storage(ns: str, topic: str) -> list[Case]:
    """Compaction, offload and replication: what can be asked though it isn't built."""
    return [
        ("GET", f"{ns}/compactionThreshold", None, UNSET),
        ("PUT", f"{ns}/compactionThreshold", 0, ""),
        ("PUT", f"{ns}/compactionThreshold", -1, ""),
        ("POST", f"{topic}/compactionThreshold", 0, ""),
        ("POST", f"{topic}/compactionThreshold", -1, ""),
        ("GET", f"{topic}/compactionThreshold", None, ""),
        ("GET", f"{ns}/offloadThreshold", None, ""),
        ("PUT", f"{ns}/offloadThreshold", -1, ""),
        ("GET", f"{ns}/offloadThresholdInSeconds", None, ""),
        ("PUT", f"{ns}/offloadThresholdInSeconds", -1, "known: 204, as other policies"),
        ("GET", f"{ns}/offloadDeletionLagMs", None, UNSET),
        ("DELETE", f"{ns}/offloadDeletionLagMs", None, ""),
        ("GET", f"{ns}/offloadPolicies", None, UNSET),
        ("DELETE", f"{ns}/removeOffloadPolicies", None, ""),
        ("GET", f"{topic}/offloadPolicies", None, UNSET),
        ("GET", f"{topic}/offloadPolicies?applied=true", None, "known: 204 when nobody set any"),
        ("DELETE", f"{topic}/offloadPolicies", None, ""),
        ("DELETE", f"{ns}/compactionThreshold", None, ""),
        ("DELETE", f"{topic}/compactionThreshold", None, ""),
        ("GET", f"{ns}/replicatorDispatchRate", None, UNSET),
        ("DELETE", f"{ns}/replicatorDispatchRate", None, ""),
        ("DELETE", f"{topic}/replicatorDispatchRate", None, ""),
    ]


def _one_level_of_the_rest(ns: str, topic: str) -> list[Case]:
    """Schema updates, replicated subscriptions, affinities, global topic policies."""
    return [
        ("GET", f"{ns}/isAllowAutoUpdateSchema", None, ""),
        ("POST", f"{ns}/isAllowAutoUpdateSchema", False, ""),
        ("GET", f"{ns}/isAllowAutoUpdateSchema", None, ""),
        ("POST", f"{ns}/isAllowAutoUpdateSchema", True, ""),
        ("GET", f"{ns}/schemaAutoUpdateCompatibilityStrategy", None, ""),
        ("PUT", f"{ns}/schemaAutoUpdateCompatibilityStrategy", "Forward", ""),
        ("PUT", f"{ns}/schemaAutoUpdateCompatibilityStrategy", "x", STRICT),
        ("GET", f"{ns}/schemaAutoUpdateCompatibilityStrategy", None, STRICT),
        ("GET", f"{ns}/schemaValidationEnforced", None, ""),
        ("GET", f"{ns}/schemaValidationEnforced?applied=true", None, ""),
        ("POST", f"{ns}/schemaValidationEnforced", True, ""),
        ("GET", f"{ns}/schemaValidationEnforced", None, ""),
        ("POST", f"{ns}/schemaValidationEnforced", False, ""),
        ("DELETE", f"{topic}/schemaValidationEnforced", None, "known: the Go client calls it"),
        ("GET", f"{ns}/replicateSubscriptionState", None, NEWER),
        ("POST", f"{ns}/replicateSubscriptionState", False, NEWER),
        ("DELETE", f"{ns}/replicateSubscriptionState", None, NEWER),
        ("GET", f"{topic}/replicateSubscriptionState", None, NEWER),
        ("POST", f"{topic}/replicateSubscriptionState", False, NEWER),
        ("DELETE", f"{topic}/replicateSubscriptionState", None, NEWER),
        ("DELETE", f"{topic}/dispatcherPauseOnAckStatePersistent", None, ""),
        ("DELETE", f"{ns}/persistence/bookieAffinity", None, ""),
        ("GET", f"{ns}/persistence/bookieAffinity", None, ""),
        ("POST", f"{ns}/persistence/bookieAffinity", AFFINITY, ""),
        ("GET", f"{ns}/persistence/bookieAffinity", None, ""),
        ("POST", f"{ns}/persistence/bookieAffinity", {}, ""),
        ("GET", f"{ns}/persistence/bookieAffinity", None, ""),
        ("POST", f"{ns}/persistence/bookieAffinity", [], REASON),
        ("GET", f"{ns}-none/persistence/bookieAffinity", None, ""),
        ("DELETE", f"{ns}/antiAffinity", None, ""),
        ("GET", f"{ns}/dispatcherPauseOnAckStatePersistent", None, ""),
        ("DELETE", f"{ns}/dispatcherPauseOnAckStatePersistent", None, ""),
        ("GET", f"{topic}/maxProducers?isGlobal=true", None, UNSET),
        ("POST", f"{topic}/maxProducers?isGlobal=true", 7, ""),
        ("GET", f"{topic}/maxProducers?isGlobal=true", None, ""),
        ("GET", f"{topic}/maxProducers", None, UNSET),
        ("DELETE", f"{topic}/maxProducers?isGlobal=true", None, ""),
        ("POST", f"{ns}/maxProducersPerTopic", None, REASON),
    ]


def _refused(ns: str, topic: str) -> list[Case]:
    """Features that don't exist here."""
    return [
        ("POST", f"{ns}/deduplication", True, NOT_HERE),
        ("POST", f"{topic}/deduplicationEnabled", True, NOT_HERE),
        ("POST", f"{ns}/replicatorDispatchRate", DISPATCH, NOT_HERE),
        ("PUT", f"{ns}/compactionThreshold", 100, NOT_HERE),
        ("POST", f"{ns}/dispatcherPauseOnAckStatePersistent", None, NOT_HERE),
        ("POST", f"{ns}/antiAffinity", "group", ""),
        ("GET", f"{ns}/antiAffinity", None, ""),
        ("POST", f"{ns}/resourcegroup/nope", None, ""),
        ("GET", f"{ns}/resourcegroup", None, UNSET),
        ("DELETE", f"{ns}/resourcegroup", None, ""),
        ("POST", f"{topic}/dispatcherPauseOnAckStatePersistent", None, NOT_HERE),
        ("POST", f"{topic}/replicatorDispatchRate", DISPATCH, NOT_HERE),
        ("GET", f"{ns}/allowedTopicPropertyKeysForMetrics", None, UNSET),
        ("POST", f"{ns}/allowedTopicPropertyKeysForMetrics", ["a"], NOT_HERE),
        ("POST", f"{ns}/allowedTopicPropertyKeysForMetrics", [], ""),
        ("DELETE", f"{ns}/allowedTopicPropertyKeysForMetrics", None, ""),
        ("GET", f"{ns}/allowedTopicPropertyKeysForMetrics", None, UNSET),
        ("GET", f"{ns}/scanOffloadedLedgers", None, "known: 501 instead of 500"),
        ("POST", f"{ns}/migration", False, ""),
        ("POST", f"{ns}/migration", None, REASON),
        ("POST", f"{ns}x/migration", False, "known: a missing namespace is 404"),
        ("DELETE", f"{topic}/policies", None, ""),
        ("GET", f"{topic}/maxProducers", None, UNSET),
    ]


def _content(ns: str, topic: str) -> list[Case]:
    grant = f"{ns}/permissions"
    return [
        ("GET", grant, None, ""),
        ("POST", f"{grant}/a%2Fb", ["produce", "consume"], ""),
        ("POST", f"{grant}/c", ["x"], STRICT),
        ("POST", f"{grant}/c", None, ""),
        ("GET", grant, None, STRICT),
        ("DELETE", f"{grant}/a%2Fb", None, ""),
        ("DELETE", f"{grant}/nope", None, ""),
        ("POST", f"{grant}/subscription/s", ["a", "b"], ""),
        ("GET", f"{grant}/subscription", None, ""),
        ("DELETE", f"{grant}/s/a", None, ""),
        ("GET", f"{grant}/subscription", None, ""),
        ("POST", f"{grant}/subscription/s", None, ""),
        ("PUT", f"{ns}/property/a%20b/v%2F1", None, ""),
        ("GET", f"{ns}/property/a%20b", None, "known: text/plain"),
        ("GET", f"{ns}/property/nope", None, UNSET),
        ("PUT", f"{ns}/properties", {"x": "1"}, ""),
        ("GET", f"{ns}/properties", None, ""),
        ("DELETE", f"{ns}/property/x", None, "known: text/plain"),
        ("DELETE", f"{ns}/property/x", None, UNSET),
        ("DELETE", f"{ns}/properties", None, ""),
        ("GET", f"{ns}/replication", None, ""),
        ("POST", f"{ns}/replication", ["standalone"], "known: 204, as other policies"),
        ("POST", f"{ns}/replication", [], ""),
        ("POST", f"{ns}/replication", ["nowhere"], ""),
        ("GET", f"{ns}/allowedClusters", None, ""),
        ("POST", f"{ns}/allowedClusters", ["standalone"], "known: 204, as other policies"),
        ("POST", f"{ns}/allowedClusters", [], ""),
        ("GET", f"{topic}/replication", None, UNSET),
        ("POST", f"{topic}/replication", ["standalone"], ""),
        ("POST", f"{topic}/replication", [], ""),
        ("POST", f"{topic}/replication", ["nowhere"], ""),
        ("GET", f"{topic}/replication", None, ""),
        ("DELETE", f"{topic}/replication", None, ""),
    ]


def _missing(ns: str, topics: str) -> list[Case]:
    cases: list[Case] = [
        ("GET", f"{topics}/nope/retention", None, ""),
        ("POST", f"{topics}/nope/maxProducers", 5, ""),
        ("DELETE", f"{topics}/nope/maxProducers", None, ""),
        ("GET", f"{topics}/p-partition-0/retention", None, ""),
        ("POST", f"{topics}/p-partition-0/maxProducers", 5, ""),
        ("POST", f"{topics}/p/maxProducers", 5, ""),
        ("GET", f"{topics}/p/maxProducers", None, ""),
        ("POST", f"{ns}x/messageTTL", 5, ""),
        ("DELETE", f"{ns}x/messageTTL", None, ""),
        ("POST", f"{ns}x/permissions/a", ["produce"], ""),
        ("PUT", f"{ns}x/property/a/b", None, ""),
        ("POST", f"{ns}x/retention", {}, "known: one reason for all policies"),
    ]
    names = ("messageTTL", "backlogQuotaMap", "permissions", "properties", "maxTopicsPerNamespace")
    return cases + [("GET", f"{ns}x/{name}", None, "") for name in names]


def requests(tenant: str) -> list[Case]:
    ns = f"{NS}/{tenant}/ns"
    topics = f"/admin/v2/persistent/{tenant}/ns"
    topic = f"{topics}/t"
    policies = {"message_ttl_in_seconds": 5, "retention_policies": RETENTION}
    return [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone"]}, ""),
        ("PUT", ns, policies, ""),
        ("GET", f"{ns}/retention", None, ""),
        ("DELETE", f"{ns}/retention", None, ""),
        ("DELETE", f"{ns}/messageTTL", None, ""),
        ("PUT", topic, None, ""),
        ("PUT", f"{topics}/p/partitions", 2, ""),
        *_table(ns, topic),
        *_time_to_live(ns, topic),
        *_expiration(ns, topic),
        *_quotas(ns, topic),
        *_one_level(ns, topic),
        *_one_level_of_storage(ns, topic),
        *_one_level_of_the_rest(ns, topic),
        *_refused(ns, topic),
        *_content(ns, topic),
        *_missing(ns, topics),
        ("GET", ns, None, "known: what Pulsar set and this broker refused"),
        ("DELETE", f"{topics}/p/partitions", None, ""),
        ("DELETE", topic, None, ""),
        ("DELETE", ns, None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]
