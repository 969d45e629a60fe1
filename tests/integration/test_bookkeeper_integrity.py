"""Bookies that lose or damage data get it back from each other, and deny nothing meanwhile."""

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.gc.compaction import Compaction, compact_steps
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookkeeper.bookie.gc.garbage_scan import drop_steps
from magnetar.bookkeeper.bookie.integrity.integrity_check import IntegrityConfig
from magnetar.bookkeeper.bookie.integrity.integrity_service import (
    IntegrityService,
    IntegrityServiceConfig,
)
from magnetar.bookkeeper.bookie.integrity.replica_source import EnsembleReplicaSource
from magnetar.bookkeeper.bookie.integrity.scrubber import ScrubConfig
from magnetar.bookkeeper.client.async_ledger_recovery import recover_ledger
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import LedgerRecoveryError, UnknownLedgerStateError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from tests.integration.bookie_node import Node, add
from tests.integration.bookkeeper_network import Network, Served, eventually, read_all, write

THREE = LedgerConfig(3, 3, 2)
CONFIG = IntegrityServiceConfig(
    scrub=ScrubConfig(interval_s=3600.0, first_s=3600.0),
    integrity=IntegrityConfig(open_grace_s=0.1, retry_s=0.05, retry_max_s=0.2),
)


class Cluster(Network):
    """A network whose bookies look after their data."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ledgers = LedgerStore(self.store)
        self.integrity_services: dict[str, IntegrityService] = {}
        self._pools: dict[str, tuple[BookiePool, BookieConnector]] = {}

    async def start(self, bookie_id: str, port: int = 0, **changes: object) -> Served:
        served = await super().start(bookie_id, port, **changes)
        connector = BookieConnector(self.store, self.transport)
        pool = BookiePool(self.store, connector.connect)
        pool.use(served.bookie)
        await pool.start()
        self._pools[bookie_id] = pool, connector
        rng = random.Random(7)

        async def recover(ledger_id: int) -> LedgerMetadata:
            return await recover_ledger(
                ledger_id, self.ledgers, pool, RandomPlacement(rng), rng, ClientConfig()
            )

        locks = UnderReplicationStore(self.store, lambda: 0)
        peers = EnsembleReplicaSource(bookie_id, self.ledgers, pool, recover, locks.repairs)
        self.integrity_services[bookie_id] = IntegrityService(served.bookie, peers, CONFIG)
        return served

    async def stop(self, bookie_id: str) -> None:
        await self.integrity_services.pop(bookie_id).close()
        pool, connector = self._pools.pop(bookie_id)
        await pool.close()
        await connector.close()
        await super().stop(bookie_id)

    async def wipe(self, bookie_id: str) -> Served:
        """Its disk is replaced by an empty one; the check doesn't run before ``start`` of it."""
        port = self.served[bookie_id].port
        await self.stop(bookie_id)
        shutil.rmtree(self.directory / bookie_id)
        return await self.start(bookie_id, port, accept_data_loss=True)

    def damage(self, bookie_id: str, what: bytes) -> Path:
        """Flip a bit wherever these bytes lie in its entry logs."""
        for path in sorted((self.directory / bookie_id / "entry-log").glob("*.log")):
            data = bytearray(path.read_bytes())
            at = data.find(what)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([data[at] ^ 1]))
                return path
        raise AssertionError(f"{what!r} isn't in the entry logs of {bookie_id}")

    async def holdings(self, bookie_id: str, ledger_id: int, count: int) -> list[bytes]:
        """The packets that a bookie answers with, one by one."""
        packets = []
        for entry_id in range(count):
            reply = await self.served[bookie_id].bookie.read_entries(
                ReadRequest(ledger_id, entry_id, 1, 1)
            )
            packets.append(bytes(reply.packets[0]) if reply.code == codes.OK else b"")
        return packets

    def status(self, bookie_id: str) -> dict[str, object]:
        return self.integrity_services[bookie_id].status()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    for number in range(3):
        await cluster.start(f"b{number}")
    await cluster.pool.start()
    yield cluster
    await cluster.close()


