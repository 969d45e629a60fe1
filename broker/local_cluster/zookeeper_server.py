"""``zoo.cfg`` and ``myid`` of one ZooKeeper server that keeps its files in one folder. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.broker.local_cluster.errors import LocalClusterError

_SERVER: Final = re.compile(r"(\d+)=([^:\s]+):(\d+):(\d+)")
_HEAP: Final = re.compile(r"\d+[kKmMgG]")
_DEFAULTS: Final = {
    "tickTime": "2000",
    "initLimit": "30",  # ticks, until a follower has its copy
    "syncLimit": "10",
    # Brokers' default sessions are 30 s; ZooKeeper's own limits would be 4 and 40 s.
    "minSessionTimeout": "4000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "autopurge.purgeInterval": "1",  # hours
    "autopurge.snapRetainCount": "3",
    "4lw.commands.whitelist": "ruok,srvr",
    "admin.enableServer": "false",
}
_OWN: Final = frozenset({"dataDir", "clientPort"})


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One member of an ensemble; ``id`` is 1 to 255."""

    id: int
    host: str
    peer_port: int
    election_port: int


def parse_servers(texts: Sequence[str]) -> list[ServerAddress]:
    """Of ``ID=HOST:PEER_PORT:ELECTION_PORT`` each.

    Raises:
        LocalClusterError: not of this form, or an id twice.
    """
    servers = []
    for text in texts:
        found = _SERVER.fullmatch(text)
        if found is None or not 0 < int(found[1]) < 256:
            raise LocalClusterError(f"--server {text}: ID=HOST:PEER_PORT:ELECTION_PORT is expected")
        servers.append(ServerAddress(int(found[1]), found[2], int(found[3]), int(found[4])))
    if len({each.id for each in servers}) < len(servers):
        raise LocalClusterError("--server: one id twice")
    return servers


def own_id(given: int | None, host_name: str, servers: Sequence[ServerAddress]) -> int:
    """This server's id among ``servers``: the given one, else the host's number and one.

    Raises:
        LocalClusterError: there is none, or no such server.
    """
    found = given
    if found is None:
        number = re.search(r"(\d+)$", host_name.partition(".")[0])
        if number is None:
            raise LocalClusterError(f"--id is needed: host name {host_name!r} ends with no number")
        found = int(number[1]) + 1
    if all(each.id != found for each in servers):
        raise LocalClusterError(f"server {found} isn't among those of --server")
    return found


def server_cfg(
    data: Path,
    bind: str,
    port: int,
    servers: Sequence[ServerAddress],
    settings: Mapping[str, str],
) -> str:
    """The text of zoo.cfg.

    Args:
        servers: of the ensemble; empty: this one is alone.
        settings: further keys, or other values of those that have a default here.
    Raises:
        LocalClusterError: a key that an option says.
    """
    taken = (_OWN | {"clientPortAddress"}) & settings.keys()
    if taken or any(key.startswith("server.") for key in settings):
        raise LocalClusterError("dataDir, client port and servers are options, not settings")
    lines = {
        **_DEFAULTS,
        "dataDir": str(data),
        # Without a plain port (TLS only) settings name secureClientPort.
        **({} if port < 0 else {"clientPort": str(port), "clientPortAddress": bind}),
        **{
            f"server.{each.id}": f"{each.host}:{each.peer_port}:{each.election_port}"
            for each in servers
        },
        # A pod's name has no address before it is ready, nor is it its own by then.
        **({"quorumListenOnAllIPs": "true"} if servers else {}),
        **settings,
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def heap_flags(heap: str) -> list[str]:
    """Java's flags of ``--heap``.

    Raises:
        LocalClusterError: not a size.
    """
    if not _HEAP.fullmatch(heap):
        raise LocalClusterError(f"--heap {heap}: a size such as 256m is expected")
    return [f"-Xms{heap}", f"-Xmx{heap}"]
