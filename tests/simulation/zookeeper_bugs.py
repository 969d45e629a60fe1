"""Does the simulation bite? `python -m tests.simulation.zookeeper_bugs [SEEDS] [BUG] [NEAR]`.

Each bug is planted into the ZooKeeper store of a process of its own, in which the scenario runs for
so many seeds; the table says how many of them notice.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

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
from tests.simulation.simulator import run_simulation
from tests.simulation.test_metadata_zookeeper import scenario

_OLD: dict[str, Any] = {
    name: getattr(SessionCore, name)
    for name in (
        *("_on_frame", "_lose", "_on_connected", "_announce", "_hand_back", "connection_made"),
    )
}


def _resolve_by(rule: Callable[..., WriteOutcome | None]) -> None:
    def resolved(
        change: UnansweredChange, zxid: int, own: int, node: Any, *rest: Any
    ) -> WriteOutcome:
        return rule(change, node) or resolve_outcome(change, zxid, own, node, *rest)

    vars(writes)["resolve_outcome"] = resolved


def always_sent_again() -> None:
    _resolve_by(lambda change, node: WriteOutcome.NOT_APPLIED)


def an_equal_value_proves() -> None:
    def rule(change: UnansweredChange, node: NodeState | None) -> WriteOutcome | None:
        is_equal = node is not None and node.value == change.value
        return WriteOutcome.APPLIED if is_equal and change.action is not ChangeKind.DELETE else None

    _resolve_by(rule)


def missing_means_not_applied() -> None:
    _resolve_by(lambda change, node: WriteOutcome.NOT_APPLIED if node is None else None)


def resolved_by_a_later_zxid() -> None:
    vars(writes)["resolve_outcome"] = lambda change, zxid, *rest: resolve_outcome(
        change, zxid + 3, *rest
    )


def no_sync() -> None:
    real = ZooKeeperWrites._ask_about

    async def without(self: ZooKeeperWrites, path: str, lost: Any, *calls: Any) -> Any:
        return await real(self, path, lost, *(calls[1:] if len(calls) == 3 else calls))

    ZooKeeperWrites._ask_about = without  # type: ignore[method-assign]


def lost_too_late() -> None:
    session._LOST_AFTER = 1.2


def contact_by_receipt() -> None:
    def on_frame(self: Any, frame: bytes, now: float) -> Any:
        result = _OLD["_on_frame"](self, frame, now)
        self._contact = max(self._contact, now)
        return result

    SessionCore._on_frame = on_frame  # type: ignore[method-assign]


def no_end_of_the_session() -> None:
    def lose(self: Any) -> None:
        _OLD["_lose"](self)
        self._resume_id, self._password = 0, bytes(16)

    SessionCore._lose = lose  # type: ignore[method-assign]


def watch_not_restored() -> None:
    def on_connected(self: Any, frame: bytes, now: float) -> Any:
        if self._connected_once:
            self._watches = []
        return _OLD["_on_connected"](self, frame, now)

    SessionCore._on_connected = on_connected  # type: ignore[method-assign]


def reconnect_not_announced() -> None:
    def announce(self: Any) -> None:
        _OLD["_announce"](self)
        self._effects = [each for each in self._effects if each is not SessionEvent.RECONNECTED]

    SessionCore._announce = announce  # type: ignore[method-assign]


def under_way_means_no_effect() -> None:
    def hand_back(self: Any, call: Any, code: int) -> None:
        _OLD["_hand_back"](self, call, SESSION_ENDED if code == LOST and self.lost else code)

    SessionCore._hand_back = hand_back  # type: ignore[method-assign]


def no_last_zxid() -> None:
    def connection_made(self: Any, now: float, within_s: float) -> None:
        zxid, self.last_zxid = self.last_zxid, 0
        _OLD["connection_made"](self, now, within_s)
        self.last_zxid = zxid

    SessionCore.connection_made = connection_made  # type: ignore[method-assign, assignment]


def none() -> None:
    pass


BUGS = {
    plant.__name__: plant
    for plant in (
        *(
            none,
            always_sent_again,
            resolved_by_a_later_zxid,
            no_end_of_the_session,
            missing_means_not_applied,
        ),
        *(no_sync, watch_not_restored, lost_too_late, reconnect_not_announced, contact_by_receipt),
        *(an_equal_value_proves, under_way_means_no_effect, no_last_zxid),
    )
}


def _notices(seed: int) -> bool:
    try:
        run_simulation(seed, scenario)
    except AssertionError:
        return True
    return False


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if len(sys.argv) > 2:
        logging.disable()
        BUGS[sys.argv[2]]()
        if sys.argv[3:]:  # the search begins with this seed and ends with the first that notices
            near = int(sys.argv[3])
            found = next((seed for seed in (near, *range(count)) if _notices(seed)), None)
            print(f"{sys.argv[2]}: seed {found}")
            return
        print(f"{sys.argv[2]}: {sum(_notices(seed) for seed in range(count))} of {count}")
        return
    for name in BUGS:
        subprocess.run([sys.executable, "-m", __spec__.name, str(count), name], check=True)


if __name__ == "__main__":
    main()
