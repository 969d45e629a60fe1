"""Brokers of a cluster, found and connected to as a client of its service URL.

Works against any Pulsar-compatible cluster. One connection per broker, on the event loop.
"""

import asyncio
import ssl
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit

from magnetar.broker.client.async_client_connection import AsyncClientConnection, error_of
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import MAX_MESSAGE_BYTES
from magnetar.broker.protocol.topic_name import TopicName

REDIRECTS_MAX: Final = 20


class ClientAccess(Protocol):
    """Who we are, and whom we trust: a `ClientAuth`."""

    @property
    def method(self) -> str:
        """Of the login, as the protocol names it; "": none."""

    def data(self) -> bytes:
        """What CONNECT carries; may take its time."""

    def tls(self) -> ssl.SSLContext | None:
        """For connections over TLS."""


class ClusterClient:
    """Connections to all brokers that are needed, each made when it is; a context manager.

    All methods raise BrokerError, or what a subclass makes of a failure.
    """

    def __init__(
        self,
        service_url: str,
        access: ClientAccess,
        *,
        client_version: str,
        listener_name: str = "",
        proxy_url: str = "",
    ) -> None:
        """
        Args:
            service_url: ``pulsar://host:port``, or ``pulsar+ssl://``.
            listener_name: "": whatever address a broker gives.
            proxy_url: one that forwards by the name that TLS tells it; "": straight to the brokers.
        Raises:
            BrokerError: not a service URL.
        """
        self._service_url, self._access = service_url, access
        self._client_version = client_version
        self._listener_name, self._proxy_url = listener_name, proxy_url
        _, _, self._over_tls = self._address(service_url)
        self._connections: dict[str, AsyncClientConnection] = {}
        self.message_bytes_max = MAX_MESSAGE_BYTES
        """Largest message with its metadata that the brokers take."""

    async def __aenter__(self) -> Self:
        await self._connection(self._service_url)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections without a word; what is asked next makes new ones."""
        for connection in self._connections.values():
            connection.close()

    # --- what a subclass may tell in its own way

    def _wrong(self, text: str) -> Exception:
        """For an address that can't be used."""
        return BrokerError(text)

    def _unreachable(self, error: ServiceNotReadyError, url: str) -> Exception:
        return error

    async def _refused(
        self,
        topic: TopicName,
        answer: pb.CommandPartitionedTopicMetadataResponse | pb.CommandLookupTopicResponse,
    ) -> Exception:
        return error_of(answer.error, f"{topic}: {answer.message}")

    # --- brokers

    async def _connection(self, url: str) -> AsyncClientConnection:
        if (known := self._connections.get(url)) is not None and not known.closed:
            return known
        host, port, over_tls = self._address(url)
        server_name = host if over_tls else None
        if self._proxy_url:
            if not over_tls:
                raise self._wrong(f"{url}: a proxy needs a URL with TLS (pulsar+ssl://)")
            # It forwards by the name that TLS tells it (SNI).
            host, port, _ = self._address(self._proxy_url)
        connection = AsyncClientConnection(url, self._login)
        tls = self._access.tls() if over_tls else None
        try:
            connected = await connection.connect(
                host, port, self._client_version, tls=tls, server_name=server_name
            )
        except ServiceNotReadyError as error:
            raise self._unreachable(error, url) from error
        self.message_bytes_max = connected.max_message_size or MAX_MESSAGE_BYTES
        self._connections[url] = connection
        return connection

    async def _login(self) -> tuple[tuple[str, bytes], None]:
        # In a thread: OAuth 2.0 asks its issuer.
        return (self._access.method, await asyncio.to_thread(self._access.data)), None

    async def _ask(self, command: Any) -> Any:
        return await (await self._connection(self._service_url)).call(command)

    async def parts(self, topic: TopicName, *, create: bool = True) -> list[TopicName]:
        """A topic's partitions; itself when it has none. With ``create`` makes what may be made."""
        if topic.partition_index >= 0:
            return [topic]
        answer = await self._ask(
            pb.CommandPartitionedTopicMetadata(
                topic=str(topic), metadata_auto_creation_enabled=create
            )
        )
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise await self._refused(topic, answer)
        return [topic.partition(index) for index in range(answer.partitions)] or [topic]

    async def owner(self, topic: TopicName) -> AsyncClientConnection:
        """The connection to the broker that serves a topic."""
        asked, authoritative = self._service_url, False
        for _ in range(REDIRECTS_MAX):
            command = pb.CommandLookupTopic(
                topic=str(topic),
                authoritative=authoritative,
                advertised_listener_name=self._listener_name or None,
            )
            answer = await (await self._connection(asked)).call(command)
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise await self._refused(topic, answer)
            asked, authoritative = self._url_in(answer), answer.authoritative
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                if answer.proxy_through_service_url:
                    asked = self._service_url
                return await self._connection(asked)
        raise self._wrong(f"{topic}: too many redirects")

    def _url_in(self, answer: pb.CommandLookupTopicResponse) -> str:
        """Over TLS we don't leave it."""
        if not self._over_tls:
            return answer.brokerServiceUrl
        if not answer.brokerServiceUrlTls:
            raise self._wrong(f"{answer.brokerServiceUrl} has no address for TLS")
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

    def _address(self, url: str) -> tuple[str, int, bool]:
        """Host, port, and whether it is for TLS."""
        parts = urlsplit(url)
        over_tls = parts.scheme == "pulsar+ssl"
        try:
            if parts.scheme in ("pulsar", "pulsar+ssl") and parts.hostname is not None:
                return parts.hostname, parts.port or (6651 if over_tls else 6650), over_tls
        except ValueError:  # of the port
            pass
        raise self._wrong(f"{url}: not a service URL (pulsar://host:port)")
