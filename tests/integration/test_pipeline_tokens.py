"""The pipeline's readers at a standalone that wants to see a token, another one for each topic."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import jwt
import pulsar
import pytest

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.pipeline.admin import Admin, ClusterAccess
from magnetar.pipeline.offsets import BEGINNING, END, Offset
from magnetar.pipeline.plan_reader import PlanReader
from magnetar.pipeline.read_plan import BatchQuota, EntryIterator, EntryRange, InputSplit
from magnetar.pipeline.split_reader import SplitReader
from magnetar.pipeline.topic_snapshot import TopicSnapshot
from tests.official_client import open_client
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

SECRET = bytes(range(40, 72))
TOKEN = jwt.encode({"sub": "admin"}, SECRET, "HS256")
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": "token",
    "tokenSecretKey": f"data:,{''.join(f'%{each:02x}' for each in SECRET)}",
    "authorizationEnabled": "true",
    "superUserRoles": "admin",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
TOPICS = [f"persistent://public/default/t-{number}" for number in range(2)]
COUNT = 25


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    """With messages in both topics."""
    words = [word for pair in SETTINGS.items() for word in ("--set", "=".join(pair))]
    with StandaloneProcess(tmp_path / "data", *words) as process:
        client = open_client(
            process.service_url,
            authentication=pulsar.AuthenticationToken(TOKEN),
            operation_timeout_seconds=60,
        )
        for topic in TOPICS:
            client.subscribe(topic, "keeps-all").close()
            producer = client.create_producer(topic, batching_enabled=False)
            for number in range(COUNT):
                producer.send(b"%06d of " % number + topic.encode())
        client.close()
        yield process


@pytest.fixture
def cluster(server: StandaloneProcess) -> ClusterAccess:
    return ClusterAccess((server.admin_url,), ClientAuth("token", f"token:{TOKEN}"))


def snapshots(cluster: ClusterAccess) -> list[TopicSnapshot]:
    with Admin(cluster) as admin:
        return [admin.segments(topic) for topic in TOPICS]


def pieces(snapshot: TopicSnapshot) -> list[EntryRange]:
    return [EntryRange(each, 0, each.entries) for each in snapshot.ledgers if each.entries]


def count(counter: PlanReader, snapshot: TopicSnapshot) -> int:
    walk = EntryIterator(BatchQuota())
    assert counter.walk(snapshot, pieces(snapshot), walk) is None
    return walk.messages


def read(cluster: ClusterAccess, snapshot: TopicSnapshot) -> list[bytes]:
    part = InputSplit(
        *(snapshot.topic, tuple(pieces(snapshot)), snapshot.bookies),
        *(snapshot.instance_id, snapshot.bookie_token),
    )
    with SplitReader(part, cluster, fail_on_data_loss=True) as reader:
        return [bytes(body) for run in reader.runs() for body in run.bodies]


def test_each_topic_is_read_with_its_own_token(
    server: StandaloneProcess, cluster: ClusterAccess
) -> None:
    found = snapshots(cluster)
    assert len({each.bookie_token for each in found} - {""}) == 2
    counter = PlanReader(cluster, compacted=False)
    assert [count(counter, each) for each in found] == [COUNT, COUNT]
    bodies = [read(cluster, each) for each in found]
    for topic, some in zip(TOPICS, bodies, strict=True):
        assert len(some) == COUNT
        assert all(body.endswith(b" of " + topic.encode()) for body in some)

    # Tokens and port are another process's now; who has the old ones asks once more.
    server.stop()
    server.start(same_ports=True)
    assert [read(cluster, each) for each in found] == bodies
    assert [count(counter, each) for each in snapshots(cluster)] == [COUNT, COUNT]
    counter.close()
    assert [count(counter, each) for each in snapshots(cluster)] == [COUNT, COUNT]
    counter.close()


def test_the_token_opens_the_compacted_ledger(
    server: StandaloneProcess, cluster: ClusterAccess
) -> None:
    topic = TOPICS[0]
    client = open_client(server.service_url, authentication=pulsar.AuthenticationToken(TOKEN))
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"with a key", partition_key="k")
    client.close()
    url = f"{server.admin_url}/admin/v2/{topic.replace('://', '/')}/compaction"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    httpx.put(url, headers=headers).raise_for_status()
    wait_until(lambda: httpx.get(url, headers=headers).json()["status"] == "SUCCESS")
    with Admin(cluster) as admin:
        snapshot = admin.segments(topic, compacted=True)
    assert snapshot.compacted is not None
    with closing(PlanReader(cluster, compacted=True)) as reader:
        found = reader.ranges(snapshot, BEGINNING, snapshot.end)
        assert [(each.ledger, each.entries) for each in found] == [(snapshot.compacted.ledger, 1)]
        # A search reads: the one message is behind this point.
        start = Offset(snapshot.end.ledger_id, snapshot.end.entry_id)
        assert reader.ranges(snapshot, start, snapshot.end) == []
        assert reader.published_at(snapshot, 2**62) == END
