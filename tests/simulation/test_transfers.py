"""Transfers whose coordinator, topics and clients end at any step keep every promise.

Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest <this file>
"""

import pytest

from magnetar.broker.transaction import buffer, coordinator, pending_acks
from tests.simulation.plant import Plant, planted
from tests.simulation.simulator import seeds
from tests.simulation.transfer_world import TransferWorld


def small(plant: Plant) -> None:
    """Limits of the product that a short run reaches."""
    plant.set(coordinator, "REPLAY_MIN", 20)
    plant.set(coordinator, "_TRIM_STEP", 3)
    plant.set(buffer, "SNAPSHOT_ENTRIES", 12)
    plant.set(buffer, "SEALED_COUNT", 4)
    plant.set(pending_acks, "CUT_WEIGHT_MIN", 12)
    plant.set(pending_acks, "APPLIED_AT_ONCE", 1)


def run_transfers(seed: int) -> TransferWorld:
    with planted(small):
        world = TransferWorld(seed)
        found = world.run()
    assert found == [], "; ".join(f"{each.anomaly.name} {each.text}" for each in found)
    return world


@pytest.mark.parametrize("seed", seeds(8))
def test_whatever_ends_transfers_keep_their_promises(seed: int) -> None:
    world = run_transfers(seed)
    assert any(each.committed is not None for each in world.history.transfers.values())