def bodies(count: int, size: int = 50) -> list[bytes]:
    return [b"entry %04d " % number + b"." * size for number in range(count)]


async def closed_ledger(cluster: Cluster, count: int = 60) -> int:
    """A ledger on all three, flushed to their entry logs."""
    ledger = await write(cluster.client, LedgerConfig(3, 3, 3), bodies(count))
    await ledger.close()
    for served in cluster.served.values():
        await served.bookie.flush()
    return ledger.ledger_id


async def test_a_scrub_finds_and_repairs_bit_rot_from_the_others(cluster: Cluster) -> None:
    ledger_id = await closed_ledger(cluster)
    expected = await cluster.holdings("b0", ledger_id, 60)
    path = cluster.damage("b1", b"entry 0007")
    cluster.damage("b1", b"entry 0008")
    cluster.damage("b1", b"entry 0033")
    integrity_service = cluster.integrity_services["b1"]
    integrity_service.start()
    answer = json.loads(await cluster.remote("b1").check_data(scrub=True))
    assert answer["scrub"]["passes"] == 0
    await eventually(lambda: integrity_service.metrics.repaired_entries == 3)
    assert integrity_service.metrics.damaged_entries == 3
    await eventually(lambda: integrity_service.damaged_now == 0)
    assert await cluster.holdings("b1", ledger_id, 60) == expected
    integrity_service.scrubber.request()
    await eventually(lambda: integrity_service.metrics.scrub_passes == 2)
    assert integrity_service.metrics.damaged_entries == 3  # read again, and sound
    assert path.exists()
    # Repaired for good.
    await cluster.stop("b1")
    await cluster.start("b1")
    assert await cluster.holdings("b1", ledger_id, 60) == expected


async def test_a_read_that_meets_damage_is_an_error_and_repairs_it(cluster: Cluster) -> None:
    ledger_id = await closed_ledger(cluster)
    cluster.damage("b2", b"entry 0010")
    remote = cluster.remote("b2")
    cluster.integrity_services["b2"].start()
    assert (await remote.read_entries(ReadRequest(ledger_id, 10, 1, 1))).code == codes.IO_ERROR
    await eventually(lambda: cluster.integrity_services["b2"].metrics.repaired_entries == 1)
    assert (await remote.read_entries(ReadRequest(ledger_id, 10, 1, 1))).code == codes.OK


async def test_a_report_is_looked_into_and_believed_only_then(cluster: Cluster) -> None:
    ledger_id = await closed_ledger(cluster)
    integrity_service = cluster.integrity_services["b0"]
    remote = cluster.remote("b0")
    assert await remote.report_corrupt(ledger_id, 3) == codes.TOO_MANY_REQUESTS  # nobody looks
    integrity_service.start()
    cluster.damage("b0", b"entry 0003")
    answers = [await remote.report_corrupt(ledger_id, entry_id) for entry_id in range(200)]
    assert answers[0] == codes.OK
    assert codes.TOO_MANY_REQUESTS in answers  # a crowd of reports costs only so much
    await eventually(lambda: integrity_service.metrics.repaired_entries == 1)
    assert integrity_service.metrics.damaged_entries == 1
    assert await remote.report_corrupt(2**62, 3) in (codes.OK, codes.TOO_MANY_REQUESTS)


async def test_what_nobody_else_has_stays_an_error_and_is_tried_again(cluster: Cluster) -> None:
    ledger = await write(cluster.client, LedgerConfig(1, 1, 1), bodies(5))
    await ledger.close()
    (bookie_id,) = ledger.metadata.last_segment.bookies
    await cluster.served[bookie_id].bookie.flush()
    cluster.damage(bookie_id, b"entry 0002")
    integrity_service = cluster.integrity_services[bookie_id]
    integrity_service.start()
    integrity_service.scrubber.request()
    await eventually(
        lambda: bool(
            integrity_service.repairer.damages and integrity_service.repairer.damages[0].why
        )
    )
    (damage,) = json.loads(integrity_service.check(scrub=False, integrity=False))["damages"]
    assert (damage["ledger"], damage["firstEntry"]) == (ledger.ledger_id, 2)
    assert damage["lastEntry"] == 2
    assert "no other copy" in damage["whyNotRepaired"]
    reply = await cluster.remote(bookie_id).read_entries(ReadRequest(ledger.ledger_id, 2, 1, 1))
    assert reply.code == codes.IO_ERROR


