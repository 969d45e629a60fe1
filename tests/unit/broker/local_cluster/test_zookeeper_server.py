"""zoo.cfg and myid of a server that isn't a laptop's."""

from pathlib import Path

import pytest

from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.java import log4j_properties
from magnetar.broker.local_cluster.zookeeper_server import (
    ServerAddress,
    heap_flags,
    own_id,
    parse_servers,
    server_cfg,
)

THREE = [f"{n}=zk-{n - 1}.zk.ns.svc:2888:3888" for n in (1, 2, 3)]


def lines(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_members_of_an_ensemble() -> None:
    servers = parse_servers(THREE)
    assert servers[2] == ServerAddress(3, "zk-2.zk.ns.svc", 2888, 3888)
    assert own_id(None, "zk-2.zk.ns.svc", servers) == 3
    assert own_id(None, "zk-0", servers) == 1
    assert own_id(2, "anything", servers) == 2
    found = lines(server_cfg(Path("/data"), "0.0.0.0", 2181, servers, {}))
    assert found["server.3"] == "zk-2.zk.ns.svc:2888:3888"
    assert found["quorumListenOnAllIPs"] == "true"
    assert (found["clientPort"], found["clientPortAddress"]) == ("2181", "0.0.0.0")
    assert found["dataDir"] == "/data"


def test_one_alone_listens_to_no_peers() -> None:
    found = lines(server_cfg(Path("/data"), "127.0.0.1", 2181, [], {"tickTime": "500"}))
    assert "quorumListenOnAllIPs" not in found
    assert not any(key.startswith("server.") for key in found)
    assert found["tickTime"] == "500"


def test_over_tls_only_there_is_no_plain_port() -> None:
    found = lines(server_cfg(Path("/d"), "0.0.0.0", -1, [], {"secureClientPort": "2281"}))
    assert "clientPort" not in found
    assert found["secureClientPort"] == "2281"


@pytest.mark.parametrize(
    "text", ["zk:1:2", "0=zk:1:2", "256=zk:1:2", "1=zk:1", "1=:1:2", "x=zk:1:2", "1=zk:1:2:3"]
)
def test_what_is_no_member_is_refused(text: str) -> None:
    with pytest.raises(LocalClusterError, match="ID=HOST:PEER_PORT:ELECTION_PORT"):
        parse_servers([text])


def test_who_isn_t_a_member_is_refused() -> None:
    servers = parse_servers(THREE)
    for number, host in ((4, ""), (None, "zk-3"), (None, "zookeeper")):
        with pytest.raises(LocalClusterError):
            own_id(number, host, servers)
    with pytest.raises(LocalClusterError, match="one id twice"):
        parse_servers([THREE[0], THREE[0]])


@pytest.mark.parametrize("key", ["dataDir", "clientPort", "clientPortAddress", "server.1"])
def test_options_are_no_settings(key: str) -> None:
    with pytest.raises(LocalClusterError, match="options, not settings"):
        server_cfg(Path("/data"), "0.0.0.0", 2181, [], {key: "x"})


def test_heap_and_log() -> None:
    assert heap_flags("512m") == ["-Xms512m", "-Xmx512m"]
    for text in ("", "512", "m", "-Xmx1g", "1 g"):
        with pytest.raises(LocalClusterError, match="a size such as"):
            heap_flags(text)
    assert "JsonTemplateLayout" in log4j_properties(as_json=True)
    assert "PatternLayout" in log4j_properties(as_json=False)
