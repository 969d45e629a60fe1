"""Placement by free space, as real bookies tell it over the network."""

import random
from pathlib import Path

from magnetar.bookkeeper.client.placement import PlacementConfig
from magnetar.bookkeeper.client.pool_placement import FreeSpace, placement_for
from tests.integration.bookkeeper_network import Network, eventually


async def test_bookies_tell_their_free_space_and_newcomers_are_asked(tmp_path: Path) -> None:
    network = Network(tmp_path)
    await network.start("b0")
    await network.pool.start()
    space = FreeSpace(network.pool, interval_s=3600, retry_s=0.05)
    space.start()
    await eventually(lambda: space.free_bytes("b0") > 0)
    info = await network.pool.client("b0").info()
    assert space.free_bytes("b0") <= info.total_bytes
    await network.start("b1")
    await eventually(lambda: space.free_bytes("b1") > 0)
    await network.stop("b1")
    await eventually(lambda: space.free_bytes("b1") == 0)
    await space.close()
    await network.close()


async def test_a_ledger_is_placed_by_weight_on_real_bookies(tmp_path: Path) -> None:
    network = Network(tmp_path)
    for number in range(3):
        await network.start(f"b{number}")
    await network.pool.start()
    config = PlacementConfig("rack-aware", by_free_space=True)
    async with placement_for(config, network.pool, random.Random(1)) as placement:
        ensemble = placement.new_ensemble(2, 2, 2, network.pool.writable)
        newcomer = placement.replace_bookie(
            0, ensemble, 2, network.pool.writable.difference(ensemble)
        )
    assert {*ensemble, newcomer} == {"b0", "b1", "b2"}
    await network.close()