async def test_a_damage_while_the_others_are_away_is_repaired_when_they_are_back(
    cluster: Cluster,
) -> None:
    ledger_id = await closed_ledger(cluster)
    cluster.damage("b0", b"entry 0003")
    ports = {bookie_id: cluster.served[bookie_id].port for bookie_id in ("b1", "b2")}
    for bookie_id in ports:
        await cluster.stop(bookie_id)
    integrity_service = cluster.integrity_services["b0"]
    integrity_service.start()
    integrity_service.scrubber.request()
    await eventually(
        lambda: bool(
            integrity_service.repairer.damages and integrity_service.repairer.damages[0].why
        )
    )
    for bookie_id, port in ports.items():
        await cluster.start(bookie_id, port)
    integrity_service.repairer.retry()
    await eventually(lambda: integrity_service.metrics.repaired_entries == 1)
    assert b"" not in await cluster.holdings("b0", ledger_id, 60)


async def test_a_corrupt_copy_is_not_taken_and_its_bookie_is_told(cluster: Cluster) -> None:
    """Scenario 42: the first source has a bad copy, too."""
    ledger_id = await closed_ledger(cluster)
    expected = await cluster.holdings("b2", ledger_id, 60)
    for bookie_id in ("b0", "b1"):
        cluster.damage(bookie_id, b"entry 0021")
        cluster.integrity_services[bookie_id].start()
    cluster.integrity_services["b0"].scrubber.request()
    await eventually(lambda: cluster.integrity_services["b0"].metrics.repaired_entries == 1)
    reply = await cluster.remote("b1").read_entries(ReadRequest(ledger_id, 21, 1, 1))
    assert reply.code in (codes.OK, codes.IO_ERROR)
    await eventually(lambda: cluster.integrity_services["b1"].metrics.repaired_entries == 1)
    for bookie_id in ("b0", "b1"):
        assert await cluster.holdings(bookie_id, ledger_id, 60) == expected


async def test_the_only_copy_may_be_on_a_bookie_in_limbo(cluster: Cluster) -> None:
    """What it has it gives."""
    ledger = await write(cluster.client, LedgerConfig(2, 2, 2), bodies(10))
    await ledger.close()
    one, two = ledger.metadata.last_segment.bookies
    for bookie_id in (one, two):
        await cluster.served[bookie_id].bookie.flush()
    expected = await cluster.holdings(one, ledger.ledger_id, 10)
    cluster.served[two].bookie.storage.set_limbo(ledger.ledger_id)
    cluster.damage(one, b"entry 0004")
    cluster.integrity_services[one].start()
    cluster.integrity_services[one].scrubber.request()
    await eventually(lambda: cluster.integrity_services[one].metrics.repaired_entries == 1)
    assert await cluster.holdings(one, ledger.ledger_id, 10) == expected


async def test_damage_that_compaction_meets_is_repaired_and_the_log_goes(cluster: Cluster) -> None:
    kept, dropped = await closed_ledger(cluster), await closed_ledger(cluster)
    bookie, integrity_service = cluster.served["b0"].bookie, cluster.integrity_services["b0"]
    cluster.damage("b0", b"entry 0002")
    integrity_service.start()
    collector = GarbageCollector(bookie, cluster.ledgers)
    bookie.storage.logs.active_id = None  # what follows goes to a new log
    await cluster.client.delete_ledger(dropped)
    await collector.collect()
    bookie.storage.logs.active_id = None
    await bookie.run_maintenance(compact_steps(bookie.storage, Compaction("major", 0.9)))
    assert bookie.storage.damaged_logs
    integrity_service.on_damaged_logs(list(bookie.storage.damaged_logs))
    await eventually(lambda: integrity_service.metrics.repaired_entries == 1)
    await eventually(lambda: not bookie.storage.damaged_logs)
    await bookie.run_maintenance(compact_steps(bookie.storage, Compaction("major", 0.9)))
    assert min(bookie.storage.logs.logs) > 1
    assert b"" not in await cluster.holdings("b0", kept, 60)


