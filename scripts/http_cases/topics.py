"""Topics: every endpoint on a plain, a partitioned and a non-persistent topic, and on none."""

from http_cases import NS, Case, T

EARLIEST = {"ledgerId": -1, "entryId": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
MESSAGES = {"messages": [{"payload": "x"}, {"payload": "y", "key": "k"}, {"payload": "z"}]}
BUNDLE = "0x00000000_0x40000000"

KEPT = "known: stored, though nothing checks it yet"
_CRASHES = "known: Pulsar answers 500"
_OCTETS = "known: octets are declared as such"
_LEDGERS = "known: a ledger or cursor ledger begins with its first entry; no schemas in ledgers"
_TYPE = "known: no type before the first consumer"


def requests(tenant: str) -> list[Case]:
    a = f"/admin/v2/persistent/{tenant}/ns"
    n = f"/admin/v2/non-persistent/{tenant}/ns"
    cases: list[Case] = [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone"]}, ""),
        ("PUT", f"{NS}/{tenant}/ns", {"bundles": {"numBundles": 4}}, ""),
        ("PUT", f"{a}/t", {"k": "v"}, ""),
        ("PUT", f"{a}/empty", None, ""),
        ("PUT", f"{a}/p/partitions", 2, ""),
        ("PUT", f"{n}/np", None, ""),
        ("PUT", f"{n}/npp/partitions", 2, ""),
        *[("PUT", f"{a}/{name}/subscription/s", None, "") for name in ("t", "p", "empty")],
        ("PUT", f"{a}/t/subscription/s2", {**EARLIEST, "properties": {"x": "y"}}, ""),
        ("POST", f"/topics/persistent/{tenant}/ns/t", MESSAGES, ""),
        *[
            ("POST", f"/topics/persistent/{tenant}/ns/p/partitions/{index}", MESSAGES, "")
            for index in (0, 1)
        ],
    ]
    plain, partitioned, missing = f"{a}/t", f"{a}/p", f"{a}/nope"
    volatile, part, no_part = f"{n}/np", f"{a}/p-partition-0", f"{a}/p-partition-7"
    every = [plain, partitioned, volatile, f"{n}/npp", missing, part, no_part]
    for topic in every:
        cases += _properties(topic) + _metrics(topic) + _absent(topic) + _permissions(topic)
    for topic in (plain, partitioned, volatile, missing):
        cases += [case for name in ("s", "nope") for case in _subscription(topic, name)]
    cases += _expiry(a) + _grants(tenant)
    for topic in (plain, partitioned, volatile, missing):
        cases += _ends(topic)
    return cases + _namespace(f"{NS}/{tenant}") + _lists(a, n) + _farewell(tenant, a, n)


def _is(topic: str, *names: str) -> bool:
    return topic.rsplit("/", 1)[1] in names


def _properties(topic: str) -> list[Case]:
    lost = "known: a reason is given" if _is(topic, "nope", "p-partition-7") else ""
    fine = "known: a missing topic is 404" if lost else ""
    unset = "known: {} instead of nothing" if _is(topic, "p") else ""
    return [
        ("GET", f"{topic}/properties", None, unset),
        ("PUT", f"{topic}/properties", {"a": "b"}, lost),
        ("GET", f"{topic}/properties", None, ""),
        ("PUT", f"{topic}/properties", None, fine),
        ("DELETE", f"{topic}/properties?key=a", None, lost),
        ("GET", f"{topic}/properties", None, ""),
    ]


def _metrics(topic: str) -> list[Case]:
    one = _LEDGERS if _is(topic, "t", "p-partition-0") else ""
    both = _LEDGERS if _is(topic, "p") else ""
    info = _CRASHES if _is(topic, "np", "npp", "nope", "p-partition-7") else one or both
    no_id = _CRASHES if _is(topic, "t", "np", "p-partition-0") else ""
    size = _CRASHES if _is(topic, "np") else ""
    stats = _TYPE if _is(topic, "t", "p", "p-partition-0") else ""
    field = "known: one field more" if _is(topic, "np", "npp") else ""
    named = "known: the reason names the topic" if _is(topic, "npp") else ""
    there = _is(topic, "t", "p-partition-0")
    options = "excludePublishers=true&excludeConsumers=true&getPreciseBacklog=true"
    bare = "getEarliestTimeInBacklog=true&subscriptionBacklogSize=false"
    return [
        ("GET", f"{topic}/partitions", None, ""),
        ("POST", f"{topic}/createMissedPartitions", None, ""),
        ("GET", f"{topic}/stats", None, stats or field),
        ("GET", f"{topic}/stats?{options}", None, stats or field),
        ("GET", f"{topic}/stats?{bare}", None, stats or field),
        ("GET", f"{topic}/partitioned-stats", None, stats or field),
        ("GET", f"{topic}/partitioned-stats?perPartition=false", None, stats or field),
        ("GET", f"{topic}/internalStats", None, one or named),
        ("GET", f"{topic}/internalStats?metadata=true", None, one or named),
        ("GET", f"{topic}/partitioned-internalStats", None, both),
        ("GET", f"{topic}/internal-info", None, info),
        ("PUT", f"{topic}/backlogSize", EARLIEST, size),
        ("PUT", f"{topic}/backlogSize", None, no_id),
        # Pulsar's hangs where there is a topic.
        *([] if there else [("GET", f"{topic}/backlog", None, "known: 404 or 405, not zeros")]),
        ("GET", f"{topic}/lastMessageId", None, ""),
        ("GET", f"{topic}/messageid/5", None, ""),
        ("GET", f"{topic}/getMessageIdByIndex?index=0", None, ""),
        ("GET", f"{topic}/examinemessage", None, _OCTETS if one else ""),
        ("GET", f"{topic}/ledger/999999999/entry/0", None, size),
        ("GET", f"{topic}/subscriptions", None, ""),
    ]


def _absent(topic: str) -> list[Case]:
    there = _is(topic, "t", "p-partition-0")
    volatile = _CRASHES if _is(topic, "np") else ""
    refused = "known: not supported, 501"
    compact = refused if there or _is(topic, "p") else _CRASHES if _is(topic, "np", "npp") else ""
    shadows = refused if _is(topic, "t", "p") else ""
    shadow = "known: unset is 204" if _is(topic, "t", "p", "np", "npp") else ""
    return [
        ("GET", f"{topic}/compaction", None, volatile or _of_volatile(topic)),
        ("GET", f"{topic}/offload", None, volatile or _of_volatile(topic)),
        ("PUT", f"{topic}/compaction", None, compact),
        ("PUT", f"{topic}/offload", None, ""),
        (
            "PUT",
            f"{topic}/offload",
            EARLIEST,
            volatile or _of_volatile(topic),
        ),
        ("GET", f"{topic}/shadowTopics", None, shadow),
        ("PUT", f"{topic}/shadowTopics", ["persistent://public/default/shadow"], shadows),
        ("DELETE", f"{topic}/shadowTopics", None, ""),
    ]


def _of_volatile(topic: str) -> str:
    return "known: 405 on every non-persistent topic" if _is(topic, "npp") else ""


def _permissions(topic: str) -> list[Case]:
    there = "" if _is(topic, "nope", "p-partition-7") else KEPT
    return [
        ("GET", f"{topic}/permissions", None, there),
        ("POST", f"{topic}/permissions/joe", ["produce", "consume"], ""),
        ("GET", f"{topic}/permissions", None, there),
        ("DELETE", f"{topic}/permissions/joe", None, ""),
        ("DELETE", f"{topic}/permissions/joe", None, there),
    ]


def _subscription(topic: str, name: str) -> list[Case]:
    s = f"{topic}/subscription/{name}"
    found, volatile = name == "s", _is(topic, "np")
    any_partition = "known: Pulsar names the one that was first" if _is(topic, "p") else ""
    seen = _OCTETS if found else "known: Pulsar's peek creates it"
    empty = _CRASHES if not _is(topic, "p") else ""
    crash = _CRASHES if volatile else ""
    return [
        ("GET", f"{s}/properties", None, ""),
        ("PUT", f"{s}/properties", {"q": "1"}, ""),
        ("GET", f"{s}/properties", None, ""),
        ("POST", f"{s}/analyzeBacklog", EARLIEST, ""),
        ("GET", f"{s}/replicatedSubscriptionStatus", None, ""),
        ("POST", f"{s}/replicatedSubscriptionStatus", False, ""),
        ("POST", f"{s}/replicatedSubscriptionStatus", True, ""),
        ("POST", f"{s}/replicatedSubscriptionStatus", None, "known: reason instead of text"),
        ("POST", f"{s}/expireMessages", EARLIEST, crash),
        ("POST", f"{s}/expireMessages", LATEST, crash),
        ("POST", f"{s}/skip/1", None, crash),
        ("POST", f"{s}/skip_all", None, crash),
        ("POST", f"{s}/resetcursor/0", None, any_partition),
        ("POST", f"{s}/resetcursor", EARLIEST, crash),
        ("POST", f"{s}/resetcursor", None, empty or _CRASHES),
        ("GET", f"{s}/position/1", None, seen),
        ("GET", f"{s}/position/99", None, seen),
    ]


def _expiry(a: str) -> list[Case]:
    return [
        ("POST", f"{a}/empty/subscription/s/expireMessages/10", None, ""),
        ("POST", f"{a}/empty/all_subscription/expireMessages/10", None, ""),
        ("POST", f"{a}/t/subscription/s2/expireMessages/1000", None, ""),
        ("POST", f"{a}/t/subscription/nope/expireMessages/1000", None, "known: peek created it"),
        ("POST", f"{a}/nope/subscription/s/expireMessages/1000", None, ""),
        ("POST", f"{a}/nope/all_subscription/expireMessages/1000", None, ""),
        ("POST", f"{a}/p/subscription/s/expireMessages/1000", None, ""),
        ("POST", f"{a}/p/subscription/nope/expireMessages/1000", None, ""),
        ("POST", f"{a}/p/all_subscription/expireMessages/1000", None, ""),
        ("POST", f"{a}/empty/subscription/s/analyzeBacklog", None, ""),
        ("GET", f"{a}/empty/examinemessage", None, ""),
        ("GET", f"{a}/empty/lastMessageId", None, ""),
    ]


def _grants(tenant: str) -> list[Case]:
    """Permissions on several topics in one call."""
    grant, revoke = f"{NS}/grantPermissionsOnTopics", f"{NS}/revokePermissionsOnTopics"
    p, t = f"persistent://{tenant}/ns/p", f"persistent://{tenant}/ns/t"
    elsewhere, missing = f"persistent://{tenant}/other/t", f"persistent://{tenant}/ns/nope"
    joe = {"role": "joe", "actions": ["produce"]}
    return [
        ("POST", grant, [{"topic": p, **joe}, {"topic": t, **joe, "role": "jim"}], ""),
        ("GET", f"/admin/v2/persistent/{tenant}/ns/p/permissions", None, KEPT),
        ("POST", revoke, [{"topic": p, "role": "joe"}, {"topic": t, "role": "jim"}], ""),
        ("POST", grant, [{"topic": t, **joe}, {"topic": elsewhere, **joe}], ""),
        ("POST", grant, [{"topic": missing, **joe}], ""),
        ("POST", grant, [{"topic": t, **joe, "actions": ["x"]}], "known: an unknown action is 400"),
        ("POST", grant, [], ""),
        ("POST", grant, None, _CRASHES),
        ("POST", grant, [{"topic": f"nope://{tenant}/ns/t", **joe}], _CRASHES),
    ]


def _ends(topic: str) -> list[Case]:
    busy = "known: Pulsar's fails now and then" if _is(topic, "p") else ""
    trimmed = "known: 204 as documented" if _is(topic, "t", "p") else ""
    return [
        ("DELETE", f"{topic}/truncate", None, "known: Pulsar's fails now and then"),
        ("POST", f"{topic}/trim", None, trimmed),
        ("PUT", f"{topic}/unload", None, ""),
        ("POST", f"{topic}/terminate/partitions", None, busy),
        ("POST", f"{topic}/terminate", None, ""),
    ]


def _namespace(ns: str) -> list[Case]:
    found = "known: topics without the subscription are left alone"
    return [
        ("POST", f"{ns}/ns/clearBacklog", None, ""),
        ("POST", f"{ns}/ns/clearBacklog/s", None, found),
        ("POST", f"{ns}/ns/clearBacklog/nope", None, found),
        ("POST", f"{ns}/ns/unsubscribe/nope", None, ""),
        ("POST", f"{ns}/ns/unsubscribe/pulsar.repl.x", None, ""),
        ("POST", f"{ns}/ns/{BUNDLE}/clearBacklog", None, ""),
        ("POST", f"{ns}/ns/{BUNDLE}/unsubscribe/nope", None, ""),
        ("POST", f"{ns}/ns/0x00000000_0xffffffff/clearBacklog", None, ""),
        ("POST", f"{ns}/ns/bad/clearBacklog/s", None, ""),
        ("POST", f"{ns}/ns/bad/unsubscribe/s", None, ""),
        ("POST", f"{ns}/nope/clearBacklog", None, ""),
        ("POST", f"{ns}/nope/unsubscribe/s", None, ""),
    ]


def _lists(a: str, n: str) -> list[Case]:
    return [
        ("GET", f"{a}?bundle={BUNDLE}", None, ""),
        ("GET", f"{a}?bundle=bad", None, ""),
        ("GET", f"{n}/{BUNDLE}", None, ""),
        ("GET", f"{n}/bad", None, ""),
        ("GET", f"{n}", None, "known: partitions are loaded when they are needed"),
        ("GET", f"{a}/zz-partition-0/stats", None, ""),
        ("POST", f"{a}/p/partitions", 2, ""),
        ("POST", f"{a}/p/partitions", 0, ""),
        ("POST", f"{a}/p-partition-0/partitions", 3, ""),
        ("GET", f"{a}/p-partition-0/partitions", None, ""),
        ("DELETE", f"{a}/p-partition-0/partitions", None, ""),
        ("PUT", f"{a}/empty/subscription/s?replicated=true", None, ""),
        ("DELETE", f"{a}/p/subscription/s", None, ""),
        ("DELETE", f"{a}/p/subscription/s", None, ""),
        ("DELETE", f"{a}/t/subscription/s", None, ""),
        ("DELETE", f"{a}/t/subscription/s?force=true", None, ""),
    ]


def _farewell(tenant: str, a: str, n: str) -> list[Case]:
    return [
        ("DELETE", f"{a}/t", None, ""),
        ("DELETE", f"{a}/t", None, ""),
        ("DELETE", f"{a}/empty", None, ""),
        ("DELETE", f"{a}/p-partition-1", None, ""),
        ("DELETE", f"{a}/p-partition-1", None, ""),
        ("DELETE", f"{a}/p/partitions", None, ""),
        ("DELETE", f"{n}/npp/partitions", None, ""),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]
