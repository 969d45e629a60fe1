"""A cluster without ``GET /admin/v2/doctor``, such as Apache Pulsar, looked at by its admin API."""

import heapq
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from itertools import starmap
from typing import Any, Final
from urllib.parse import quote, urlsplit

from magnetar.broker.cli.admin_client import AdminClient
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.doctor.broker_checks import BrokerFacts, check_broker
from magnetar.broker.doctor.cluster_checks import (
    ClusterFacts,
    PeerFacts,
    check_cluster,
    clock_between,
)
from magnetar.broker.doctor.findings import Report
from magnetar.broker.doctor.storage_checks import BookieFacts, StorageFacts, check_storage
from magnetar.broker.doctor.topic_checks import (
    SubscriptionFacts,
    TopicsFacts,
    check_topics,
    subscription_facts,
)
from magnetar.broker.doctor.transaction_checks import (
    LATE_MS,
    TransactionFacts,
    TransactionsFacts,
    check_transactions,
    transaction_facts,
)

_ADMIN: Final = "/admin/v2"
_TRANSACTIONS: Final = "/admin/v3/transactions"
_ERRORS: Final = (CliError, KeyError, TypeError, ValueError, AttributeError)
_TOPICS_MAX: Final = 20_000
"""Loaded topics of a broker whose statistics are asked for: those of 100,000 are 100 MB."""
_ASKED_MAX: Final = 100
"""Subscriptions with a backlog and consumers whose topics are asked for one by one."""
_HIDDEN: Final = (
    "bookies: lost ones, disks, clocks, ledgers to repair: this server's admin API hides them",
    "brokers: certificates, tokens, readiness, owners of bundles: the same",
)


def examine_by_rest(client: AdminClient, target: ClusterTarget, timeout_s: float) -> Report:
    """What the admin API tells of a cluster.

    Credentials are shown to the asked server alone: the addresses of the brokers come from it.

    Raises:
        CliError: the asked server doesn't answer, or refuses.
    """
    names: list[str] = client.json("GET", f"{_ADMIN}/brokers")
    report = Report("", client.url, _now_ms(), names, not_looked_at=[*_HIDDEN])
    tls = target.access.tls() if client.url.startswith("https:") else None
    own, scheme = urlsplit(client.url).netloc, urlsplit(client.url).scheme
    peers = []
    for name in names:
        if name == own or len(names) == 1:
            peers.append(_examine_broker(client, name, report))
            continue
        with AdminClient(f"{scheme}://{name}", timeout_s, {}, tls, named_by=client.url) as other:
            if target.auth_plugin:
                peers.append(_seen(other, name))
                report.not_looked_at.append(
                    f"{name}: settings and topics, because credentials go to {client.url} alone:"
                    f" run this with --admin-url {other.url}"
                )
            else:
                peers.append(_examine_broker(other, name, report))
    leader = None
    with report.part("leader", *_ERRORS):
        answer = client.call("GET", f"{_ADMIN}/brokers/leaderBroker")
        leader = str(answer.value()["brokerId"]) if answer.ok else ""
    report.findings += check_cluster(ClusterFacts(peers, leader, watcher="this machine"))
    if any(each.settings.get("transactionCoordinatorEnabled") == "true" for each in peers):
        _examine_transactions(client, report)
    with report.part("bookies", *_ERRORS):
        report.findings += check_storage(_storage(client, peers))
    return report


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _seen(client: AdminClient, name: str) -> PeerFacts:
    """What a broker shows to everybody."""
    asked_ms = _now_ms()
    try:
        answer = client.call("GET", f"{_ADMIN}/brokers/version")
    except CliError as error:
        return PeerFacts(name, silence=str(error))
    answered_ms = _now_ms()
    version = str(answer.value()) if answer.ok else ""
    try:
        shown_s = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    except ValueError:
        return PeerFacts(name, version=version)
    clock = clock_between(asked_ms, int(shown_s * 1000), answered_ms, unit_ms=1000)
    return PeerFacts(name, version=version, clock=clock)


