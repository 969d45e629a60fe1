"""Each check finds its planted fault, and nothing where all is well."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookkeeper.client.placement.isolation import IsolationGroups
from magnetar.broker.cli.main import build_parser
from magnetar.broker.dispatch.explanation import (
    STALL_MS,
    Explanation,
    Reason,
    delivering,
    hash_without_consumer,
    publish_rate_limited,
    quota_held,
    rate_limited,
    resetting,
    storing,
)
from magnetar.broker.doctor import topic_checks
from magnetar.broker.doctor.broker_checks import (
    DAY_MS,
    OPEN_FILES,
    BrokerFacts,
    CredentialFacts,
    check_broker,
)
from magnetar.broker.doctor.cluster_checks import (
    Clock,
    ClusterFacts,
    PeerFacts,
    check_cluster,
    clock_between,
)
from magnetar.broker.doctor.findings import (
    CHECKS,
    PER_CHECK_MAX,
    Finding,
    Report,
    Severity,
    bounded,
)
from magnetar.broker.doctor.group_checks import GroupedLedgers, GroupFacts
from magnetar.broker.doctor.process_checks import (
    RESTARTED_MS,
    ProcessesFacts,
    ProcessFacts,
    check_processes,
)
from magnetar.broker.doctor.storage_checks import (
    BookieFacts,
    RepairFacts,
    StorageFacts,
    check_storage,
)
from magnetar.broker.doctor.topic_checks import (
    RefusalFacts,
    SubscriptionFacts,
    TopicsFacts,
    check_topics,
    subscription_facts,
)
from magnetar.broker.doctor.transaction_checks import (
    TransactionFacts,
    TransactionsFacts,
    check_transactions,
)
from magnetar.broker.policies.effective import Rate

NOW_MS = 1_800_000_000_000
LONG_AGO_MS = NOW_MS - 3_600_000
T = "persistent://public/default/t"
SETTINGS = {
    "maxMessageSize": "5242880",
    "webServicePort": "8080",
    "brokerClientTlsEnabled": "false",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerDefaultWriteQuorum": "3",
    "maxUnackedMessagesPerSubscription": "200000",
    "maxUnackedMessagesPerConsumer": "50000",
    "loadBalancerNamespaceBundleMaxTopics": "1000",
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": "100",
    "backlogQuotaCheckEnabled": "true",
    "backlogQuotaDefaultLimitSecond": "60",
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
}
PEERS = [
    PeerFacts("b1:8080", "", "4.2", SETTINGS),
    PeerFacts("b2:8080", "", "4.2", {**SETTINGS, "webServicePort": "8081"}, Clock(200)),
]
CLUSTER = ClusterFacts(PEERS, "b1:8080")
BOOKIES = [
    BookieFacts(f"bookie-{n}:3181", used=0.5, clock=Clock(-4_000, 2_000), version="4.2")
    for n in (1, 2, 3)
]
STORAGE = StorageFacts(BOOKIES, 3, 2, RepairFacts(auditor="auto-1"), "--metadata zk:z:2181")
GOOD = CredentialFacts("b1, tlsCertificateFilePath", ends_ms=NOW_MS + 90 * DAY_MS)
BROKER = BrokerFacts("b1:8080", NOW_MS, "", {"cpu": 0.5, "memory": 0.5}, SETTINGS, [GOOD])
BUSY = SubscriptionFacts(T, "s", 5, permits=9, delivered_ms=NOW_MS - 100, connected_ms=LONG_AGO_MS)
PENDING = Explanation(Reason.PENDING, "", "", since_ms=LONG_AGO_MS)
FAILING = replace(PENDING, message="c has it.", details={"redeliveryCount": 2})
HELD = quota_held("destination_storage", "s", 9, 8, is_held=True, consumers=1)
SLOW = Rate(1, 0, 600)
STUCK = replace(BUSY, delivered_ms=LONG_AGO_MS + 1)
BUNDLE = {"topics": 9, "msgThroughputIn": 1e6}
TOPICS = TopicsFacts(NOW_MS, [BUSY], bundles={"public/default/0x0_0xf": BUNDLE}, settings=SETTINGS)


def bookies(*changed: BookieFacts) -> StorageFacts:
    return replace(STORAGE, bookies=[*changed, *BOOKIES[len(changed) :]], ensemble=1)


def data(**known: Any) -> StorageFacts:
    return bookies(replace(BOOKIES[0], data=known))


SSD, NO_GROUPS = frozenset({"ssd"}), IsolationGroups(frozenset())
TAPE = GroupedLedgers("t/n", IsolationGroups(frozenset({"tape"})), 2)
GROUPS = {"bookie-1:3181": SSD, "bookie-2:3181": frozenset({"hdd"}), "bookie-3:3181": frozenset()}
KEPT = GroupedLedgers("t/n", IsolationGroups(SSD, frozenset({"hdd"})), 1)


def groups(*ledgers: GroupedLedgers, bookies: int = 3) -> StorageFacts:
    """With one bookie in group ssd, one in hdd, one in none; the last ``bookies`` of them write."""
    writable = dict.fromkeys([*GROUPS][-bookies:], "/rack-1")
    return replace(STORAGE, groups=GroupFacts(ledgers, GROUPS, writable))


def repair(**changed: Any) -> StorageFacts:
    return replace(STORAGE, repair=replace(RepairFacts(auditor="auto-1"), **changed))


def peers(**changed: Any) -> ClusterFacts:
    return replace(CLUSTER, brokers=[PEERS[0], replace(PEERS[1], **changed)])


def broker(**changed: str) -> BrokerFacts:
    return replace(BROKER, settings={**SETTINGS, **changed})


def ends(days: int, *, is_token: bool = False) -> BrokerFacts:
    credential = replace(GOOD, is_token=is_token, ends_ms=NOW_MS + days * DAY_MS)
    return replace(BROKER, credentials=[credential])


def subscriptions(*facts: SubscriptionFacts) -> TopicsFacts:
    return replace(TOPICS, subscriptions=facts)


OPEN = TransactionFacts((3, 39), "OPEN", NOW_MS - 600_000, 900_000, [(T,), (T, "s")])
ENDING = replace(OPEN, status="COMMITTING", ending_ms=NOW_MS - 10_000, errors={(T,): "fenced"})
TRANSACTIONS = TransactionsFacts(NOW_MS, [OPEN, ENDING])


def transactions(of: TransactionFacts, **changed: Any) -> TransactionsFacts:
    return TransactionsFacts(NOW_MS, [replace(of, **changed)])


SERVING = ProcessFacts("broker-2", "ready", LONG_AGO_MS)
KILLED = ProcessFacts("broker-2", "restarting", NOW_MS, "killed by SIGKILL", 1, (NOW_MS,))
BACK = replace(KILLED, state="ready")


def processes(*facts: ProcessFacts) -> ProcessesFacts:
    return ProcessesFacts(NOW_MS, [SERVING, *facts])


Facts = ClusterFacts | StorageFacts | BrokerFacts | TopicsFacts | TransactionsFacts | ProcessesFacts
WARNING, CRITICAL, NOTE = Severity.WARNING, Severity.CRITICAL, Severity.NOTE

FAULTS: list[tuple[Facts, str, Severity, str]] = [
    (processes(KILLED), "process-down", WARNING, "SIGKILL. It is started again within 10 s. Other"),
    (processes(replace(KILLED, state="starting")), "process-down", WARNING, "It is starting"),
    (
        processes(ProcessFacts("broker-3", "starting", NOW_MS - 60_000)),
        "process-down",
        WARNING,
        "broker-3: the process has been starting for over a minute",
    ),
    (processes(replace(KILLED, state="stopped")), "process-down", CRITICAL, "isn't started again"),
    (
        processes(replace(KILLED, name="storage", state="starting")),
        "process-down",
        CRITICAL,
        "storage: the process isn't there: killed by SIGKILL. It is starting. Nothing is stored",
    ),
    (
        ProcessesFacts(NOW_MS, [replace(SERVING, broker_id="b:8081")], ["b:8080"]),
        "process-down",
        WARNING,
        "broker-2: the process is there, but its session is lost",
    ),
    (processes(BACK), "process-restarted", NOTE, "ended once within 10 minutes, the last time k"),
    (
        processes(replace(BACK, ends=5, ends_ms=(LONG_AGO_MS, *(3 * [NOW_MS])))),
        "process-restarted",
        WARNING,
        "ended 3 times within 10 minutes",
    ),
    (peers(silence="no route to host"), "broker-silent", CRITICAL, "no route to host"),
    (replace(CLUSTER, leader=""), "leader-missing", CRITICAL, "no broker is the leader"),
    (peers(clock=Clock(9_000, 500)), "clock-skew", WARNING, "8 s ahead of that of this broker"),
    (peers(clock=Clock(-7_200_000)), "clock-skew", CRITICAL, "2 h behind"),
    (bookies(replace(BOOKIES[0], clock=Clock(70_000))), "clock-skew", CRITICAL, "bookie-1:3181: "),
    (bookies(replace(BOOKIES[0], version="4.3")), "versions-differ", NOTE, "4.3 on bookie-1:3181"),
    (
        replace(STORAGE, broker_version="4.3"),
        "versions-differ",
        NOTE,
        "their version is 4.2, and this broker's 4.3",
    ),
    (
        replace(
            STORAGE,
            credentials=[CredentialFacts("bookie b1:3181", ends_ms=NOW_MS + 2 * DAY_MS)],
            now_ms=NOW_MS,
        ),
        "certificate-end",
        CRITICAL,
        "bookie b1:3181: the certificate ends on",
    ),
    (replace(STORAGE, write_quorum=1), "settings-at-odds", WARNING, "each message is on one"),
    (
        replace(CLUSTER, ownerless={"public/default/0x0_0xf": "b3:8080"}),
        "bundle-stuck",
        CRITICAL,
        "belongs to b3:8080, which isn't a broker of the cluster now",
    ),
    (
        replace(BROKER, unloading_s={"public/default/0x0_0xf": 10.0, "public/other/0x0_0xf": 9.9}),
        "bundle-stuck",
        WARNING,
        "public/default/0x0_0xf: b1:8080 has been unloading the bundle for 10 s",
    ),
    (peers(version="4.3"), "versions-differ", NOTE, "4.2 on b1:8080; 4.3 on b2:8080"),
    (
        peers(settings={**SETTINGS, "maxMessageSize": "1"}),
        "settings-differ",
        WARNING,
        "maxMessageSize: brokers have different values: 1 on b2:8080; 5242880 on b1:8080",
    ),
    (
        peers(settings={**SETTINGS, "brokerClientTlsEnabled": ""}),
        "settings-differ",
        NOTE,
        "empty on b2:8080",
    ),
    (
        replace(STORAGE, bookies=[replace(BOOKIES[0], is_read_only=True), *BOOKIES[1:]]),
        "bookies-too-few",
        CRITICAL,
        "2 of 3 take new ledgers, and each new ledger needs 3",
    ),
    (
        groups(TAPE, bookies=2),
        "bookie-groups-too-few",
        CRITICAL,
        "t/n: 1 of 2 bookies that take new ledgers may be taken, those of group tape; then no group"
        "; each new ledger needs 2; no bookie is in group tape: topics stop taking",
    ),
    (
        groups(GroupedLedgers("namespaces", NO_GROUPS, 2, is_strict=True)),
        "bookie-groups-too-few",
        CRITICAL,
        "1 of 3 bookies that take new ledgers may be taken by strictBookieAffinityEnabled, those of"
        " no group; each new ledger needs 2: topics stop",
    ),
    (
        groups(GroupedLedgers("t/n", IsolationGroups(SSD), 2)),
        "bookie-groups-too-few",
        WARNING,
        "1 bookies of group ssd take new ledgers, and each new ledger needs 2: bookies of no group",
    ),
    (
        groups(GroupedLedgers("t/n", IsolationGroups(SSD, frozenset({"hdd"})), 2)),
        "bookie-groups-too-few",
        NOTE,
        "needs 2: group hdd is used, too",
    ),
    (
        groups(GroupedLedgers("t/n", IsolationGroups(SSD, frozenset({"hd"})), 1)),
        "bookie-group-unknown",
        WARNING,
        "t/n: no bookie is in group hd, which its ledgers are to be kept on",
    ),
    (bookies(BookieFacts("bookie-1:3181", False)), "bookie-lost", WARNING, "isn't there"),
    (
        bookies(replace(BOOKIES[0], silence="UNAVAILABLE", used=None)),
        "bookie-silent",
        WARNING,
        "doesn't answer this broker: UNAVAILABLE",
    ),
    (
        bookies(replace(BOOKIES[0], is_read_only=True, used=0.96, free_bytes=200 << 20)),
        "bookie-read-only",
        WARNING,
        "takes no new entries; 96% of its disk is in use, 200 MiB are free (it needs minUsable",
    ),
    (bookies(replace(BOOKIES[0], used=0.86)), "disk-full", WARNING, "86% of the bookie's disk"),
    (bookies(replace(BOOKIES[0], used=0.95)), "disk-full", CRITICAL, "95% of the bookie's disk"),
    (bookies(replace(BOOKIES[0], is_failing=True)), "bookie-failing", WARNING, "quarantine"),
    (data(disputes=[7, 9]), "ledgers-in-dispute", CRITICAL, "stop the brokers now: 7, 9"),
    (
        data(damagedEntries=3, damages=[{"ledger": 8}, {"ledger": 5}]),
        "entries-damaged",
        WARNING,
        "3 entries are damaged on the bookie's disk and not repaired yet (ledgers 5, 8)",
    ),
    (
        StorageFacts([replace(BOOKIES[0], data={"damagedEntries": 1})]),
        "entries-damaged",
        CRITICAL,
        "1 entries are damaged",
    ),
    (data(inLimbo=True, ledgersInLimbo=4), "bookie-in-limbo", WARNING, "has copied 4 ledgers"),
    (
        repair(off_reason="new racks", off_since_ms=LONG_AGO_MS),
        "repair-off",
        WARNING,
        "switched off (new racks)",
    ),
    (repair(auditor=""), "auditor-missing", WARNING, "auto-recovery doesn't run"),
    (
        repair(waiting=3, oldest_ms=LONG_AGO_MS, reasons=["no bookie is left"]),
        "ledgers-under-replicated",
        WARNING,
        "3 have fewer replicas than they should (no bookie is left)",
    ),
    (
        repair(without_replica=[17, 4]),
        "ledgers-without-replica",
        CRITICAL,
        "all bookies of 2 are away, and their entries can't be read: 17, 4",
    ),
    (
        replace(BROKER, not_ready="no session", lacks_store=True),
        "broker-not-ready",
        CRITICAL,
        "no session. It serves the topics that it has open, and opens none: look at"
        " metadataStoreUrl",
    ),
    (ends(29), "certificate-end", WARNING, "in 29 days"),
    (ends(1), "certificate-end", CRITICAL, "in 24 h"),
    (ends(-1), "certificate-end", CRITICAL, "the certificate ended on 2027-01-14"),
    (ends(2, is_token=True), "token-end", CRITICAL, "the token ends on"),
    (
        replace(BROKER, credentials=[replace(GOOD, ends_ms=None, problem="no such file")]),
        "certificate-end",
        WARNING,
        "can't be read: no such file",
    ),
    (
        replace(BROKER, usage={"memory": 0.93}),
        "broker-overloaded",
        WARNING,
        "93% of the broker's memory",
    ),
    (replace(BROKER, usage={OPEN_FILES: 0.95}), "broker-overloaded", WARNING, "limit of open"),
    (replace(BROKER, usage={"cpu": 0.9}), "broker-overloaded", NOTE, "90% of the cpu of"),
    (
        replace(BROKER, without_effect="tokenSecretKey: without effect"),
        "settings-at-odds",
        CRITICAL,
        "tokenSecretKey: without effect",
    ),
    (broker(managedLedgerDefaultAckQuorum="1"), "settings-at-odds", WARNING, "AckQuorum=1"),
    (broker(authorizationEnabled="false"), "settings-at-odds", NOTE, "every role may do"),
    (
        broker(maxUnackedMessagesPerSubscription="10"),
        "settings-at-odds",
        WARNING,
        "maxUnackedMessagesPerSubscription=10 is below maxUnackedMessagesPerConsumer=50000",
    ),
    (broker(backlogQuotaCheckEnabled="false"), "settings-at-odds", WARNING, "is enforced"),
    (
        replace(TRANSACTIONS, closed={2: "no broker has its bundle"}),
        "coordinator-missing",
        CRITICAL,
        "coordinator 2 of transactions: no broker has its bundle",
    ),
    (
        transactions(ENDING, ending_ms=LONG_AGO_MS),
        "transaction-stuck",
        CRITICAL,
        f"(3,39): COMMITTING for 1 h, because {T} can't take the end (fenced)",
    ),
    (
        transactions(ENDING, ending_ms=None, errors={}),
        "transaction-stuck",
        CRITICAL,
        "COMMITTING for 10 min, because its coordinator doesn't tell",
    ),
    (transactions(OPEN, timeout_ms=1), "transaction-stuck", CRITICAL, "was over 9 min 59 s ago"),
    (
        transactions(OPEN, start_ms=LONG_AGO_MS, timeout_ms=7_200_000),
        "transaction-long",
        WARNING,
        f"open for 1 h, and for 1 h more unless its client ends it; messages behind it wait in {T}",
    ),
    (replace(TOPICS, fenced={T: "its storage failed"}), "topic-fenced", CRITICAL, "failed"),
    (replace(TOPICS, held={T: HELD}), "backlog-quota", CRITICAL, "is 9 bytes"),
    (
        replace(TOPICS, publishing={T: storing(7, STALL_MS, 0, NOW_MS)}),
        "publish-stuck",
        CRITICAL,
        "producers get no receipts. 7 bytes of published messages wait for 1 min",
    ),
    (
        replace(TOPICS, publishing={T: publish_rate_limited("topic", Rate(9, 0), 2, 5)}),
        "publish-rate-limited",
        NOTE,
        "2 producers wait",
    ),
    (
        replace(TOPICS, refusals=[RefusalFacts(T, T, "p was refused", 1, is_served=False)]),
        "client-refused",
        WARNING,
        f"{T}: p was refused",
    ),
    (
        replace(TOPICS, refusals=[RefusalFacts(T, T, "p was refused", 1, is_served=True)]),
        "client-refused",
        NOTE,
        "p was refused",
    ),
    (
        replace(TOPICS, partitions=[replace(STUCK, connected_ms=None)]),
        "partition-idle",
        WARNING,
        "no consumer, while other partitions of the topic have some",
    ),
    (
        subscriptions(replace(STUCK, is_blocked=True, unacked=7)),
        "subscription-stuck",
        CRITICAL,
        "Its consumers have 7 messages that they didn't acknowledge, which is the limit",
    ),
    (
        subscriptions(replace(STUCK, permits=0)),
        "subscription-stuck",
        CRITICAL,
        "Its consumers don't ask for messages",
    ),
    (subscriptions(STUCK), "subscription-stuck", CRITICAL, "Its consumers ask for 9 messages"),
    (
        subscriptions(replace(STUCK, counts_unacked=False)),
        "subscription-slow",
        WARNING,
        "consumers ask for more and acknowledge none; 5 entries not acknowledged",
    ),
    (
        subscriptions(replace(STUCK, explanation=resetting())),
        "subscription-stuck",
        CRITICAL,
        f"and 5 entries wait. {resetting().message} {resetting().next}",
    ),
    (
        subscriptions(replace(STUCK, explanation=rate_limited("topic", SLOW, NOW_MS, 5))),
        "subscription-stuck",
        WARNING,
        "The dispatch rate of the topic, 1 message in 10 min, is used up",
    ),
    (
        subscriptions(replace(STUCK, explanation=resetting(), is_durable=False)),
        "subscription-stuck",
        WARNING,
        "nothing is delivered",
    ),
    (
        subscriptions(replace(BUSY, unacked=5, explanation=PENDING)),
        "subscription-slow",
        WARNING,
        "consumers have 5 messages",
    ),
    (
        subscriptions(replace(BUSY, unacked=5, explanation=FAILING)),
        "subscription-slow",
        WARNING,
        "acknowledge none; 5 entries not acknowledged. c has it. The application fails on it",
    ),
    (
        subscriptions(replace(BUSY, redelivery_rate=0.5)),
        "subscription-slow",
        WARNING,
        "again and again, and none is acknowledged",
    ),
    (
        subscriptions(
            replace(BUSY, acked_ms=NOW_MS - 1, explanation=hash_without_consumer(7)),
        ),
        "subscription-held-up",
        WARNING,
        "whatever later ones are. No connected consumer has key hash 7",
    ),
    (
        subscriptions(
            replace(
                BUSY,
                acked_ms=NOW_MS - 1,
                explanation=replace(PENDING, since_ms=NOW_MS - 1, details={"redeliveryCount": 2}),
            ),
        ),
        "subscription-held-up",
        WARNING,
        "The application fails on it; a dead letter topic",
    ),
    (
        subscriptions(replace(BUSY, acked_ms=NOW_MS - 1, explanation=PENDING)),
        "subscription-held-up",
        NOTE,
        "the oldest message is not acknowledged for",
    ),
    (
        replace(BROKER, unloads={"public/default/0x0_0xf": 5, "public/other/0x0_0xf": 4}),
        "bundle-moving",
        WARNING,
        "public/default/0x0_0xf: b1:8080 has unloaded the bundle 5 times within 10 minutes",
    ),
    (replace(TOPICS, offloads={T: LONG_AGO_MS}), "offload-failing", WARNING, "offload"),
    (
        subscriptions(replace(STUCK, unacked=5)),
        "subscription-slow",
        WARNING,
        "consumers have 5 messages and acknowledge none",
    ),
    (
        subscriptions(
            replace(BUSY, connected_ms=None), replace(STUCK, connected_ms=None, backlog=8)
        ),
        "subscription-idle",
        NOTE,
        "it has a backlog of 8 entries and no consumer; 1 other subscription with a backlog has",
    ),
    (
        replace(TOPICS, bundles={"public/default/0x0_0xf": {"topics": 1_001}}),
        "bundle-hot",
        WARNING,
        "1,001 topics (loadBalancerNamespaceBundleMaxTopics 1000)",
    ),
    (
        replace(TOPICS, bundles={"a/b/0x0_0xf": {"topics": 2, "msgThroughputOut": 2e8}}),
        "bundle-hot",
        WARNING,
        "200,000,000 bytes/s",
    ),
]


def examined(facts: Facts) -> list[Finding]:
    match facts:
        case ClusterFacts():
            return list(check_cluster(facts))
        case StorageFacts():
            return list(check_storage(facts))
        case BrokerFacts():
            return list(check_broker(facts))
        case TopicsFacts():
            return list(check_topics(facts))
        case TransactionsFacts():
            return list(check_transactions(facts))
        case ProcessesFacts():
            return list(check_processes(facts))


@pytest.mark.parametrize(("facts", "check", "severity", "text"), FAULTS)
def test_a_planted_fault_is_found(facts: Facts, check: str, severity: Severity, text: str) -> None:
    found = [each for each in examined(facts) if each.check == check]
    assert [each.severity for each in found] == [severity]
    assert text in found[0].sentence
    assert found[0].sentence.startswith(found[0].subject)


@pytest.mark.parametrize(
    "facts",
    [
        *(groups(KEPT), groups(GroupedLedgers("t/n", NO_GROUPS, 1, is_strict=True))),
        groups(GroupedLedgers("t/n", IsolationGroups(frozenset({"*"})), 3)),
        *(CLUSTER, STORAGE, BROKER, TOPICS, TRANSACTIONS, bookies(), repair(), peers()),
        processes(
            replace(SERVING, state="starting", since_ms=NOW_MS - 59_999)
        ),  # for the first time
        ProcessesFacts(NOW_MS, [replace(SERVING, broker_id="b:8080")], ["b:8080"]),
        processes(replace(BACK, ends_ms=(NOW_MS - RESTARTED_MS,))),
    ],
)
def test_nothing_is_found_where_all_is_well(facts: Facts) -> None:
    assert examined(facts) == []


def test_every_check_has_a_planted_fault() -> None:
    of_the_client = {"access-refused", "broker-unreachable"}
    assert {check for _, check, _, _ in FAULTS} == set(CHECKS) - of_the_client
    planted = (Path(__file__).parents[1] / "cli" / "test_cli_doctor.py").read_text()
    assert {each for each in of_the_client if f'"{each}"' in planted} == of_the_client


def test_commands_are_ones_that_can_be_run() -> None:
    commands = [each.command for facts, *_ in FAULTS for each in examined(facts)]
    words = {
        tuple(split[1:4]): split[1:] for split in map(shlex.split, commands) if "magnetar" in split
    }
    assert len(words) > 8
    for each in words.values():
        build_parser(each).parse_args(each)  # SystemExit: not a command of ours


@pytest.mark.parametrize(
    "facts",
    [
        replace(STUCK, delivered_ms=NOW_MS - STALL_MS + 1),
        replace(STUCK, connected_ms=NOW_MS - 5),
        replace(STUCK, delayed=5),
        replace(STUCK, explanation=delivering(None)),
        replace(STUCK, unacked=5, acked_ms=NOW_MS - topic_checks.SLOW_MS + 1),
        replace(STUCK, unacked=5, delivered_ms=NOW_MS - topic_checks.SLOW_MS + 1),
        replace(BUSY, unacked=5, explanation=replace(PENDING, since_ms=NOW_MS - 1)),
        replace(BUSY, redelivery_rate=0.5, acked_ms=NOW_MS - 1),
        replace(BUSY, acked_ms=NOW_MS - 1, moved_ms=NOW_MS - 1, explanation=PENDING),
        replace(BUSY, acked_ms=NOW_MS - 1, explanation=delivering(4)),
    ],
)
def test_a_subscription_that_may_be_well_isnt_told(facts: SubscriptionFacts) -> None:
    assert examined(subscriptions(facts)) == []


def test_facts_of_a_subscription_come_from_its_statistics() -> None:
    consumers = [
        {"availablePermits": 5, "connectedSince": "2027-01-15T08:00:00.000Z"},
        {"availablePermits": -3, "connectedSince": "2027-01-15T07:00:00.123456789+00:00"},
    ]
    stats: Mapping[str, object] = {
        "msgBacklog": 3,
        "msgDelayed": 1,
        "unackedMessages": 2,
        "blockedSubscriptionOnUnackedMsgs": True,
        "lastConsumedTimestamp": 7,
        "lastAckedTimestamp": 8,
        "consumers": consumers,
        "msgRateRedeliver": 0.5,
        "lastMarkDeleteAdvancedTimestamp": 9,
    }
    connected_ms = 1_799_996_400_123
    expected = SubscriptionFacts(T, "s", 3, 1, 2, True, 5, 7, 8, connected_ms, 0.5, 9)
    assert subscription_facts(T, "s", stats) == expected
    assert subscription_facts(T, "s", {"msgBacklog": 0}) is None
    idle = subscription_facts(T, "s", {"msgBacklog": 1, "consumers": []})
    assert idle is not None
    assert idle.connected_ms is None


def test_of_failover_only_the_active_consumer_gets_messages() -> None:
    consumers = [{"consumerName": name, "availablePermits": n} for name, n in (("a", 5), ("b", 0))]
    stats: Mapping[str, object] = {"msgBacklog": 3, "type": "Failover", "consumers": consumers}
    for active, permits in ("a", 5), ("b", 0):
        found = subscription_facts(T, "s", {**stats, "activeConsumerName": active})
        assert found is not None
        assert found.permits == permits


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        (
            subscriptions(replace(STUCK, explanation=rate_limited("Topic", SLOW, NOW_MS, 5))),
            f"set-dispatch-rate {T} -md -1 -bd -1",
        ),
        (
            subscriptions(
                replace(
                    STUCK,
                    topic=f"{T}-partition-3",
                    explanation=rate_limited("Subscription", SLOW, NOW_MS, 5),
                )
            ),
            f"set-subscription-dispatch-rate {T} -md -1 -bd -1",
        ),
        (
            replace(TOPICS, publishing={T: publish_rate_limited("topic", SLOW, 1, 5)}),
            f"set-publish-rate {T} -m -1 -b -1",
        ),
        (
            replace(TOPICS, held={T: HELD}),
            f"set-backlog-quota {T} -t destination_storage -l 18 -p producer_request_hold",
        ),
        (
            replace(
                TOPICS,
                held={T: quota_held("message_age", "s", 70, 60, is_held=False, consumers=0)},
            ),
            f"set-backlog-quota {T} -t message_age -lt 140s -p producer_exception",
        ),
    ],
)
def test_a_limit_of_the_broker_comes_with_the_command_that_raises_it(
    facts: TopicsFacts, command: str
) -> None:
    (found,) = examined(facts)
    assert found.command == f"magnetar admin topicPolicies {command}"
    words = shlex.split(found.command)[1:]
    build_parser(words).parse_args(words)


HOSTILE = "persistent://public/default/$(reboot); x"


@pytest.mark.parametrize(
    "facts",
    [
        TopicsFacts(NOW_MS, fenced={HOSTILE: "f"}),
        TopicsFacts(NOW_MS, held={HOSTILE: HELD}),
        TopicsFacts(NOW_MS, publishing={HOSTILE: storing(7, STALL_MS, 0, NOW_MS)}),
        TopicsFacts(NOW_MS, refusals=[RefusalFacts(HOSTILE, HOSTILE, "p", 1, is_served=False)]),
        TopicsFacts(
            NOW_MS,
            refusals=[RefusalFacts(HOSTILE, f"{HOSTILE}, subscription s", "c", 1, is_served=False)],
        ),
        TopicsFacts(NOW_MS, offloads={HOSTILE: 1}),
        TopicsFacts(NOW_MS, partitions=[replace(STUCK, topic=HOSTILE)]),
        TopicsFacts(NOW_MS, [replace(STUCK, topic=HOSTILE)]),
        TopicsFacts(NOW_MS, [replace(STUCK, topic=HOSTILE, explanation=resetting())]),
        TopicsFacts(NOW_MS, [replace(BUSY, topic=HOSTILE, connected_ms=None)]),
        TopicsFacts(
            NOW_MS,
            [replace(STUCK, topic=HOSTILE, explanation=rate_limited("Topic", SLOW, NOW_MS, 5))],
        ),
    ],
)
def test_a_name_is_one_word_of_the_command(facts: TopicsFacts) -> None:
    """Whoever may create topics must not write commands for whoever may mend them."""
    found = examined(facts)
    assert found
    for each in found:
        assert HOSTILE in shlex.split(each.command)


def test_a_limit_of_the_whole_broker_is_left_to_people() -> None:
    limited = replace(STUCK, explanation=rate_limited("Broker", SLOW, NOW_MS, 5))
    (found,) = examined(subscriptions(limited))
    assert found.command == f"magnetar admin topics explain {T} -s s"


def test_a_broker_is_blamed_whose_clock_differs_from_others_that_agree() -> None:
    others = [replace(each, clock=Clock(-120_000 + n * 500, 50)) for n, each in enumerate(BOOKIES)]
    (found,) = (each for each in check_storage(bookies(*others)) if each.check == "clock-skew")
    assert found.subject == "this broker"
    assert "119 s ahead of that of the 3 others, which agree" in found.sentence
    apart = [*others[:2], replace(BOOKIES[2], clock=Clock(9_000))]
    found_apart = [each for each in check_storage(bookies(*apart)) if each.check == "clock-skew"]
    assert [each.subject for each in found_apart] == [each.bookie_id for each in BOOKIES]


def test_a_clock_is_compared_with_the_middle_of_the_question() -> None:
    assert clock_between(1_000, 1_050, 1_100) == Clock(0, 50)
    assert clock_between(1_000, 9_050, 1_100).skew_ms == 7_950
    # Whole seconds: 5,000 may be 5,999.
    assert clock_between(5_999, 5_000, 5_999, unit_ms=1_000).skew_ms == 0


def test_findings_are_in_order_of_harm_and_counted() -> None:
    def many(check: str, severity: Severity, count: int) -> Iterable[Finding]:
        return (Finding(check, severity, f"{n:02}", f"{n:02}", since_ms=n) for n in range(count))

    found = bounded(
        [
            *many("subscription-idle", NOTE, 1),
            *many("subscription-stuck", CRITICAL, PER_CHECK_MAX + 3),
            *many("bookie-lost", WARNING, 1),
            *many("broker-silent", CRITICAL, 1),
        ]
    )
    told = [(each.check, each.subject) for each in found]
    assert told[0] == ("broker-silent", "00")
    assert told[1:-3] == [("subscription-stuck", f"{n:02}") for n in range(PER_CHECK_MAX)]
    assert found[-3].sentence == "3 more like these: subscription-stuck"
    assert [each.check for each in found[-2:]] == ["bookie-lost", "subscription-idle"]
    assert bounded(found) == found
    twice = bounded([*found, *map(Finding.of_json, (each.as_json() for each in found))])
    told_more = [each.more for each in twice if each.more]
    assert told_more == [PER_CHECK_MAX + 2 * 3]


def test_idle_subscriptions_that_arent_listed_count() -> None:
    (found,) = examined(replace(subscriptions(replace(BUSY, connected_ms=None)), idle=1_499))
    assert "no consumer; 1,499 other subscriptions with a backlog have none, too;" in found.sentence


def test_a_report_comes_back_from_json() -> None:
    finding = Finding("bookie-lost", WARNING, "b", "b: lost", "magnetar version", 5)
    report = Report("main", "b1:8080", 9, ["b1:8080"], ["pulsar://b1:6650"], [finding], ["x: y"])
    assert Report.of_json(report.as_json()) == report
