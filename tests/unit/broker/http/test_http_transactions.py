"""Transactions over HTTP: what coordinators, topics and subscriptions tell of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from magnetar.broker.errors import BrokerError, NotAllowedError, PersistenceError
from magnetar.broker.http.routes import transactions
from magnetar.broker.http.server.app import create_app
from magnetar.broker.http.topics.transaction_parts import participant_path
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction import coordinator as coordinator_core
from magnetar.broker.transaction.async_coordinator import AsyncCoordinator
from magnetar.broker.transaction.coordinator_metrics import TOPICS_MAX, EndTimes
from magnetar.broker.transaction.pending_acks import PendingAck
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of
from tests.unit.broker.topic.test_deduplication import connected, topic_of
from tests.unit.broker.topic.test_transactions import sent, store, subscription_of
from tests.waiting import eventually

TOPIC = "persistent://public/default/t"
SUBSCRIPTION = "keeper"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    yield broker
    await broker.close()


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(broker.service), None) as found:
        yield found


async def ask(client: httpx.AsyncClient, path: str, status: int = 200) -> Any:
    answer = await client.get(f"/admin/v3/transactions/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


class Opened:
    """A transaction that has acknowledged a topic's first message and sent the second."""

    def __init__(self, coordinator: AsyncCoordinator, topic: PersistentTopic) -> None:
        self.coordinator, self.topic = coordinator, topic
        self.ledger_id = -1
        self.answers: list[TransactionId | BrokerError] = []

    def end(self, *, commits: bool) -> None:
        self.coordinator.core.end(self.answers.append, 0, commits=commits)
        self.coordinator.run()


@pytest.fixture
async def opened(broker: Broker) -> Opened:
    coordinators = broker.service.transactions
    assert coordinators is not None
    await coordinators.connect(0)
    producer, _ = await connected(broker)
    found = Opened(coordinators.get(0), await topic_of(broker))
    core, answers = found.coordinator.core, found.answers
    core.new(answers.append, broker.service.clock(), 60_000)
    core.add_partitions(answers.append, 0, [TOPIC])
    core.add_subscriptions(answers.append, 0, [(TOPIC, SUBSCRIPTION)])
    found.coordinator.run()
    await store(producer, sent(0), sent(1, 0))
    found.ledger_id = found.topic.ledger.last_confirmed[0]
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    subscription_of(found.topic, SUBSCRIPTION).acknowledge_in_transaction(
        None, TransactionId(0, 0), [PendingAck((found.ledger_id, 0))], done.set_result
    )
    assert await done is None
    await eventually(lambda: len(answers) == 3)
    return found


async def test_a_broker_without_transactions_says_so() -> None:
    broker = await Broker().start()
    async with client_of(create_app(broker.service), None) as client:
        for path in ("coordinators", "transactionBufferStats/public/default/t"):
            answer = await ask(client, path, 503)
            assert answer["reason"].endswith("with transactionCoordinatorEnabled=true.")
    await broker.close()


async def test_what_an_open_transaction_has_done(client: httpx.AsyncClient, opened: Opened) -> None:
    """As Apache Pulsar 4.2.4 tells it."""
    start = f"{opened.ledger_id}:1"
    known: dict[str, Any] = {
        "txnId": "(0,0)",
        "status": "OPEN",
        "openTimestamp": opened.coordinator.core.describe(0).start_ms,  # type: ignore[union-attr]
        "timeoutAt": 60_000,
        "producedPartitions": {TOPIC: {"startPosition": start, "aborted": False}},
        "ackedPartitions": {TOPIC: {SUBSCRIPTION: {}}},
    }
    assert await ask(client, "transactionMetadata/0/0") == known
    assert await ask(client, "slowTransactions/-1000") == {"(0,0)": known}
    assert await ask(client, "slowTransactions/-1000?coordinatorId=0") == {"(0,0)": known}
    assert await ask(client, "slowTransactions/60000") == {}
    stats = await ask(client, "coordinatorStats?coordinatorId=0")
    assert {"state": "Ready", "leastSigBits": 0, "ongoingTxnSize": 1}.items() <= stats.items()
    assert await ask(client, "coordinatorStats") == {"0": stats}
    log = (await ask(client, "coordinatorInternalStats/0"))["transactionLogStats"]
    assert log["managedLedgerName"] == "pulsar/system/persistent/__transaction_log_0"
    assert log["managedLedgerInternalStats"]["numberOfEntries"] == 1  # three records
    (row,) = await ask(client, "coordinators")
    assert row["id"] == 0
    assert row["brokerServiceUrl"].startswith("pulsar://")


