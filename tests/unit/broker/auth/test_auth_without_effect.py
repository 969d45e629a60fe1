"""Keys and roles that nobody asks for are told at the start, and name no secret."""

import logging

import pytest

from magnetar.broker.config import BrokerConfig, without_effect
from tests.unit.broker.doubles import Broker

SECRET = "data:,0123456789abcdef0123456789abcdef"
SETTINGS = {
    "authenticationProviders": "token",
    "tokenSecretKey": SECRET,
    "superUserRoles": "admin",
}


def config_of(settings: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.load(None, {}, settings)


def test_nothing_is_told_where_nothing_is_set_or_all_is_in_use() -> None:
    assert without_effect(config_of({})) == ""
    # As stock files have them
    stock = {
        "authenticationEnabled": "false",
        "authenticationRefreshCheckSeconds": "60",
        "tokenAuthClaim": "",
        "openIDRoleClaim": "",
        "openIDRequireIssuersUseHttps": "true",
        "superUserRoles": "",
    }
    assert without_effect(config_of(stock)) == ""
    assert without_effect(config_of(SETTINGS | {"authenticationEnabled": "true"})) == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("authenticationProviders", "token"),
        ("tokenPublicKey", "file:///of-nobodys-business"),
        ("tokenPreviousSecretKey", "of-nobodys-business"),
        ("tokenAudience", "of-nobodys-business"),
        ("basicAuthConf", "of-nobodys-business"),
        ("openIDAllowedTokenIssuers", "https://of-nobodys-business"),
        ("anonymousUserRole", "of-nobodys-business"),
        ("proxyRoles", "of-nobodys-business"),
        ("authenticateMetricsEndpoint", "true"),
    ],
)
def test_every_such_setting_alone_is_told(key: str, value: str) -> None:
    told = without_effect(config_of({key: value}))
    assert told.split(":")[0].lower() == key.lower()
    assert "business" not in told


@pytest.mark.parametrize("enabled", [False, True])
async def test_a_broker_tells_it_when_it_starts(
    caplog: pytest.LogCaptureFixture, enabled: bool
) -> None:
    names = {
        "authentication_enabled": enabled,
        "authentication_providers": "token",
        "token_secret_key": SECRET,
        "super_user_roles": "admin",
    }
    broker = Broker(**names)
    with caplog.at_level(logging.WARNING):
        await broker.start()
    told = [each.getMessage() for each in caplog.records if "without effect" in each.getMessage()]
    await broker.close()
    if enabled:
        assert told == []
    else:
        (line,) = told
        assert line.startswith("authenticationProviders, tokenSecretKey, superUserRoles: ")
        assert SECRET not in line
