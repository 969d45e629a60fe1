"""Settings and the command line: sources, precedence, clear errors, fast start."""

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.broker.cli.main import main
from magnetar.broker.config import BrokerConfig, ConfigError, key_of


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# a comment\nmaxMessageSize = 1\nclusterName=f\nbrokerServicePort=1\n")
    environment = {"PULSAR_PREFIX_clusterName": "e", "MAGNETAR_brokerServicePort": "2"}
    config = BrokerConfig.load(file, environment, {"brokerServicePort": "3"})
    assert (config.max_message_size, config.cluster_name, config.broker_service_port) == (1, "e", 3)


def test_unknown_keys_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("nobodysKey=1\nmanagedLedgerDefaultEnsemble=2\n")
    with caplog.at_level(logging.WARNING):
        BrokerConfig.load(file, {})
    (record,) = caplog.records
    assert "managedLedgerDefaultEnsemble, nobodysKey" in record.getMessage()


def test_former_names_of_the_metadata_store(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("zookeeperServers=a:1,b:2/c\nconfigurationStoreServers=\n")
    assert BrokerConfig.load(file, {}).metadata_store_url == "zk:a:1,b:2/c"
    file.write_text("metadataStoreUrl=zk:new\nzookeeperServers=old\n")
    assert BrokerConfig.load(file, {}).metadata_store_url == "zk:new"
    environment = {"PULSAR_PREFIX_zookeeperServers": "e", "MAGNETAR_metadataStoreUrl": ""}
    assert BrokerConfig.load(None, environment).metadata_store_url == "zk:e"
    with pytest.raises(ConfigError, match="configurationMetadataStoreUrl"):
        BrokerConfig.load(None, {"PULSAR_PREFIX_configurationStoreServers": "other"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maxMessageSize", "big"),
        ("maxMessageSize", "0"),
        ("brokerServicePort", "65536"),
        ("allowAutoTopicCreation", "maybe"),
        ("allowAutoTopicCreationType", "other"),
        ("managedLedgerDefaultAckQuorum", "2"),
    ],
)
def test_a_bad_value_names_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig.load(None, {}, {key: value})


def test_keys_are_pulsars() -> None:
    assert key_of("managed_ledger_cache_size_mb") == "managedLedgerCacheSizeMB"
    assert key_of("max_message_publish_buffer_size_in_mb") == "maxMessagePublishBufferSizeInMB"
    keys = BrokerConfig().as_keys()
    assert keys["allowAutoTopicCreation"] == "true"
    assert keys["managedLedgerPassword"] == "******"


def test_a_line_without_a_value_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("\nnonsense\n")
    with pytest.raises(ConfigError, match=r"broker\.conf:2"):
        BrokerConfig.load(file, {})


def test_a_bad_option_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["standalone", "--set", "maxMessageSize"]) == 1
    assert capsys.readouterr().err == "magnetar: --set maxMessageSize: KEY=VALUE is expected\n"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from magnetar.broker.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ['fastapi', 'pydantic', 'uvicorn', 'google', 'asyncio']\n"
        "heavy += ['rich', 'shtab', 'http.client']\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_feature_that_does_not_exist_is_refused_not_ignored() -> None:
    with pytest.raises(ConfigError, match="tlsEnabledWithKeyStore=true"):
        BrokerConfig.load(environment={}, overrides={"tlsEnabledWithKeyStore": "true"})
    BrokerConfig.load(environment={}, overrides={"tlsEnabledWithKeyStore": "false"})
    with pytest.raises(ConfigError, match="tlsEnabled=true needs"):
        BrokerConfig.load(environment={}, overrides={"tlsEnabled": "true"})
    ports = {"tlsEnabled": "true", "brokerServicePortTls": "6651"}
    BrokerConfig.load(environment={}, overrides=ports)


def test_every_setting_is_read_by_something() -> None:
    root = Path(__file__).resolve().parents[4]
    declared = [root / "broker" / "config.py", root / "loadbalance" / "config.py"]
    text = "".join(
        path.read_text()
        for package in ("broker", "loadbalance")
        for path in (root / package).rglob("*.py")
        if path not in declared
    )
    config = (root / "broker" / "config.py").read_text()
    idle = [
        field.name
        for field in dataclasses.fields(BrokerConfig)
        # twice in config.py: declared, and used by a property or a check there
        if field.name not in text and config.count(field.name) < 3
    ]
    assert idle == []
