"""TLS of listening sockets: contexts out of PEM files, renewed when the files change.

A renewed context is for connections to come; those that exist go on with the old one.

A connection is accepted plain, counted (pre_auth_acceptor.py), and led through its handshake in a
thread (tls_handshakes.py): an event loop's own TLS server would let anybody open files without end
and keep the loop with handshakes for as long as they like. What comes behind it: tls_stream.py.
"""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar.broker.auth.file_renewal import FileRenewal, KeyFile
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.listener.file_limit import file_limit
from magnetar.broker.listener.pre_auth_acceptor import PendingSocket, PreAuthAcceptor
from magnetar.broker.listener.tls_handshakes import TlsHandshake, TlsHandshakes
from magnetar.broker.listener.tls_stream import READ_BYTES, TlsStream
from magnetar.broker.listener.unauthenticated_limiter import UnauthenticatedLimiter

logger = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_HANDSHAKE_S: Final = 10.0
_HANDSHAKES_MAX: Final = 4096
"""At once, and never more than a sixteenth of the files that may be open; of one address, half.
Above that, the one that has waited longest is closed."""
_STEPS_MAX: Final = 16
_BYTES_MAX: Final = 128 * 1024
"""Of one handshake: long chains of certificates are some ten thousand."""
_IANA = re.compile(r"TLS_(ECDHE_(?:RSA|ECDSA)|DHE_RSA)_WITH_(\w+)")
_TLS_1_3: Final = re.compile(r"TLS_(AES|CHACHA20)_\w+")


def server_context(config: BrokerConfig) -> ssl.SSLContext:
    """The TLS settings as a context; reads the files.

    Raises:
        ConfigError: a file, or a setting, can't be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    names = _words(config.tls_protocols) or list(_VERSIONS)
    if unknown := [name for name in names if name not in _VERSIONS]:
        raise ConfigError(f"tlsProtocols: {unknown[0]} is not one of {', '.join(_VERSIONS)}")
    versions = [_VERSIONS[name] for name in names]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if ciphers := [_openssl_name(name) for name in _words(config.tls_ciphers)]:
        try:
            context.set_ciphers(":".join(name for name in ciphers if name))
        except ssl.SSLError:
            raise ConfigError(f"tlsCiphers={config.tls_ciphers}: none that is known") from None
    certificate, key = config.tls_certificate_file_path, config.tls_key_file_path
    if not certificate or not key:
        raise ConfigError("a TLS port needs tlsCertificateFilePath and tlsKeyFilePath")
    try:
        # Without a password argument OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tlsCertificateFilePath={certificate}, tlsKeyFilePath={key}: {_reason(error)}"
        ) from None
    _ask_for_certificates(context, config)
    return context


def _ask_for_certificates(context: ssl.SSLContext, config: BrokerConfig) -> None:
    trusted, required = (
        config.tls_trust_certs_file_path,
        config.tls_require_trusted_client_cert_on_connect,
    )
    if required and (not trusted or config.tls_allow_insecure_connection):
        raise ConfigError(
            "tlsRequireTrustedClientCertOnConnect=true needs tlsTrustCertsFilePath, and"
            " tlsAllowInsecureConnection=false"
        )
    if not trusted or config.tls_allow_insecure_connection:
        return
    try:
        context.load_verify_locations(trusted)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tlsTrustCertsFilePath={trusted}: {_reason(error)}") from None
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    # A resumed session would not be checked against certificates that are trusted no longer.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM, or not of each other"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _openssl_name(name: str) -> str:
    """IANA's name (which Java uses) of a cipher suite as OpenSSL's; "" for those of TLS 1.3.

    ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`` is ``ECDHE-RSA-AES128-GCM-SHA256``.
    """
    if _TLS_1_3.fullmatch(name):
        return ""  # all of them are good, and none can be switched off
    if (match := _IANA.fullmatch(name)) is None:
        return name
    exchange, cipher = match.groups()
    cipher = re.sub(r"^AES_(\d+)", r"AES\1", cipher).replace("_CBC_", "_")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return f"{exchange}_{cipher}".replace("_", "-")


def client_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The peer's certificate, DER; None without TLS, or when it has shown none.

    REQUIRES: the handshake is done, as in ``connection_made``.
    """
    tls = transport.get_extra_info("ssl_object")
    # CERT_NONE: OpenSSL has verified nothing, so what came proves nothing.
    if tls is None or tls.context.verify_mode == ssl.CERT_NONE:
        return None
    certificate: bytes | None = tls.getpeercert(binary_form=True)
    return certificate


