"""What a log can do while bookies or its client are down: the table of docs/guides/ledgers.md.

Three bookies of four hold each ledger, two acknowledge (E=3, Qw=3, Qa=2). Every operation runs with
each bookie down in turn; "client down" means that the owner has crashed with appends under way and
another process does it. Times are virtual: a bookie that is down is given up after one second.
"""

from collections.abc import Awaitable, Callable

import pytest

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.position import EARLIEST
from tests.simulation.managed_ledger_world import HEAD, Broker, LogWorld
from tests.simulation.simulator import Simulator, run_simulation
from tests.simulation.test_managed_ledger import verify

WITHIN_MS = 10_000.0
BOOKIES = [None, "b0", "b1", "b2", "b3"]


def config(retention: int = -1) -> ManagedLedgerConfig:
    return ManagedLedgerConfig(
        *(3, 3, 2),
        form=HeadsInFront(len(HEAD)),
        ledger_entries_max=4,
        ledger_age_min_ms=0,
        retention_ms=retention,
        retention_bytes=retention,
    )


class Site:
    """Four bookies, a log with a few ledgers, and who owns it."""

    def __init__(self, simulator: Simulator, retention: int = -1) -> None:
        self.simulator = simulator
        self.world = LogWorld(simulator, 4)
        self.config = config(retention)
        self.owner = Broker(self.world, self.config)
        self.brokers = [self.owner]

    async def fill(self) -> None:
        await self.owner.open()
        self.owner.append(6)
        await self.told()

    async def told(self) -> None:
        while self.owner.reported < len(self.owner.sent):
            await self.simulator.sleep_ms(10)
        self.simulator.check(not self.owner.failed, "an append failed")

    async def strike(self, bookie: str | None, *, client: bool) -> None:
        """What goes down does; a client in the middle of appends."""
        if bookie is not None:
            self.world.bookies[bookie].up = False
        if client:
            if self.owner.log is not None:
                self.owner.append(3)
                await self.simulator.sleep_ms(self.simulator.rng.uniform(0, 6))
            self.owner.node.alive = False
            self.owner = Broker(self.world, self.config)
            self.brokers.append(self.owner)

    async def own(self) -> None:
        """The owner goes on, or is the next one."""
        if self.owner.log is None:
            await self.owner.open()


async def create(site: Site) -> None:
    await site.own()
    site.owner.append(1)
    await site.told()


async def open_again(site: Site) -> None:
    site.owner = Broker(site.world, site.config)
    site.brokers.append(site.owner)
    await site.owner.open()


async def append(site: Site) -> None:
    await site.own()
    for _ in range(3):
        site.owner.append(1)
        await site.told()


async def read(site: Site) -> None:
    await site.own()
    found = {payload for _, payload in await site.owner.read_all(EARLIEST)}
    site.simulator.check(found >= set(site.world.acked_at), "not all is read")


async def shrink(site: Site) -> None:
    await site.own()
    log = site.owner.log
    assert log is not None
    before = log.offsets.ledger_ids[0]
    cursor = log.cursors["sub"]
    site.world.consumed = log.last_confirmed
    cursor.ack_cumulative(log.last_confirmed)
    await cursor.flush()
    await log.trim()
    site.simulator.check(log.offsets.ledger_ids[0] > before, "nothing was trimmed")


async def rotate(site: Site) -> None:
    await site.own()
    log = site.owner.log
    assert log is not None
    ledgers = set(log.offsets.ledger_ids)
    site.owner.append(9)  # more than two ledgers take
    await site.told()
    site.simulator.check(len(set(log.offsets.ledger_ids) - ledgers) >= 2, "no new ledger")


OPERATIONS: dict[str, Callable[[Site], Awaitable[None]]] = {
    x.__name__: x for x in (create, open_again, append, read, shrink, rotate)
}


async def available(
    simulator: Simulator, operation: str, bookie: str | None, *, client: bool
) -> float:
    """Milliseconds that the operation took; a violation if that was too long."""
    site = Site(simulator, 0 if operation == "shrink" else -1)
    if operation != "create":
        await site.fill()
    await site.strike(bookie, client=client)
    began_s = simulator.loop.now
    work = simulator.start(_perform(OPERATIONS[operation], site))
    while not work.done() and simulator.loop.now < began_s + WITHIN_MS / 1000:
        await simulator.sleep_ms(1)
    simulator.check(work.done(), f"{operation} waits")
    if not work.done():
        return -1
    work.result()
    took_ms = (simulator.loop.now - began_s) * 1000
    for each in site.world.bookies.values():
        each.up = True
    await simulator.sleep_ms(30_000)
    await verify(site.world, site.brokers)
    return took_ms


async def _perform(operation: Callable[[Site], Awaitable[None]], site: Site) -> None:
    await operation(site)


@pytest.mark.parametrize("client", [False, True], ids=["client up", "client down"])
@pytest.mark.parametrize("bookie", BOOKIES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_down(operation: str, bookie: str | None, client: bool) -> None:
    for seed in range(6):
        run_simulation(seed, lambda each: available(each, operation, bookie, client=client))


def test_the_open_that_waits_for_a_bookie() -> None:
    """The one "maybe": whoever takes over needs Qw - Qa + 1 = 2 of 3 to say where it ends."""

    async def scenario(simulator: Simulator) -> None:
        site = Site(simulator)
        await site.fill()
        info = site.world.stored()
        assert info is not None
        last = info.ledgers[-1].ledger_id
        members = [x for x, b in site.world.bookies.items() if last in b.ledgers]
        await site.strike(members[0], client=True)
        await site.strike(members[1], client=False)
        opening = simulator.start(site.owner.open())
        await simulator.sleep_ms(60_000)
        simulator.check(not opening.done(), "it was opened without knowing its end")
        site.world.bookies[members[0]].up = True
        await simulator.sleep_ms(WITHIN_MS)
        simulator.check(opening.done(), "it isn't opened though two of three answer")
        site.world.bookies[members[1]].up = True
        await verify(site.world, site.brokers)

    for seed in range(10):
        run_simulation(seed, scenario)


if __name__ == "__main__":
    for name in OPERATIONS:
        row = []
        for which in (None, "b"):
            for is_client in (False, True):
                took = [
                    run_simulation(
                        seed,
                        lambda each, n=name, b=which and f"b{seed % 4}", c=is_client: available(  # type: ignore[misc]
                            each, n, b, client=c
                        ),
                    )
                    for seed in range(24)
                ]
                row.append(f"{sorted(took)[12]:.0f} / {max(took):.0f}")
        print(f"| {name} | " + " | ".join(row) + " |")
