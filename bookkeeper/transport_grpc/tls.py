"""TLS of gRPC: its credentials out of PEM files, read again when they change."""

import logging
from pathlib import Path

import grpc

from magnetar.bookkeeper.tls import TlsFiles

_log = logging.getLogger(__name__)


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
