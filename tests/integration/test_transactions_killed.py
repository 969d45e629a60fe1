"""A broker that is killed at each step of transfers between topics: no promise is broken."""

import random
import threading
from pathlib import Path

import pytest

from tests.nightly import NIGHTLY
from tests.simulation import rotation
from tests.standalone_process import StandaloneProcess
from tests.transfer_traffic import Step, TransferClients
from tests.waiting import wait_until

KILLS = 60 if NIGHTLY else 2
_TOPICS = [f"persistent://public/default/transfers-{name}" for name in "abc"]
_ALL = "persistent://public/default/transfers-all"


@pytest.mark.slow
def test_a_broker_killed_at_each_step(tmp_path: Path) -> None:
    seed = rotation.turn()
    rng = random.Random(seed)
    steps = list(Step)
    wanted: Step | None = None
    reached = threading.Event()

    def on_step(step: Step) -> None:
        if step == wanted:
            reached.set()

    options = ("--set", "transactionCoordinatorEnabled=true")
    with StandaloneProcess(tmp_path / "data", *options) as broker:
        clients = TransferClients(
            lambda: [broker.admin_url], _TOPICS, _ALL, 1, seed, on_step=on_step
        )
        clients.start()
        for number in range(KILLS):
            mark = clients.committed + rng.randint(1, 60)
            wait_until(
                lambda mark=mark: clients.committed > mark,  # type: ignore[misc]
                lambda: f"transfers go on: {clients.refusals.most_common(5)}",
            )
            reached.clear()
            wanted = steps[(seed * KILLS + number) % len(steps)]
            assert reached.wait(60), wanted
            broker.kill()
            broker.start()
        mark = clients.committed
        wait_until(lambda: clients.committed > mark + 10, "transfers go on")
        clients.stop()
        found = clients.found()
        print(f"seed {seed}: {clients.committed} transfers, {clients.refusals.most_common(4)}")
        assert found == []