def listening_socket(host: str, port: int, what: str) -> socket.socket:
    """Bound, not yet listening.

    Raises:
        OSError: the port is taken, or the address isn't ours; the text names ``what``.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{reason}: {what} on {host}:{port}") from error
    return listener


class TlsListener(PreAuthAcceptor):
    """Serves a protocol over TLS on one port; ``renewal`` looks at its files every so often."""

    def __init__(
        self, config: BrokerConfig, factory: Callable[[], asyncio.BaseProtocol], backlog: int
    ) -> None:
        """``factory`` makes a protocol for each connection whose handshake is done."""
        pending_max = max(2, min(_HANDSHAKES_MAX, file_limit() // 16))
        super().__init__(
            UnauthenticatedLimiter(pending_max, pending_max // 2),
            what="TLS",
            deadline_s=lambda: _HANDSHAKE_S,
        )
        self._config = config
        self._context: ssl.SSLContext | None = None
        files = (
            ("tlsCertificateFilePath", config.tls_certificate_file_path, False),
            ("tlsKeyFilePath", config.tls_key_file_path, True),
            ("tlsTrustCertsFilePath", config.tls_trust_certs_file_path, False),
        )
        self.renewal = FileRenewal(
            "TLS files",
            [KeyFile(name, Path(path), is_secret) for name, path, is_secret in files if path],
            config.tls_cert_refresh_check_duration_sec,
            read=lambda: server_context(config),
            use=self._renew,
        )
        self._factory = factory
        self._backlog = backlog
        self._encrypted = memoryview(bytearray(READ_BYTES))  # of all streams, while it is read
        self._stepping: dict[TlsHandshake, PendingSocket] = {}  # those of whom a step is being made
        self._handshakes = TlsHandshakes(self.loop, self._on_step)

    async def start(self, host: str, port: int, what: str) -> int:
        """Listen; 0 picks a free port.

        Raises:
            OSError: the port is taken. ConfigError: the files can't be used.
        """
        self._what = what
        self._context = server_context(self._config)
        bound = self.listen(listening_socket(host, port, what), self._backlog)
        self.renewal.start()
        return bound

    def close(self) -> None:
        """Stop listening; connections stay, handshakes end."""
        self.renewal.close()
        super().close()
        self._handshakes.close()

    def _renew(self, context: ssl.SSLContext) -> None:
        self._context = context

    # --- handshakes

    def look(self, pending: PendingSocket) -> None:
        handshake: TlsHandshake | None = pending.state
        try:
            size = TlsHandshake.records(pending.received, first=handshake is None)
        except ValueError as error:
            pending.close(f"no TLS: {error}", level=logging.DEBUG)
            return
        if not size:
            pending.wait()
            return
        if handshake is None:
            assert self._context is not None
            handshake = pending.state = TlsHandshake(self._context)
        if handshake.steps >= _STEPS_MAX or handshake.bytes_in > _BYTES_MAX:
            pending.close("a handshake without end", level=logging.DEBUG)
            return
        self._stepping[handshake] = pending
        data = pending.use(size)
        if handshake.is_nearly_done:
            self._on_step(handshake, handshake.step(data))
        else:
            self._handshakes.add(pending.ip, handshake, data)

    def gone(self, pending: PendingSocket) -> None:
        if (handshake := pending.state) is not None:
            self._handshakes.drop(pending.ip, handshake)
            self._stepping.pop(handshake, None)

    def _on_step(self, handshake: TlsHandshake, answer: bytes) -> None:
        if handshake.done:
            self._handshakes.cpu_budget.finished()
        pending = self._stepping.pop(handshake, None)
        if pending is None:
            return  # cut meanwhile
        pending.send(answer)
        if handshake.error is not None:
            pending.close(f"no TLS: {handshake.error}", level=logging.DEBUG)
        elif not handshake.done:
            pending.wait()
        elif not pending.ended:
            taken = pending.take()
            stream = TlsStream(
                self.loop, handshake, bytes(pending.received), self._factory, self._encrypted
            )
            self.run(self.loop.connect_accepted_socket(lambda: stream, taken), taken.close)
