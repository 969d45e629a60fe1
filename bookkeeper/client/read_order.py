"""Which replica a read asks first: four classes by place, load and failures. Pure.

Rules: docs/spec/storage.md, "Order of reads". Purpose: lower latency, and fewer bytes that are paid
for between zones, also in a system that has run for long and seen failures.

1. in the client's zone, eligible, few pending requests
2. in other zones, eligible, few pending requests
3. in the client's zone, all others: fewest failures first
4. in other zones, all others: fewest failures first

Eligible: registered, no failure in recent memory, not in quarantine. Inside the first two classes
the order that the caller gives stays (the rotation of the write set), which spreads the load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class ReplicaClass(Enum):
    """Values are the names used in settings."""

    LOCAL = "local"
    REMOTE = "remote"
    LOCAL_LATER = "local-later"
    REMOTE_LATER = "remote-later"


DEFAULT_CLASSES: Final = (
    ReplicaClass.LOCAL,
    ReplicaClass.REMOTE,
    ReplicaClass.LOCAL_LATER,
    ReplicaClass.REMOTE_LATER,
)


@dataclass(slots=True)
class ReplicaState:
    """What a client knows of a bookie.

    Attributes:
        is_local: in the client's zone; also when the client's place isn't known.
        is_registered: it may answer; read-only bookies are registered, too.
        is_quarantined: it failed too often.
        failures: of this client's requests, in recent memory.
        pending: requests of this client, of all kinds, that it hasn't answered.
    """

    is_local: bool = True
    is_registered: bool = True
    is_quarantined: bool = False
    failures: int = 0
    pending: int = 0


def replica_class(state: ReplicaState, pending_max: int) -> ReplicaClass:
    """The class of one bookie.

    Args:
        pending_max: more pending requests than this are too many; 0: never.
    """
    is_eligible = state.is_registered and not state.is_quarantined and not state.failures
    if is_eligible and (not pending_max or state.pending <= pending_max):
        return ReplicaClass.LOCAL if state.is_local else ReplicaClass.REMOTE
    return ReplicaClass.LOCAL_LATER if state.is_local else ReplicaClass.REMOTE_LATER


def order_replicas(
    slots: Sequence[int],
    state_of: Callable[[int], ReplicaState],
    *,
    pending_max: int = 0,
    classes: Sequence[ReplicaClass] = DEFAULT_CLASSES,
) -> list[int]:
    """``slots`` in the order in which a read should ask them; all of them, each once.

    Args:
        slots: of the ensemble, in the rotation of the write set.
        classes: their order; every class once.
    """
    if len(slots) == 1:
        return list(slots)
    keys: dict[int, tuple[int, bool, int, bool, int]] = {}
    for place, slot in enumerate(slots):
        state = state_of(slot)
        found = replica_class(state, pending_max)
        rank = classes.index(found)
        if found in (ReplicaClass.LOCAL, ReplicaClass.REMOTE):
            keys[slot] = (rank, False, 0, False, place)
        else:
            # Who isn't registered hardly answers at all, however few failures it had.
            is_bad = not state.is_registered
            keys[slot] = (rank, is_bad, state.failures, state.is_quarantined, place)
    return sorted(slots, key=keys.__getitem__)
