"""TLS between clients and bookies: PEM files, read again when they change."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one side.

    Attributes:
        certificate, key: of this process; a client may have none.
        trust: certificates of the authorities that the other side's must be signed by.
        require_client_certificate: bookie only: a client without one is refused.
    """

    certificate: str = ""
    key: str = ""
    trust: str = ""
    require_client_certificate: bool = False

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("TLS needs certificate and key, or none of them")
        if self.require_client_certificate and not self.trust:
            raise ValueError("client certificates are required, but no trusted ones are given")

    def stamps(self) -> tuple[tuple[int, int], ...]:
        """What changes when one of the files does: time of change (ns) and size."""
        paths = [Path(text) for text in (self.certificate, self.key, self.trust) if text]
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in map(Path.stat, paths))


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """A client's side; the bookie's certificate must name the host that is connected to.

    Raises:
        OSError: a file can't be read.
    """
    return grpc.ssl_channel_credentials(
        _read(files.trust), _read(files.key), _read(files.certificate)
    )


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """The same for a connection of Python's, as to a bookie of Apache's.

    Raises:
        OSError: a file can't be read or isn't what it should be (ssl.SSLError is one).
    """
    context = ssl.create_default_context(cafile=files.trust or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key, password="")
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A bookie's side for a connection of Python's.

    Raises:
        OSError: a file can't be read or isn't what it should be (ssl.SSLError is one).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key, password="")
    if files.trust:
        context.load_verify_locations(files.trust)
    if files.require_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """A bookie's side; files that change are used from the next handshake on.

    Raises:
        OSError: a file can't be read.
    """
    seen = files.stamps()

    def read() -> grpc.ServerCertificateConfiguration:
        pair = (_read(files.key), _read(files.certificate))
        return grpc.ssl_server_certificate_configuration([pair], _read(files.trust))

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None: nothing new."""
        nonlocal seen
        try:
            now = files.stamps()
            if now == seen:
                return None
            fresh = read()
        except OSError as error:  # half renewed: the old ones still work
            _log.warning("TLS files can't be read, the old ones stay: %s", error)
            return None
        seen = now
        return fresh

    return grpc.dynamic_ssl_server_credentials(
        read(), fetch, require_client_authentication=files.require_client_certificate
    )
