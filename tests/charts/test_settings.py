"""What the chart tells its processes is what they understand: commands, arguments, settings."""

import argparse
import re
import socket
from collections.abc import Callable, Iterator, Mapping

import pytest
import yaml

from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.replication.settings import (
    ENVIRONMENT_PREFIXES,
    KEYS,
    AutoRecoverySettings,
)
from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.standalone_command import CLUSTER_DEFAULTS
from magnetar.broker.config import BrokerConfig
from tests.charts.policies import containers_of
from tests.charts.renderings import CHART, VALUES, Object, Rendering

each_rendering = pytest.mark.parametrize("rendering", VALUES, ids=lambda each: each.name)
# What a kubelet puts for the downward API.
POD = {
    "metadata.name": "m-magnetar-bookie-2",
    "metadata.namespace": "mq",
    "status.podIP": "10.1.2.3",
    "status.hostIP": "10.1.0.3",
    "spec.nodeName": "node-1",
    "metadata.labels['topology.kubernetes.io/zone']": "zone-b",
    "metadata.labels['apps.kubernetes.io/pod-index']": "2",
}
# They are no settings of servers: the command line's own (docs/reference/cli.md).
OF_THE_CLIENTS = frozenset(
    f"MAGNETAR_{name}"
    for name in ("SERVICE_URL", "ADMIN_URL", "AUTH_PLUGIN", "AUTH_PARAMS", "TLS_TRUST_CERT_PATH")
)


