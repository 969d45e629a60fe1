"""Implements the mode in which the leader alone assigns bundles to brokers, by epochs.

A broker that becomes the leader raises the epoch by compare-and-set. Each of its decisions names
its epoch, and brokers refuse a decision with a lower epoch than they know. So a deposed leader that
wakes up and goes on changes nothing, neither in the store nor at a broker.

| node | content | written by |
|---|---|---|
| ``/loadbalance/epoch`` | the epoch, and its leader | the broker that becomes the leader |
| ``/loadbalance/assignments/<bundle>`` | the broker that is to own it, and the epoch | the leader |

A broker needs an assignment to create the node of a bundle without an owner. That node,
which ends with its owner's session, stays the proof of ownership; messages are safe by fencing.
"""

import secrets
from dataclasses import dataclass
from typing import Final

import orjson

from magnetar.metadata.recipes import update
from magnetar.metadata.store import MetadataStore

EPOCH_PATH: Final = "/loadbalance/epoch"
ASSIGNMENTS_ROOT: Final = "/loadbalance/assignments"


@dataclass(frozen=True, slots=True)
class BundleAssignment:
    broker: str
    epoch: int

    def encode(self) -> bytes:
        return orjson.dumps({"broker": self.broker, "epoch": self.epoch})

    @classmethod
    def decode(cls, value: bytes | None) -> "BundleAssignment | None":
        """Parse an assignment; None: the value assigns no broker, or can't be parsed."""
        document = _document(value)
        broker, epoch = document.get("broker"), document.get("epoch")
        return cls(broker, epoch) if isinstance(broker, str) and isinstance(epoch, int) else None


class LeaderEpoch:
    """One broker's view; it never goes back, whatever a lagging server of the store answers."""

    def __init__(self, store: MetadataStore) -> None:
        self._store, self._highest = store, 0

    async def begin(self, leader: str) -> int:
        """Raise the epoch, for a broker that was elected; it is this one's own.

        Raises:
            MetadataError: the store can't tell.
        """
        token = secrets.token_hex(8)  # of this call: known again if its answer gets lost

        def raised(value: bytes | None) -> bytes:
            epoch = max(_epoch_of(value), self._highest) + 1
            return orjson.dumps({"epoch": epoch, "leader": leader, "token": token})

        found = await update(self._store, EPOCH_PATH, raised)
        assert found is not None
        epoch = _epoch_of(found.value)
        self._highest = max(self._highest, epoch)
        return epoch

    async def current(self) -> int:
        """Read the highest epoch seen here; 0: no leader has begun one. Raises MetadataError."""
        found = await self._store.get(EPOCH_PATH)
        self._highest = max(self._highest, _epoch_of(None if found is None else found.value))
        return self._highest

    async def is_current(self, epoch: int) -> bool:
        """Tell whether brokers obey decisions of this epoch. Raises MetadataError."""
        if epoch > self._highest:  # its giver was faster than our server of the store
            self._highest = epoch
        return epoch >= await self.current()

    async def assign(self, bundle: str, broker: str, epoch: int) -> bool:
        """For the leader of an epoch: let a broker own a bundle.

        Returns:
            False: a later epoch has begun; nothing has changed.
        Raises:
            MetadataError: the store can't tell.
        """
        if epoch < await self.current():
            return False
        wanted = BundleAssignment(broker, epoch)

        def assigned(value: bytes | None) -> bytes | None:
            before = BundleAssignment.decode(value)
            if before == wanted or (before is not None and before.epoch > epoch):
                return None
            return wanted.encode()

        found = await update(self._store, f"{ASSIGNMENTS_ROOT}/{bundle}", assigned)
        return found is not None and BundleAssignment.decode(found.value) == wanted

    async def is_assigned(self, bundle: str, broker: str) -> bool:
        """Tell whether a broker may take a bundle without an owner. Raises MetadataError."""
        found = await self._store.get(f"{ASSIGNMENTS_ROOT}/{bundle}")
        assignment = BundleAssignment.decode(None if found is None else found.value)
        if assignment is None or assignment.broker != broker:
            return False
        return await self.is_current(assignment.epoch)


def _epoch_of(value: bytes | None) -> int:
    epoch = _document(value).get("epoch")
    return epoch if isinstance(epoch, int) else 0


def _document(value: bytes | None) -> dict[str, object]:
    try:
        document = orjson.loads(value or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
