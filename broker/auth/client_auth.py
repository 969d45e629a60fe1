"""How the command line proves who it is, and whom it trusts: Pulsar's client plugins by name.

Parameters have the forms that Pulsar's own plugins take, so settings can be carried over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from magnetar.broker.auth.client_auth_error import ClientAuthError

if TYPE_CHECKING:
    import ssl

_PREFIX: Final = "org.apache.pulsar.client.impl.auth."
_PLUGINS: Final = {
    "token": "token",
    "basic": "basic",
    "tls": "tls",
    "AuthenticationToken": "token",
    "AuthenticationBasic": "basic",
    "AuthenticationTls": "tls",
    "oauth2": "oauth2",
    "oauth2.AuthenticationOAuth2": "oauth2",
}
_ON_THE_WIRE: Final = {"oauth2": "token"}


@dataclass(frozen=True, slots=True)
class ClientAuth:
    """Credentials and trust of one target. Files are read when they are needed, each time anew."""

    plugin: str = ""  # "": none
    params: str = field(default="", repr=False)
    trusted: str = ""  # PEM file of authorities; "": what the system trusts
    insecure: bool = False  # the server's certificate isn't looked at

    @property
    def method(self) -> str:
        """Its name on the wire; "" without credentials.

        Raises:
            ClientAuthError: not a plugin that we have.
        """
        return _ON_THE_WIRE.get(self._kind, self._kind)

    @property
    def _kind(self) -> str:
        if not self.plugin:
            return ""
        kind = _PLUGINS.get(self.plugin.removeprefix(_PREFIX))
        if kind is None:
            raise ClientAuthError(
                f"--auth-plugin {self.plugin}: token, oauth2, basic or tls is possible"
            )
        return kind

    @property
    def is_stored_token(self) -> bool:
        """Whether a token was given; one of OAuth 2.0 is renewed by itself."""
        return self._kind == "token"

    def data(self) -> bytes:
        """What CONNECT carries. Raises ClientAuthError."""
        match self._kind:
            case "token" | "oauth2":
                return self._bearer().encode()
            case "basic":
                return _user_and_password(self.params).encode()
        return b""

    def headers(self) -> dict[str, str]:
        """What HTTP requests carry. Raises ClientAuthError."""
        import base64

        match self._kind:
            case "token" | "oauth2":
                return {"Authorization": f"Bearer {self._bearer()}"}
            case "basic":
                text = base64.b64encode(_user_and_password(self.params).encode()).decode()
                return {"Authorization": f"Basic {text}"}
        return {}

    def _bearer(self) -> str:
        if self._kind == "token":
            return _token(self.params)
        from magnetar.broker.auth.client_oauth2 import access_token

        return access_token(self.params)

    def tls(self) -> ssl.SSLContext:
        """For connections over TLS; checks the server's name unless ``insecure``.

        Raises:
            ClientAuthError: a file can't be used.
        """
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.trusted or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.method == "tls":
                certificate, key = self.certificate_files()
                context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ClientAuthError(f"TLS: the certificates can't be used: {reason}") from error
        return context

    def certificate_files(self) -> tuple[str, str]:
        """Paths of the certificate that TLS shows, and of its key. Raises ClientAuthError."""
        return _certificate_files(self.params)

    def certificate(self) -> bytes:
        """The certificate that TLS shows, DER. Raises ClientAuthError."""
        import ssl

        path, _ = self.certificate_files()
        try:
            return ssl.PEM_cert_to_DER_cert(_first_certificate(_read(f"file://{path}")))
        except ValueError as error:
            raise ClientAuthError(f"TLS: {path} holds no certificate: {error}") from error


def _first_certificate(text: str) -> str:
    end = "-----END CERTIFICATE-----"
    first, found, _ = text.partition(end)
    return first[max(first.find("-----BEGIN"), 0) :] + found


def _token(params: str) -> str:
    """``token:TEXT``, ``file:///path``, ``{"token": "TEXT"}`` or the text itself."""
    if params.startswith("token:"):
        token = params.removeprefix("token:")
    elif params.startswith("file:"):
        token = _read(params)
    elif params.lstrip().startswith("{"):
        token = _map(params).get("token", "")
    else:
        token = params
    token = token.strip()
    # One bad character and it would end up in an error of the HTTP library
    if not token or not token.isascii() or not token.isprintable():
        raise ClientAuthError("--auth-params: no token in it (token:TEXT or file:///path)")
    return token


def _user_and_password(params: str) -> str:
    """``{"userId": "...", "password": "..."}``, ``user:password``, or a file that holds either."""
    text = (_read(params) if params.startswith("file:") else params).strip()
    if text.startswith("{"):
        values = _map(text)
        text = f"{values.get('userId', '')}:{values.get('password', '')}"
    user, separator, _ = text.partition(":")
    if not user or not separator:
        raise ClientAuthError('--auth-params: {"userId":"...","password":"..."} is expected')
    return text


def _certificate_files(params: str) -> tuple[str, str]:
    """``tlsCertFile:/path,tlsKeyFile:/path`` or the same as JSON."""
    if params.lstrip().startswith("{"):
        values: Mapping[str, str] = _map(params)
    else:
        values = dict(part.strip().split(":", 1) for part in params.split(",") if ":" in part)
    certificate, key = values.get("tlsCertFile", ""), values.get("tlsKeyFile", "")
    if not certificate or not key:
        raise ClientAuthError("--auth-params: tlsCertFile:/path,tlsKeyFile:/path is expected")
    return certificate, key


def _map(text: str) -> dict[str, str]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ClientAuthError("--auth-params: not a JSON object")
    return {str(name): str(value) for name, value in values.items()}


def _read(source: str) -> str:
    parts = urlsplit(source)
    path = Path(unquote(parts.netloc + parts.path))
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientAuthError(f"--auth-params: {path}: {error}") from error