def environment(container: Object, objects: list[Object]) -> dict[str, str]:
    """Variables as a kubelet would set them, ConfigMaps first."""
    maps = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    variables: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        data = maps[source["configMapRef"]["name"]].get("data") or {}
        variables |= {source["prefix"] + key: value for key, value in data.items()}
    for each in container.get("env", ()):
        if "valueFrom" in each:
            variables[each["name"]] = POD[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            variables[each["name"]] = expanded(each["value"], variables)
    return variables


def expanded(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\(([^)]+)\)", lambda match: variables[match[1]], text)


def words_of(container: Object, variables: Mapping[str, str]) -> list[str]:
    words = [*container["command"], *container.get("args", ())]
    return [expanded(word, variables) for word in words]


def _processes(rendering: Rendering) -> Iterator[tuple[str, Object, dict[str, str]]]:
    objects = rendering.objects()
    for name, container in containers_of(objects):
        yield name, container, environment(container, objects)


def _parsed(words: list[str]) -> argparse.Namespace:
    assert words[0] == "magnetar"
    return build_parser(words[1:]).parse_args(words[1:])


@each_rendering
def test_commands_are_commands(rendering: Rendering) -> None:
    for name, container, variables in _processes(rendering):
        words = words_of(container, variables)
        if name.endswith("/toolset"):
            assert words == ["sleep", "infinity"]
            continue
        options = _parsed(words)
        assert options.command == words[1]
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            if "exec" in container.get(kind, {}):
                assert _parsed(container[kind]["exec"]["command"]).check in ("live", "ready")
        stop = container.get("lifecycle", {}).get("preStop", {})
        if "exec" in stop:
            drain = _parsed(stop["exec"]["command"])
            assert drain.command == "bookie-drain"
            assert drain.address.endswith(":" + variables["MAGNETAR_httpServerPort"])
            needs_token = "MAGNETAR_bookieAllowedRoles" in variables
            assert (drain.token is not None) is needs_token


@each_rendering
def test_every_variable_is_a_setting(rendering: Rendering) -> None:
    """Servers ignore what they don't know, so a misspelt key would be noticed by nobody."""
    for name, _, variables in _processes(rendering):
        known = _KNOWN.get(name.rpartition("/")[2])
        ours = {each for each in variables if each.startswith("MAGNETAR_")} - OF_THE_CLIENTS
        if known is None:
            assert name.endswith("/zookeeper")
            assert not ours
            continue
        assert ours == {each for each in ours if known({each: variables[each]})}, name


@each_rendering
def test_settings_go_together(rendering: Rendering, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server's settings are good as a whole; files that are mounted need not be there."""
    monkeypatch.setattr(socket, "gethostname", lambda: POD["metadata.name"])
    for name, _, variables in _processes(rendering):
        match name.rpartition("/")[2]:
            case "broker":
                config = BrokerConfig.load(None, variables, (), CLUSTER_DEFAULTS)
                assert config.metadata_store_url.startswith("zk:")
                assert config.advertised_host.startswith("m-magnetar-bookie-2.")
            case "standalone":
                config = BrokerConfig.load(None, variables)
                assert "standalone" in config.advertised_host
            case "bookie":
                settings = BookieSettings.load(BookieSettings.environment(variables))
                settings.check()
                assert settings.metadata_url.startswith("zk:")
                assert settings.http_server_enabled
                assert len(set(settings.ledgers) | set(settings.journals)) >= 1
            case "recovery":
                pairs = KEYS.environment(variables, ENVIRONMENT_PREFIXES)
                recovery = AutoRecoverySettings.load(pairs)
                assert recovery.http_server_enabled
                assert recovery.http_server_host == recovery_host(rendering)


def recovery_host(rendering: Rendering) -> str:
    values = yaml.safe_load(rendering.values_path.read_text("utf-8"))
    return str(values.get("bindAddress", "0.0.0.0"))


def _of_broker(pair: Mapping[str, str]) -> bool:
    from magnetar.broker.config import _environment_pairs

    return bool(_environment_pairs(pair))


def _of_bookie(pair: Mapping[str, str]) -> bool:
    return bool(BookieSettings.environment(pair)) or _of_recovery(pair)


def _of_recovery(pair: Mapping[str, str]) -> bool:
    return bool(KEYS.environment(pair, ENVIRONMENT_PREFIXES))


_KNOWN: dict[str, Callable[[Mapping[str, str]], bool]] = {
    "broker": _of_broker,
    "standalone": _of_broker,
    "toolset": _of_broker,
    "bookie": _of_bookie,
    "recovery": _of_recovery,
}


def test_where_a_bookie_stands() -> None:
    """Zone and upgrade domain reach what the cookie is made of, by each way that values have."""
    found = {}
    for rendering in VALUES:
        for name, _, variables in _processes(rendering):
            if name.endswith("/bookie"):
                settings = BookieSettings.load(BookieSettings.environment(variables))
                found[rendering.name] = settings.location("m-magnetar-bookie-2")
    # Racks are zones: two copies must not be in two "racks" of one zone.
    assert found["default"] == "/zone-b/default-upgrade-domain"
    assert found["zones"] == "/zone-b/2"
    assert found["storage"] == "/cellar/default-upgrade-domain"


def _of(rendering_name: str, process: str) -> Object:
    [rendering] = [each for each in VALUES if each.name == rendering_name]
    [found] = [c for name, c, _ in _processes(rendering) if name.endswith(f"/{process}")]
    return found


def test_extra_variables_win_whatever_their_spelling() -> None:
    levels = [
        each["value"]
        for each in _of("odd", "broker")["env"]
        if each["name"].replace("_", "").lower() == "magnetarloglevel"
    ]
    assert levels == ["DEBUG"], "two would contradict each other"
    names = [each["name"] for each in _of("odd", "broker")["env"]]
    assert names[-1] == "NODE_IP"
    assert "MAGNETAR_logLevel" in [each["name"] for each in _of("odd", "bookie")["env"]]


def test_settings_are_the_texts_that_values_have() -> None:
    [odd] = [each for each in VALUES if each.name == "odd"]
    given = yaml.safe_load(odd.values_path.read_text("utf-8"))["broker"]["configData"]
    objects = odd.objects()
    data = next(
        each["data"]
        for each in objects
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith("-broker")
    )
    assert data["fileSystemUri"] == given["fileSystemUri"]
    assert data["maxMessageSize"] == "67108864"
    # The chart's own is managedLedgerCacheSizeMB: "128".
    assert data["managedLedgerCacheSizeMB"] == given["PULSAR_PREFIX_managedLedgerCacheSizeMB"]


def test_the_console_is_what_values_say() -> None:
    found = {}
    for rendering in VALUES:
        for name, _, variables in _processes(rendering):
            if name.endswith(("/broker", "/standalone")):
                found[rendering.name] = BrokerConfig.load(None, variables)
    default, secured = found["default"], found["secured"]
    assert default.web_console_enabled
    assert not default.web_console_read_only
    assert (default.web_console_messages, default.web_console_environment) == ("full", "")
    assert secured.web_console_read_only
    assert secured.web_console_messages == "metadata"
    assert secured.web_console_environment == "production:red"
    # An Ingress keeps the browser's Host.
    assert "magnetar.example.com" in found["standalone"].web_service_allowed_hosts.split(",")


def test_an_ingress_leads_to_the_console_and_to_nothing_else() -> None:
    found = {
        rendering.name: each["spec"]
        for rendering in VALUES
        for each in rendering.objects()
        if each["kind"] == "Ingress"
    }
    for spec in found.values():
        [rule] = spec["rules"]
        ways = {(path["path"], path["pathType"]) for path in rule["http"]["paths"]}
        assert ways == {("/", "Exact"), ("/console", "Prefix")}
    assert found.keys() == {"secured", "standalone"}
    [tls] = found["secured"]["tls"]
    assert tls == {"hosts": ["console.example.com"], "secretName": "console-certificate"}
    assert "tls" not in found["standalone"]


def test_a_digest_is_a_version() -> None:
    image = _of("odd", "broker")["image"]
    assert re.fullmatch(r"magnetar@sha256:[0-9a-f]{64}", image)


def test_a_node_without_a_zone_is_in_the_default_one() -> None:
    variables = {"MAGNETAR_ZONE": "", "MAGNETAR_UPGRADE_DOMAIN": "2"}
    settings = BookieSettings.load(BookieSettings.environment(variables))
    assert settings.location("m-magnetar-bookie-2") == "/default-zone/2"


def test_the_version_is_the_packages() -> None:
    chart = (CHART / "Chart.yaml").read_text("utf-8")
    project = (CHART.parents[1] / "pyproject.toml").read_text("utf-8")
    [version] = re.findall(r'^version = "(.+)"', project, re.MULTILINE)
    assert f'appVersion: "{version}"' in chart