# ---- a lost disk


async def test_an_empty_disk_denies_nothing_and_is_filled_again(cluster: Cluster) -> None:
    ledger_id = await closed_ledger(cluster)
    unstriped = await cluster.holdings("b0", ledger_id, 60)
    striped = await write(cluster.client, LedgerConfig(3, 2, 2), bodies(30))
    await striped.close()
    held = await cluster.remote("b0").list_entries(striped.ledger_id)
    await cluster.wipe("b0")
    remote = cluster.served["b0"].bookie
    for id_ in (ledger_id, striped.ledger_id):
        assert (
            await remote.read_entries(ReadRequest(id_, 0, 1, 1))
        ).code == codes.UNKNOWN_LEDGER_STATE
        assert (await remote.read_lac(id_, fence=False)).code == codes.UNKNOWN_LEDGER_STATE
        with pytest.raises(UnknownLedgerStateError):
            await remote.list_entries(id_)
    assert cluster.status("b0")["inLimbo"] is True
    new = striped.ledger_id + 1  # what is new is as on any other bookie
    assert (await remote.read_entries(ReadRequest(new, 0, 1, 1))).code == codes.NO_LEDGER
    assert await add(cluster.served["b0"].bookie, new, range(3)) == codes.OK
    assert (await remote.read_entries(ReadRequest(new, 7, 1, 1))).code == codes.NO_ENTRY
    integrity_service = cluster.integrity_services["b0"]
    integrity_service.start()
    await eventually(lambda: cluster.status("b0")["inLimbo"] is False)
    assert await cluster.holdings("b0", ledger_id, 60) == unstriped
    assert await remote.list_entries(striped.ledger_id) == held
    assert (await remote.read_entries(ReadRequest(ledger_id, 60, 1, 1))).code == codes.NO_ENTRY
    assert integrity_service.metrics.restored_entries == 60 + 20
    await cluster.stop("b0")
    await cluster.start("b0")  # and it stays so
    assert cluster.status("b0")["inLimbo"] is False
    assert await cluster.holdings("b0", ledger_id, 60) == unstriped


@pytest.mark.parametrize("limbo", [True, False])
async def test_a_lost_disk_must_not_help_to_end_a_ledger_early(
    cluster: Cluster, limbo: bool
) -> None:
    """Scenario 2 of BP-46. An entry is acknowledged by b0 and b1; b2 never got it, b0 loses it.

    A recovery that reaches b0 and b2 must not close the ledger below. Without limbo it does.
    """
    ledger = await cluster.client.create_ledger(THREE)
    ledger.append([b"head"], [b"first"])

    def is_everywhere() -> bool:
        held = [
            served.bookie.storage.ledgers.get(ledger.ledger_id)
            for served in cluster.served.values()
        ]
        return all(state is not None and state.last_entry == 0 for state in held)

    await eventually(is_everywhere)
    for bookie_id in ("b0", "b1"):  # what Qa copies of three are
        state = cluster.served["b2"].bookie.storage.ledgers[ledger.ledger_id]
        head = packet.encode_head(ledger.ledger_id, 1, 0, 19, b"head", b"second")
        code = await add_packet(cluster.served[bookie_id], ledger.ledger_id, 1, head + b"second")
        assert code == codes.OK
        assert state.last_entry == 0
    await cluster.wipe("b0")
    if not limbo:
        storage = cluster.served["b0"].bookie.storage
        storage.limbo_last = -1
        for id_ in storage.limbo_ledgers():
            storage.clear_limbo(id_, fenced=False)
    port = cluster.served["b1"].port
    await cluster.stop("b1")
    if limbo:
        with pytest.raises(LedgerRecoveryError):
            await cluster.client.open_ledger(ledger.ledger_id, recover=True)
        assert (await cluster.ledgers.require(ledger.ledger_id)).metadata.last_entry == -1
        await cluster.start("b1", port)
        assert await read_all(cluster.client, ledger.ledger_id, recover=True) == [
            b"first",
            b"second",
        ]
    else:
        truncated = await read_all(cluster.client, ledger.ledger_id, recover=True)
        assert truncated != [b"first", b"second"]


