"""Elects the leader: it places bundles without an owner, and moves bundles from busy brokers.

Being leader is a hint only. Two brokers can both believe it for as long as a lost session isn't
noticed, so what a leader decides must be harmless when two decide: placing ends in the creation of
one node, and a bundle is moved by its owner alone.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

from magnetar.metadata.coordination import LeaderElection, LeaderState
from magnetar.metadata.recipes import CachedValues
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

LEADER_PATH: Final = "/loadbalance/leader"


@dataclass(frozen=True, slots=True)
class LeaderBroker:
    """Pulsar's LeaderBroker, value of the leader's node."""

    broker_id: str
    service_url: str  # of its HTTP interface
    incarnation: int = field(default=0, compare=False)  # of a broker's processes the later: higher

    def encode(self) -> bytes:
        document: dict[str, object] = {"brokerId": self.broker_id, "serviceUrl": self.service_url}
        if self.incarnation:
            document["incarnation"] = self.incarnation
        return orjson.dumps(document)

    @classmethod
    def decode(cls, value: bytes) -> "LeaderBroker | None":
        """None: not the value of a leader's node."""
        try:
            document = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(document, dict):
            return None
        url = document.get("serviceUrl")
        if not isinstance(url, str):
            return None
        # Pulsar before 3.0 stored the URL alone.
        broker_id = document.get("brokerId") or url.rpartition("//")[2]
        if not isinstance(broker_id, str):
            return None
        incarnation = document.get("incarnation")
        return cls(broker_id, url, incarnation if isinstance(incarnation, int) else 0)

    def is_successor_of(self, value: bytes) -> bool:
        """Tell whether the value names this process, or an earlier one of this broker."""
        other = LeaderBroker.decode(value)
        return other == self and other is not None and other.incarnation <= self.incarnation


class BrokerElection:
    """This broker's part in the election, from ``start`` to ``close``."""

    def __init__(
        self, store: MetadataStore, me: LeaderBroker, on_leading: Callable[[bool], None]
    ) -> None:
        """
        Args:
            me: no other broker has the same id and URL.
            on_leading: called on the loop whenever this broker begins or ends to lead; the end at
                once when its session is lost.
        """
        self.is_leader = False
        self._me, self._on_leading = me, on_leading
        self._election = LeaderElection(
            *(store, LEADER_PATH, me.encode(), self._on_state, me.is_successor_of)
        )
        self._stored: CachedValues[LeaderBroker | None] = CachedValues(
            store, LEADER_PATH, lambda _, value: LeaderBroker.decode(value)
        )

    async def start(self) -> None:
        """Run for the seat; from now on also whenever it becomes free."""
        await self._election.elect()

    async def leader(self) -> LeaderBroker | None:
        """Read the leader from the store; None: there is no leader now.

        Raises:
            MetadataError: the store can't tell.
        """
        if self.is_leader:
            return self._me
        found = await self._stored.get(LEADER_PATH)
        return None if found is None else found.value

    async def close(self) -> None:
        """Step down, and take part no more."""
        await self._election.close()
        self._stored.close()

    def _on_state(self, state: LeaderState) -> None:
        leading = state is LeaderState.LEADING
        if leading is not self.is_leader:
            self.is_leader = leading
            logger.info("this broker %s", "leads now" if leading else "leads no more")
            self._on_leading(leading)
