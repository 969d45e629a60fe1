"""SASL to a bookie (plug-in ``sasl``): AUTH messages on a new connection, or within its TLS, before
anything else is sent."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Protocol, cast

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH
from magnetar.bookkeeper.bookie_protocol.result_codes import EUA
from magnetar.bookkeeper.errors import UnauthorizedAccessError
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.metadata.sasl.digest_md5 import DigestMd5Client, SaslCredentials, SaslError

PLUGIN: Final = "sasl"
PLUGINS: Final = (PLUGIN, "org.apache.bookkeeper.sasl.SASLClientProviderFactory")
"""Names of it in settings."""
SECTION_SETTING: Final = "saslJaasClientSectionName"
SECTION: Final = "BookKeeper"
"""Of the JAAS file, unless the setting says another."""
_DISABLED: Final = "AuthDisabledPlugin"
"""What a bookie without authentication answers."""
SERVICE: Final = "bookkeeper"
"""Of the names that both sides prove to know."""
_HEADER_BYTES: Final = 4
_VERSION_3_BEGINS: Final = b"\x0a"
_NO_LEDGER: Final = 2**63 - 1
_ANSWER_BYTES_MAX: Final = 8192


class LoginSession(Protocol):
    """Of one connection."""

    async def run(self, asking: "LoginExchange") -> None:
        """Returns once the bookie has accepted. Raises: LedgerError: it refused."""
        ...

    def renew(self) -> bytes:
        """A frame that must be sent before anything else now; b"": none."""
        ...

    def check(self, answer: pb.AuthMessage) -> None:
        """To such a frame. Raises: an error that ends the connection."""
        ...


class ProtocolLogin(Protocol):
    """How to log in to bookies."""

    plugin: str
    """``authPluginName`` of the messages."""

    def begin(self, bookie_id: str) -> LoginSession:
        """For a new connection. Raises: OSError, ValueError: what it needs can't be read."""
        ...


class SaslLogin:
    """SASL DIGEST-MD5.

    Args:
        credentials: asked before each connection, as they may have changed.
    """

    plugin = PLUGIN

    def __init__(self, credentials: Callable[[], SaslCredentials]) -> None:
        self._credentials = credentials

    def begin(self, bookie_id: str) -> "SaslSession":
        """Raises: OSError, ValueError: the credentials can't be read."""
        return SaslSession(bookie_id, self._credentials())


class SaslSession:
    """Of one connection."""

    def __init__(self, bookie_id: str, credentials: SaslCredentials) -> None:
        self._bookie_id, self._credentials = bookie_id, credentials

    async def run(self, asking: "LoginExchange") -> None:
        """Returns once the bookie has accepted.

        Raises:
            UnauthorizedAccessError: it refused, or didn't prove that it knows the password.
        """
        credentials = self._credentials
        client = DigestMd5Client(credentials, SERVICE, SERVICE, secrets.token_urlsafe(24))
        try:
            asking.send(client.respond(b""))
            challenge = await asking.receive()
            if challenge.authPluginName != _DISABLED:
                asking.send(client.respond(challenge.payload))
                # One that refuses says nothing, until it is asked for something.
                asking.ask()
                client.respond((await asking.receive()).payload)
                await asking.receive_answer()
        except (SaslError, LoginRefusedError) as error:
            hint = ""
            if isinstance(error, LoginRefusedError):
                hint = (
                    ": is the password wrong, or the user not among its saslJaasClientAllowedIds?"
                )
            raise UnauthorizedAccessError(
                f"bookie {self._bookie_id}: UnauthorizedAccess for user"
                f" {credentials.username!r}: {error}{hint}"
            ) from error

    def renew(self) -> bytes:
        """Nothing: SASL is asked for once."""
        return b""

    def check(self, answer: pb.AuthMessage) -> None:
        """Raises: SaslError: nothing was asked."""
        raise SaslError("an answer to a login that is over")


class LoginRefusedError(Exception):
    """By the bookie; the text says how."""


class LoginExchange(asyncio.Protocol):
    """Messages of a login, and one request that tells whether it was accepted.

    Args:
        version: of the protocol, 2 or 3.
        plugin: name of the login's messages.
    """

    transport: asyncio.Transport

    def __init__(self, version: int, plugin: str) -> None:
        self._version, self._plugin = version, plugin
        self._data = b""
        self._answers: asyncio.Queue[pb.AuthMessage | int | Exception] = asyncio.Queue()

    def send(self, payload: bytes) -> None:
        """One of ours to it."""
        message = pb.AuthMessage(authPluginName=self._plugin, payload=payload)
        if self._version == v2.VERSION:
            self.transport.write(v2.encode_auth(message.SerializeToString()))
        else:
            self._write_request(pb.Request(authRequest=message), pb.AUTH)

    def ask(self) -> None:
        """For something that it doesn't have: of a ledger that nobody has."""
        if self._version == v2.VERSION:
            self.transport.write(v2.encode_read(_NO_LEDGER, 0))
        else:
            request = pb.Request(readLacRequest=pb.ReadLacRequest(ledgerId=_NO_LEDGER))
            self._write_request(request, pb.READ_LAC)

    async def receive(self) -> pb.AuthMessage:
        """Its next message. Raises SaslError: not of our plug-in."""
        found = await self._next()
        if isinstance(found, int):
            raise LoginRefusedError("it answers with EUA" if found == EUA.v2 else f"code {found}")
        if found.authPluginName not in (self._plugin, _DISABLED):
            raise SaslError(f"it has the plug-in {found.authPluginName!r}")
        return found

    async def receive_answer(self) -> None:
        """To ``ask``."""
        found = await self._next()
        if not isinstance(found, int) or found == EUA.v2:
            raise LoginRefusedError("it answers with EUA")

    async def _next(self) -> pb.AuthMessage | int:
        found = await self._answers.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _write_request(self, request: pb.Request, operation: "pb.OperationType.ValueType") -> None:
        request.header.version, request.header.operation = self._version, operation
        request.header.txnId = 0
        self._write(request.SerializeToString())

    def _write(self, body: bytes) -> None:
        self.transport.write(LENGTH.pack(len(body)) + body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answers.put_nowait(LoginRefusedError("it closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._data)
            if size > _ANSWER_BYTES_MAX:
                self._answers.put_nowait(SaslError(f"an answer of {size} bytes"))
                return
            if len(self._data) < LENGTH.size + size:
                return
            body, self._data = self._data[LENGTH.size :][:size], self._data[LENGTH.size + size :]
            try:
                if not _is_about_tls(body):
                    self._answers.put_nowait(self._read(body))
            except DecodeError:
                self._answers.put_nowait(SaslError("an answer that can't be read"))

    def _read(self, body: bytes) -> pb.AuthMessage | int:
        """A message, or the code of another answer, as version 2 numbers it."""
        if self._version == v2.VERSION:
            word = int.from_bytes(body[:_HEADER_BYTES], "big")
            if word == v2.header(v2.AUTH):
                return pb.AuthMessage.FromString(body[_HEADER_BYTES:])
            return int.from_bytes(body[_HEADER_BYTES : 2 * _HEADER_BYTES], "big")
        response = pb.Response.FromString(body)
        if response.status == EUA.v3:
            return EUA.v2
        return response.authResponse if response.header.operation == pb.AUTH else response.status


def _is_about_tls(body: bytes) -> bool:
    """Once TLS is there, a bookie says in version 3 that nobody has logged in by then, and goes on:
    its own client logs in before, in the clear."""
    is_version_3 = body[:1] == _VERSION_3_BEGINS
    return is_version_3 and pb.Response.FromString(body).header.operation == pb.START_TLS
