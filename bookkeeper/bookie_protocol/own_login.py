"""The login of our own clients at our own bookies: an AUTH message with the plug-in ``magnetar``.

It names the bookie and the cluster that are meant, as an address may be another bookie's by now,
and has the client's token. The connection speaks version 2 with what only our two ends know (flags
in ``frames_v2.py``, codes of ``codes.py``, packets as bookies keep them). A renewed token is shown
by another such message on the same connection.
"""

import json
import ssl
from asyncio import BaseTransport
from collections.abc import Callable
from typing import Final

from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.auth.errors import CredentialsError, RoleNotAllowedError
from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.login import LoginExchange, LoginRefusedError
from magnetar.bookkeeper.errors import BookieUnavailableError, FrameError, UnauthorizedAccessError
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.metadata.sasl.digest_md5 import SaslError

MAGNETAR: Final = "magnetar"
"""``authPluginName`` of the messages."""
REFUSED: Final = "Failed to authenticate"
"""All that a client is told, whatever was wrong with what it has shown."""


class OwnLogin:
    """How clients of ours log in.

    Args:
        instance_id: of the cluster; asked for each connection, "": any.
        token: shown to bookies; None: we are known by our certificate, or not at all.
    """

    plugin = MAGNETAR

    def __init__(self, instance_id: Callable[[], str], token: TokenSource | None) -> None:
        self._instance_id, self._token = instance_id, token

    def begin(self, bookie_id: str) -> "OwnLoginSession":
        return OwnLoginSession(bookie_id, self._instance_id(), self._token)


class OwnLoginSession:
    """Of one connection."""

    def __init__(self, bookie_id: str, instance_id: str, token: TokenSource | None) -> None:
        self._generation = -1  # of the token that was shown last
        self._bookie_id, self._instance_id, self._token = bookie_id, instance_id, token

    async def run(self, asking: LoginExchange) -> None:
        """Returns once the bookie has accepted.

        Raises:
            BookieUnavailableError: it refused: a refusal proves nothing about a ledger.
            UnauthorizedAccessError: it refused, but there is another token by now.
        """
        asking.send(self._payload())
        try:
            answer = await asking.receive()
        except (SaslError, LoginRefusedError) as error:
            raise BookieUnavailableError(f"bookie {self._bookie_id}: {error}") from error
        if answer.authPluginName != MAGNETAR:
            raise BookieUnavailableError(f"bookie {self._bookie_id} isn't one of ours")
        try:
            self.check(answer)
        except BookieUnavailableError as error:
            if self._token is not None:
                self._token.token(at_once=True)
                if self._token.generation != self._generation:
                    raise UnauthorizedAccessError(str(error)) from error
            raise

    def renew(self) -> bytes:
        """A frame that shows a token which is newer than the one that was shown; b"": none is."""
        if self._token is None:
            return b""
        self._token.token()  # looks whether there is another one
        if self._token.generation == self._generation:
            return b""
        message = pb.AuthMessage(authPluginName=MAGNETAR, payload=self._payload())
        return v2.encode_auth(message.SerializeToString())

    def check(self, answer: pb.AuthMessage) -> None:
        """Raises: BookieUnavailableError: it is a refusal."""
        if answer.payload:
            reason = answer.payload.decode(errors="replace")
            raise BookieUnavailableError(f"bookie {self._bookie_id} refuses us: {reason}")

    def _payload(self) -> bytes:
        fields = {"bookieId": self._bookie_id, "instanceId": self._instance_id}
        if self._token is not None:
            fields["token"] = self._token.token()
            self._generation = self._token.generation
        return json.dumps(fields).encode()


class RefusedLoginError(UnauthorizedAccessError):
    """``told``: what the client gets to know; the text is for the log."""

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(reason)
        self.told = told


class OwnLogins:
    """Judges our own clients at a bookie.

    Args:
        authenticator: None: every one is let in that means this bookie.
        bookie_id, instance_id: of this bookie; "": of any cluster.
    """

    def __init__(
        self, authenticator: BookieAuthenticator | None, bookie_id: str, instance_id: str
    ) -> None:
        self._authenticator = authenticator
        self._bookie_id, self._instance_id = bookie_id, instance_id

    def admit(self, payload: bytes, transport: BaseTransport) -> "AdmittedClient":
        """
        Raises:
            FrameError: no such message. RefusedLoginError: the client is refused.
        """
        try:
            fields = json.loads(payload)
            wanted, instance = str(fields["bookieId"]), str(fields["instanceId"])
            token = fields.get("token")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FrameError(f"a login that can't be read: {type(error).__name__}") from error
        if token is not None and not isinstance(token, str):
            raise FrameError("a login whose token is no text")
        admitted = AdmittedClient(self._authenticator, transport, token)
        admitted.left_s()
        if wanted != self._bookie_id:
            told = f"bookie {wanted} is meant, this is {self._bookie_id}"
            raise RefusedLoginError(told, told)
        if instance and self._instance_id and instance != self._instance_id:
            told = f"cluster {instance} is meant, this bookie is of {self._instance_id}"
            raise RefusedLoginError(told, told)
        return admitted


class AdmittedClient:
    """A client that was let in, by what it has shown."""

    def __init__(
        self,
        authenticator: BookieAuthenticator | None,
        transport: BaseTransport,
        token: str | None,
    ) -> None:
        self._authenticator, self._token = authenticator, token
        self._certificate = None if token is not None else _certificate_of(transport)

    def left_s(self) -> float | None:
        """Seconds until it has to be judged again; None: never.

        Raises:
            RefusedLoginError: what it has shown doesn't hold any more.
        """
        if self._authenticator is None:
            return None
        try:
            return self._authenticator.left_s(self._token, self._certificate)
        except CredentialsError as error:
            is_known = isinstance(error, RoleNotAllowedError)
            told = "This role may not use bookies" if is_known else REFUSED
            raise RefusedLoginError(str(error), told) from error

    @property
    def role(self) -> str:
        """Empty: nobody asks who it is. REQUIRES: it was just let in."""
        if self._authenticator is None:
            return ""
        return self._authenticator.admit(self._token, self._certificate).role


def _certificate_of(transport: BaseTransport) -> bytes | None:
    """PEM, verified by TLS; None: the client has shown none."""
    tls = transport.get_extra_info("ssl_object")
    found = None if tls is None else tls.getpeercert(binary_form=True)
    return None if found is None else ssl.DER_cert_to_PEM_cert(found).encode()