async def test_a_writer_leaves_a_bookie_in_limbo_and_goes_on(cluster: Cluster) -> None:
    """It isn't told of a fence that nobody can know of: its ledger gets another bookie."""
    await cluster.start("b3")
    ledger = await write(cluster.client, THREE, bodies(10))
    gone = ledger.metadata.last_segment.bookies[0]
    await cluster.wipe(gone)
    code = await add(cluster.served[gone].bookie, ledger.ledger_id, [10])
    assert code == codes.UNKNOWN_LEDGER_STATE

    def has_left() -> bool:
        # An answer to what two others have confirmed already is noticed with the next entry.
        if ledger.error is None and ledger.last_confirmed == ledger.next_entry - 1:
            ledger.append([b"head"], bodies(1))
        return gone not in ledger.metadata.last_segment.bookies or ledger.error is not None

    await eventually(has_left)
    assert ledger.error is None
    cluster.integrity_services[gone].start()
    await eventually(lambda: cluster.status(gone)["inLimbo"] is False)
    ledger.append([b"head"] * 5, bodies(5))  # nobody has closed it
    last = ledger.next_entry - 1
    await eventually(lambda: ledger.last_confirmed == last or ledger.error is not None)
    assert ledger.error is None
    await ledger.close()
    assert b"" not in await cluster.holdings(gone, ledger.ledger_id, 10)


async def test_an_idle_open_ledger_is_closed_and_filled(cluster: Cluster) -> None:
    ledger = await write(cluster.client, THREE, bodies(10))
    await cluster.wipe("b1")
    cluster.integrity_services["b1"].start()
    await eventually(lambda: cluster.status("b1")["inLimbo"] is False)
    metadata = (await cluster.ledgers.require(ledger.ledger_id)).metadata
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 9)
    assert b"" not in await cluster.holdings("b1", ledger.ledger_id, 10)
    code = await add(cluster.served["b1"].bookie, ledger.ledger_id, [10])
    assert code == codes.FENCED


async def test_a_check_that_is_cut_short_goes_on_after_a_restart(cluster: Cluster) -> None:
    ids = [await closed_ledger(cluster, 5) for _ in range(6)]
    await cluster.wipe("b2")
    storage = cluster.served["b2"].bookie.storage
    integrity = cluster.integrity_services["b2"].integrity
    assert integrity is not None
    assert await integrity._check(ids[0], full=False, patient=True) == ""
    assert len(storage.limbo_ledgers()) == len(ids) - 1
    cluster.served["b2"].bookie.give_up(RuntimeError("killed"))  # before it was flushed
    await cluster.stop("b2")
    await cluster.start("b2")
    assert cluster.status("b2")["ledgersInLimbo"] == len(ids)
    assert b"" not in await cluster.holdings("b2", ids[0], 5)  # what was copied is there
    integrity = cluster.integrity_services["b2"].integrity
    assert integrity is not None
    assert await integrity._check(ids[0], full=False, patient=True) == ""
    for _ in range(2):
        await cluster.stop("b2")
        await cluster.start("b2")
    assert cluster.status("b2")["ledgersInLimbo"] == len(ids) - 1
    assert b"" not in await cluster.holdings("b2", ids[0], 5)
    cluster.integrity_services["b2"].start()
    await eventually(lambda: cluster.status("b2")["inLimbo"] is False)
    for ledger_id in ids:
        assert b"" not in await cluster.holdings("b2", ledger_id, 5)


