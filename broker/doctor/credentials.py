"""When certificates and tokens end; files are read where these functions are called."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography import x509

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.doctor.broker_checks import CredentialFacts

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
    command = f"openssl x509 -noout -enddate -in {path}"
    try:
        chain = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        return CredentialFacts(name, problem=str(error), command=command)
    ends = [int(each.not_valid_after_utc.timestamp() * 1000) for each in chain]
    return CredentialFacts(name, ends_ms=(max if latest else min)(ends), command=command)


def token_facts(name: str, token: bytes) -> CredentialFacts:
    """Of a JSON web token, which isn't verified; of another kind of token nothing is known."""
    try:
        body = token.split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
        ends_ms = int(claims["exp"] * 1000) if "exp" in claims else None
    except (IndexError, ValueError, TypeError):
        ends_ms = None
    return CredentialFacts(name, is_token=True, ends_ms=ends_ms, command=_CREATE_TOKEN)
