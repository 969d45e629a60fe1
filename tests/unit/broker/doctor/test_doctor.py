"""A broker looks at itself and its cluster: faults planted in what it collects from."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from magnetar.bookkeeper.auth.certificates import certificate_end_ms
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.replication.stated_ends import (
    CredentialFile,
    EndsStatement,
    stated_ends,
)
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.service_info import COOKIES_PATH
from magnetar.broker.cluster import bundle_load
from magnetar.broker.doctor import broker_checks, broker_collector, cluster_collector
from magnetar.broker.doctor.broker_collector import collect_topics
from magnetar.broker.doctor.credentials import certificate_facts, server_facts
from magnetar.broker.doctor.doctor import KEPT_S, Doctor
from magnetar.broker.doctor.findings import Finding, Report
from magnetar.broker.errors import PersistenceError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.bookie_cluster import BookieCluster
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction.async_coordinator import AsyncCoordinator
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OWNERS_ROOT
from magnetar.loadbalance.leader import LEADER_PATH, LeaderBroker
from magnetar.loadbalance.registry import BROKERS_ROOT
from magnetar.metadata.errors import SessionLostError
from magnetar.metadata.loop_turns import LoopTurns, run_at_once
from tests.certificates import Authority
from tests.unit.broker.doubles import Broker, message
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
HOUR_MS = 3_600_000


def named(report: Report) -> dict[str, Finding]:
    """The findings by check; how busy this machine is doesn't count."""
    return {each.check: each for each in report.findings if each.check != "broker-overloaded"}


async def found(broker: Broker) -> dict[str, Finding]:
    return named(await Doctor(broker.service).cluster_report())


async def subscribed(broker: Broker) -> Any:
    """A consumer that never asked for the one message that there is."""
    client = broker.client()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = TOPIC, "s"
    command.subscribe.subType, command.subscribe.consumer_id = pb.CommandSubscribe.Shared, 1
    command.subscribe.request_id = 1
    client.send(command)
    topics = broker.service.topics
    await eventually(lambda: TOPIC in topics and "s" in topics[TOPIC].subscriptions)
    await eventually(lambda: topics[TOPIC].subscriptions["s"].consumers)
    producer = broker.client(port=5001)
    await producer.receive()
    await producer.produce(TOPIC)
    producer.feed(message(0))
    await producer.expect_something()
    return client


