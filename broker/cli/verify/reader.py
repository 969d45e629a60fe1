"""Reads all that a topic stores, at the end, by a subscription that never acknowledges; and a part
of it, from a message id on, without one.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from magnetar.broker.cli.binary_client import CommandClient
from magnetar.broker.cli.verify.attempts import retried
from magnetar.broker.cli.verify.receiver import ReceivedEntry, Receiver
from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.errors import BrokerError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.history import (
    Event,
    MessageName,
    Position,
    ReaderHistory,
    SubscriptionType,
)
from magnetar.broker.verify.plan import MARKER

SUBSCRIPTION = "reader"
"""The subscription's name. While it is there, nothing is removed from the topic."""

_READ_MAX: Final = 60
_READ_S: Final = 2.0


class Reader:
    """Makes that subscription, and reads it once; the owner of its receivers."""

    type = SubscriptionType.EXCLUSIVE

    def __init__(self, client: CommandClient, topic: TopicName, patience_s: float) -> None:
        self.next_ack: Callable[[], int] = lambda: 0
        self._client, self._topic, self._patience_s = client, topic, patience_s
        self._stored: list[tuple[Position, MessageName | None]] = []
        self._came = asyncio.Event()
        self._done = False

    async def keep(self) -> None:
        """Before the first message. Raises NoProgressError."""
        receiver = await self._open()
        await receiver.close()

    async def read(self) -> list[tuple[Position, MessageName | None]]:
        """Everything up to the marker, or what comes before nothing comes any more.

        Raises:
            NoProgressError: it isn't let in.
        """
        receiver = await self._open()
        while not self._done:
            self._came.clear()
            came = asyncio.ensure_future(self._came.wait())
            ended = asyncio.ensure_future(receiver.ended.wait())
            done, late = await asyncio.wait(
                (came, ended), timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            for each in late:
                each.cancel()
            if not done:
                break
            if ended in done:
                receiver = await self._open()
        if not receiver.ended.is_set():
            await receiver.unsubscribe()
        return self._stored

    async def _open(self) -> Receiver:
        self._stored = []
        return await retried(f"{self._topic}: no reader", self._subscribe, self._patience_s)

    async def _subscribe(self) -> Receiver:
        connection = await self._client.owner(self._topic)
        return await Receiver(self, connection, 0, SUBSCRIPTION).open(
            str(self._topic), SUBSCRIPTION
        )

    # --- the owner of a receiver

    def note(self, event: Event) -> None:
        """What is stored matters alone."""

    def on_entry(self, receiver: Receiver, entry: ReceivedEntry) -> None:
        self._stored += zip(entry.positions, entry.messages, strict=True)
        self._done = entry.messages[-1] is not None and entry.messages[-1][0] == MARKER
        self._came.set()


class PassingReader:
    """Reads some entries, and leaves; the owner of its receiver. It is judged by what it read."""

    type = SubscriptionType.EXCLUSIVE

    def __init__(self, topic: TopicName, history: ReaderHistory) -> None:
        self.next_ack: Callable[[], int] = lambda: 0
        self._topic, self._history = topic, history
        self._enough = asyncio.Event()

    async def read(self, connection: AsyncClientConnection) -> None:
        """Raises BrokerError: it isn't let in."""
        receiver = Receiver(self, connection, 0, self._history.name)
        await receiver.open(str(self._topic), self._history.name, start=self._history.start)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_S):
                await self._enough.wait()
        if not receiver.ended.is_set():
            with contextlib.suppress(BrokerError):
                await receiver.close()

    # --- the owner of a receiver

    def note(self, event: Event) -> None:
        """What is read matters alone."""

    def on_entry(self, receiver: Receiver, entry: ReceivedEntry) -> None:
        self._history.read += zip(entry.positions, entry.messages, strict=True)
        if len(self._history.read) >= _READ_MAX:
            self._enough.set()
