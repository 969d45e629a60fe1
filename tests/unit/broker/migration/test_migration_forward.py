"""A recorded cluster of Pulsar's is converted: all of it, again after a failure at any write."""

from typing import Any

import orjson
import pytest

from magnetar.broker.migration import marker
from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.errors import LossRefusedError, MigrationError
from magnetar.broker.migration.marker import Marker, Serving
from magnetar.broker.migration.pulsar_forms import log_node
from magnetar.broker.schema.history import SchemaHistory
from magnetar.managed_ledger.cursor.errors import CursorFormatError
from magnetar.managed_ledger.stored_info import read_stored
from magnetar.metadata.errors import MetadataError
from tests.unit.broker.migration.recorded import recorded
from tests.unit.broker.migration.recorded_cluster import (
    NOW_MS,
    Cluster,
    FailingWrites,
    restore,
    tree_of,
)

LOGS = "acme/orders/persistent"


@pytest.fixture
async def cluster() -> Any:
    found = Cluster()
    await restore(found.pulsar)
    yield found
    await found.close()


async def is_ours(cluster: Cluster) -> bool:
    found = await marker.read_marker(cluster.ours)
    assert found is None or found.serving in (Serving.TO_MAGNETAR, Serving.MAGNETAR)
    return found is not None and found.serving is Serving.MAGNETAR


async def test_what_is_read_back_is_what_pulsar_had(cluster: Cluster) -> None:
    before = await tree_of(cluster.pulsar)
    report = await cluster.forward().run()
    assert dict(report.counts) == {
        "documents": 11,
        "topics": 13,
        "ledgers": 21,
        "messages or batches": 477,
        "compacted ledgers": 1,
        "subscriptions": 44,
        "of them unacknowledged by a subscription": 979,
        "versions of schemas": 3,
        "topics with policies": 2,
    }
    assert not report.findings
    after = await tree_of(cluster.pulsar)
    blocked = dict.fromkeys(marker.PULSAR_LEADERS, marker.REFUSAL)
    assert after == before | blocked


async def test_lists_and_positions(cluster: Cluster) -> None:
    await cluster.forward().run()
    holes = await read_stored(cluster.ours, f"{LOGS}/holes")
    assert holes is not None
    rows = [(x.ledger_id, x.entries, x.size, x.closed_ms) for x in holes.info.ledgers]
    assert rows == [(6, 100, 4690, 1795880640344), (50, 0, 0, NOW_MS)]
    assert set(holes.cursors) == {"all", "half", "holes", "none", "sub with/slash é"}
    props = await read_stored(cluster.ours, f"{LOGS}/props")
    assert props is not None
    assert props.info.properties == {"color": "red", "n": "1"}
    assert props.cursors["withprops"].node.cursor_properties == {"team": "blue"}
    sealed = await read_stored(cluster.ours, f"{LOGS}/sealed")
    assert sealed is not None
    assert sealed.info.terminated == (39, 6)
    compact = await read_stored(cluster.ours, f"{LOGS}/compact")
    assert compact is not None
    horizon = compact.cursors["__compaction"].node
    assert horizon.mark_delete == (52, -1)
    assert horizon.properties == {"CompactedTopicLedger": 41}
    killed = await read_stored(cluster.ours, f"{LOGS}/killed")
    assert killed is not None
    image = killed.cursors["holes"].node.image("")
    assert image.mark_delete == (51, 0)
    assert set(range(90)) - set(image.acked[51]) == {0, *range(1, 90, 4)}


async def test_documents_schemas_and_policies(cluster: Cluster) -> None:
    await cluster.forward().run()
    ours = await tree_of(cluster.ours)
    path = "/admin/policies/acme/orders"
    assert ours[path] == recorded().nodes[path]
    assert orjson.loads(ours["/admin/topic-policies/acme/orders/persistent/parts"]) == {
        "local": {"max_producers_per_topic": 9, "message_ttl_in_seconds": 3600}
    }
    history = SchemaHistory.decode("", ours["/schemas/acme/orders/typed"])
    assert [each.version for each in history.live] == [0, 1, 2]
    assert int(ours["/counters/producer-name"]) == 1
    assert not any(
        "__change_events" in path or "/pulsar/" in path for path in ours if "ledger" in path
    )


async def test_a_dry_run_writes_nothing(cluster: Cluster) -> None:
    FailingWrites(1, lost_answer=True, stores=[cluster.pulsar, cluster.ours])
    report = await cluster.forward(write=False).run()
    assert report.counts["topics"] == 13


@pytest.mark.parametrize("lost_answer", [False, True])
async def test_a_failure_at_any_write_is_mended_by_another_run(lost_answer: bool) -> None:
    expected: dict[str, bytes] = {}
    for n in range(1, 1000):
        cluster = Cluster()
        await restore(cluster.pulsar)
        writes = FailingWrites(n, lost_answer=lost_answer, stores=[cluster.pulsar, cluster.ours])
        failed = False
        try:
            await cluster.forward().run()
        except MetadataError:
            failed = True
        if failed and not await is_ours(cluster):
            await cluster.forward().run()
        ours = await tree_of(cluster.ours)
        ours.pop("/counters/producer-name")
        expected = expected or ours
        await cluster.close()
        if not failed:
            assert writes.left > 0
            assert n > 80
            assert ours == expected
            return
        assert ours == expected, n
    raise AssertionError("no run without a failure")