def share(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    """As one broker of several, whose bookies are away."""
    patch.setattr(broker.service, "sharing", SimpleNamespace())
    cluster = BookieCluster(BookiePool(), broker.service.store, has_auto_recovery=True)
    patch.setattr(broker.service, "bookie_cluster", cluster)


async def test_a_broker_alone_that_is_well(broker: Broker) -> None:
    report = await broker.service.doctor.cluster_report()
    assert named(report) == {}
    assert (report.cluster, report.broker_id) == ("standalone", "localhost:8080")
    assert (report.brokers, report.addresses) == (
        ["localhost:8080"],
        ["pulsar://broker.example:6650"],
    )
    assert report.not_looked_at == []


async def test_a_consumer_that_asks_for_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await subscribed(broker)
    assert await found(broker) == {}
    broker.cluster.now_ms += HOUR_MS
    stuck = (await found(broker))["subscription-stuck"]
    assert stuck.subject == f"{TOPIC}, subscription s"
    assert "1 entries wait. Consumer" in stuck.sentence
    assert stuck.command == f"magnetar admin topics explain {TOPIC} -s s"
    assert stuck.since_ms == broker.cluster.now_ms - HOUR_MS
    monkeypatch.setattr(broker_collector, "NOTED_MAX", 0)
    report = await Doctor(broker.service).cluster_report()
    assert report.not_looked_at == ["localhost:8080: 1 more faults of topics"]
    client.lose()
    assert set(await found(broker)) == {"subscription-idle"}


async def test_the_oldest_message_stays_while_others_go(broker: Broker) -> None:
    await subscribed(broker)
    subscription = broker.service.topics[TOPIC].subscriptions["s"]
    (consumer,) = subscription.consumers
    subscription.flow(consumer, 10)
    producer = broker.client(port=5002)
    await producer.receive()
    await producer.produce(TOPIC)
    for number in range(3):
        broker.cluster.now_ms += HOUR_MS
        sent = consumer.messages_out
        producer.feed(message(number))
        await eventually(lambda sent=sent: consumer.messages_out > sent)
        run_at_once(subscription.sample_steps(broker.cluster.now_ms))
        subscription.acknowledge(consumer, [(0, number + 1)])
    (kept,) = [each for check, each in (await found(broker)).items() if "subscription" in check]
    assert kept.check == "subscription-held-up"
    assert "has it and has not acknowledged it for at least 2 h" in kept.sentence
    assert kept.since_ms == broker.cluster.now_ms - 3 * HOUR_MS
    subscription.acknowledge(consumer, [(0, 0)])
    assert await found(broker) == {}


async def test_a_bundle_that_is_unloaded_again_and_again(broker: Broker) -> None:
    bundles = broker.service.bundles
    bundle = await bundles.bundle_of(TOPIC)
    for _ in range(5):
        assert await found(broker) == {}
        await bundles.acquire(TOPIC)
        await bundles.release(bundle)
    assert (await found(broker))["bundle-moving"].subject == bundle


async def test_a_topic_without_storage(broker: Broker) -> None:
    await subscribed(broker)
    broker.service.topics[TOPIC].fenced = True
    assert "topic-fenced" in await found(broker)


async def test_a_lost_bookie_a_silent_broker_and_no_leader(broker: Broker) -> None:
    store = broker.service.store
    broker.service.bookie_cluster = BookieCluster(BookiePool(), store)
    await store.put(f"{COOKIES_PATH}/gone:3181", b"")
    registration = {"webServiceUrl": "http://127.0.0.1:1", "brokerVersionString": "0.0.1"}
    await store.put(f"{BROKERS_ROOT}/127.0.0.1:1", orjson.dumps(registration))
    subjects = {check: each.subject for check, each in (await found(broker)).items()}
    assert subjects == {
        "bookies-too-few": "bookies",
        "bookie-lost": "gone:3181",
        "broker-silent": "127.0.0.1:1",
        "leader-missing": "cluster",
    }
    leader = LeaderBroker("127.0.0.1:1", "http://127.0.0.1:1")
    await store.put(LEADER_PATH, leader.encode())
    assert "leader-missing" not in await found(broker)


async def test_damage_that_a_bookie_knows_of(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = BookiePool()
    broker.service.bookie_cluster = BookieCluster(pool, broker.service.store)
    pool.add(cast(Any, broker.bookie))
    answers: list[str | Exception] = [
        '{"damagedEntries": 1, "damages": [{"ledger": 7}]}',
        BookieUnavailableError("of an earlier release"),
    ]

    async def check_data(_: object) -> str:
        if isinstance(answer := answers.pop(), Exception):
            raise answer
        return answer

    monkeypatch.setattr(type(broker.bookie), "check_data", check_data)
    assert await found(broker) == {}
    monkeypatch.setattr(pool.health, "is_quarantined", lambda _: True)
    assert set(await found(broker)) == {"entries-damaged", "bookie-failing"}


async def test_ledgers_to_repair(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    share(broker, monkeypatch)
    markers = UnderReplicationStore(broker.service.store, lambda: broker.cluster.now_ms)
    await subscribed(broker)
    ledger = broker.service.topics[TOPIC]
    ledger_id = cast(Any, ledger).ledger.last_confirmed[0]
    await markers.mark(ledger_id, ["b0"])
    await markers.note(ledger_id, "no bookie is left")
    await markers.disable("new racks")
    findings = await found(broker)
    assert {"repair-off", "auditor-missing", "ledgers-without-replica"} <= set(findings)
    assert "(no bookie is left)" in findings["ledgers-under-replicated"].sentence
    assert findings["ledgers-under-replicated"].since_ms == broker.cluster.now_ms
    assert str(ledger_id) in findings["ledgers-without-replica"].sentence


async def test_commands_name_the_metadata_that_the_ledgers_are_in(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(broker, monkeypatch)
    config = replace(
        broker.service.config,
        metadata_store_url="zk:host:2181/own",
        bookkeeper_metadata_service_uri="zk+hierarchical://host:2181/other/ledgers",
    )
    monkeypatch.setattr(broker.service, "config", config)
    markers = UnderReplicationStore(broker.service.store, lambda: broker.cluster.now_ms)
    await markers.disable("new racks")
    assert "--metadata zk:host:2181/other " in (await found(broker))["repair-off"].command


async def test_a_bundle_of_a_broker_that_isnt_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(broker, monkeypatch)
    await subscribed(broker)  # makes this broker the owner of a bundle
    store, name = broker.service.store, "other/ns/0x00000000_0xffffffff"
    owner = BrokerLookup("pulsar://gone:6650", None, "http://gone:8080", None)
    await store.put(f"{OWNERS_ROOT}/{name}", owner.encode())
    stuck = (await found(broker))["bundle-stuck"]
    assert (stuck.subject, "gone:8080" in stuck.sentence) == (name, True)
    monkeypatch.setattr(cluster_collector, "BUNDLES_MAX", 0)
    report = await Doctor(broker.service).cluster_report()
    assert "bundle-stuck" not in named(report)
    assert report.not_looked_at == ["owners of bundles: more than 0"]


async def test_a_bundle_that_hangs_in_unloading(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of it doesn't close."""
    await subscribed(broker)
    service, closing, goes_on = broker.service, asyncio.Event(), asyncio.Event()

    async def hangs(bundle: str) -> None:
        closing.set()
        await goes_on.wait()

    monkeypatch.setattr(service.bundles, "_unload", hangs)
    (bundle,) = await service.store.children(f"{OWNERS_ROOT}/public/default")
    unload = asyncio.ensure_future(service.bundles.release(f"public/default/{bundle}"))
    await closing.wait()
    assert "bundle-stuck" not in await found(broker)
    monkeypatch.setattr(broker_checks, "UNLOADING_S_MAX", 0)
    stuck = (await found(broker))["bundle-stuck"]
    assert stuck.subject == f"public/default/{bundle}"
    goes_on.set()
    await unload
    assert "bundle-stuck" not in await found(broker)


async def test_one_walk_serves_the_doctor_and_load_reports(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also whoever asks while it is made; one that fails serves nobody."""
    await broker.service.loader.load(TopicName.parse(TOPIC), create=True)
    service, walk, walks = broker.service, bundle_load.loads_by_bundle, 0

    async def counted(*arguments: Any) -> Any:
        nonlocal walks
        walks += 1
        if walks == 2:
            raise SessionLostError("no session")
        return await walk(*arguments)

    monkeypatch.setattr(bundle_load, "loads_by_bundle", counted)
    monkeypatch.setattr(bundle_load, "_LONG_S", 0.0)
    monkeypatch.setattr(bundle_load, "kept_s", lambda used_s: 60.0)
    turns = LoopTurns()
    facts, loads = await asyncio.gather(collect_topics(service, turns), service.loads.get())
    assert not facts.bundles, "none is over the limits of one"
    assert await service.loads.get() is loads
    assert walks == 1
    with pytest.raises(SessionLostError):
        await collect_topics(service, turns)
    assert sum(each["topics"] for each in (await service.loads.get()).values()) == 1
    assert walks == 3


async def test_of_bundles_only_those_above_a_limit_are_looked_at_closely(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are passed by in turns: a broker may have tens of thousands."""
    service = broker.service
    config = replace(service.config, load_balancer_namespace_bundle_max_topics=1)
    monkeypatch.setattr(service, "config", config)
    for number in range(12):
        await service.loader.load(TopicName.parse(f"t{number}"), create=True)
    facts, loads = await collect_topics(service, LoopTurns()), await service.loads.get()
    counts = {name: stats["topics"] for name, stats in loads.items()}
    assert min(counts.values()) <= 1 < max(counts.values()), counts
    assert facts.bundles.keys() == {name for name, count in counts.items() if count > 1}
    assert (await found(broker))["bundle-hot"].subject in facts.bundles


async def test_what_fails_hides_nothing_else(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise SessionLostError("no session")

    monkeypatch.setattr(bundle_load, "loads_by_bundle", fails)
    monkeypatch.setattr(broker.service.cluster_members, "leader", fails)
    broker.service.readiness.is_draining = True
    report = await broker.service.doctor.cluster_report()
    assert set(named(report)) == {"broker-not-ready"}
    assert len(report.not_looked_at) == 2


async def test_certificates_of_the_broker(tmp_path: Path) -> None:
    missing = tmp_path / "none.pem"
    broker = await Broker(tls_certificate_file_path=str(missing)).start()
    finding = (await found(broker))["certificate-end"]
    assert finding.subject == "localhost:8080, tlsCertificateFilePath"
    assert str(missing) in finding.command
    await broker.close()


async def test_a_certificate_of_auto_recovery_that_ends_soon(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As its process states it: no broker can read its files."""
    share(broker, monkeypatch)
    pair, store = Authority(tmp_path).sign("repair"), broker.service.store
    files = [CredentialFile("clientCertificatePath", str(pair.certificate))]
    statement = EndsStatement(store, "repair-1", lambda: files)
    statement.start()
    await eventually(lambda: stated_ends(store))
    assert "certificate-end" not in await found(broker)
    ends_ms = certificate_end_ms(pair.certificate)
    broker.cluster.now_ms = ends_ms - HOUR_MS
    finding = (await found(broker))["certificate-end"]
    assert finding.subject == "auto-recovery repair-1, clientCertificatePath"
    assert finding.command == f"openssl x509 -noout -enddate -in {pair.certificate}"
    assert str(finding.severity) == "critical"
    await statement.close()
    assert "certificate-end" not in await found(broker)


async def test_certificates_of_the_connection_to_zookeeper(tmp_path: Path) -> None:
    properties = tmp_path / "zookeeper.properties"
    missing = tmp_path / "trusted.pem"
    properties.write_text(f"useTls=true\ntlsTrustCertsFilePath={missing}\n")
    config = {"metadata_store_url": "zk:127.0.0.1:1", "metadata_store_config_path": str(properties)}
    broker = await Broker(**config).start()
    finding = (await found(broker))["certificate-end"]
    assert finding.subject == "localhost:8080, metadataStoreConfigPath: trusted.pem"
    await broker.close()


@pytest.mark.parametrize("wants_ours", [False, True])
def test_the_certificate_that_a_server_shows(tmp_path: Path, wants_ours: bool) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.set_alpn_protocols(["h2"])
    if wants_ours:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            with suppress(OSError), context.wrap_socket(accepted, server_side=True) as secured:
                secured.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        address = listening.getsockname()
        shown = server_facts("bookie b1", address, (str(pair.certificate), str(pair.key)))
        thread.join()
    assert shown is not None
    assert shown.ends_ms == certificate_facts("", str(pair.certificate)).ends_ms
    assert server_facts("bookie b1", address, None) is None, "nobody is there"


@pytest.fixture
async def transactional() -> AsyncIterator[Broker]:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    yield broker
    await broker.close()


async def opened(broker: Broker) -> AsyncCoordinator:
    """A coordinator with a transaction that has sent to ``TOPIC``."""
    coordinators = broker.service.transactions
    assert coordinators is not None
    await coordinators.connect(0)
    found, answers = coordinators.get(0), list[Any]()
    found.core.new(answers.append, broker.service.clock(), 3 * HOUR_MS)
    found.core.add_partitions(answers.append, 0, [TOPIC])
    found.run()
    await eventually(lambda: len(answers) == 2)
    return found


async def test_a_transaction_whose_topic_cant_end_it(
    transactional: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PersistenceError("no bookie answers")

    monkeypatch.setattr(PersistentTopic, "participant", lambda *_: None)
    monkeypatch.setattr(PersistentTopic, "end_transaction", refuse)
    await subscribed(transactional)
    coordinator = await opened(transactional)
    transactional.cluster.now_ms += 2 * HOUR_MS
    assert "transaction-long" in await found(transactional)
    coordinator.core.end(lambda _: None, 0, commits=True)
    coordinator.run()
    await eventually(lambda: coordinator.core.metrics.stuck)
    transactional.cluster.now_ms += HOUR_MS
    findings = await found(transactional)
    assert "transaction-long" not in findings
    stuck = findings["transaction-stuck"]
    assert f"{TOPIC} can't take the end (no bookie answers)" in stuck.sentence
    assert stuck.command == f"magnetar admin topics unload {TOPIC}"
    monkeypatch.setattr(broker_collector, "NOTED_MAX", 0)
    report = await Doctor(transactional.service).cluster_report()
    assert "localhost:8080: 1 more transactions that can't end" in report.not_looked_at


async def test_a_coordinator_that_cant_be_opened(
    transactional: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise PersistenceError("its log is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(AsyncCoordinator, "open", fails)
        with pytest.raises(PersistenceError):
            await opened(transactional)
    missing = (await found(transactional))["coordinator-missing"]
    assert "can't open it: its log is damaged" in missing.sentence
    await opened(transactional)
    assert "coordinator-missing" not in await found(transactional)


async def test_a_coordinator_without_a_broker(
    transactional: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(transactional, monkeypatch)
    assert (
        "no broker has its bundle" in (await found(transactional))["coordinator-missing"].sentence
    )
    coordinators = transactional.service.transactions
    assert coordinators is not None
    bundle = await transactional.service.bundles.bundle_of(str(coordinators.partition(0)))
    owner = BrokerLookup("pulsar://gone:6650", None, "http://gone:8080", None)
    await transactional.service.store.put(f"{OWNERS_ROOT}/{bundle}", owner.encode())
    assert "belongs to gone:8080" in (await found(transactional))["coordinator-missing"].sentence


async def test_many_who_ask_cost_one_look(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    collect = broker_collector.collect_topics

    async def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await collect(*args)

    monkeypatch.setattr(broker_collector, "collect_topics", counted)
    doctor = Doctor(broker.service)
    impatient = asyncio.ensure_future(doctor.cluster_report())
    await asyncio.sleep(0)
    impatient.cancel()
    reports = await asyncio.gather(*(doctor.cluster_report() for _ in range(3)))
    await doctor.broker_report()
    assert looks == 1
    assert reports[0] is reports[2]


async def test_a_long_walk_is_not_walked_again_soon(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor = Doctor(broker.service)
    await doctor.broker_report()
    assert doctor._broker.kept_s == KEPT_S
    for took_s, kept_s in ((0.25, 25.0), (60.0, 60.0)):
        monkeypatch.setattr(LoopTurns, "used_s", took_s)
        doctor = Doctor(broker.service)
        await doctor.broker_report()
        assert doctor._broker.kept_s == kept_s