def _examine_broker(client: AdminClient, name: str, report: Report) -> PeerFacts:
    """The broker as a peer; what it knows of itself goes into the report."""
    facts = _seen(client, name)
    if facts.silence:
        return facts
    with report.part(f"{name}, settings", *_ERRORS):
        found = client.json("GET", f"{_ADMIN}/brokers/configuration/runtime")
        settings = {key: str(value) for key, value in found.items() if value != "*****"}
        facts = replace(facts, settings=settings)
    with report.part(f"{name}, load and topics", *_ERRORS):
        load = client.json("GET", f"{_ADMIN}/broker-stats/load-report")
        for key in ("pulsarServiceUrl", "pulsarServiceUrlTls"):
            if load.get(key):
                report.addresses.append(str(load[key]))
        usage = {
            key: load[key]["usage"] / load[key]["limit"]
            for key in ("cpu", "memory", "directMemory")
            if load[key]["limit"] > 0
        }
        broker = BrokerFacts(name, _now_ms(), usage=usage, settings=facts.settings)
        report.findings += check_broker(broker)
        if int(load["numTopics"]) > _TOPICS_MAX:
            raise ValueError(f"{load['numTopics']} topics, and at most {_TOPICS_MAX} are looked at")
        report.findings += check_topics(
            TopicsFacts(
                _now_ms(),
                _subscriptions(client),
                bundles=load["lastStats"],
                settings=facts.settings,
            )
        )
    return facts


def _examine_transactions(client: AdminClient, report: Report) -> None:
    coordinators: list[Any] = []
    with report.part("coordinators of transactions", *_ERRORS):
        coordinators = client.json("GET", f"{_TRANSACTIONS}/coordinators")
    facts, unopened = list[TransactionFacts](), list[int]()
    for number in (int(each["id"]) for each in coordinators):
        with report.part(f"coordinator {number}", *_ERRORS):
            query = f"coordinatorId={number}"
            answer = client.call("GET", f"{_TRANSACTIONS}/slowTransactions/{LATE_MS}?{query}")
            if "coordinator not found" in answer.reason.lower():
                unopened.append(number)
                continue
            if not answer.ok:  # one topic that is gone is enough for it, in Pulsar
                message = answer.reason.partition("Message: ")[2] or answer.reason
                raise CliError(message.partition("\n")[0])
            facts += starmap(transaction_facts, answer.value().items())
    report.findings += check_transactions(TransactionsFacts(_now_ms(), facts, unopened=unopened))


def _subscriptions(client: AdminClient) -> list[SubscriptionFacts]:
    """Those with a backlog; of the ones with consumers the largest, each with its own figures."""
    found, busy = list[SubscriptionFacts](), list[SubscriptionFacts]()
    for topic, stats in _topics(client.json("GET", f"{_ADMIN}/broker-stats/topics")):
        for name, figures in stats["subscriptions"].items():
            each = subscription_facts(topic, name, figures)
            if each is not None:
                (found if each.connected_ms is None else busy).append(each)
    for each in heapq.nlargest(_ASKED_MAX, busy, key=lambda each: each.backlog):
        # The list of all topics has no times; and they may have moved on meanwhile.
        path = each.topic.replace("://", "/", 1)
        answer = client.call("GET", f"{_ADMIN}/{quote(path)}/stats")
        figures = answer.value()["subscriptions"].get(each.name) if answer.ok else None
        now = None if figures is None else subscription_facts(each.topic, each.name, figures)
        if now is not None:
            found.append(now)
    return found


def _topics(answer: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Full name and statistics, of the answer by namespace, bundle and domain."""
    for bundles in answer.values():
        for domains in bundles.values():
            for topics in domains.values():
                yield from topics.items()


def _storage(client: AdminClient, peers: list[PeerFacts]) -> StorageFacts:
    found = client.json("GET", f"{_ADMIN}/bookies/all")["bookies"]
    settings = next((each.settings for each in peers if each.settings), {})
    ensemble, write_quorum = (
        int(settings.get(f"managedLedgerDefault{each}", 0))
        for each in ("EnsembleSize", "WriteQuorum")
    )
    bookies = [BookieFacts(str(each["bookieId"])) for each in found]
    return StorageFacts(bookies, ensemble, write_quorum)
