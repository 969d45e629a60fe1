"""``produce``, ``consume`` and ``read`` ask brokers by the binary protocol.

Works against any Pulsar-compatible broker. One connection per broker, on the command's event loop.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, Self
from urllib.parse import urlsplit

from magnetar.broker.cli.errors import CliError, RefusedError, UnreachableError
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import MAX_MESSAGE_BYTES
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName

REDIRECTS_MAX = 20
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


class ClusterClient:
    """Connections to all brokers that a command needs, each made when it is; a context manager.

    All methods raise CliError or BrokerError.
    """

    def __init__(self, target: ClusterTarget) -> None:
        self._target, self._access = target, target.access
        _, _, self._over_tls = _address(target.service_url)
        self._connections: dict[str, AsyncClientConnection] = {}
        self.message_bytes_max = MAX_MESSAGE_BYTES
        """Largest message with its metadata that the brokers take."""

    async def __aenter__(self) -> Self:
        await self._connection(self._target.service_url)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections without a word; what is asked next makes new ones."""
        for connection in self._connections.values():
            connection.close()

    async def _connection(self, url: str) -> AsyncClientConnection:
        if (known := self._connections.get(url)) is not None and not known.closed:
            return known
        host, port, over_tls = _address(url)
        server_name, by = host if over_tls else None, ""
        if proxy_url := self._target.proxy_url:
            if not over_tls:
                raise CliError(f"{url}: a proxy needs a URL with TLS (pulsar+ssl://)")
            # It forwards by the name that TLS tells it (SNI).
            (host, port, _), by = _address(proxy_url), f" by way of {proxy_url}"
        connection = AsyncClientConnection(url, self._login)
        tls = self._access.tls() if over_tls else None
        try:
            connected = await connection.connect(
                host, port, "magnetar-cli", tls=tls, server_name=server_name
            )
        except ServiceNotReadyError as error:
            named_by = "" if url == self._target.service_url else self._target.service_url
            raise UnreachableError(
                f"{error}{by}", self._target.proxy_url or url, named_by
            ) from error
        self.message_bytes_max = connected.max_message_size or MAX_MESSAGE_BYTES
        self._connections[url] = connection
        return connection

    async def _login(self) -> tuple[tuple[str, bytes], None]:
        # In a thread: OAuth 2.0 asks its issuer.
        return (self._access.method, await asyncio.to_thread(self._access.data)), None

    async def _ask(self, command: Any) -> Any:
        return await (await self._connection(self._target.service_url)).call(command)

    async def parts(self, topic: TopicName) -> list[TopicName]:
        """A topic's partitions; itself when it has none. Creates what may be created."""
        if topic.partition_index >= 0:
            return [topic]
        answer = await self._ask(pb.CommandPartitionedTopicMetadata(topic=str(topic)))
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise await self._refused(topic, answer)
        return [topic.partition(index) for index in range(answer.partitions)] or [topic]

    async def owner(self, topic: TopicName) -> AsyncClientConnection:
        """The connection to the broker that serves a topic."""
        asked, authoritative = self._target.service_url, False
        for _ in range(REDIRECTS_MAX):
            command = pb.CommandLookupTopic(
                topic=str(topic),
                authoritative=authoritative,
                advertised_listener_name=self._target.listener_name or None,
            )
            answer = await (await self._connection(asked)).call(command)
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise await self._refused(topic, answer)
            asked, authoritative = self._url_in(answer), answer.authoritative
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                if answer.proxy_through_service_url:
                    asked = self._target.service_url
                return await self._connection(asked)
        raise CliError(f"{topic}: too many redirects")

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

    def _url_in(self, answer: pb.CommandLookupTopicResponse) -> str:
        """Raises CliError: over TLS we don't leave it."""
        if not self._over_tls:
            return answer.brokerServiceUrl
        if not answer.brokerServiceUrlTls:
            raise CliError(f"{answer.brokerServiceUrl} has no address for TLS")
        return answer.brokerServiceUrlTls

    async def topics(self, namespace: str, *, persistent: bool) -> list[str]:
        """Full names of the topics in a namespace, each partition on its own."""
        modes = pb.CommandGetTopicsOfNamespace
        mode = modes.PERSISTENT if persistent else modes.NON_PERSISTENT
        answer = await self._ask(pb.CommandGetTopicsOfNamespace(namespace=namespace, mode=mode))
        return list(answer.topics)

    async def schema(self, topic: str, version: bytes) -> pb.Schema | None:
        """A version of a topic's schema; None: there is none."""
        command = pb.CommandGetSchema(topic=topic, schema_version=version or None)
        answer = await self._ask(command)
        return answer.schema if answer.HasField("schema") else None


def _address(url: str) -> tuple[str, int, bool]:
    """Host, port, and whether it is for TLS. Raises CliError: no service URL."""
    parts = urlsplit(url)
    over_tls = parts.scheme == "pulsar+ssl"
    try:
        if parts.scheme in ("pulsar", "pulsar+ssl") and parts.hostname is not None:
            return parts.hostname, parts.port or (6651 if over_tls else 6650), over_tls
    except ValueError:  # of the port
        pass
    raise CliError(f"{url}: not a service URL (pulsar://host:port)")
