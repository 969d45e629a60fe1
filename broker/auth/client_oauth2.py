"""Tokens for the command line from an OAuth 2.0 issuer (client credentials, RFC 6749, 4.4).

Parameters are those of Pulsar's AuthenticationOAuth2; its Python client's names are known as well.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from magnetar.broker.auth.client_auth_error import ClientAuthError

if TYPE_CHECKING:
    import ssl
    from urllib.request import OpenerDirector

_REQUEST_S_MAX: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_EARLY: Final = 0.1  # a token is renewed when so much of its life is left
_FORMS: Final = (
    '{"issuerUrl":"https://...","privateKey":"file:///path","audience":"..."} is expected'
)

# Parameters -> token, and until when it is used (time.monotonic): a command asks several times
_tokens: dict[str, tuple[str, float]] = {}


def access_token(params: str) -> str:
    """A token that is good for a while; a new one when the last nears its end.

    Args:
        params: JSON object; ``privateKey`` is a file (path, ``file:``) or ``data:`` with
            ``client_id`` and ``client_secret``.
    Raises:
        ClientAuthError: the parameters can't be used, or the issuer gives no token.
    """
    token, until_s = _tokens.get(params, ("", 0.0))
    if time.monotonic() >= until_s:
        token, lifetime_s = _request(params)
        _tokens[params] = token, time.monotonic() + lifetime_s * (1 - _EARLY)
    return token


def _request(params: str) -> tuple[str, float]:
    from urllib.parse import urlencode  # of this plug-in only, as is all of HTTP below

    values = _object(params, "--auth-params")
    if (kind := values.get("type", "client_credentials")) != "client_credentials":
        raise ClientAuthError(f"--auth-params: type {kind}: client_credentials is possible")
    issuer = str(values.get("issuerUrl") or values.get("issuer_url") or "")
    source = str(values.get("privateKey") or values.get("private_key") or "")
    if not issuer or not source:
        raise ClientAuthError(f"--auth-params: {_FORMS}")
    key = _object(_read(source), "--auth-params: the private key")
    fields = {
        "grant_type": "client_credentials",
        "client_id": str(key.get("client_id", "")),
        "client_secret": str(key.get("client_secret", "")),
    }
    fields |= {name: str(values[name]) for name in ("audience", "scope") if values.get(name)}
    trusted = str(values.get("trustCertsFilePath", ""))
    url = issuer.rstrip("/") + "/.well-known/openid-configuration"
    endpoint = _ask(url, None, trusted).get("token_endpoint")
    if not isinstance(endpoint, str):
        raise ClientAuthError(f"{url}: no token_endpoint in it")
    _check_safe(url, endpoint)
    answer = _ask(endpoint, urlencode(fields).encode(), trusted)
    token, lifetime_s = answer.get("access_token"), answer.get("expires_in", 0)
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ClientAuthError(f"{endpoint}: no access_token in its answer")
    return token, float(lifetime_s) if isinstance(lifetime_s, int | float) else 0.0


def _check_safe(url: str, next_url: str) -> None:
    """Raises ClientAuthError: TLS is left, and anybody could say then where the secret is to go."""
    if urlsplit(url).scheme == "https" != urlsplit(next_url).scheme:
        raise ClientAuthError(f"{url} leads to {next_url}: not an https URL")


def _opener(context: ssl.SSLContext) -> OpenerDirector:
    """Follows redirects (of GET; a form is never sent again) as long as they stay on TLS."""
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

    class StaysOnTls(HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: Any, *rest: Any) -> Any:
            _check_safe(req.full_url, rest[-1])
            return super().redirect_request(req, fp, code, *rest)

    return build_opener(HTTPSHandler(context=context), StaysOnTls)


def _ask(url: str, form: bytes | None, trusted: str) -> Mapping[str, Any]:
    """GET, or POST of a form; no error shows what was sent."""
    import ssl
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request

    if urlsplit(url).scheme not in ("https", "http"):
        raise ClientAuthError(f"{url}: not an https URL")
    try:
        context = ssl.create_default_context(cafile=trusted or None)
        request = Request(url, form, {"Accept": "application/json"})
        with _opener(context).open(request, timeout=_REQUEST_S_MAX) as answer:
            content = answer.read(_ANSWER_BYTES_MAX).decode(errors="replace")
    except HTTPError as error:
        with error:
            text = error.read(_ANSWER_BYTES_MAX).decode(errors="replace")
        try:
            reason = json.loads(text)["error"]
        except (ValueError, TypeError, KeyError):
            reason = ""
        raise ClientAuthError(f"{url}: HTTP {error.code} {reason}".strip()) from None
    except (OSError, HTTPException, ValueError) as error:
        raise ClientAuthError(f"{url}: {error}") from error
    return _object(content, url)


def _read(source: str) -> str:
    """``/path``, ``file:///path`` or ``data:application/json;base64,...``."""
    if source.startswith("data:"):
        head, _, data = source.partition(",")
        try:
            return base64.b64decode(data).decode() if head.endswith(";base64") else unquote(data)
        except ValueError:
            raise ClientAuthError("--auth-params: privateKey is no base64") from None
    parts = urlsplit(source)
    path = Path(unquote(parts.netloc + parts.path) if parts.scheme == "file" else source)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientAuthError(f"--auth-params: {path}: {error}") from error


def _object(text: str, what: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ClientAuthError(f"{what}: not a JSON object")
    return value
