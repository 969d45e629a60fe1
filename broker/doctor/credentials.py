"""When certificates and tokens end; files are read where these functions are called."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509

from magnetar.bookkeeper.auth.certificates import certificate_end_ms
from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.config import BrokerConfig
from magnetar.broker.doctor.broker_checks import CredentialFacts
from magnetar.metadata.zookeeper.settings import SCHEME, ZooKeeperSettings

if TYPE_CHECKING:
    from magnetar.bookkeeper.replication.stated_ends import StatedEnd

_SHAKE_S: Final = 5.0
"""For a server to show its certificate."""
_SHOW: Final = "openssl x509 -noout -enddate -in {}"
_CREATE_TOKEN: Final = "magnetar tokens create --help"


def client_facts(name: str, access: ClientAuth) -> Iterator[CredentialFacts]:
    """What a client shows: a token as it is stored, or a certificate."""
    try:
        if access.is_stored_token:
            yield token_facts(name, access.data())
        elif access.method == "tls":
            yield certificate_facts(name, access.certificate_files()[0])
    except ClientAuthError as error:
        yield CredentialFacts(name, is_token=access.is_stored_token, problem=str(error))


def certificate_facts(name: str, path: str, *, latest: bool = False) -> CredentialFacts:
    """Of a PEM file.

    Args:
        latest: of authorities, the last one to end counts; else the chain ends with its first.
    """
    command = _SHOW.format(path)
    try:
        ends_ms = certificate_end_ms(path, latest=latest)
    except (OSError, ValueError) as error:
        return CredentialFacts(name, problem=str(error), command=command)
    return CredentialFacts(name, ends_ms=ends_ms, command=command)


def stated_facts(stated: StatedEnd) -> CredentialFacts:
    """What a process of auto-recovery says of its own."""
    return CredentialFacts(
        f"auto-recovery {stated.process}, {stated.setting}",
        stated.is_token,
        stated.ends_ms,
        stated.problem,
        _CREATE_TOKEN if stated.is_token else _SHOW.format(stated.path),
    )


def zookeeper_settings(config: BrokerConfig) -> ZooKeeperSettings | None:
    """How ZooKeeper is reached; None: it isn't used, or its file can't be read now."""
    path = config.metadata_store_config_path
    if not path or not config.metadata_store_url.startswith(SCHEME):
        return None
    try:
        return ZooKeeperSettings.parse(config.metadata_store_url, Path(path))
    except (OSError, ValueError):
        return None


def server_facts(
    name: str, address: tuple[str, int], certificate: tuple[str, str] | None
) -> CredentialFacts | None:
    """Of what a server shows by TLS; None: it shows nothing now. Nobody is trusted here.

    Args:
        certificate: ours and its key, for servers that ask for one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])  # of bookies, which end the connection otherwise
    try:
        if certificate is not None:
            context.load_cert_chain(*certificate)
        with (
            socket.create_connection(address, _SHAKE_S) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as secured,
        ):
            shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):  # who doesn't answer is told of by other checks
        return None
    return CredentialFacts(
        name,
        ends_ms=int(shown.not_valid_after_utc.timestamp() * 1000),
        command=f"openssl s_client -connect {address[0]}:{address[1]} -showcerts",
    )


def token_facts(name: str, token: bytes) -> CredentialFacts:
    """Of a JSON web token, which isn't verified; of another kind of token nothing is known."""
    try:
        body = token.split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
        ends_ms = int(claims["exp"] * 1000) if "exp" in claims else None
    except (IndexError, ValueError, TypeError):
        ends_ms = None
    return CredentialFacts(name, is_token=True, ends_ms=ends_ms, command=_CREATE_TOKEN)
