"""``/zone/upgrade-domain`` out of settings."""

import pytest

from magnetar.bookkeeper.bookie.settings import BookieSettings, BookieSettingsError
from magnetar.bookkeeper.network_location import DEFAULT_LOCATION, check_place, place
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings, AutoRecoverySettingsError
from magnetar.broker.bookie_client_settings import client_config
from magnetar.broker.config import BrokerConfig, ConfigError


@pytest.mark.parametrize(
    ("location", "zone", "domain", "expected"),
    [
        (DEFAULT_LOCATION, "", "", DEFAULT_LOCATION),
        ("", "", "", ""),
        ("", "east", "", "/east/default-upgrade-domain"),
        ("", "", "ud1", "/default-zone/ud1"),
        ("/rack", "", "", "/rack"),
        ("/rack", "", "ud1", "/rack/ud1"),
        ("/a/b", "east", "", "/east/b"),
        ("/a/b", "east", "3", "/east/3"),
    ],
)
def test_parts_that_are_set_replace_the_location_s(
    location: str, zone: str, domain: str, expected: str
) -> None:
    assert place(location, zone, domain) == expected


@pytest.mark.parametrize(("zone", "domain"), [("a/b", ""), ("", "/ud"), (" a", ""), ("", "b ")])
def test_what_is_no_name_is_refused(zone: str, domain: str) -> None:
    with pytest.raises(ValueError, match="a name without slashes"):
        check_place(zone, domain)
    keys = {"zone": zone, "upgradeDomain": domain}
    with pytest.raises(BookieSettingsError, match="a name without slashes"):
        BookieSettings.load(keys)
    with pytest.raises(AutoRecoverySettingsError, match="a name without slashes"):
        AutoRecoverySettings.load(keys)
    with pytest.raises(ConfigError, match="a name without slashes"):
        BrokerConfig.load(environment={}, overrides=keys)


def test_every_process_takes_them_from_the_environment() -> None:
    variables = {"MAGNETAR_ZONE": "east", "MAGNETAR_UPGRADE_DOMAIN": "2"}
    settings = BookieSettings.load(BookieSettings.environment(variables))
    assert settings.bookie("b", ("b", 1)).network_location == "/east/2"
    reads = client_config(BrokerConfig.load(environment=variables)).reads
    assert reads.network_location == "/east/2"
    repair = AutoRecoverySettings.load({"zone": "east", "upgradeDomain": "2"})
    assert repair.location() == "/east/2"


def test_a_zone_with_the_ordinal_of_the_host() -> None:
    settings = BookieSettings.load({"zone": "east", "upgradeDomains": "3"})
    assert settings.location("bookie-7.bookies.default.svc") == "/east/ud1"
    assert BookieSettings.load(
        {"zone": "east", "upgradeDomains": "3", "upgradeDomain": "mine"}
    ).location("bookie-7") == ("/east/mine")
    with pytest.raises(BookieSettingsError, match="no number"):
        settings.location("bookie")
