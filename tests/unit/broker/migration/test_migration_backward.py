"""The way back: a recorded cluster with all that was written meanwhile, after any failure."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import orjson
import pytest
from pyroaring import BitMap

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.broker.migration import backward, doomed_ledgers, marker
from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.doomed_ledgers import is_doomed
from magnetar.broker.migration.errors import LossRefusedError, MigrationError
from magnetar.broker.migration.forward import NAMES
from magnetar.broker.migration.marker import Marker, Serving
from magnetar.broker.migration.policy_events import EVENTS_TOPIC
from magnetar.broker.migration.pulsar_cluster import PulsarCluster
from magnetar.broker.migration.pulsar_forms import cursor_node, image_of_node, log_node
from magnetar.broker.migration.pulsar_schemas import locator_index
from magnetar.broker.schema.definition import SchemaDefinition
from magnetar.broker.schema.history import SchemaHistory
from magnetar.managed_ledger.cursor.cursor_format import encode_node_state
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_store import CursorNode, encode_node
from magnetar.managed_ledger.ledger_rows import LedgerInfo
from magnetar.managed_ledger.managed_ledger_info import decode_list_node, encode_info
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.orphan_ledgers import COMPACTED_LEDGER
from magnetar.metadata.errors import MetadataError
from tests.unit.broker.migration.recorded import recorded
from tests.unit.broker.migration.recorded_cluster import (
    NOW_MS,
    Cluster,
    FailingWrites,
    restore,
    tree_of,
    writes_in_vain,
)

LOGS = "/managed-ledgers/acme/orders/persistent"
OURS = f"{LOGS}/holes"
TYPED = "/schemas/acme/orders/typed"
POLICIES = "/admin/topic-policies/acme/orders/persistent"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    found = Cluster()
    await restore(found.pulsar)
    await found.forward().run()
    yield found
    await found.close()


@pytest.mark.parametrize("serving", [None, Serving.TO_MAGNETAR, Serving.PULSAR])
async def test_a_swap_that_is_not_done_is_given_up(serving: Serving | None) -> None:
    """Also one that ended between the two nodes of which the first keeps Pulsar's brokers out."""
    cluster = Cluster()
    await restore(cluster.pulsar)
    before = await tree_of(cluster.pulsar)
    await marker.refuse_pulsar(cluster.pulsar)
    if serving is not None:
        await marker.write_marker(cluster.ours, Marker(serving, "acme/orders"))
    await cluster.backward(write=False).run()
    assert marker.PULSAR_LEADERS[0] in await tree_of(cluster.pulsar)
    await cluster.backward().run()
    assert await tree_of(cluster.pulsar) == before
    with pytest.raises(MigrationError, match="nothing is to be given back"):
        await cluster.backward().run()
    await cluster.forward().run()
    assert (await cluster.backward().run()).counts["topics"] == 13
    await cluster.close()


async def test_racks_that_were_changed_meanwhile_stay(cluster: Cluster) -> None:
    """Brokers of both kinds have them in one node, beside the ledgers."""
    await cluster.pulsar.put("/bookies", b'{"a":{}}')
    await cluster.backward().run()
    found = await cluster.pulsar.get("/bookies")
    assert found is not None
    assert found.value == b'{"a":{}}'


async def test_without_a_change_all_is_as_it_was(cluster: Cluster) -> None:
    report = await cluster.backward().run()
    assert report.counts["topics"] == 13
    assert report.counts["of them unacknowledged by a subscription"] == 979
    assert not report.findings
    after = await tree_of(cluster.pulsar)
    assert after.keys() == recorded().nodes.keys()
    for path, before in recorded().nodes.items():
        if not path.startswith(LOGS):
            assert after[path] == before, path
        elif path.count("/") == LOGS.count("/") + 1:
            check_list(path, before, after[path])
        else:
            check_cursor(path, before, after[path])


