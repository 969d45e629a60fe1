"""``produce``, ``consume`` and ``read`` ask brokers by the binary protocol."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from magnetar.broker.cli.errors import CliError, RefusedError, UnreachableError
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName

_STATUSES: Final = {
    pb.AuthenticationError: 401,
    pb.AuthorizationError: 403,
    pb.TopicNotFound: 404,
}
"""HTTP's word for what a lookup is refused with."""


def run_command(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of a command that is a client. Raises CliError: what a broker refused."""
    try:
        return asyncio.run(work)
    except BrokerError as error:
        text = f"{pb.ServerError.Name(error.wire_code)}: {error}"
        raise RefusedError(text, error.http_status) from error


def is_websocket(service_url: str) -> bool:
    """Whether it is for the WebSocket API."""
    return service_url.startswith(("ws://", "wss://"))


def topic_name(text: str) -> TopicName:
    """Raises CliError: it is none."""
    try:
        return TopicName.parse(text)
    except InvalidTopicNameError as error:
        raise CliError(str(error)) from error


class CommandClient(ClusterClient):
    """The client of a command: its failures are the command line's.

    All methods raise CliError or BrokerError.
    """

    def __init__(self, target: ClusterTarget) -> None:
        self._target = target
        super().__init__(
            target.service_url,
            target.access,
            client_version="magnetar-cli",
            listener_name=target.listener_name,
            proxy_url=target.proxy_url,
        )

    def _wrong(self, text: str) -> CliError:
        return CliError(text)

    def _unreachable(self, error: ServiceNotReadyError, url: str) -> UnreachableError:
        proxy_url = self._target.proxy_url
        by = f" by way of {proxy_url}" if proxy_url else ""
        named_by = "" if url == self._target.service_url else self._target.service_url
        return UnreachableError(f"{error}{by}", proxy_url or url, named_by)

    async def _refused(
        self,
        topic: TopicName,
        answer: pb.CommandPartitionedTopicMetadataResponse | pb.CommandLookupTopicResponse,
    ) -> RefusedError:
        """Of a topic that isn't there with the names that are like it."""
        text, status = f"{topic}: {answer.message}", _STATUSES.get(answer.error, 500)
        if status == 404:
            from magnetar.broker.cli.names import like

            with contextlib.suppress(BrokerError):
                known = await self.topics(topic.namespace, persistent=topic.is_persistent)
                local = sorted({TopicName.parse(name).base.local for name in known})
                text = f"{text}\n{like('topic', topic.local, topic.namespace, local)}"
        return RefusedError(text, status)
