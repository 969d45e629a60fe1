"""Planted bugs of dispatch, of who owns a bundle, and of epochs: which world must notice each.

``rotation.py`` plants some of them in each run of CI, ``python -m tests.simulation.rotation --all``
all of them.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.dispatch import shared, single_active
from magnetar.broker.dispatch.delayed_index import DelayedIndex
from magnetar.broker.dispatch.key_selector import StickyRanges
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.position_set import PositionSet
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.bundles.ownership import OwnershipService
from magnetar.loadbalance.leader_epoch import BundleAssignment, LeaderEpoch
from tests.simulation import test_bundles_ownership, test_dispatch, test_leader_epoch
from tests.simulation.plant import Bugs, Plant
from tests.simulation.simulator import VirtualLoop


def _run(make: Callable[[int], Any], steps: int) -> Callable[[int], None]:
    def run(seed: int) -> None:
        world = make(seed)
        for step in range(steps):
            world.step()
            if step % 8 == 0 and hasattr(world, "check_books"):
                world.check_books()
        world.heal()

    return run


def _bundles(make: Any) -> Callable[[int], None]:
    def run(seed: int) -> None:
        # A planted bug may keep it waiting: in virtual time, so that this ends at once.
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(asyncio.wait_for(test_bundles_ownership.run_world(make, seed), 20))

    return run


#: One seed each; an error tells what is violated.
WORLDS: Final[dict[str, Callable[[int], None]]] = {
    "shared": _run(test_dispatch.SharedWorld, test_dispatch.STEPS),
    "key shared": _run(test_dispatch.KeySharedWorld, test_dispatch.STEPS // 2),
    "sticky": _run(test_dispatch.StickyKeySharedWorld, test_dispatch.STEPS // 2),
    "single active": _run(test_dispatch.SingleActiveWorld, test_dispatch.STEPS),
    "ownership": _bundles(test_bundles_ownership.World),
    "giving": _bundles(test_bundles_ownership.GivingWorld),
    "epochs": _bundles(test_leader_epoch.EpochWorld),
}

BUGS: Final = Bugs(lambda world, seed: WORLDS[world](seed))
bug: Final = BUGS.of


# Dispatch


@bug("shared")
def who_leaves_takes_its_entries_along(plant: Plant) -> None:
    def give_back(self: Any, consumer: Any) -> None:
        self._lower_unacked(consumer.unacked)

    plant.set(SharedDispatcher, "_give_back", give_back)


@bug("shared")
def redelivery_forgets_its_counts(plant: Plant) -> None:
    def redeliver(self: Any, consumer: Any, positions: Any) -> int:
        total = int(old(self, consumer, positions))
        self._counts.clear()
        return total

    old = plant.set(SharedDispatcher, "redeliver", redeliver)


@bug("shared")
def permits_replace_each_other(plant: Plant) -> None:
    def on_flow(self: Any, consumer: Any, permits: int) -> None:
        consumer.permits = 0
        old(self, consumer, permits)

    old = plant.set(SharedDispatcher, "on_flow", on_flow)


@bug("shared")
def delayed_entries_come_early(plant: Plant) -> None:
    def on_entries(self: Any, *arguments: Any) -> None:
        *rest, now_ms = arguments
        old(self, *rest, now_ms + 5000)

    old = plant.set(SharedDispatcher, "on_entries", on_entries)


@bug("shared")
def delayed_entries_never_come(plant: Plant) -> None:
    plant.set(DelayedIndex, "take_due", lambda self, now_ms, entries_max: PositionSet())


@bug("key shared")
def a_slot_moves_while_it_has_entries(plant: Plant) -> None:
    def init(self: Any, *arguments: Any, draining: bool) -> None:
        old(self, *arguments, draining=False)

    old = plant.set(KeySharedDispatcher, "__init__", init)


@bug("shared")
def what_is_skipped_stays_pending(plant: Plant) -> None:
    plant.set(SharedDispatcher, "on_mark_delete", lambda self, mark_delete: None)


@bug("shared")
def a_part_of_a_batch_counts_as_the_whole(plant: Plant) -> None:
    plant.set(SharedDispatcher, "on_batch_acked", lambda self, position, remaining: None)


@bug("shared")
def acknowledged_parts_of_a_batch_come_again(plant: Plant) -> None:
    plant.set(shared._DispatchBatch, "_remaining", lambda self, index, messages: messages)


@bug("shared")
def a_seek_goes_on_from_where_it_was(plant: Plant) -> None:
    def rewind(self: Any) -> None:
        position = self.read_position
        old(self)
        self.read_position = position

    old = plant.set(SharedDispatcher, "rewind", rewind)


@bug("shared")
def a_read_from_before_a_seek_is_taken(plant: Plant) -> None:
    def rewind(self: Any) -> None:
        generation = self.generation
        old(self)
        self.generation = generation

    old = plant.set(SharedDispatcher, "rewind", rewind)


@bug("shared")
def a_read_that_finds_a_later_ledger_stays_before_it(plant: Plant) -> None:
    def on_entries(self: Any, request: Any, batch: Any, *more: Any) -> None:
        old(self, request, batch, *more)
        if request.position is not None and request.position[0] < batch.ledger_id:
            self.read_position = request.position

    old = plant.set(SharedDispatcher, "on_entries", on_entries)


@bug("sticky")
def a_sticky_range_has_no_end(plant: Plant) -> None:
    def owner(self: Any, slot: int) -> Any:
        at = bisect_right(self._order, (slot, 1 << 16)) - 1
        return self._owners[at] if at >= 0 else None

    plant.set(StickyRanges, "owner", owner)


@bug("single active")
def acknowledged_parts_of_a_batch_are_sent_in_order_again(plant: Plant) -> None:
    def on_entries(self: Any, request: Any, batch: Any, acked: Any, sets: Any, now: int) -> None:
        old(self, request, batch, acked, None, now)

    old = plant.set(SingleActiveDispatcher, "on_entries", on_entries)


@bug("single active")
def a_switch_goes_on_from_where_it_was(plant: Plant) -> None:
    def choose(self: Any, now_ms: int) -> None:
        position = self.read_position
        old(self, now_ms)
        self.read_position = position

    old = plant.set(SingleActiveDispatcher, "_choose", choose)


@bug("single active")
def a_read_of_before_is_taken(plant: Plant) -> None:
    def rewind(self: Any) -> None:
        generation = self.generation
        old(self)
        self.generation = generation

    old = plant.set(SingleActiveDispatcher, "rewind", rewind)


@bug("single active")
def markers_reach_consumers(plant: Plant) -> None:
    plant.set(single_active, "FLAG_MARKER", 0)


# Who owns a bundle


@bug("ownership")
def a_lost_session_still_proves(plant: Plant) -> None:
    def owns_nowait(self: Any, topic: str) -> bool:
        bundle = self.bundle_of_nowait(topic)
        return bool(bundle is not None and bundle in self._owned)

    plant.set(OwnershipService, "owns_nowait", owns_nowait)


@bug("ownership")
def a_bundle_is_given_up_before_it_is_unloaded(plant: Plant) -> None:
    async def release(self: Any, bundle: str, new_owner: Any = None) -> bool:
        owned = self._owned.get(bundle)
        if owned is None or owned.unloading:
            return False
        await owned.lock.release()
        self._owned.pop(bundle, None)
        return True

    plant.set(OwnershipService, "release", release)


@bug("ownership")
def a_lost_bundle_stays_loaded(plant: Plant) -> None:
    async def run_unload(self: Any, bundle: str) -> None:
        return

    plant.set(OwnershipService, "_run_unload", run_unload)


@bug("giving")
def a_bundle_that_is_expected_is_never_given_up(plant: Plant) -> None:
    def expect(self: Any, bundle: str, given_up: Any, giver: Any = None) -> Any:
        return old(self, bundle, asyncio.Event(), giver)

    old = plant.set(OwnershipService, "expect", expect)


# Epochs


@bug("epochs")
def a_deposed_leader_assigns(plant: Plant) -> None:
    async def current(self: Any) -> int:
        return 0

    plant.set(LeaderEpoch, "current", current)


@bug("epochs")
def an_older_assignment_replaces_a_later_one(plant: Plant) -> None:
    def decode(cls: Any, value: Any) -> Any:
        found = old(cls, value)
        return None if found is None else BundleAssignment(found.broker, 0)

    old = plant.set(BundleAssignment, "decode", classmethod(decode))


@bug("epochs")
def two_leaders_share_an_epoch(plant: Plant) -> None:
    async def begin(self: Any, leader: str) -> int:
        return int(max(1, await self.current()))

    plant.set(LeaderEpoch, "begin", begin)


@bug("epochs")
def an_assignment_of_an_ended_epoch_is_obeyed(plant: Plant) -> None:
    async def is_current(self: Any, epoch: int) -> bool:
        return True

    plant.set(LeaderEpoch, "is_current", is_current)
