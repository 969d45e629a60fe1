"""Pulsar's keys of a login to Apache's bookies: what is obeyed, what is refused at the start."""

from pathlib import Path

import pytest

from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.server.cluster_broker import bookie_login

KEY = "bookkeeperClientAuthentication"
FACTORY = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
FILE = """
BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required username=a password=b; };
Kerberos { com.sun.security.auth.module.Krb5LoginModule required; };
"""


def config_of(path: Path, **settings: str) -> BrokerConfig:
    given = {f"{KEY}{name}": value for name, value in settings.items()}
    return BrokerConfig.load(None, None, {"bookkeeperClientLoginConfigPath": str(path), **given})


@pytest.fixture
def jaas(tmp_path: Path) -> Path:
    path = tmp_path / "jaas.conf"
    path.write_text(FILE)
    return path


def test_without_a_plug_in_nobody_logs_in() -> None:
    assert bookie_login(BrokerConfig()) is None


def test_pulsars_keys_and_short_ones(jaas: Path) -> None:
    named = {"ParametersName": "saslJaasClientSectionName", "Parameters": "BookKeeper"}
    assert bookie_login(config_of(jaas, Plugin=FACTORY, **named)) is not None
    assert bookie_login(config_of(jaas, Plugin="sasl")) is not None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "goes with bookkeeperClientAuthenticationPlugin"),
        ({"Plugin": "token", "Parameters": "token:x"}, "Apache's bookies are logged in to by SASL"),
        ({"Plugin": "sasl", "ParametersName": "x"}, "saslJaasClientSectionName is expected"),
        ({"Plugin": "sasl", "Parameters": "Kerberos"}, "GSSAPI"),
        ({"Plugin": "sasl", "Parameters": "Other"}, "there is no section Other"),
    ],
)
def test_other_logins_are_refused(jaas: Path, settings: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        bookie_login(config_of(jaas, **settings))


def test_the_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"jaas\.conf"):
        bookie_login(config_of(tmp_path / "jaas.conf", Plugin="sasl"))
