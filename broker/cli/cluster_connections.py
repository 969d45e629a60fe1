"""Connections to all brokers that a command needs, and the frames of all of them."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from magnetar.broker.cli.binary_client import BinaryClient, Frame
from magnetar.broker.cli.errors import CliError
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName

if TYPE_CHECKING:
    from magnetar.broker.cli.profiles import ClusterTarget


def is_websocket(service_url: str) -> bool:
    """Whether it is for the WebSocket API."""
    return service_url.startswith(("ws://", "wss://"))


def topic_name(text: str) -> TopicName:
    """Raises CliError: it is none."""
    try:
        return TopicName.parse(text)
    except InvalidTopicNameError as error:
        raise CliError(str(error)) from error


class ClusterConnections:
    """One connection a broker, made when a topic of it is needed; a context manager."""

    def __init__(self, target: ClusterTarget) -> None:
        """Raises CliError: nobody listens there, it isn't a broker, or doesn't let us in."""
        self._access = target.access
        self._proxy = target.proxy_url
        self._listener_name = target.listener_name
        self.first = BinaryClient(target.service_url, self._access, proxy_url=self._proxy)
        self._clients = {self.first.service_url: self.first}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.first, selectors.EVENT_READ, self.first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for client in self._clients.values():
            client.close()

    def parts(self, topic: TopicName) -> list[TopicName]:
        """A topic's partitions; itself when it has none."""
        if topic.partition_index >= 0:
            return [topic]
        count = self.first.partitions(str(topic))
        return [topic.partition(index) for index in range(count)] if count else [topic]

    def client_for(self, topic: TopicName) -> BinaryClient:
        """The connection to a topic's owner."""
        url = self.first.owner(str(topic), self._listener_name)
        if url not in self._clients:
            client = self._clients[url] = BinaryClient(url, self._access, proxy_url=self._proxy)
            self._selector.register(client, selectors.EVENT_READ, client)
        return self._clients[url]

    def next_message(self, timeout_s: float | None) -> tuple[BinaryClient, Frame] | None:
        """The next message of any broker; None when the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            for client in self._clients.values():
                if (frame := client.wait_for(client.messages, 0.0)) is not None:
                    return client, frame
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            for client in self._ready(left):
                client.receive_ready()

    def _ready(self, timeout_s: float | None) -> Iterator[BinaryClient]:
        for key, _ in self._selector.select(timeout_s):
            yield key.data
