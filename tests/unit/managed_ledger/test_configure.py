"""Settings that change while a log is open, and the bytes that it reports."""

from dataclasses import replace

from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from tests.simulation.model_bookie import ModelBookie, ModelBookieClient
from tests.unit.managed_ledger.cluster import CONFIG, HEAD, NAME, Appends, Cluster, eventually

KEPT = replace(CONFIG, ledger_entries_max=10, retention_ms=-1, retention_bytes=-1)


async def filled(cluster: Cluster, entries: int = 35) -> ManagedLedger:
    """Ledgers of ten entries of 14 bytes each; the last one has the rest."""
    log = await cluster.factory().open(NAME, KEPT)
    appends = Appends(log)
    for _ in range(entries):
        await appends.stored(b"0123456789")
    assert not appends.errors
    return log


async def test_a_shorter_retention_trims_at_once(cluster: Cluster) -> None:
    log = await filled(cluster)
    await eventually(lambda: all(x.closed_ms for x in log.lists.info.ledgers[:3]))
    assert log.offsets.entry_count == 35
    log.configure(replace(KEPT, retention_ms=0, retention_bytes=0))
    await eventually(lambda: log.offsets.entry_count == 5)


async def test_a_longer_retention_keeps_what_is_consumed(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(KEPT, retention_ms=0, retention_bytes=0))
    cursor = await log.open_cursor("s", EARLIEST)
    log.configure(KEPT)
    appends = Appends(log)
    for _ in range(25):
        await appends.stored(b"x")
    cursor.ack_cumulative(log.last_confirmed)
    await cursor.flush()
    await log.trim()
    assert log.offsets.entry_count == 25


async def test_new_ledgers_take_the_new_quorums(cluster: Cluster) -> None:
    log = await filled(cluster, 5)
    first = log.offsets.counts()[-1][0]
    other = ModelBookieClient(ModelBookie("b1"))
    log.client.bookies.add(other)
    log.configure(replace(KEPT, ensemble_size=2, write_quorum=2, ack_quorum=2))
    appends = Appends(log)
    for _ in range(10):
        await appends.stored(b"y")
    quorums = []
    for ledger_id, _ in log.offsets.counts():
        metadata = await log.client.read_ledger_metadata(ledger_id)
        assert metadata is not None
        quorums.append((metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum))
    assert log.offsets.counts()[0][0] == first
    assert quorums == [(1, 1, 1), (2, 2, 2)]


async def test_rotation_follows_at_once(cluster: Cluster) -> None:
    log = await filled(cluster, 5)
    log.configure(replace(KEPT, ledger_entries_max=6))
    appends = Appends(log)
    for _ in range(7):
        await appends.stored(b"y")
    assert [entries for _, entries in log.offsets.counts()][:2] == [6, 6]


async def test_heads_and_password_stay(cluster: Cluster) -> None:
    log = await filled(cluster, 1)
    log.configure(replace(KEPT, form=HeadsInFront(0), password=b"another"))
    assert (log.config.form, log.config.password) == (CONFIG.form, CONFIG.password)


async def test_bytes_behind_a_position_count_appends_under_way(cluster: Cluster) -> None:
    log = await filled(cluster)
    entry = len(HEAD) + 10
    assert log.bytes_after(EARLIEST) == 35 * entry
    ids = [ledger_id for ledger_id, _ in log.offsets.counts()]
    assert log.bytes_after((ids[1], 3)) == 21 * entry
    assert log.position_before_bytes(21 * entry) == (ids[1], 3)
    assert log.position_before_bytes(35 * entry) is None
    connection = cluster.connections[0]
    connection.hold_adds = True
    appends = Appends(log)
    appends.send(b"0123456789")
    assert log.bytes_after(log.last_confirmed) == entry
    connection.release()
    await appends.settle()
    assert log.bytes_after(log.last_confirmed) == 0
