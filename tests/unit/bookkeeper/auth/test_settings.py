"""Keys that nobody asks for are told, and name no secret."""

from dataclasses import fields

import pytest

from magnetar.bookkeeper.bookie.settings import BookieSettings, BookieSettingsError
from magnetar.bookkeeper.process_settings import AuthSettingsBase
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings, AutoRecoverySettingsError

SECRET = "data:,0123456789abcdef0123456789abcdef"
GOOD = {
    "authenticationEnabled": "true",
    "authenticationProviders": "token",
    "tokenSecretKey": SECRET,
    "bookieAllowedRoles": "broker",
}


def test_nothing_is_told_where_nothing_is_set_or_all_is_in_use() -> None:
    assert AuthSettingsBase().without_effect() == ""
    assert BookieSettings.load(GOOD).without_effect() == ""
    assert BookieSettings.load({"tokenSecretKey": "", "tokenAuthClaim": ""}).without_effect() == ""


@pytest.mark.parametrize("field", [each.name for each in fields(AuthSettingsBase)][1:])
def test_every_key_alone_is_told(field: str) -> None:
    value = 5.0 if field == "token_allowed_clock_skew_seconds" else "of-nobodys-business"
    told = AuthSettingsBase(**{field: value}).without_effect()  # type: ignore[arg-type]  # by name
    assert told.split(":")[0].lower() == field.replace("_", "")
    assert "business" not in told


def test_it_is_told_by_bookies_and_by_auto_recovery() -> None:
    without = {key: value for key, value in GOOD.items() if key != "authenticationEnabled"}
    for settings in (BookieSettings.load(without), AutoRecoverySettings.load(without)):
        assert settings.authenticator() is None
        told = settings.without_effect()
        assert told.startswith("authenticationProviders, bookieAllowedRoles, tokenSecretKey: ")
        assert SECRET not in told


def test_a_gate_that_lets_nobody_in_or_everybody_is_refused() -> None:
    for key in ("authenticationProviders", "tokenSecretKey", "bookieAllowedRoles"):
        some = GOOD | {key: ""}
        with pytest.raises(BookieSettingsError):
            BookieSettings.load(some).authenticator()
        with pytest.raises(AutoRecoverySettingsError):
            AutoRecoverySettings.load(some).authenticator()
