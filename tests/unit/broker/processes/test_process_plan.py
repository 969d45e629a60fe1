"""``magnetar standalone --processes``: which processes, with which settings."""

import itertools
from dataclasses import replace

import pytest

from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.node_options import common_words
from magnetar.broker.cli.standalone_command import load_config
from magnetar.broker.config import BrokerConfig
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.plan import ProcessKind
from magnetar.broker.processes.local_broker import broker_settings
from magnetar.broker.processes.plan import (
    Ports,
    assign_ports,
    check_settings,
    plan_processes,
    process_count,
)

CONFIG = BrokerConfig()


def ports_of(config: BrokerConfig, count: int, busy: frozenset[int] = frozenset()) -> list[Ports]:
    return assign_ports(config, count, lambda port: port not in busy, itertools.count(20_000))


def test_as_many_as_asked_for() -> None:
    assert process_count("3", cores=8) == 3
    assert process_count("auto", cores=8) == 8
    for text in ("0", "-1", "two", "257", "1.5", "²"):
        with pytest.raises(LocalClusterError, match="--processes"):
            process_count(text, cores=8)


def test_ports_of_the_first_broker_are_those_of_the_settings() -> None:
    config = replace(CONFIG, broker_service_port_tls=6651)
    first, second = ports_of(config, 2)
    assert (first["brokerServicePort"], first["webServicePort"]) == (6650, 8080)
    assert (first["brokerServicePortTls"], first["webServicePortTls"]) == (6651, -1)
    assert (second["brokerServicePort"], second["webServicePort"]) == (6750, 8180)
    assert (second["brokerServicePortTls"], second["webServicePortTls"]) == (6751, -1)


def test_a_port_in_use_is_named() -> None:
    with pytest.raises(
        LocalClusterError, match=r"port 8180 \(webServicePort of broker-2\) is in use"
    ):
        ports_of(CONFIG, 2, busy=frozenset({8180}))


def test_free_ports_differ() -> None:
    config = replace(CONFIG, broker_service_port=0, web_service_port=0)
    ports = ports_of(config, 3, busy=frozenset({20_001}))
    used = [port for each in ports for port in each.values() if port > 0]
    assert len(set(used)) == len(used) == 6
    assert 20_001 not in used


@pytest.mark.parametrize(
    "changed",
    [
        replace(CONFIG, metadata_store_url="zk:host:2181"),
        replace(CONFIG, advertised_listeners="internal:pulsar://host:6650"),
    ],
)
def test_settings_that_several_brokers_cannot_share(changed: BrokerConfig) -> None:
    with pytest.raises(LocalClusterError, match="--processes"):
        check_settings(changed)


def test_each_process_is_started_with_the_settings_of_the_whole() -> None:
    words = ("--data", "here", "--port", "7000", "--set", "brokerServicePortTls=7001")
    options = build_parser(["standalone"]).parse_args(["standalone", *words, "--processes", "2"])
    config = load_config(options)
    plan = plan_processes("localhost", ports_of(config, 2), common_words(options))
    assert [each.name for each in plan] == ["storage", "broker-1", "broker-2"]
    assert [each.kind for each in plan[1:]] == [ProcessKind.BROKER] * 2
    configs = []
    for each in plan:
        parsed = build_parser(each.arguments).parse_args(each.arguments)
        assert parsed.process == each.name
        assert parsed.processes == "1"
        configs.append(load_config(parsed))
    storage, first, second = configs
    assert replace(storage, broker_service_port=7000) == config  # it listens at none
    assert first == config
    expected = replace(
        config,
        broker_service_port=7100,
        web_service_port=8180,
        broker_service_port_tls=7101,
    )
    assert second == expected


def test_a_broker_has_one_bookie_and_no_metadata_of_its_own() -> None:
    config = broker_settings(replace(CONFIG, data_dir="/d", managed_ledger_default_ensemble_size=2))
    assert config.metadata_store_url == "unix:/d/processes/metadata.socket"
    assert config.managed_ledger_default_ensemble_size == 1
    assert config.file_system_uri == "file:///d/offloaded"
    assert config.bookkeeper_client_authentication_plugin == ""


def test_with_authentication_the_storage_process_asks_for_a_token() -> None:
    config = broker_settings(replace(CONFIG, data_dir="/d", authentication_enabled=True))
    assert config.bookkeeper_client_authentication_plugin == "token"
    place = config.bookkeeper_client_authentication_parameters
    assert place == "file:///d/processes/bookie.token"
