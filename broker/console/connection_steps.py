"""The way to a cluster, a step at a time, so that the one that fails is known by its name."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.formats import segment
from magnetar.broker.console.source import Source

_STEP_S: Final = 10.0


class StepError(AdminError):
    """A step before HTTP failed: nothing answers. The cause is the system's error."""

    def __init__(self, step: str, text: str) -> None:
        super().__init__(503, f"{step}: {text}")


async def network_steps(url: str, tls: ssl.SSLContext | None) -> AsyncIterator[tuple[str, str]]:
    """Names and results of the steps until the server can be asked.

    Args:
        url: of the web service.
        tls: None: a plain connection.
    Raises:
        StepError.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StepError("name", f"{host}: {error.strerror or error}") from error
    yield "name", f"{host} is {', '.join(dict.fromkeys(str(each[4][0]) for each in found))}"
    yield "TCP", await _connect("TCP", host, port, None)
    if tls is not None:
        yield "TLS", await _connect("TLS", host, port, tls)


async def _connect(step: str, host: str, port: int, tls: ssl.SSLContext | None) -> str:
    try:
        async with asyncio.timeout(_STEP_S):
            _, writer = await asyncio.open_connection(host, port, ssl=tls)
    except TimeoutError as error:
        raise StepError(step, f"no answer from {host}:{port} in {_STEP_S:.0f} s") from error
    except OSError as error:  # a certificate that isn't trusted, too
        raise StepError(step, str(error)) from error
    peer, secure = writer.get_extra_info("peername"), writer.get_extra_info("ssl_object")
    writer.transport.abort()  # nothing was said
    if secure is None:
        return f"connected to {peer[0]}, port {peer[1]}"
    names = [name for _, name in (secure.getpeercert() or {}).get("subjectAltName", ())]
    return f"{secure.version()}, certificate for {', '.join(names) or 'no name that was checked'}"


async def rights(source: Source) -> str:
    """Which lists that pages are made of are refused, and why; else that none is."""
    cluster = next(each for each in await get(source.api, "clusters") if each != "global")
    calls: dict[str, Any] = {
        "tenants": "tenants",
        "brokers": f"brokers/{segment(cluster)}",
        "statistics": "namespaces-index"
        if source.product == "Magnetar"
        else "broker-stats/load-report",
        "settings": "brokers/configuration/runtime",
    }
    refused = []
    for name, path in calls.items():
        try:
            await get(source.api, path)
        except AdminError as error:
            refused.append(f"no {name} ({error.status}: {error})")
    return ", ".join(refused) or f"{', '.join(calls)} may be read"
