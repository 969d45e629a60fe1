"""What must follow once nothing fails any more: docs/spec/storage.md, "Liveness"."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from tests.simulation.cluster.checker import LedgerHistory, owners
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.nodes import Process
from tests.simulation.cluster.owners import FAILURES, Owner
from tests.simulation.cluster.repairs import SETTLE_MS
from tests.simulation.cluster.world import EXPLICIT_LAC_MS, Member, patiently

if TYPE_CHECKING:
    from tests.simulation.cluster.scenario import ClusterScenario

# A reader asks one bookie first, which may be the one that still syncs what came while its disk was
# slow; the others follow after this time.
_SPREAD_S = ClientConfig().reads.lac_speculation.first_ms / 1000


class Healed:
    """What must happen once nothing fails any more."""

    def __init__(self, scenario: ClusterScenario, owners: list[asyncio.Task[Any]]) -> None:
        self.scenario = scenario
        self.cluster = scenario.cluster
        self.check_that = scenario.simulator.check

    async def check(self) -> None:
        for host, member in self.scenario.repairs.units.items():
            if not member.process.alive:
                self.scenario.repairs.start_unit(host)
        await self._restart_bookies()
        await self._let_disks_rest()
        await self._check_owners()
        process = self.cluster.process("last")
        await self.cluster.run_in(process, self._check_ledgers(process))
        await self._check_space()
        operator = self.cluster.process("operator")
        await self.cluster.run_in(operator, self._let_zones_be_copied(operator))
        await self._check_data()
        for machine in self.scenario.living:
            if machine.is_up:  # 15, 21: side state never went back, whoever looked at it
                machine.check_promises()

    async def _restart_bookies(self) -> None:
        """L7: all of them come back, writable."""
        machines = self.scenario.living
        self.cluster.simulator.start(self._keep_running())
        for _ in range(60):
            if all(machine.is_up and self._is_registered(machine) for machine in machines):
                return
            await asyncio.sleep(0.25)
        states = [
            (m.host, m.is_up, self._is_registered(m), repr(m.refusal))
            for m in machines
            if not (m.is_up and self._is_registered(m))
        ]
        self.check_that(False, f"L7: bookies never came back: {states}")

    async def _let_disks_rest(self) -> None:
        """A call that a slow disk had begun before all was healed goes on for seconds: meanwhile
        its bookie fails its writers, and where E bookies are all there are nobody replaces it."""
        until_s = max(machine.process.disk_until for machine in self.scenario.living)
        await asyncio.sleep(max(0.0, until_s - self.cluster.loop.now))

    async def _keep_running(self) -> None:
        """As whoever supervises processes does; who lost data is told to accept it."""
        while True:
            for machine in self.scenario.living:
                if not machine.process.alive and machine.wants_to_run:
                    machine.accepts_data_loss |= machine.refusal is not None
                    machine.start()
            await asyncio.sleep(0.25)

    def _is_registered(self, machine: BookieMachine) -> bool:
        node = self.cluster.server.nodes.get(f"/ledgers/available/{machine.host}")
        return node is not None

    async def _check_owners(self) -> None:
        """L1, L4, L9: appends are confirmed, or their writer has failed."""
        for owner in self.scenario.owners:
            member = owner.member
            if member is not None and not member.process.alive:
                self.cluster.end_later(member)
                owner.start()
        for _ in range(200):
            if all(self._is_done(owner) for owner in self.scenario.owners):
                return
            await asyncio.sleep(0.1)
        stuck = [
            (owner.host, owner.appends, owner.writer and owner.writer.ledger_id)
            for owner in self.scenario.owners
            if not self._is_done(owner)
        ]
        self.check_that(False, f"L1, L9, L10: owners are stuck: {stuck}")

    def _is_done(self, owner: Owner) -> bool:
        writer = owner.writer
        if owner.appends > 0:
            return False
        return writer is None or (
            writer.error is not None or writer.last_confirmed == writer.next_entry - 1
        )

    async def _check_ledgers(self, process: Process) -> None:
        """L2, and G1: every ledger can be closed and read, byte for byte."""
        member = self.cluster.member(process)
        await patiently(member.pool.start)
        # It stays: a tree without any ledger looks like a lost one, bookies would collect nothing.
        await self._check_tail(member)
        for history in self.scenario.histories:
            if history.deleted:
                continue
            reader = await self._open(member, history)
            if reader is None:
                continue
            end, ledger = reader.last_confirmed, f"ledger {history.ledger_id}"
            self.check_that(end >= history.acked, f"5: {ledger} ends at {end}")
            failure = await self.scenario.read_all(reader, history)
            self.check_that(failure is None, f"G1: {ledger} can't be read: {failure!r}")

    async def _check_tail(self, member: Member) -> None:
        """L6, L8: a new owner's entries are seen as they come; waiting for none ends in time."""
        loop, checker = self.cluster.loop, self.cluster.checker
        writer = await member.client.create_ledger(LedgerConfig(*self.scenario.triple()))
        if self.scenario.lost_machine is not None:
            return  # it may be asked first, and for long; and its ledgers are closed for repair
        history = checker.history(writer.ledger_id)
        history.writer = writer
        confirmed_s = 0.0

        def on_confirmed(upto: int) -> None:
            nonlocal confirmed_s
            confirmed_s = loop.now
            checker.on_confirmed(history, upto)

        writer.on_confirmed = on_confirmed
        reader = await member.client.open_ledger(writer.ledger_id, recover=False)
        for number in range(3):
            self.check_that(writer.error is None, f"L4: a writer stopped: {writer.error!r}")
            if writer.error is not None:
                return
            payload = b"h%03d" % number
            history.payloads.append(payload)
            writer.append([payload], [b""])
            bound = await reader.wait(number - 1, 10.0)
            in_time = loop.now < confirmed_s + EXPLICIT_LAC_MS / 1000 + _SPREAD_S + 0.5
            self.check_that(
                bound >= number and in_time,
                f"L6: entry {number} was seen {loop.now - confirmed_s:.3f} s late, up to {bound}",
            )
            await self.scenario.read_all(reader, history, number)
        began_s = loop.now
        await reader.wait(2, 0.3)
        self.check_that(loop.now < began_s + 0.8, f"L8: waited {loop.now - began_s:.3f} s")

    async def _open(self, member: Member, history: LedgerHistory) -> LedgerReader | None:
        error: Exception | None = None
        for _ in range(10):
            try:
                return await self.scenario.recover(member, history)
            except NoSuchLedgerError as missing:
                error = missing
                break
            except FAILURES as failure:
                error = failure
                await asyncio.sleep(0.2)
        self.check_that(False, f"L2: ledger {history.ledger_id} can't be closed: {error!r}")
        return None

    async def _check_space(self) -> None:
        """L5: no bookie keeps a ledger that was deleted."""
        deleted = {history.ledger_id for history in self.scenario.histories if history.deleted}
        deleted -= {i for i in deleted if self.cluster.checker.ledgers[i].metadata is not None}
        if not deleted:
            return
        kept: list[str] = []
        for _ in range(30):
            kept = [
                f"{machine.host}: {sorted(deleted & set(machine.storage.ledgers))}"
                if machine.is_up
                else f"{machine.host} is down"
                for machine in self.scenario.living
                if not machine.is_up or deleted & set(machine.storage.ledgers)
            ]
            if not kept:
                return
            await asyncio.sleep(0.5)
        self.check_that(False, f"L5: deleted ledgers are kept: {kept}")

    async def _let_zones_be_copied(self, process: Process) -> None:
        """A zone that lost a bookie for good while it was down never reaches the high watermark.

        It takes somebody who knows: as long as nobody says so nothing is copied.
        """
        if self.scenario.lost_machine is None or not self.scenario.has_auto_recovery:
            return
        await asyncio.sleep(4 * SETTLE_MS / 1000)
        store = UnderReplicationStore(
            self.cluster.member(process).store, lambda: 0, self.cluster.layout
        )
        if not await store.is_enabled():
            self.cluster.recorder.count("state: an operator lets a zone be copied")
            await store.enable()

    async def _check_data(self) -> None:
        """L3: every copy that should exist does, and is sound; no marker is left."""
        wrong: list[str] = []
        for _ in range(45):
            wrong = self._markers() or self._wrong_copies()
            if not wrong:
                self.cluster.recorder.count("state: all copies checked")
                return
            await asyncio.sleep(1.0)
        self.check_that(False, f"L3: not repaired: {wrong[:4]}")

    def _markers(self) -> list[str]:
        if not self.scenario.has_auto_recovery:
            return []
        nodes = self.cluster.server.nodes
        return [path for path in nodes if "/urL" in path and path.startswith("/ledgers/under")]

    def _wrong_copies(self) -> list[str]:
        wrong: list[str] = []
        for history in self.scenario.histories:
            metadata = history.metadata
            if history.deleted or metadata is None or metadata.state is not LedgerState.CLOSED:
                continue
            for entry_id in range(metadata.last_entry + 1):
                wrong += [
                    f"ledger {history.ledger_id}, entry {entry_id} on {host}"
                    for host in owners(metadata, entry_id)
                    if self._is_wrong(self.cluster.machines[host], history, entry_id)
                ]
        return wrong

    def _is_wrong(self, machine: BookieMachine, history: LedgerHistory, entry_id: int) -> bool:
        """Without auto-recovery nobody copies what a bookie never had; what it lost, it does."""
        if not self.scenario.has_auto_recovery:
            if machine is self.scenario.lost_machine:
                return False
            if not machine.promises.is_spoilt(history.ledger_id, entry_id):
                return False
        if not machine.is_up:
            return True
        packet = machine.read(history.ledger_id, entry_id)
        return packet is None or packet[PACKET_HEADER_BYTES:] != history.payloads[entry_id]
