"""What of the kubelet needs no cluster: names, variables, fields, statuses."""

from __future__ import annotations

import base64
import os
import struct
from pathlib import Path
from typing import Any, cast

import pytest

from tests.charts.live.api import ApiServer, Gone
from tests.charts.live.names import answer, table_of
from tests.charts.live.secrets import commands_of
from tests.charts.live.settings import command_of, expand, variables_of
from tests.charts.live.volumes import (
    NotThereYet,
    make_volumes,
    refresh_volumes,
    value_of_field,
)
from tests.charts.renderings import Object

POD: Object = {
    "metadata": {
        "name": "bookie-1",
        "namespace": "mq",
        "labels": {"topology.kubernetes.io/zone": "zone-2"},
    },
    "spec": {"nodeName": "node-2"},
    "status": {"podIP": "10.244.1.7"},
}


class _Objects:
    """Stands in for the API server."""

    def __init__(self, **objects: Object) -> None:
        self._objects = objects

    def get(self, path: str) -> Any:
        name = path.rpartition("/")[2]
        if name not in self._objects:
            raise Gone(404, name)
        return self._objects[name]


def _api(**objects: Object) -> ApiServer:
    return cast(ApiServer, _Objects(**objects))


def _question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(word)]) + word.encode() for word in name.split("."))
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!xHH", kind, 1)


def _code_and_addresses(reply: bytes) -> tuple[int, list[str]]:
    number, flags, _, count, _, _ = struct.unpack_from("!6H", reply)
    assert number == 7
    assert flags & 0x8000
    ends = [len(reply) - 16 * after for after in reversed(range(count))]
    return flags & 15, [".".join(map(str, reply[end - 4 : end])) for end in ends]


def _slice(service: str, *ends: tuple[str, str, bool]) -> Object:
    labels = {"kubernetes.io/service-name": service}
    endpoints = [
        {"addresses": [address], "hostname": host, "conditions": {"ready": is_ready}}
        for host, address, is_ready in ends
    ]
    return {"metadata": {"namespace": "mq", "labels": labels}, "endpoints": endpoints}


def _service(name: str, **spec: object) -> Object:
    return {"metadata": {"name": name, "namespace": "mq"}, "spec": spec}


def test_names_are_answered_as_the_clusters_dns_does() -> None:
    services = [_service("door"), _service("pods", publishNotReadyAddresses=True)]
    ends = (("b-0", "10.244.1.1", True), ("b-1", "10.244.1.2", False))
    table = table_of([*services, _service("empty")], [_slice("door", *ends), _slice("pods", *ends)])

    def ask(name: str, kind: int = 1) -> tuple[int, list[str]]:
        return _code_and_addresses(answer(_question(f"{name}.mq.svc.cluster.local", kind), table))

    assert ask("door") == (0, ["10.244.1.1"])
    assert ask("PODS") == (0, ["10.244.1.1", "10.244.1.2"])
    assert ask("b-1.pods") == (0, ["10.244.1.2"])
    assert ask("b-1.door") == (3, [])
    assert ask("empty") == (0, [])
    assert ask("nobody") == (3, [])
    assert ask("door", 28) == (0, [])  # the type AAAA: the name is there, without such an address


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)-$(B)", "1-$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $(A", "$A $(A"),
    ],
)
def test_references_are_expanded(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


def test_the_environment_has_what_the_pod_says() -> None:
    container = {
        "command": ["magnetar", "bookie"],
        "args": ["--id", "$(POD_NAME)"],
        "envFrom": [{"prefix": "MAGNETAR_", "configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ADDRESS", "value": "$(POD_NAME).$(MAGNETAR_domain)"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "k"}}},
            {
                "name": "NONE",
                "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k", "optional": True}},
            },
        ],
    }
    secret = {"data": {"k": base64.b64encode(b"hidden").decode()}}
    api = _api(settings={"data": {"domain": "d"}}, secret=secret)
    variables = variables_of(api, POD, container, {"PATH": "/bin"})
    assert variables == {
        "PATH": "/bin",
        "HOSTNAME": "bookie-1",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
        "MAGNETAR_domain": "d",
        "POD_NAME": "bookie-1",
        "ADDRESS": "bookie-1.d",
        "KEY": "hidden",
    }
    assert command_of(container, variables) == ["magnetar", "bookie", "--id", "bookie-1"]
    with pytest.raises(NotThereYet, match="secret"):
        variables_of(_api(settings={}), POD, container, {})


def test_fields_of_the_downward_api() -> None:
    assert value_of_field(POD, "status.podIP") == "10.244.1.7"
    assert value_of_field(POD, "spec.nodeName") == "node-2"
    zone = "metadata.labels['topology.kubernetes.io/zone']"
    assert value_of_field(POD, zone) == "zone-2"
    assert value_of_field(POD, "metadata.labels['other']") == ""


def test_volumes_are_folders_and_files(tmp_path: Path) -> None:
    claim = {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    kept = tmp_path / "kept"
    kept.mkdir()
    secret = {"data": {"TOKEN": base64.b64encode(b"t").decode(), "other": ""}}
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "token",
            "secret": {
                "secretName": "secret",
                "defaultMode": 0o440,
                "items": [{"key": "TOKEN", "path": "in/token"}],
            },
        },
        {"name": "both", "projected": {"sources": [{"configMap": {"name": "settings"}}]}},
    ]
    pod = {**POD, "spec": {"volumes": volumes}}
    api = _api(
        claim=claim,
        pv={"spec": {"hostPath": {"path": str(kept)}}},
        secret=secret,
        settings={"data": {"zoo.cfg": "a=b\n"}},
    )
    if kept.stat().st_uid != 0:
        pytest.skip("only root gives files to groups")
    found = make_volumes(api, pod, tmp_path / "volumes")
    assert found["data"] == kept
    assert os.readlink(found["token"] / "in") == "..data/in"
    token = found["token"] / "in" / "token"
    assert (token.read_bytes(), token.stat().st_mode & 0o777) == (b"t", 0o440)
    assert (found["both"] / "zoo.cfg").read_text("utf-8") == "a=b\n"
    assert not refresh_volumes(api, pod, tmp_path / "volumes", "secret", "secret")
    before = (found["token"] / "..data").resolve()
    secret["data"] = {"TOKEN": base64.b64encode(b"new").decode()}
    assert not refresh_volumes(api, pod, tmp_path / "volumes", "configMap", "secret")
    assert refresh_volumes(api, pod, tmp_path / "volumes", "secret", "secret")
    assert (token.read_bytes(), token.stat().st_mode & 0o777) == (b"new", 0o440)
    assert not before.exists()
    secret["data"] = {"other": ""}
    with pytest.raises(NotThereYet, match="TOKEN"):
        refresh_volumes(api, pod, tmp_path / "volumes", "secret", "secret")
    assert token.read_bytes() == b"new"
    claim["status"] = {"phase": "Pending"}
    with pytest.raises(NotThereYet, match="claim"):
        make_volumes(api, pod, tmp_path / "volumes")


def test_commands_of_the_page_are_found() -> None:
    sections = ("TLS", "Tokens", "TLS and tokens in a running cluster")
    assert [len(commands_of(section)) for section in sections] == [2, 1, 1]
