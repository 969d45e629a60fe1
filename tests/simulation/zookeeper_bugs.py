"""Does the simulation of the ZooKeeper store bite? Bugs that ``rotation.py`` plants."""

from collections.abc import Callable
from typing import Any, Final

from magnetar.metadata.store import SessionEvent
from magnetar.metadata.zookeeper import session, writes
from magnetar.metadata.zookeeper.session import LOST, SESSION_ENDED, SessionCore
from magnetar.metadata.zookeeper.unknown_outcome import (
    ChangeKind,
    NodeState,
    UnansweredChange,
    WriteOutcome,
    resolve_outcome,
)
from magnetar.metadata.zookeeper.writes import ZooKeeperWrites
from tests.simulation.plant import Bugs, Plant
from tests.simulation.simulator import run_simulation
from tests.simulation.test_metadata_zookeeper import scenario

BUGS: Final = Bugs(lambda _, seed: run_simulation(seed, scenario))
bug: Final = BUGS.of("zookeeper")


def _resolve_by(plant: Plant, rule: Callable[..., WriteOutcome | None]) -> None:
    def resolved(
        change: UnansweredChange, zxid: int, own: int, node: Any, *rest: Any
    ) -> WriteOutcome:
        return rule(change, node) or resolve_outcome(change, zxid, own, node, *rest)

    plant.set(writes, "resolve_outcome", resolved)


@bug
def always_sent_again(plant: Plant) -> None:
    _resolve_by(plant, lambda change, node: WriteOutcome.NOT_APPLIED)


@bug
def an_equal_value_proves(plant: Plant) -> None:
    def rule(change: UnansweredChange, node: NodeState | None) -> WriteOutcome | None:
        is_equal = node is not None and node.value == change.value
        return WriteOutcome.APPLIED if is_equal and change.action is not ChangeKind.DELETE else None

    _resolve_by(plant, rule)


@bug
def missing_means_not_applied(plant: Plant) -> None:
    _resolve_by(plant, lambda change, node: WriteOutcome.NOT_APPLIED if node is None else None)


@bug
def resolved_by_a_later_zxid(plant: Plant) -> None:
    def resolved(change: UnansweredChange, zxid: int, *rest: Any) -> WriteOutcome:
        return resolve_outcome(change, zxid + 3, *rest)

    plant.set(writes, "resolve_outcome", resolved)


@bug
def no_sync(plant: Plant) -> None:
    async def without(self: ZooKeeperWrites, path: str, lost: Any, *calls: Any) -> Any:
        return await old(self, path, lost, *(calls[1:] if len(calls) == 3 else calls))

    old = plant.set(ZooKeeperWrites, "_ask_about", without)


@bug
def lost_too_late(plant: Plant) -> None:
    plant.set(session, "_LOST_AFTER", 1.2)


@bug
def contact_by_receipt(plant: Plant) -> None:
    def on_frame(self: Any, frame: bytes, now: float) -> Any:
        result = old(self, frame, now)
        self._contact = max(self._contact, now)
        return result

    old = plant.set(SessionCore, "_on_frame", on_frame)


@bug
def no_end_of_the_session(plant: Plant) -> None:
    def lose(self: Any) -> None:
        old(self)
        self._resume_id, self._password = 0, bytes(16)

    old = plant.set(SessionCore, "_lose", lose)


@bug
def watch_not_restored(plant: Plant) -> None:
    def on_connected(self: Any, frame: bytes, now: float) -> Any:
        if self._connected_once:
            self._watches = []
        return old(self, frame, now)

    old = plant.set(SessionCore, "_on_connected", on_connected)


@bug
def reconnect_not_announced(plant: Plant) -> None:
    def announce(self: Any) -> None:
        old(self)
        self._effects = [each for each in self._effects if each is not SessionEvent.RECONNECTED]

    old = plant.set(SessionCore, "_announce", announce)


@bug
def under_way_means_no_effect(plant: Plant) -> None:
    def hand_back(self: Any, call: Any, code: int) -> None:
        old(self, call, SESSION_ENDED if code == LOST and self.lost else code)

    old = plant.set(SessionCore, "_hand_back", hand_back)


@bug
def no_last_zxid(plant: Plant) -> None:
    def connection_made(self: Any, *arguments: Any) -> None:
        zxid, self.last_zxid = self.last_zxid, 0
        old(self, *arguments)
        self.last_zxid = zxid

    old = plant.set(SessionCore, "connection_made", connection_made)
