"""The cluster's DNS: names of Services and of pods behind headless ones, from EndpointSlices.

A Service with an address of its own is answered with the addresses of its ready pods instead:
there is no proxy here, and the chart's Services use the ports of their pods.
"""

import socket
import socketserver
import struct
import threading
from collections.abc import Iterable
from typing import Final

from tests.charts.live.network import BRIDGE_ADDRESS
from tests.charts.renderings import Object

_HEADER: Final = struct.Struct("!6H")
_TTL_S: Final = 5
_ADDRESS: Final = 1  # RFC 1035: the type A
_NO_SUCH_NAME: Final = 3
_DOMAIN: Final = "svc.cluster.local"


def resolver_configuration(namespace: str) -> str:
    """A pod's /etc/resolv.conf, as a kubelet writes it (dnsPolicy: ClusterFirst)."""
    search = f"{namespace}.{_DOMAIN} {_DOMAIN} cluster.local"
    return f"search {search}\nnameserver {BRIDGE_ADDRESS}\noptions ndots:5\n"


def table_of(services: Iterable[Object], slices: Iterable[Object]) -> dict[str, list[str]]:
    """Every name and its addresses; a Service without any has its name and no address."""
    table: dict[str, list[str]] = {}
    silent = set()
    for each in services:
        name = f"{each['metadata']['name']}.{each['metadata']['namespace']}.{_DOMAIN}"
        table[name] = []
        if each["spec"].get("publishNotReadyAddresses"):
            silent.add(name)
    for each in slices:
        service = each["metadata"].get("labels", {}).get("kubernetes.io/service-name")
        name = f"{service}.{each['metadata']['namespace']}.{_DOMAIN}"
        for endpoint in each.get("endpoints") or ():
            if name in table and (endpoint["conditions"].get("ready") or name in silent):
                table[name] += endpoint["addresses"]
                if host := endpoint.get("hostname"):
                    table.setdefault(f"{host}.{name}", []).extend(endpoint["addresses"])
    return table


def answer(request: bytes, table: dict[str, list[str]]) -> bytes:
    """The reply to a datagram with one question; other types than A have no records."""
    number = _HEADER.unpack_from(request)[0]
    labels, at = [], _HEADER.size
    while length := request[at]:
        labels.append(request[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    kind = struct.unpack_from("!H", request, at + 1)[0]
    question = request[_HEADER.size : at + 5]
    addresses = table.get(".".join(labels).lower())
    found = addresses if addresses and kind == _ADDRESS else []
    # A response (0x8000) by an authority (0x0400) that recursion may be asked of (0x0180).
    flags = 0x8580 | (_NO_SUCH_NAME if addresses is None else 0)
    records = b"".join(
        # 0xC00C: the name is that of the question; class 1: Internet.
        struct.pack("!HHHIH", 0xC00C, _ADDRESS, 1, _TTL_S, 4) + socket.inet_aton(each)
        for each in found
    )
    return _HEADER.pack(number, flags, 1, len(found), 0, 0) + question + records


class _Handler(socketserver.BaseRequestHandler):
    server: "_Server"

    def handle(self) -> None:
        request, server_socket = self.request
        server_socket.sendto(answer(request, self.server.table), self.client_address)


class _Server(socketserver.UDPServer):
    table: dict[str, list[str]]


class NameServer:
    """Answers on the bridge until ``close``."""

    def __init__(self) -> None:
        self._server = _Server((BRIDGE_ADDRESS, 53), _Handler)
        self._server.table = {}
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def learn(self, services: Iterable[Object], slices: Iterable[Object]) -> None:
        self._server.table = table_of(services, slices)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