@pytest.mark.parametrize(
    "name",
    [
        f"{TOPIC}-{SUBSCRIPTION}__transaction_pending_ack",
        "persistent://pulsar/system/__transaction_log_0",
        "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
    ],
)
async def test_logs_of_transactions_are_no_topics(
    broker: Broker, client: httpx.AsyncClient, opened: Opened, name: str
) -> None:
    """Else an operation on all topics of a namespace, or on one by its name, would hurt them."""
    parsed, logs = TopicName.parse(name), set(broker.ledgers.open_ledgers)
    assert name not in await broker.service.directory.names(parsed.namespace)
    with pytest.raises(NotAllowedError, match="Can not create transaction system topic"):
        await broker.service.loader.load(parsed, create=True)
    path = f"/admin/v2/{name.replace('://', '/')}"
    for answer in (await client.put(path), await client.delete(path, params={"force": "true"})):
        assert answer.status_code in (404, 405, 409), answer.text
    assert set(broker.ledgers.open_ledgers) == logs


async def test_what_its_topic_and_subscription_know(
    client: httpx.AsyncClient, opened: Opened
) -> None:
    topic, subscription = "public/default/t", f"public/default/t/{SUBSCRIPTION}"
    first, second = (f"{opened.ledger_id}:{entry_id}" for entry_id in (0, 1))
    buffer = await ask(client, f"transactionBufferStats/{topic}?lowWaterMarks=true")
    assert (buffer["state"], buffer["maxReadPosition"]) == ("Ready", first)
    assert (buffer["ongoingTxnSize"], buffer["lowWaterMarks"]) == (1, {})
    inside = await ask(client, f"transactionInBufferStats/{topic}/0/0")
    assert inside == {"startPosition": second, "aborted": False}
    snapshots = await ask(client, f"transactionBufferInternalStats/{topic}")
    log = snapshots["singleSnapshotSystemTopicInternalStats"]
    assert log["managedLedgerInternalStats"]["lastConfirmedEntry"] == second
    acks = await ask(client, f"pendingAckStats/{subscription}?lowWaterMarks=true")
    assert (acks["state"], acks["ongoingTxnSize"], acks["lowWaterMarks"]) == ("Ready", 1, {})
    log = (await ask(client, f"pendingAckInternalStats/{subscription}"))["pendingAckLogStats"]
    assert log["managedLedgerName"].endswith(f"t%2D{SUBSCRIPTION}__transaction_pending_ack")
    for entry, state in (
        (first, "PendingAck"),
        (second, "NotInPendingAck"),
        (f"{opened.ledger_id}:0?batchIndex=0", "InvalidPosition"),  # it is no batch
        (f"{opened.ledger_id}:1?batchIndex=0", "NotInPendingAck"),
        (f"{opened.ledger_id - 1}:7", "MarkDelete"),  # in front of the log
        ("-1:-1", "MarkDelete"),
    ):
        path = f"positionStatsInPendingAck/{subscription}/{entry.replace(':', '/')}"
        assert await ask(client, path) == {"state": state}, entry


async def test_names_of_subscriptions_survive_the_way_to_another_broker(
    client: httpx.AsyncClient, opened: Opened
) -> None:
    name = "a+b c%2F"
    await opened.topic.create_subscription(name, EARLIEST)
    path = participant_path(opened.topic.name, name, TransactionId(0, 0))
    assert await ask(client, path.removeprefix("/admin/v3/transactions/")) == {}


async def test_an_abort_leaves_its_messages_out(client: httpx.AsyncClient, opened: Opened) -> None:
    answer = await client.post("/admin/v3/transactions/abortTransaction/0/0")
    assert answer.status_code == 204
    assert run_at_once(opened.topic.storage_stats())["abortedTxnCount"] == 1
    found = await ask(client, "transactionInBufferStats/public/default/t/0/0")
    assert found == {"aborted": True}
    answer = await client.post("/admin/v3/transactions/abortTransaction/0/0")
    assert answer.status_code == 404
    await ask(client, "transactionMetadata/0/0", 404)