async def test_only_ledgers_without_an_end_are_asked_for_theirs(cluster: Cluster) -> None:
    """Each costs a request in each of three passes, and there may be very many of them."""
    asked = list[int]()
    end = cluster.ledgers.end

    async def asked_end(ledger_id: int) -> LedgerMetadata | None:
        asked.append(ledger_id)
        return await end(ledger_id)

    cluster.ledgers.end = asked_end  # type: ignore[method-assign]
    topics = list[int]()
    await cluster.backward(advance=topics.append).run()
    assert not {6, 50} & set(asked)  # of the topic `holes`: its list has their ends
    assert sum(topics) == 2 * 13  # looked at, then written


async def test_a_node_that_is_not_there_takes_one_write() -> None:
    """Topics and cursors are very many, forth and back."""
    cluster = Cluster()
    await restore(cluster.pulsar)
    forth = writes_in_vain(cluster.ours)
    await cluster.forward().run()
    assert set(forth) <= {marker.PATH, NAMES}
    await change_everything(cluster)
    back = writes_in_vain(cluster.pulsar)
    await cluster.backward().run()
    assert not [path for path in back if path.startswith("/managed-ledgers/")]
    assert {f"{LOGS}/brand+new", f"{OURS}/new+one"} <= (await tree_of(cluster.pulsar)).keys()
    await cluster.close()


def check_list(path: str, before: bytes, after: bytes) -> None:
    """Ledgers without an end have theirs; all else is as it was."""
    wanted = log_node(before, path)
    for row in wanted.ledgers:
        if not row.timestamp and EVENTS_TOPIC not in path:
            last, length = recorded().ends[row.ledgerId]
            row.entries, row.size, row.timestamp = last + 1, length, NOW_MS
    assert log_node(after, path) == wanted, path


def check_cursor(path: str, before: bytes, after: bytes) -> None:
    """Positions that were in a ledger are in the node, as Pulsar writes them at a clean stop."""
    wanted, found = cursor_node(before, path), cursor_node(after, path)
    if wanted.cursorsLedgerId < 0:
        assert found == wanted, path
    else:
        entry = pb.CursorEntry.FromString(recorded().entries[wanted.cursorsLedgerId][-1])
        assert found.cursorsLedgerId == -1
        assert found.markDeleteLedgerId == entry.ledgerId, path
        assert found.markDeleteEntryId == entry.entryId, path


async def change_everything(cluster: Cluster) -> None:
    """As our brokers would have written it."""
    store = cluster.ours
    stored = await store.get(OURS)
    assert stored is not None
    info = decode_list_node(stored.value, OURS).info.forget([6]).with_ledger(900)
    info = info.with_closed(900, 3, 300, NOW_MS)
    cluster.ledgers.ends.pop(6, None)
    cluster.ledgers.ends[900] = (2, 300)
    await store.put(OURS, encode_info(replace(info, owner="x", properties={"new": "1"})))
    image = CursorImage((900, 0), {900: BitMap([2])}, {900: {1: 0b101}})
    node = CursorNode((900, 0), cursor_properties={"a": "b"}, state=encode_node_state(image))
    await store.put(f"{OURS}/holes", encode_node(node, "x"))
    await store.put(f"{OURS}/new+one", encode_node(CursorNode((50, -1)), "x"))
    await store.delete(f"{OURS}/all")
    await store.delete_recursive(f"{LOGS}/sealed")
    await store.put(f"{LOGS}/brand%20new", encode_info(info.forget([50])))
    await store.put(f"{POLICIES}/holes", b'{"local":{"max_consumers_per_topic":8}}')
    await store.delete(f"{POLICIES}/parts")
    await store.put(f"{POLICIES}/typed", b'{"global":{"max_producers_per_topic":5}}')
    await store.put("/admin/policies/acme/more", b"{}")
    await store.delete("/admin/partitioned-topics/acme/orders/non-persistent/volatile")
    found = await store.get(TYPED)
    assert found is not None
    history = SchemaHistory.decode(TYPED, found.value)
    history = history.appended(SchemaDefinition("STRING", b"", {"k": "v"}), NOW_MS)
    await store.put(TYPED, history.encode())


