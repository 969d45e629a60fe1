"""TLS between clients and bookies: PEM files, and contexts of Python's connections."""

import ssl
from dataclasses import dataclass
from pathlib import Path


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


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A client's side; the bookie's certificate must name the host that is connected to.

    Raises:
        OSError: a file can't be read or isn't what it should be (ssl.SSLError is one).
    """
    context = ssl.create_default_context(cafile=files.trust or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key, password="")
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A bookie's side.

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
