"""Each of Apache Pulsar 4.2.4's settings is obeyed, known to mean nothing here, or ends the start.

``pulsar_settings_4_2_4.tsv``: names and defaults of the fields of its ServiceConfiguration, read by
reflection from its jar. ``pulsar_files_4_2_4.tsv``: what its broker.conf and standalone.conf set to
anything else.
"""

import logging
import os
import re
from pathlib import Path

import pytest

from magnetar.bookkeeper.environment import normalize_key
from magnetar.broker.config import _FIELD_OF_KEY, _FORMER_KEYS, BrokerConfig, ConfigError
from magnetar.broker.pulsar_settings import (
    BOOKKEEPER,
    FEATURES,
    LACKING,
    TUNING,
    apache_store_url,
    is_default,
)

_ROWS = (Path(__file__).parent / "pulsar_settings_4_2_4.tsv").read_text().splitlines()
DEFAULTS = dict(line.split("\t") for line in _ROWS)
_FILE_ROWS = (Path(__file__).parent / "pulsar_files_4_2_4.tsv").read_text().splitlines()
FILES = ("broker.conf", "standalone.conf")
SOURCES = ("file", "PULSAR_PREFIX_", "MAGNETAR_", "command line")
_URI = "bookkeeperMetadataServiceUri"


def load(source: str, settings: dict[str, str], tmp_path: Path) -> BrokerConfig:
    if source == "file":
        file = tmp_path / "broker.conf"
        file.write_text("".join(f"{key}={text}\n" for key, text in settings.items()))
        return BrokerConfig.load(file, {})
    if source == "command line":
        return BrokerConfig.load(None, {}, settings)
    return BrokerConfig.load(None, {source + key: text for key, text in settings.items()})


def another(default: str) -> str:
    """A value that isn't this one."""
    if default in ("true", "false"):
        return "false" if default == "true" else "true"
    return str(int(default) + 1) if default.isdigit() else "another"


def test_each_name_has_one_meaning() -> None:
    assert len(DEFAULTS) == len(_ROWS) == 568
    obeyed = {
        name for name in DEFAULTS if normalize_key(name) in _FIELD_OF_KEY.keys() | _FORMER_KEYS
    }
    tables = (obeyed, LACKING.keys(), FEATURES.keys(), TUNING)
    assert sum(map(len, tables)) == 568
    assert set().union(*tables) == DEFAULTS.keys()
    for name, default in FEATURES.items() | {(name, row.default) for name, row in LACKING.items()}:
        assert default == DEFAULTS[name]
    of_others = _FIELD_OF_KEY.keys() | {normalize_key(name) for name in DEFAULTS}
    assert not {normalize_key(name) for name in BOOKKEEPER} & of_others