async def test_a_start_that_ends_before_all_is_marked_is_no_healthy_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = await closed_ledger(cluster, 5)
    await cluster.stop("b1")
    shutil.rmtree(cluster.directory / "b1" / "journal")

    class Cut(Exception):
        pass

    async def cut(*_: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr("magnetar.bookkeeper.bookie.open_bookie.enter_limbo", cut)
        with pytest.raises(Cut):
            await Node(cluster.directory / "b1", cluster.store, accept_data_loss=True).start()
    await cluster.start("b1")  # nobody said again that it lost something
    assert cluster.status("b1")["inLimbo"] is True
    remote = cluster.served["b1"].bookie
    assert (
        await remote.read_entries(ReadRequest(ledger_id, 0, 1, 1))
    ).code == codes.OK  # it has it
    assert (
        await remote.read_entries(ReadRequest(ledger_id, 5, 1, 1))
    ).code == codes.UNKNOWN_LEDGER_STATE


async def test_what_is_nowhere_stays_in_limbo_and_is_told(cluster: Cluster) -> None:
    ledger = await write(cluster.client, LedgerConfig(1, 1, 1), bodies(5))
    await ledger.close()
    (bookie_id,) = ledger.metadata.last_segment.bookies
    await cluster.wipe(bookie_id)
    integrity_service = cluster.integrity_services[bookie_id]
    integrity_service.start()
    await eventually(lambda: "nowhere" in json.dumps(integrity_service.status()))
    assert cluster.status(bookie_id)["inLimbo"] is True
    reply = await cluster.served[bookie_id].bookie.read_entries(
        ReadRequest(ledger.ledger_id, 0, 1, 1)
    )
    assert reply.code == codes.UNKNOWN_LEDGER_STATE
    await cluster.client.delete_ledger(ledger.ledger_id)
    await eventually(lambda: cluster.status(bookie_id)["inLimbo"] is False)


async def test_what_others_can_t_give_now_is_asked_for_again(cluster: Cluster) -> None:
    ledger_id = await closed_ledger(cluster, 5)
    await cluster.wipe("b0")
    ports = {bookie_id: cluster.served[bookie_id].port for bookie_id in ("b1", "b2")}
    for bookie_id in ports:
        await cluster.stop(bookie_id)
    integrity_service = cluster.integrity_services["b0"]
    integrity_service.start()
    await eventually(lambda: "UNAVAILABLE" in json.dumps(integrity_service.status()))
    reply = await cluster.served["b0"].bookie.read_entries(ReadRequest(ledger_id, 0, 1, 1))
    assert reply.code == codes.UNKNOWN_LEDGER_STATE
    for bookie_id, port in ports.items():
        await cluster.start(bookie_id, port)
    await eventually(lambda: cluster.status("b0")["inLimbo"] is False)
    assert b"" not in await cluster.holdings("b0", ledger_id, 5)


async def test_an_operator_can_have_everything_compared(cluster: Cluster) -> None:
    """What is missing without the bookie knowing why is copied, too."""
    ledger_id = await closed_ledger(cluster, 5)
    cluster.integrity_services["b1"].start()
    bookie = cluster.served["b1"].bookie
    bookie.storage.forget(ledger_id, 0)  # as if somebody had removed it by hand
    await bookie.run_maintenance(drop_steps(bookie.storage, [ledger_id], 0, []))
    bookie.storage.deleted.clear()
    assert await cluster.holdings("b1", ledger_id, 5) == [b""] * 5
    await cluster.remote("b1").check_data(integrity=True)
    await eventually(lambda: cluster.integrity_services["b1"].metrics.restored_entries == 5)
    await eventually(lambda: not bookie.storage.limbo_ledgers())
    assert b"" not in await cluster.holdings("b1", ledger_id, 5)


async def add_packet(served: Served, ledger_id: int, entry_id: int, data: bytes) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    request = AddRequest(
        ledger_id,
        bytes(20),
        [entry_id],
        [data[:PACKET_HEADER_BYTES]],
        [data[PACKET_HEADER_BYTES:]],
        len(data),
        False,
        lambda _request, code: answer.set_result(code),
    )
    served.bookie.add_entries(request)
    return await answer