async def test_what_was_written_meanwhile(cluster: Cluster) -> None:
    await change_everything(cluster)
    report = await cluster.backward().run()
    assert not report.findings
    nodes = await tree_of(cluster.pulsar)
    holes = log_node(nodes[OURS], OURS)
    assert [(x.ledgerId, x.entries, x.size) for x in holes.ledgers] == [(50, 0, 0), (900, 3, 300)]
    assert [(x.key, x.value) for x in holes.properties] == [("new", "1")]
    cursor = cursor_node(nodes[f"{OURS}/holes"], "")
    image = image_of_node(cursor, {900: 3})
    assert (image.mark_delete, image.acked, image.batch_sets) == (
        (900, 0),
        {900: BitMap([2])},
        {900: {1: 0b101}},
    )
    assert [(x.name, x.value) for x in cursor.cursorProperties] == [("a", "b")]
    assert f"{OURS}/new+one" in nodes
    assert f"{OURS}/all" not in nodes
    assert not any(path.startswith(f"{LOGS}/sealed") for path in nodes)
    assert [x.ledgerId for x in log_node(nodes[f"{LOGS}/brand+new"], "").ledgers] == [900]
    assert nodes["/admin/policies/acme/more"] == b"{}"
    assert "/admin/partitioned-topics/acme/orders/non-persistent/volatile" not in nodes
    index = locator_index(nodes[TYPED], TYPED)
    assert [each.version for each in index] == [0, 1, 2, 3]
    theirs = PulsarCluster(cluster.pulsar, cluster.ledgers)
    versions = (await theirs.schema("acme/orders/typed")).versions
    assert versions[3].definition == SchemaDefinition("STRING", b"")
    events = await theirs.policy_events("acme/orders")
    assert {(topic.local, layer): event.policies for (topic, layer), event in events.items()} == {
        ("holes", "local"): {"max_consumers_per_topic": 8},
        ("parts", "local"): None,
        ("props", "local"): {},
        ("typed", "global"): {"max_producers_per_topic": 5},
    }


async def test_ledgers_that_nobody_names_any_more_are_deleted(cluster: Cluster) -> None:
    await change_everything(cluster)
    await cluster.backward().run()
    assert 39 not in cluster.ledgers.ends  # of the topic that was deleted
    assert not {57, 58, 59, 65} & cluster.ledgers.ends.keys()  # positions, which are in nodes now
    assert {41, 2, 3, 36, 37, 38, 50, 900} <= cluster.ledgers.ends.keys()


async def test_a_topic_that_was_compacted_meanwhile(cluster: Cluster) -> None:
    """Pulsar's cursor names our ledger; the one before may be deleted by either."""
    path = f"{LOGS}/compact/__compaction"
    cluster.ledgers.ends[900] = (0, 10)
    ours = {COMPACTED_LEDGER: "900", "team": "blue"}
    node = CursorNode((52, 0), properties={COMPACTED_LEDGER: 900}, cursor_properties=ours)
    await cluster.ours.put(path, encode_node(node, "x"))
    await cluster.backward().run()
    stored = await cluster.pulsar.get(path)
    assert stored is not None
    found = cursor_node(stored.value, path)
    assert [(x.name, x.value) for x in found.properties] == [(COMPACTED_LEDGER, 900)]
    assert [(x.name, x.value) for x in found.cursorProperties] == [("team", "blue")]
    assert 900 in cluster.ledgers.ends
    assert 41 not in cluster.ledgers.ends