@pytest.mark.parametrize("source", SOURCES)
def test_pulsars_defaults_start(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        config = load(source, DEFAULTS, tmp_path)
    assert config.managed_ledger_default_ensemble_size == 2  # it was read
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert all(name in record.getMessage() for name in TUNING)
    # As Pulsar's files have what they leave to the program
    caplog.clear()
    load(source, dict.fromkeys(LACKING.keys() | FEATURES.keys() | BOOKKEEPER.keys(), ""), tmp_path)
    load(source, {name: row.default for name, row in BOOKKEEPER.items()}, tmp_path)
    assert not caplog.records


@pytest.mark.parametrize("name", FILES)
def test_what_pulsars_files_set_starts(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_there = dict(row.split("\t")[1:] for row in _FILE_ROWS if row.startswith(name))
    config = load("file", DEFAULTS | set_there, tmp_path)
    assert config.managed_ledger_default_ensemble_size == (1 if name == "standalone.conf" else 2)
    (record,) = caplog.records  # names of bookies and of offloading that no broker has
    assert record.getMessage().startswith("ignored ")
    assert "athenzDomainNames" in record.getMessage()


@pytest.mark.skipif("PULSAR_CONF" not in os.environ, reason="PULSAR_CONF: conf/ of a Pulsar 4.2.4")
@pytest.mark.parametrize("name", FILES)
def test_pulsars_own_files_start(name: str) -> None:
    BrokerConfig.load(Path(os.environ["PULSAR_CONF"]) / name, {})


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", sorted(LACKING | BOOKKEEPER))
def test_a_promise_that_is_not_kept_ends_the_start(name: str, source: str, tmp_path: Path) -> None:
    row = (LACKING | BOOKKEEPER)[name]
    reason = re.escape(row.instead)
    with pytest.raises(ConfigError, match=rf"^{name}=.*{reason}"):
        load(source, {name: another(row.default)}, tmp_path)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("text", ["true", "false"])
def test_names_of_bookies_are_verified_whatever_is_set(
    text: str, source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(source, {"bookkeeper_tlsHostnameVerificationEnabled": text}, tmp_path)
    assert not caplog.records


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_what_is_not_here_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    text = another(FEATURES[name])
    BrokerConfig.load(None, {f"PULSAR_PREFIX_{name}": text})
    (record,) = caplog.records
    assert record.getMessage() == f"settings of what isn't here: {name}={text}"


def test_the_later_source_counts(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("webServiceHaProxyProtocolEnabled=true\n")
    environment = {"PULSAR_PREFIX_webServiceHaProxyProtocolEnabled": "false"}
    BrokerConfig.load(file, environment)
    with pytest.raises(ConfigError, match="command line"):
        BrokerConfig.load(file, environment, {"web_service_ha_proxy_protocol_enabled": "true"})


@pytest.mark.parametrize("source", SOURCES)
def test_former_names_of_timeouts_count(source: str, tmp_path: Path) -> None:
    settings = {
        "zooKeeperSessionTimeoutMillis": "9000",
        "metadataStoreSessionTimeoutMillis": "12000",
        "zooKeeperOperationTimeoutSeconds": "-1",
        "metadataStoreOperationTimeoutSeconds": "7",
    }
    config = load(source, settings, tmp_path)
    assert config.metadata_store_session_timeout_millis == 9000
    assert config.metadata_store_operation_timeout_seconds == 7
    unset = load(source, settings | {"zooKeeperSessionTimeoutMillis": ""}, tmp_path)
    assert unset.metadata_store_session_timeout_millis == 12000
    with pytest.raises(ConfigError, match="metadataStoreSessionTimeoutMillis='soon'"):
        load(source, {"zooKeeperSessionTimeoutMillis": "soon"}, tmp_path)


@pytest.mark.parametrize("source", SOURCES)
def test_a_renamed_setting_is_read_by_its_old_name(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = "brokerDeathWatchEnabled", "brokerPeerFailureDetectionEnabled"
    assert load(source, {}, tmp_path).broker_peer_failure_detection_enabled
    assert not caplog.records
    assert not load(source, {old: "false"}, tmp_path).broker_peer_failure_detection_enabled
    (record,) = caplog.records
    assert record.getMessage() == f"{old} is the old name of {new}: rename it"
    both = load(source, {new: "false", old: "no"}, tmp_path)
    assert not both.broker_peer_failure_detection_enabled
    with pytest.raises(ConfigError, match=f"^{old}=false: the old name of {new}, which is true"):
        load(source, {old: "false", new: "true"}, tmp_path)


def test_an_old_name_counts_as_an_argument_and_once_among_the_sources(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = "brokerDeathWatchEnabled"
    changed = BrokerConfig().with_keys({old: False})
    assert not changed.broker_peer_failure_detection_enabled
    with pytest.raises(ConfigError, match=f"^{old}=false"):
        BrokerConfig().with_keys({old: False, "broker_peer_failure_detection_enabled": True})
    caplog.clear()
    file = tmp_path / "broker.conf"
    file.write_text(f"{old}=false\n")
    assert BrokerConfig.load(file, {}, {old: "true"}).broker_peer_failure_detection_enabled
    assert len(caplog.records) == 1


def test_secrets_are_not_repeated() -> None:
    name = "bookkeeperTLSKeyStorePasswordPath"
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(None, {f"PULSAR_PREFIX_{name}": "/etc/secret"})
    assert "/etc/secret" not in str(caught.value)


def test_a_typing_error_in_a_variable_of_pulsars_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    BrokerConfig.load(None, {"PULSAR_PREFIX_maxMesageSize": "1", "MAGNETAR_HOME": "/"})
    (record,) = caplog.records
    assert record.getMessage() == "ignored 1 unknown settings: maxMesageSize"


def test_lists_and_words_are_compared_by_meaning() -> None:
    default = LACKING["supportedNamespaceBundleSplitAlgorithms"].default
    assert is_default(" ,".join(reversed(default.split(","))), default)
    assert is_default("FALSE", "false")
    assert not is_default(default.split(",")[0], default)


@pytest.mark.parametrize(
    ("uri", "url", "expected"),
    [
        ("", "", None),
        ("metadata-store:zk:b:2181,a:2181/ledgers", "zk:a:2181,b:2181", None),
        ("zk+hierarchical://a:2181;b:2181/ledgers", "a,b", None),
        ("zk://a/x/ledgers/", "zk:a:2181/x", None),
        ("zk://a/ledgers", "zk:a:2181/x", "zk:a"),
        ("zk+null://c;d:2182/bk/ledgers", "zk:a:2181", "zk:c,d:2182/bk"),
        ("metadata-store:zk:c/ledgers", "zk:a:2181", "zk:c"),
        ("zk://a:2182/ledgers", "zk:a:2181", "zk:a:2182"),
    ],
)
def test_whose_ledgers_are_used(uri: str, url: str, expected: str | None) -> None:
    assert apache_store_url(uri, url) == expected
    config = BrokerConfig.load(None, {}, {_URI: uri, "metadataStoreUrl": url})
    assert config.apache_store_url == expected


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("zk+null://a:2181/ledgers", ""),
        ("zk://a", "zk:a"),
        ("zk+flat://b/ledgers", "zk:a"),
        ("etcd:http://a/ledgers", "zk:a"),
    ],
)
def test_ledgers_that_cannot_be_used_end_the_start(uri: str, url: str) -> None:
    with pytest.raises(ConfigError, match=f"^{_URI}="):
        BrokerConfig.load(None, {}, {_URI: uri, "metadataStoreUrl": url})


def test_a_digest_that_our_bookies_do_not_have_ends_the_start() -> None:
    mine = {"metadataStoreUrl": "zk:a"}
    with pytest.raises(ConfigError, match="managedLedgerDigestType=MAC: our bookies"):
        BrokerConfig.load(None, {}, {**mine, "managedLedgerDigestType": "MAC"})
    apache = {**mine, "managedLedgerDigestType": "MAC", _URI: "zk://b/ledgers"}
    assert BrokerConfig.load(None, {}, apache).managed_ledger_digest_type == "MAC"
    with pytest.raises(ConfigError, match="managedLedgerDigestType='XOR'"):
        BrokerConfig.load(None, {}, {**apache, "managedLedgerDigestType": "XOR"})


def test_types_of_subscriptions_that_nobody_has() -> None:
    assert BrokerConfig.load(
        None, {}, {"subscriptionTypesEnabled": "Shared, Failover"}
    ).subscription_types_enabled == {"Shared", "Failover"}
    with pytest.raises(ConfigError, match="subscriptionTypesEnabled: no type Sharde"):
        BrokerConfig.load(None, {}, {"subscriptionTypesEnabled": "Sharde"})