async def test_an_end_that_a_topic_refuses_is_shown(
    client: httpx.AsyncClient, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PersistenceError("no bookie answers")

    # Not undone below: the broker's clock stands, and a refusal may still be under way.
    monkeypatch.setattr(coordinator_core, "RETRY_MS", 0)
    with monkeypatch.context() as patch:
        patch.setattr(PersistentTopic, "participant", lambda *_: None)
        patch.setattr(PersistentTopic, "end_transaction", refuse)
        opened.end(commits=True)
        # When all its participants have answered, and not when the first has.
        await eventually(lambda: opened.coordinator.core.metrics.stuck)
        metadata = await ask(client, "transactionMetadata/0/0")
        assert metadata["status"] == "COMMITTING"
        assert metadata["end"]["errors"] == {TOPIC: "no bookie answers"}
        assert (await ask(client, "coordinatorStats"))["0"]["stuckEnds"] == 1
        answer = await client.post("/admin/v3/transactions/abortTransaction/0/0")
        assert answer.status_code == 409  # it is committed
    await eventually(lambda: len(opened.answers) == 4)
    assert (await ask(client, "coordinatorStats"))["0"]["stuckEnds"] == 0
    assert opened.coordinator.ends == {}


async def test_an_abort_that_takes_long_is_answered(
    client: httpx.AsyncClient, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(PersistentTopic, "participant", lambda *_: None)
    monkeypatch.setattr(PersistentTopic, "end_transaction", wait)
    monkeypatch.setattr(transactions, "_ABORT_S", 0)
    answer = await client.post("/admin/v3/transactions/abortTransaction/0/0")
    assert answer.status_code == 503
    assert (await ask(client, "transactionMetadata/0/0"))["status"] == "ABORTING"


@pytest.mark.parametrize("commits", [True, False])
async def test_headers_say_what_consumers_get_of_a_stored_message(
    client: httpx.AsyncClient, broker: Broker, opened: Opened, commits: bool
) -> None:
    """As Apache Pulsar 4.2.4: pulsar-admin leaves out what it is told here."""
    ledger = opened.ledger_id

    async def told(entry: int) -> tuple[str, str | None]:
        url = f"/admin/v2/persistent/public/default/t/ledger/{ledger}/entry/{entry}"
        headers = (await client.get(url)).headers
        return headers["X-Pulsar-txn-uncommitted"], headers.get("X-Pulsar-txn-aborted")

    producer, _ = await connected(broker, "other", 5001)
    await store(producer, sent(2))
    assert [await told(n) for n in range(3)] == [
        ("false", None),
        ("true", "false"),
        ("true", None),  # it waits behind the open transaction
    ]
    opened.end(commits=commits)
    await eventually(lambda: len(opened.answers) == 4)
    url = f"/admin/v2/persistent/public/default/t/ledger/{ledger}/entry/3"
    assert (await client.get(url)).headers["X-Pulsar-sequence-id"] == "-1"  # Java reads a long
    ended = ("false", str(not commits).lower())
    assert [await told(n) for n in range(4)] == [("false", None), ended, ("false", None), ended]


async def test_the_backlog_is_analyzed_without_ends_of_transactions(
    client: httpx.AsyncClient, opened: Opened
) -> None:
    opened.end(commits=True)
    await eventually(lambda: len(opened.answers) == 4)
    url = f"/admin/v2/persistent/public/default/t/subscription/{SUBSCRIPTION}/analyzeBacklog"
    found = (await client.post(url)).json()
    assert (found["entries"], found["messages"], found["markerMessages"]) == (1, 1, 1)


async def test_a_topic_that_was_deleted_hides_nothing(
    client: httpx.AsyncClient, opened: Opened
) -> None:
    assert (await client.delete("/admin/v2/persistent/public/default/t?force=true")).is_success
    found = await ask(client, "transactionMetadata/0/0")
    assert found["producedPartitions"] == {TOPIC: {"error": f"Topic {TOPIC} not found"}}


async def test_more_coordinators(client: httpx.AsyncClient, opened: Opened) -> None:
    url = "/admin/v3/transactions/transactionCoordinator/replicas"
    for count in (1, 0, -1, 10**9):
        assert (await client.post(url, json=count)).status_code == 406
    assert (await client.post(url, json=2)).status_code == 204
    assert [row["id"] for row in await ask(client, "coordinators")] == [0, 1]
    await ask(client, "coordinatorStats?coordinatorId=2", 404)
    assert (await ask(client, "coordinatorStats?coordinatorId=1"))["leastSigBits"] == -1


async def test_metrics_of_whoever_has_transactions(
    client: httpx.AsyncClient, broker: Broker, opened: Opened
) -> None:
    await broker.service.loader.load(TopicName.parse(f"{TOPIC}-plain"), create=True)
    assert (await txn_series(client)) == {
        "active_count": 1,
        "created_total": 1,
        "append_log_total": 3,
        "tb_active_total": 1,
        **log_series(entries=1, records=3),
    }
    broker.cluster.now_ms += 60
    opened.end(commits=True)
    await eventually(lambda: len(opened.answers) == 4)
    opened.coordinator.core.new(opened.answers.append, broker.service.clock(), 0)
    opened.coordinator.run()
    await eventually(lambda: not len(opened.coordinator.core))
    joined = broker.service.transactions.metrics.joined  # type: ignore[union-attr]
    await eventually(lambda: joined.total == 8)  # nothing waits for the last one: it may be held
    assert (await txn_series(client)) == {
        "created_total": 2,
        "committed_total": 1,
        "aborted_total": 1,
        "timeout_total": 1,
        "append_log_total": 8,
        "execution_latency_le_10": 1,
        "execution_latency_le_100": 1,
        "tb_committed_total": 1,
        "tp_committed_count_total": 1,
        "tb_client_commit_latency_count": 2,
        "tp_commit_latency_count": 1,
        **log_series(entries=sum(joined.counts), records=8),
    }


def log_series(*, entries: int, records: int) -> dict[str, float]:
    names = ("batch_records", "batch_size_bytes", "batch_oldest_record_delay_seconds")
    return {
        "tc_bufferedwriter_batch_records_sum": records,
        "tc_bufferedwriter_flush_trigger_max_delay_total": entries,
        **{f"tc_bufferedwriter_{name}_count": entries for name in names},
    }


async def test_ends_that_topics_refuse_are_failures_of_their_topic(
    client: httpx.AsyncClient, broker: Broker, opened: Opened
) -> None:
    """Or of their namespace."""
    labels = {"cluster": "standalone", "namespace": "public/default", "topic": TOPIC}
    metrics = broker.service.transactions.metrics  # type: ignore[union-attr]
    metrics.under_way += 3
    assert await end_series(client) == [("pending_requests", {"cluster": "standalone"}, 3)]
    for name in (TOPIC, "t"):  # as clients name it
        metrics.on_end(name, 0.002, commit=False, failed=name == "t")
    found = [
        ("abort_failed_total", labels, 1),
        ("abort_latency_count", labels, 1),
        ("abort_latency_sum", labels, 2_000_000),
        ("pending_requests", {"cluster": "standalone"}, 1),
    ]
    assert await end_series(client) == found
    (sums,) = metrics.ends(by_topic=False).items()
    assert sums == (("public/default", ""), (EndTimes(), EndTimes(1, 0.002, 1)))
    for number in range(TOPICS_MAX):
        metrics.on_end(f"{TOPIC}-{number}", 0, commit=True, failed=False)
    assert not [each for each in await end_series(client) if each[0].startswith("abort")]
    assert len(metrics.topics) == TOPICS_MAX


async def end_series(client: httpx.AsyncClient) -> list[tuple[str, dict[str, str], float]]:
    page = (await client.get("/metrics")).text
    prefix = "pulsar_txn_tb_client_"
    found = [
        (sample.name.removeprefix(prefix), sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith(prefix) and sample.value
    ]
    return sorted(found, key=str)


async def txn_series(client: httpx.AsyncClient) -> dict[str, float]:
    """Those that aren't 0, without sizes and durations."""
    answer = await client.get("/metrics")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            _, is_of_transactions, name = sample.name.partition("_txn_")
            if is_of_transactions and "le" not in sample.labels:
                assert name not in found, sample
                found[name] = sample.value
    measured = ("latency_sum", "bytes_sum", "seconds_sum")
    return {name: value for name, value in found.items() if value and not name.endswith(measured)}