async def test_a_compacted_ledger_that_only_a_copy_has(cluster: Cluster) -> None:
    log = f"{LOGS}/compact"
    cluster.ledgers.ends[900] = (0, 10)
    node = CursorNode((52, 0), properties={COMPACTED_LEDGER: 900})
    await cluster.ours.put(f"{log}/__compaction", encode_node(node, "x"))
    stored = await cluster.ours.get(log)
    assert stored is not None
    info = decode_list_node(stored.value, log).info
    copy = OffloadContext(LedgerCopy(900, "u", "filesystem", {}), CopyState.ONLY)
    apart = LedgerInfo(900, 1, 10, NOW_MS, copy)
    await cluster.ours.put(log, encode_info(replace(info, apart=(apart,))))
    with pytest.raises(LossRefusedError):
        await cluster.backward().run()
    report = await cluster.backward(accept_loss=True).run()
    (told,) = (each.text for each in report.losses)
    assert "compacted ledger 900 is offloaded" in told
    found = await cluster.pulsar.get(f"{log}/__compaction")
    assert found is not None
    assert not cursor_node(found.value, log).properties
    apart = replace(apart, offload=replace(copy, state=CopyState.COMPLETE))
    assert decode_list_node(encode_info(replace(info, apart=(apart,))), log).info.apart == (apart,)


async def test_a_topic_that_was_made_anew_has_nothing_of_the_old_one(cluster: Cluster) -> None:
    await cluster.ours.delete_recursive(f"{LOGS}/compact")
    begun = await marker.read_marker(cluster.ours)
    assert begun is not None
    await marker.write_marker(cluster.ours, begun._replace(since_ms=1))
    stored = await cluster.ours.get(OURS)
    assert stored is not None
    info = decode_list_node(stored.value, OURS).info
    await cluster.ours.put(f"{LOGS}/compact", encode_info(info))
    await cluster.backward().run()
    nodes = await tree_of(cluster.pulsar)
    assert [path for path in nodes if path.startswith(f"{LOGS}/compact/")] == []
    assert {6, 50} <= cluster.ledgers.ends.keys()


@pytest.mark.parametrize("lost_answer", [False, True])
async def test_a_failure_at_any_write_is_mended_by_another_run(lost_answer: bool) -> None:
    """Also the ledgers that nobody names any more are the same ones, and no new one is too many."""
    expected: dict[str, bytes] = {}
    deleted, made = set[int](), -1
    for n in range(1, 1000):
        cluster = Cluster()
        await restore(cluster.pulsar)
        await cluster.forward().run()
        await change_everything(cluster)
        before = set(recorded().ends) | {900}
        stores = [cluster.pulsar, cluster.ours]
        writes = FailingWrites(n, lost_answer=lost_answer, stores=stores, ledgers=cluster.ledgers)
        failed = False
        try:
            await cluster.backward().run()
        except MetadataError:
            failed = True
            found = await marker.read_marker(cluster.ours)
            assert found is not None
            if found.serving is not Serving.PULSAR:
                assert set(marker.PULSAR_LEADERS) <= set(await tree_of(cluster.pulsar))
                await cluster.backward().run()
            elif await is_doomed(cluster.ours):
                await cluster.backward().run()
        deleted = deleted or before - cluster.ledgers.ends.keys()
        assert before - cluster.ledgers.ends.keys() == deleted >= {6, 39, 57, 58, 59, 65}, n
        new = len(cluster.ledgers.ends.keys() - before)
        made = new if made < 0 else made
        assert new == made > 0, n
        assert not await cluster.ours.children(doomed_ledgers.PATH)
        nodes = await described(cluster)
        expected = expected or nodes
        await cluster.close()
        assert nodes == expected, n
        if not failed:
            assert writes.left > 0
            assert n > 70
            return
    raise AssertionError("no run without a failure")


async def test_a_swap_forth_deletes_what_the_way_back_has_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar's brokers have served meanwhile."""
    await change_everything(cluster)

    async def fail(_: Iterable[int]) -> None:
        raise MetadataError("planted")

    monkeypatch.setattr(cluster.ledgers, "delete", fail)
    with pytest.raises(MetadataError):
        await cluster.backward().run()
    assert 39 in cluster.ledgers.ends
    monkeypatch.undo()
    await cluster.forward().run()
    assert 39 not in cluster.ledgers.ends
    assert {41, 900} <= cluster.ledgers.ends.keys()