async def test_a_run_goes_on_behind_the_last_namespace(cluster: Cluster) -> None:
    await cluster.forward().run()
    expected = await tree_of(cluster.ours)
    await marker.write_marker(cluster.ours, Marker(Serving.TO_MAGNETAR, "acme/orders"))
    await cluster.ours.put("/managed-ledgers/acme/orders/persistent/holes/none", b"")
    with pytest.raises(CursorFormatError):  # it isn't written again
        await cluster.forward().run()
    await cluster.ours.put(
        "/managed-ledgers/acme/orders/persistent/holes/none",
        expected["/managed-ledgers/acme/orders/persistent/holes/none"],
    )
    await cluster.forward().run()
    ours = await tree_of(cluster.ours)
    ours.pop("/counters/producer-name")
    expected.pop("/counters/producer-name")
    assert ours == expected


@pytest.mark.parametrize("whose", ["pulsar", "ours"])
async def test_no_swap_while_a_broker_lives(cluster: Cluster, whose: str) -> None:
    store = cluster.pulsar if whose == "pulsar" else cluster.ours
    await store.put("/loadbalance/brokers/a:8080", b"{}", ephemeral=True)
    with pytest.raises(MigrationError, match="still registered: a:8080"):
        await cluster.forward().run()
    # As it was: the brokers that run may be started again.
    assert await marker.read_marker(cluster.ours) is None
    assert not set(marker.PULSAR_LEADERS) & set(await tree_of(cluster.pulsar))


async def test_no_swap_while_a_broker_of_pulsar_leads(cluster: Cluster) -> None:
    await cluster.pulsar.put(marker.PULSAR_LEADERS[0], b"{}", ephemeral=True)
    with pytest.raises(MigrationError, match="is the leader"):
        await cluster.forward().run()
    assert await marker.read_marker(cluster.ours) is None


async def test_a_cluster_of_ours_is_not_converted_again(cluster: Cluster) -> None:
    await cluster.forward().run()
    with pytest.raises(MigrationError, match="see --back"):
        await cluster.forward().run()


@pytest.mark.parametrize(
    ("serving", "why"),
    [
        (Serving.TO_MAGNETAR, "half converted; give magnetar migrate in-place again, or with"),
        (Serving.TO_PULSAR, "half converted; give magnetar migrate in-place --back again"),
        (Serving.PULSAR, "Apache Pulsar's brokers serve this cluster"),
    ],
)
async def test_our_brokers_refuse_a_cluster_that_is_not_theirs(
    cluster: Cluster, serving: Serving, why: str
) -> None:
    await marker.write_marker(cluster.ours, Marker(serving))
    with pytest.raises(MigrationError, match=why):
        await marker.check_may_serve(cluster.ours)


async def test_quotas_are_carried_and_resource_groups_are_told(cluster: Cluster) -> None:
    await cluster.pulsar.put("/loadbalance/resource-quota/default", b"{}")
    await cluster.pulsar.put("/admin/resourcegroups/g", b"{}")
    report = await cluster.forward().run()
    assert "left: resource groups: g" in report.lines()
    found = await cluster.ours.get("/loadbalance/resource-quota/default")
    assert found is not None
    assert found.value == b"{}"


async def test_a_loss_is_refused_though_a_look_before_could_not_know_it(cluster: Cluster) -> None:
    """An open ledger is read to its end only when no broker writes it any more."""
    before = await tree_of(cluster.pulsar)
    await cluster.ledgers.delete([6])
    with pytest.raises(LossRefusedError) as caught:
        await cluster.forward().run()
    assert any(line.startswith("lost: ") for line in caught.value.lines)
    assert await tree_of(cluster.pulsar) == before
    assert await marker.read_marker(cluster.ours) is None
    assert len((await cluster.forward(accept_loss=True).run()).losses) == 1
    assert await is_ours(cluster)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_offloaded_ledgers_are_told(cluster: Cluster, is_deleted: bool) -> None:
    """Pulsar's form of copies can't be read here; with a copy at the bookies nobody needs to."""
    path = f"/managed-ledgers/{LOGS}/holes"
    stored = await cluster.pulsar.get(path)
    assert stored is not None
    node = log_node(stored.value, path)
    context = pb.OffloadContext(uidMsb=1, uidLsb=2, complete=True, bookkeeperDeleted=is_deleted)
    node.ledgers[0].offloadContext.CopyFrom(context)
    await cluster.pulsar.put(path, node.SerializeToString())
    report = await cluster.forward(write=False).run()
    copies = "left: acme/orders/persistent/holes: ledgers 6: "
    copies += "their copies in tiered storage, which ours never delete"
    lost = "lost: acme/orders/persistent/holes: ledgers 6: only in tiered storage, in Pulsar's form"
    assert [str(each) for each in report.findings] == [lost if is_deleted else copies]
    assert report.counts["messages or batches"] == (377 if is_deleted else 477)


async def test_lost_ledgers_are_told(cluster: Cluster) -> None:
    await cluster.ledgers.delete([6, 37, 41, 58])
    report = await cluster.forward(write=False).run()
    assert {str(each) for each in report.losses} == {
        "lost: acme/orders/persistent/holes: ledgers 6: listed, and BookKeeper has no such ledger",
        "lost: acme/orders/persistent/compact: "
        "compacted ledger 41 is gone: readers get what the topic has",
        "lost: schema of acme/orders/typed: versions 1: their ledgers are gone",
    }
    assert (
        "note: acme/orders/persistent/killed, subscription holes: cursor ledger 58 is gone: "
        "its older position counts"
    ) in report.lines()
