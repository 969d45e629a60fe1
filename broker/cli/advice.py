"""What a user can do about a failure, in words. Pure but for `advice_on`, which asks the port."""

import argparse
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from magnetar.broker.cli.errors import RefusedError, UnreachableError
from magnetar.broker.cli.listener import Listener, find_listener
from magnetar.broker.cli.profiles import DEFAULT, target_of

_SCHEMES: Final = {
    "http": (80, Listener.HTTP),
    "https": (443, Listener.HTTPS),
    "ws": (80, Listener.HTTP),
    "wss": (443, Listener.HTTPS),
    "pulsar": (6650, Listener.PULSAR),
    "pulsar+ssl": (6651, Listener.PULSAR_TLS),
}
"""Scheme of a URL -> its port, and what must listen there."""
_OPTIONS: Final = {
    "admin_url": ("--admin-url", "MAGNETAR_ADMIN_URL"),
    "url": ("--url", "MAGNETAR_SERVICE_URL"),
}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def advice_on(
    error: RefusedError | UnreachableError, options: argparse.Namespace, names: frozenset[str]
) -> list[str]:
    """Lines to show below an error.

    Args:
        names: the options that say where the command connects to, and as whom.
    """
    if isinstance(error, RefusedError):
        if "auth_plugin" not in names:
            return []
        has_credentials = bool(target_of(options).auth_plugin)
        return list(on_refusal(error.status, has_credentials=has_credentials))
    if (trust := _on_certificate(error)) is not None:
        return [trust]
    parts = urlsplit(error.url)
    found = find_listener(parts.hostname or "", parts.port or _SCHEMES[parts.scheme][0])
    return list(on_listener(error.url, found, names, named_by=error.named_by))


def on_listener(
    url: str, found: Listener, names: frozenset[str], *, named_by: str = ""
) -> Iterator[str]:
    """What to do when ``url`` gave no answer, and this is what is there.

    Args:
        names: as of `advice_on`.
        named_by: the server that gave the address; "": the user did.
    """
    parts = urlsplit(url)
    usual_port, wanted = _SCHEMES[parts.scheme]
    host, port = parts.hostname or "", parts.port or usual_port
    flag, variable = _OPTIONS["admin_url" if parts.scheme in ("http", "https") else "url"]
    match found:
        case Listener.NO_HOST:
            yield f"No address is known for {host}: is the name right, and known to DNS here?"
        case Listener.NOBODY:
            yield f"Nothing listens on port {port} of {host}."
        case Listener.NO_ROUTE:
            yield f"No connection to port {port} of {host}: a firewall, or a machine that is down?"
        case Listener.SILENT:
            yield f"Port {port} of {host} speaks neither HTTP nor Pulsar's protocol: another port?"
        case _ if found is not wanted:
            yield _other_protocol(parts.scheme, found, f"{_bracketed(host)}:{port}")
            return
        case _:
            yield "It answers now: try again, with --request-timeout SECONDS if it was slow."
            return
    if named_by:
        yield (
            f"{named_by} gave this address: its advertisedAddress or advertisedListeners must name "
            "what clients reach (--listener-name picks one of several)."
        )
        return
    if found is Listener.NOBODY and host in _LOOPBACK:
        yield "Start a broker on this machine: magnetar standalone"
    if names.intersection(_OPTIONS):
        is_default = url in (DEFAULT.admin_url, DEFAULT.service_url)
        named = "Name another one" if not is_default else "This is the default; name your cluster"
        yield f"{named}: {flag} URL, --profile NAME (magnetar profiles list) or {variable}."


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _other_protocol(scheme: str, found: Listener, place: str) -> str:
    """The port speaks ``found``, and was asked by ``scheme``."""
    wants_http = scheme in ("http", "https")
    over_tls = found in (Listener.HTTPS, Listener.PULSAR_TLS)
    speaks_http = found in (Listener.HTTP, Listener.HTTPS)
    if wants_http and not speaks_http:
        return (
            f"{place} speaks Pulsar's binary protocol. The admin API is on the HTTP port "
            "(webServicePort, 8080 by default): --admin-url http://HOST:8080"
        )
    if scheme.startswith("pulsar") and speaks_http:
        return (
            f"{place} is an HTTP port. Clients use the broker's port (brokerServicePort, 6650 by "
            f"default): --url pulsar://HOST:6650; or WebSocket: "
            f"--url {'wss' if over_tls else 'ws'}://{place}"
        )
    if scheme in ("ws", "wss") and not speaks_http:
        return f"{place} speaks Pulsar's binary protocol: --url {found.value}://{place}"
    right = found.value if scheme not in ("ws", "wss") else "wss" if over_tls else "ws"
    flag = "--admin-url" if wants_http else "--url"
    return f"{place} speaks {'TLS' if over_tls else 'no TLS'}: {flag} {right}://{place}"


def _on_certificate(error: UnreachableError) -> str | None:
    """Advice where TLS failed by a certificate, theirs or ours; None: it was something else."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        if "match" in cause.verify_message or "mismatch" in cause.verify_message:
            return "The server's certificate is for another name: use the name that it is made for."
        return (
            "The server's certificate isn't trusted here: --tls-trust-cert-path FILE names the "
            "authority that signed it."
        )
    if cause is not None and "CERTIFICATE_REQUIRED" in (cause.reason or ""):
        return (
            "The server wants a certificate of yours: "
            "--auth-plugin tls --auth-params tlsCertFile:FILE,tlsKeyFile:FILE"
        )
    return None


def on_refusal(status: int, *, has_credentials: bool) -> Iterator[str]:
    """What to do when a server refused with this HTTP status."""
    if status in (401, 403) and not has_credentials:
        yield (
            "No credentials were sent: --auth-plugin token --auth-params file:///PATH, or a "
            "profile that has them (magnetar profiles add)."
        )
    elif status == 401:
        yield (
            "The credentials were sent and not accepted: are they for this cluster, and still "
            "valid (magnetar tokens show)?"
        )
    elif status == 403:
        yield (
            "Who you are is known, and may not do this. A superuser, or an administrator of the "
            "tenant, grants rights: magnetar admin namespaces grant-permission"
        )
