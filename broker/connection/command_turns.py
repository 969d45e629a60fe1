"""How many commands a broker takes in one tick of its loop, and whose turn it is with the rest.

Each connection on its own bounded what it took of one read. With 50 connections that acknowledge
what 10,000 subscriptions were sent, a tick took 50 times that, and a message of another client
needs several ticks. So the bound is one of all connections, and each still has a few commands at
once: one that sends few of them waits for nobody.
"""

import asyncio
from typing import Final

from magnetar.broker.dispatch.async_turn_queue import AsyncTurnQueue
from magnetar.broker.dispatch.turn_queue import Turn

COST_PER_TURN: Final = 256
"""What is taken in a tick but SENDs: an ACK or a FLOW costs 1, another command as below."""
COMMAND_COST: Final = 4
OPENING_COST: Final = 16
"""Of a command that opens a consumer or a producer: the ticks behind it have work of it."""
IDS_PER_COST: Final = 32
"""An ACK costs 1 more for so many ids that it names."""
_AT_ONCE: Final = 2 * COMMAND_COST


class CommandTurns:
    """Connections that have more commands than a tick has room for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._turns = loop, AsyncTurnQueue(loop)
        self.left = COST_PER_TURN
        """What the next read of this tick may cost."""

    def spend(self, cost: int) -> None:
        """A read of this tick cost so much."""
        if cost > _AT_ONCE:
            if self.left == COST_PER_TURN:
                self._loop.call_soon(self._renew)
            self.left = max(_AT_ONCE, self.left - cost)

    def _renew(self) -> None:
        self.left = COST_PER_TURN

    def add(self, connection: object, turn: Turn) -> None:
        """Take ``turn``, which may cost ``COST_PER_TURN``, in a later tick.

        A connection whose turns took less time than those of others comes first.
        """
        self._turns.add(connection, turn)
