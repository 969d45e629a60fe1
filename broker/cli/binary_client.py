"""A small blocking client of the binary protocol for the CLI: produce and consume, nothing else.

Works against any Pulsar-compatible broker. One socket per broker; calls wait for their answer while
everything else that arrives is handled: PING is answered, messages are kept.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self
from urllib.parse import urlsplit

from magnetar.broker.cli.client_auth import ClientAuth
from magnetar.broker.cli.errors import CliError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FrameReader,
    MalformedFrameError,
    encode_command,
    encode_payload_command,
)

PROTOCOL_VERSION = 21
RECEIVE_BYTES = 256 * 1024
MESSAGE_BYTES_MAX = 5 * 1024 * 1024  # of brokers that don't tell theirs
REDIRECTS_MAX = 20

Frame = tuple[pb.BaseCommand, bytes]

NOBODY = ClientAuth()


class BinaryClient:
    """One connection; usable as a context manager."""

    def __init__(
        self,
        service_url: str,
        access: ClientAuth = NOBODY,
        timeout_s: float = 30.0,
        *,
        proxy_url: str = "",
    ) -> None:
        """Connect and say hello.

        Args:
            proxy_url: where to connect to instead; it forwards by the name that TLS tells it (SNI).
        Raises:
            CliError: nobody listens there, it isn't a broker, or it doesn't let us in.
        """
        host, port, self._over_tls = _address(service_url)
        server_name = host
        if proxy_url:
            if not self._over_tls:
                raise CliError(f"{service_url}: a proxy needs a URL with TLS (pulsar+ssl://)")
            host, port, _ = _address(proxy_url)
        self.service_url = service_url
        self._proxy_url = proxy_url
        self._access = access
        self.timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._closing: set[int] = set()  # consumers that the broker may close
        self.messages: deque[Frame] = deque()
        self.receipts: deque[Frame] = deque()
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
            if self._over_tls:
                self._socket = access.tls().wrap_socket(self._socket, server_hostname=server_name)
        except (OSError, ValueError) as error:
            by = f" by way of {proxy_url}" if proxy_url else ""
            raise CliError(f"{service_url} can't be reached{by}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect.connect.client_version = "magnetar-cli"
        connect.connect.protocol_version = PROTOCOL_VERSION
        if method := access.method:
            connect.connect.auth_method_name, connect.connect.auth_data = method, access.data()
            connect.connect.feature_flags.supports_auth_refresh = True
        self.send(encode_command(connect))
        connected, _ = self._wait(lambda command: command.type == pb.BaseCommand.CONNECTED)
        self.message_bytes_max = connected.connected.max_message_size or MESSAGE_BYTES_MAX
        """Largest message with its metadata that the broker takes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """The socket's, for selectors."""
        return self._socket.fileno()

    # --- calls

    def next_id(self) -> int:
        return next(self._ids)

    def partitions(self, topic: str) -> int:
        """Partition count, 0 for a plain topic; creates what may be created."""
        command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
        request = command.partitionMetadata
        request.topic, request.request_id = topic, self.next_id()
        answer = self.call(command, request.request_id).partitionMetadataResponse
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise CliError(f"{topic}: {answer.message}")
        return answer.partitions

    def owner(self, topic: str, listener_name: str = "") -> str:
        """Service URL of the broker that serves a topic, asked of this one.

        Args:
            listener_name: which of that broker's addresses; "": the one that it gives.
        """
        authoritative = False
        client = self
        for _ in range(REDIRECTS_MAX):
            command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
            request = command.lookupTopic
            request.topic, request.request_id = topic, client.next_id()
            request.authoritative = authoritative
            if listener_name:
                request.advertised_listener_name = listener_name
            answer = client.call(command, request.request_id).lookupTopicResponse
            if client is not self:
                client.close()
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise CliError(f"{topic}: {answer.message}")
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                url = client._url_in(answer)
                return self.service_url if answer.proxy_through_service_url else url
            authoritative = answer.authoritative
            client = BinaryClient(
                client._url_in(answer), self._access, self.timeout_s, proxy_url=self._proxy_url
            )
        raise CliError(f"{topic}: too many redirects")

    def _url_in(self, answer: pb.CommandLookupTopicResponse) -> str:
        """Raises CliError: over TLS we don't leave it."""
        if not self._over_tls:
            return answer.brokerServiceUrl
        if not answer.brokerServiceUrlTls:
            raise CliError(f"{answer.brokerServiceUrl} has no address for TLS")
        return answer.brokerServiceUrlTls

    def topics(self, namespace: str, *, persistent: bool) -> list[str]:
        """Full names of the topics in a namespace, each partition on its own."""
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        request = command.getTopicsOfNamespace
        request.namespace, request.request_id = namespace, self.next_id()
        modes = pb.CommandGetTopicsOfNamespace
        request.mode = modes.PERSISTENT if persistent else modes.NON_PERSISTENT
        answer = self.call(command, request.request_id)
        return list(answer.getTopicsOfNamespaceResponse.topics)

    def schema(self, topic: str, version: bytes) -> pb.Schema | None:
        """A version of a topic's schema; None: there is none."""
        command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA)
        request = command.getSchema
        request.topic, request.request_id = topic, self.next_id()
        if version:
            request.schema_version = version
        answer = self.call(command, request.request_id).getSchemaResponse
        return answer.schema if answer.HasField("schema") else None

    def seek(self, consumer_id: int, publish_time_ms: int) -> None:
        """Move a consumer's subscription; the consumer is closed by that."""
        command = pb.BaseCommand(type=pb.BaseCommand.SEEK)
        request = command.seek
        request.consumer_id, request.request_id = consumer_id, self.next_id()
        request.message_publish_time = publish_time_ms
        self._closing.add(consumer_id)  # the broker may tell before or after its answer
        self.call(command, request.request_id)
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer_id
        command.close_consumer.request_id = self.next_id()
        self.call(command, command.close_consumer.request_id)

    def call(self, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        """Send and wait for the answer with that request id.

        Raises:
            CliError: the broker answered with an error, or not at all.
        """
        self.send(encode_command(command))

        def answers(answer: pb.BaseCommand) -> bool:
            return _request_id_of(answer) == request_id

        answer, _ = self._wait(answers)
        if answer.type == pb.BaseCommand.ERROR:
            name = pb.ServerError.Name(answer.error.error)
            raise CliError(f"{name}: {answer.error.message}")
        return answer

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise CliError(f"{self.service_url}: connection lost: {error}") from error

    def send_payload(self, command: pb.BaseCommand, body: bytes) -> None:
        self.send(encode_payload_command(command, body))

    # --- what arrives

    def wait_for(self, queue: deque[Frame], timeout_s: float | None) -> Frame | None:
        """The next frame of ``messages`` or ``receipts``; None when the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._frames:  # what came together with the answer of a call
            self._handle(self._frames.popleft())
        while not queue:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            for frame in self._receive(left):
                self._handle(frame)
        return queue.popleft()

    def receive_ready(self) -> None:
        """Take in what has arrived; call it when the socket is readable."""
        for frame in self._receive(self.timeout_s):
            self._handle(frame)

    def _wait(self, matches: Callable[[pb.BaseCommand], bool]) -> Frame:
        deadline = time.monotonic() + self.timeout_s
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if matches(frame[0]):
                    return frame
                self._handle(frame)
            left = deadline - time.monotonic()
            if left <= 0:
                raise CliError(f"{self.service_url} did not answer in {self.timeout_s:.0f} s")
            self._frames.extend(self._receive(left))

    def _receive(self, timeout_s: float | None) -> Iterator[Frame]:
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return iter(())
        except OSError as error:
            raise CliError(f"{self.service_url}: connection lost: {error}") from error
        finally:
            self._socket.settimeout(self.timeout_s)
        if not data:
            raise CliError(f"{self.service_url} closed the connection")
        try:
            return iter(list(self._reader.feed(data)))
        except MalformedFrameError as error:
            raise CliError(
                f"{self.service_url} does not speak Pulsar's protocol: {error}"
            ) from error

    def _handle(self, frame: Frame) -> None:
        command = frame[0]
        match command.type:
            case pb.BaseCommand.MESSAGE:
                self.messages.append(frame)
            case pb.BaseCommand.SEND_RECEIPT | pb.BaseCommand.SEND_ERROR:
                self.receipts.append(frame)
            case pb.BaseCommand.PING:
                self.send(encode_command(_pong()))
            case pb.BaseCommand.AUTH_CHALLENGE:
                self._prove_again()
            case pb.BaseCommand.ERROR:
                raise CliError(
                    f"{pb.ServerError.Name(command.error.error)}: {command.error.message}"
                )
            case pb.BaseCommand.CLOSE_CONSUMER if (
                command.close_consumer.consumer_id in self._closing
            ):
                pass  # after a seek, as expected
            case pb.BaseCommand.CLOSE_PRODUCER | pb.BaseCommand.CLOSE_CONSUMER:
                raise CliError("the broker closed the topic: run the command again")

    def _prove_again(self) -> None:
        """Credentials have expired: send those that there are now."""
        command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
        response = command.authResponse.response
        response.auth_method_name, response.auth_data = self._access.method, self._access.data()
        self.send(encode_command(command))


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


def _pong() -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.PONG)
    command.pong.SetInParent()
    return command


def _request_id_of(command: pb.BaseCommand) -> int | None:
    match command.type:
        case pb.BaseCommand.SUCCESS:
            return command.success.request_id
        case pb.BaseCommand.ERROR:
            return command.error.request_id
        case pb.BaseCommand.PRODUCER_SUCCESS:
            return command.producer_success.request_id
        case pb.BaseCommand.LOOKUP_RESPONSE:
            return command.lookupTopicResponse.request_id
        case pb.BaseCommand.PARTITIONED_METADATA_RESPONSE:
            return command.partitionMetadataResponse.request_id
        case pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE:
            return command.getTopicsOfNamespaceResponse.request_id
        case pb.BaseCommand.GET_SCHEMA_RESPONSE:
            return command.getSchemaResponse.request_id
    return None
