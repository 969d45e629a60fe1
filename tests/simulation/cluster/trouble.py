"""What befalls a simulated cluster: each kind of trouble is a method, chosen by the seed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.owners import FAILURES

if TYPE_CHECKING:
    from tests.simulation.cluster.scenario import ClusterScenario

#: Kinds of trouble a seed may know: names of ``Trouble``'s methods, or of what begins with the run.
KINDS: Final = (
    *("crashing owners", "bad links", "bad metadata", "wrong clocks"),
    *("killed bookies", "power cuts", "disk errors", "full disks", "slow disks", "pauses"),
    *("partitions", "gray bookies", "lost sessions", "metadata outages", "deletions"),
    *("swapped disks", "a death", "passwords", "killed repairers", "zone outages"),
)


class Trouble:
    """Injects faults while there is chaos, and restarts what died."""

    def __init__(self, scenario: ClusterScenario) -> None:
        self.scenario = scenario
        self.cluster = scenario.cluster
        self.rng = scenario.rng
        self.recorder = scenario.cluster.recorder
        self.destroyed = scenario._destroyed
        self.kinds = [
            (kind, getattr(self, f"_{kind.replace(' ', '_')}"))
            for kind in KINDS
            if scenario.has(kind) and hasattr(self, f"_{kind.replace(' ', '_')}")
        ]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))
            for machine in self.cluster.machines.values():
                down = not machine.process.alive and machine.wants_to_run
                if down and self.rng.random() < 0.5:
                    self.restart(machine)
            if self.destroyed and self.rng.random() < 0.1:
                self._destroy()
            elif self.kinds:
                _, strike = self.rng.choice(self.kinds)
                strike(self.rng.choice(list(self.cluster.machines.values())))
            self._look_after_owners()
            self.look_after_repairers()

    def look_after_repairers(self) -> None:
        for host, member in list(self.scenario.repairs.units.items()):
            if not member.process.alive:
                self.scenario.repairs.start_unit(host)

    def restart(self, machine: BookieMachine) -> None:
        """As an operator: who lost something is told to accept it."""
        if machine.refusal is not None:
            machine.accepts_data_loss = True
        machine.start()

    def _look_after_owners(self) -> None:
        for owner in self.scenario.owners:
            member = owner.member
            if member is not None and not member.process.alive and self.rng.random() < 0.3:
                self.recorder.count("state: owner crashed")
                self.cluster.end_later(member)
                owner.start()

    # Kinds of trouble, by name

    def _killed_repairers(self, machine: BookieMachine) -> None:
        units = [m for m in self.scenario.repairs.units.values() if m.process.alive]
        if units:
            self.recorder.count("fault: auto-recovery killed")
            self.cluster.kill(self.rng.choice(units))

    def _zone_outages(self, machine: BookieMachine) -> None:
        """All bookies of a zone at once, for a while."""
        zones = self.cluster.checker.zones
        zone, _ = zones[machine.host]
        lost = [m for m in self.cluster.machines.values() if zones[m.host][0] == zone]
        if not self.scenario.is_zoned or not all(m.wants_to_run for m in lost):
            return
        if any(not m.wants_to_run for m in self.cluster.machines.values()):
            return  # one zone at a time
        self.recorder.count("fault: zone outage")
        for each in lost:
            each.wants_to_run = False
            each.stop(power=False)
        back_ms = self.rng.uniform(500, 4500)
        self.cluster.loop.after_ms(back_ms, self._bring_back, lost, process=None)

    def _bring_back(self, machines: list[BookieMachine]) -> None:
        for machine in machines:
            machine.wants_to_run = machine is not self.scenario.lost_machine

    def _killed_bookies(self, machine: BookieMachine) -> None:
        machine.stop(power=False)

    def _power_cuts(self, machine: BookieMachine) -> None:
        if machine.is_up:
            machine.fail_call(self.rng.randrange(60), power=True)

    def _disk_errors(self, machine: BookieMachine) -> None:
        if machine.is_up and self.rng.random() < 0.5:
            self.recorder.count("fault: disk error planned")
            machine.fail_call(self.rng.randrange(60), power=False)

    def _full_disks(self, machine: BookieMachine) -> None:
        if machine.fs.faults.space_bytes < 200 << 10:
            machine.empty_disk()
        elif machine.is_up:
            machine.fill_disk(self.rng.randrange(4 << 10))

    def _slow_disks(self, machine: BookieMachine) -> None:
        if self.scenario.repairs.scrubs:
            return  # a scrub rests fifty times as long as it worked
        slow = machine.process.disk_ms_max <= 2.0
        self.recorder.count("fault: slow disk", slow)
        machine.process.disk_ms_max = self.rng.choice([100.0, 3000.0]) if slow else 2.0

    def _pauses(self, machine: BookieMachine) -> None:
        self.recorder.count("fault: pause")
        processes = [machine.process, *(member.process for member in self.cluster.members)]
        process = self.rng.choice(processes)
        process.paused_until = self.cluster.loop.now + self.rng.uniform(0.1, 3.0)

    def _partitions(self, machine: BookieMachine) -> None:
        cut = self.cluster.links.cut
        if cut and self.rng.random() < 0.6:
            cut.clear()
            return
        self.recorder.count("fault: partition")
        hosts = sorted({member.process.host for member in self.cluster.members})
        others = [host for host in hosts if self.rng.random() < 0.6]
        for other in others:
            if self.rng.random() < 0.7:
                cut.add((other, machine.host))
            if self.rng.random() < 0.7:
                cut.add((machine.host, other))

    def _gray_bookies(self, machine: BookieMachine) -> None:
        gray = self.cluster.links.gray
        if gray:
            gray.clear()
        else:
            self.recorder.count("fault: gray bookie")
            gray.add(machine.host)

    def _lost_sessions(self, machine: BookieMachine) -> None:
        stores = [store for store in self.cluster.stores() if store.is_connected]
        if not stores:
            return
        store = self.rng.choice(stores)
        back_ms = self.rng.uniform(50, 1500)
        if self.rng.random() < 0.5:
            self.recorder.count("fault: session lost")
            store.lose()
        else:
            self.recorder.count("fault: metadata connection broken")
            store.disconnect()
        self.cluster.loop.after_ms(back_ms, self._reconnect, store, process=None)

    def _reconnect(self, store: Any) -> None:
        if self.cluster.server.up:
            store.connect()

    def _metadata_outages(self, machine: BookieMachine) -> None:
        server = self.cluster.server
        if not server.up:
            server.up = True
            for store in self.cluster.stores():
                store.connect()
        elif self.rng.random() < 0.3:
            self.recorder.count("fault: metadata outage")
            server.up = False
            for store in self.cluster.stores():
                store.disconnect()
                if self.rng.random() < 0.3:
                    store.lose()

    def _deletions(self, machine: BookieMachine) -> None:
        owner = self.rng.choice(self.scenario.owners)
        member = owner.member
        if member is None or not member.process.alive or not owner.closed:
            return
        history = owner.closed.pop(0)
        self.cluster.run_in(member.process, _quietly(self.scenario.delete(member, history)))

    def _swapped_disks(self, machine: BookieMachine) -> None:
        """27: a bookie with another's disk refuses to start."""
        others = [m for m in self.cluster.machines.values() if m is not machine]
        other = self.rng.choice(others)
        if self.rng.random() < 0.7:
            return
        if not (machine.wants_to_run and other.wants_to_run and machine.lives and other.lives):
            return
        for each in (machine, other):
            each.stop(power=False)
            if each.is_damaged:
                return
        self.recorder.count("fault: disks swapped")
        machine.fs, other.fs = other.fs, machine.fs
        machine.index, other.index = other.index, machine.index
        machine.wants_to_run = other.wants_to_run = False
        self.cluster.simulator.start(self._start_swapped(machine, other))

    async def _start_swapped(self, machine: BookieMachine, other: BookieMachine) -> None:
        for each in (machine, other):
            each.is_damaged = True
            await asyncio.wait([each.start()], timeout=3)
            self.scenario.simulator.check(
                not each.is_up, f"27: {each.host} started with another bookie's disk"
            )
            each.stop(power=False)
            each.refusal = None
            each.is_damaged = False
        machine.fs, other.fs = other.fs, machine.fs
        machine.index, other.index = other.index, machine.index
        machine.wants_to_run = other.wants_to_run = True

    def _destroy(self) -> None:
        """What no protocol can undo, once in a run, and on one bookie: Qa is two at least."""
        kind, self.destroyed = self.destroyed, ""
        machine = self.rng.choice(list(self.cluster.machines.values()))
        if not machine.wants_to_run:
            self.destroyed = kind
            return
        if kind == "bits":
            self._rot(machine)
            return
        machine.stop(power=False)
        if machine.process.alive or machine.lives == 0:
            return
        if kind == "disk":
            machine.lose_disk()
        else:
            machine.lose_journal()

    def _rot(self, machine: BookieMachine) -> None:
        """One copy of each of some entries, on whichever bookie has it."""
        for history in self.scenario.histories:
            held = machine.promises.entries.get(history.ledger_id)
            if machine.is_up and held and not history.deleted:
                for entry_id in self.rng.sample(sorted(held), min(2, len(held))):
                    machine.rot(history.ledger_id, entry_id)


async def _quietly(work: Any) -> None:
    try:
        await work
    except FAILURES:
        return