async def described(cluster: Cluster) -> dict[str, bytes]:
    """Everything but ids of ledgers that the run has made, whose number differs."""
    nodes = await tree_of(cluster.pulsar)
    theirs = PulsarCluster(cluster.pulsar, cluster.ledgers)
    nodes.pop(f"{LOGS}/{EVENTS_TOPIC}")
    events = await theirs.policy_events("acme/orders")
    nodes["events"] = repr(sorted(events.items(), key=str)).encode()
    nodes.pop(TYPED)
    nodes["typed"] = repr(await theirs.schema("acme/orders/typed")).encode()
    for path in marker.PULSAR_LEADERS:  # a last step, which a broker's start doesn't repeat
        nodes.pop(path, None)
    return nodes


async def test_only_a_cluster_of_ours_is_given_back(cluster: Cluster) -> None:
    await cluster.backward().run()
    assert not set(marker.PULSAR_LEADERS) & set(await tree_of(cluster.pulsar))
    with pytest.raises(MigrationError, match="isn't Magnetar's"):
        await cluster.backward().run()


async def test_not_while_a_broker_of_ours_lives(cluster: Cluster) -> None:
    await cluster.ours.put("/loadbalance/brokers/b:8080", b"{}", ephemeral=True)
    before = await tree_of(cluster.pulsar)
    with pytest.raises(MigrationError, match="brokers of Magnetar still registered: b:8080"):
        await cluster.backward().run()
    found = await marker.read_marker(cluster.ours)
    assert found is not None
    assert found.serving is Serving.MAGNETAR
    assert await tree_of(cluster.pulsar) == before


async def test_forth_again_and_nothing_of_the_first_time_is_left(cluster: Cluster) -> None:
    await change_everything(cluster)
    await cluster.backward().run()
    await cluster.pulsar.delete(f"{OURS}/new+one")
    await cluster.forward().run()
    ours = await tree_of(cluster.ours)
    assert f"{OURS}/new+one" not in ours
    assert f"{LOGS}/brand%20new" in ours
    assert orjson.loads(ours[f"{POLICIES}/holes"]) == {"local": {"max_consumers_per_topic": 8}}
    assert not any(path.startswith(f"{LOGS}/sealed") for path in ours)


async def test_a_dry_run_writes_nothing(cluster: Cluster) -> None:
    await change_everything(cluster)
    FailingWrites(1, lost_answer=True, stores=[cluster.pulsar, cluster.ours])
    report = await cluster.backward(write=False).run()
    assert report.counts["topics"] == 13


async def test_a_list_too_long_for_pulsar_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backward, "VALUE_BYTES_MAX", 27)
    report = await cluster.backward(write=False).run()
    told = "acme/orders/persistent/holes: a list of 2 ledgers, too long for Pulsar's node"
    assert f"lost: {told}" in {str(each) for each in report.losses}


async def test_policies_that_pulsars_record_does_not_take_are_told(cluster: Cluster) -> None:
    document = b'{"local":{"max_producers_per_topic":"many"}}'
    await cluster.ours.put(f"{POLICIES}/typed", document)
    with pytest.raises(LossRefusedError):
        await cluster.backward().run()
    report = await cluster.backward(accept_loss=True).run()
    assert [each.subject for each in report.losses] == [
        "policies of persistent://acme/orders/typed"
    ]


async def test_policies_in_a_namespace_that_had_none(cluster: Cluster) -> None:
    path = "/admin/topic-policies/public/default/persistent/t"
    await cluster.ours.put(path, b'{"local":{"max_producers_per_topic":5}}')
    report = await cluster.backward().run()
    assert not report.losses
    events = await PulsarCluster(cluster.pulsar, cluster.ledgers).policy_events("public/default")
    assert [each.policies for each in events.values()] == [{"max_producers_per_topic": 5}]
