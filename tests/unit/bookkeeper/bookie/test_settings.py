"""Settings of a bookie process."""

import logging
from pathlib import Path

import pytest

from magnetar.bookkeeper.bookie.settings import (
    BookieSettings,
    BookieSettingsError,
    normal_metadata_url,
)
from magnetar.bookkeeper.bookie_protocol.login_server import PROVIDER

URI = {"metadataServiceUri": "zk:here:2181"}


def test_later_sources_win_and_names_of_both_projects_are_known() -> None:
    settings = BookieSettings.load(
        {"bookiePort": "1", "zkServers": "a:1,b:2", "journalMaxSizeMB": "64"},
        {"bookie_port": "2", "tlsCertificateFilePath": "/c", "tlsKeyFilePath": "/k"},
        {"bookiePort": "3", "minUsableSize": ""},
    )
    assert settings.bookie_port == 3
    assert settings.metadata_url == "zk:a:1,b:2"
    tls = settings.tls()
    assert tls is not None
    assert (tls.certificate, tls.key, tls.trust) == ("/c", "/k", "")
    config = settings.bookie("b1", ("host", 3))
    assert config.storage.journal_segment_bytes == 64 << 20
    assert config.disk_reserve_bytes == 256 << 20, "an empty text means the default"
    assert config.advertised == ("host", 3)


def test_unknown_settings_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        BookieSettings.load({"statsProviderClass": "x", "allowLoopback": "true"})
    assert "allowLoopback, statsProviderClass" in caplog.text


def test_the_environment_gives_only_known_keys() -> None:
    variables = {"BOOKIE_bookiePort": "1", "MAGNETAR_BOOKIE_bookiePort": "2", "BOOKIE_HOME": "/x"}
    assert BookieSettings.environment(variables) == {"bookiePort": "2"}


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("zk:h:2181", "zk:h:2181"),
        ("h:2181,i:2181/root", "zk:h:2181,i:2181/root"),
        ("zk+hierarchical://h:1;i:2/here/ledgers", "zk:h:1,i:2/here"),
        ("zk://h:1/ledgers", "zk:h:1"),
        ("metadata-store:zk:h:1/ledgers", "zk:h:1"),
    ],
)
def test_all_usual_forms_of_the_metadata_address(text: str, url: str) -> None:
    assert normal_metadata_url(text) == url


@pytest.mark.parametrize("text", ["", "etcd://h:1", "zk+null://h:1/elsewhere"])
def test_other_metadata_addresses_are_refused(text: str) -> None:
    with pytest.raises(BookieSettingsError, match="metadataServiceUri"):
        normal_metadata_url(text)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bookiePort": "70000"}, "bookiePort"),
        ({"bookieProtocolPort": "-1"}, "bookieProtocolPort"),
        ({"bookiePort": "x"}, "bookiePort"),
        ({"acceptDataLoss": "perhaps"}, "acceptDataLoss"),
        ({"ledgerDirectories": "/a,/b,/a"}, "one twice"),
        ({"ledgerDirectories": ","}, "ledgerDirectories"),
        ({"journalDirectories": "/j,/k,/j"}, "one twice"),
        ({"journalDirectories": "/b", "ledgerDirectories": "/a,/b"}, "of their own"),
        ({"journalDirectories": "/j,/a", "ledgerDirectories": "/a,/b"}, "of their own"),
        ({"diskUsageThreshold": "7"}, "disk_usage"),
        ({"diskUsageThreshold": "0.5", "diskUsageLwmThreshold": "0.6"}, "disk_usage"),
        ({"journalMaxSizeMB": "0"}, "journal_segment_bytes"),
        ({"nettyMaxFrameSizeBytes": "1000000000"}, "entry_bytes_max"),
        ({"tlsCertificatePath": "/c"}, "certificate and key"),
        ({"tlsClientAuthentication": "true"}, "certificate"),
        ({"logLevel": "LOUD"}, "logLevel"),
        ({"bookieAuthProviderFactoryClass": "org.x.Y"}, "org.x.Y: .*SASL.* is supported"),
        ({"bookieAuthProviderFactoryClass": PROVIDER}, "authenticationEnabled"),
        (
            {"bookieAuthProviderFactoryClass": PROVIDER, "authenticationEnabled": "true"},
            "bookieLoginConfigPath is missing",
        ),
        ({"upgradeDomains": "-1"}, "negative"),
        ({"scrubBytesPerSecond": "-1"}, "scrubBytesPerSecond"),
        ({"scrubInterval": "-5"}, "scrubInterval"),
        ({"openLedgerRereplicationGracePeriod": "-1"}, "openLedgerRereplicationGracePeriod"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(BookieSettingsError, match=reason):
        BookieSettings.load(URI, settings).check()


@pytest.mark.parametrize(
    ("settings", "protocol", "entry"),
    [({}, 5_253_120, 64 << 20), ({"nettyMaxFrameSizeBytes": "7000000"}, 7_000_000, 7_000_000)],
)
def test_bookkeepers_clients_write_nothing_that_they_cant_read(
    settings: dict[str, str], protocol: int, entry: int
) -> None:
    loaded = BookieSettings.load(URI, settings)
    assert loaded.protocol_frame_bytes_max == protocol
    assert loaded.transport().entry_bytes_max == loaded.entry_bytes_max == entry


def test_the_keys_of_scrub_and_integrity_check() -> None:
    keys = {
        "scrubEnabled": "false",
        "scrubInterval": "60000",
        "scrubBytesPerSecond": "1000",
        "dataIntegrityCheckingEnabled": "false",
        "openLedgerRereplicationGracePeriod": "500",
    }
    integrity_service = BookieSettings.load(URI, keys).integrity_service()
    assert not integrity_service.scrub_enabled
    assert (integrity_service.scrub.interval_s, integrity_service.scrub.bytes_per_s) == (60.0, 1000)
    assert not integrity_service.integrity_check_enabled
    assert integrity_service.integrity.open_grace_s == 0.5


def test_the_defaults_go_together() -> None:
    settings = BookieSettings.load(URI)
    settings.check()
    assert settings.ledgers == (Path("data/bookie"),)


@pytest.mark.parametrize(
    ("host", "location"),
    [("bookie-0", "/a/ud0"), ("bookie-7.svc.local", "/a/ud1"), ("b12", "/a/ud0")],
)
def test_the_upgrade_domain_follows_from_the_hosts_number(host: str, location: str) -> None:
    settings = BookieSettings(network_location="/a/other", upgrade_domains=3)
    assert settings.location(host) == location


def test_a_host_without_a_number_has_no_upgrade_domain() -> None:
    with pytest.raises(BookieSettingsError, match="no number"):
        BookieSettings(upgrade_domains=3).location("bookie")
    assert BookieSettings(network_location="/z/u").location("bookie") == "/z/u"


@pytest.mark.parametrize(
    ("bind", "advertised", "host"),
    [("10.0.0.1", "", "10.0.0.1"), ("10.0.0.1", "name", "name"), ("0.0.0.0", "name", "name")],
)
def test_what_clients_are_told_to_connect_to(bind: str, advertised: str, host: str) -> None:
    settings = BookieSettings(bind_address=bind, advertised_address=advertised)
    assert settings.advertised_host == host


def test_a_login_at_the_port_of_bookkeepers_protocol(tmp_path: Path) -> None:
    """Mistakes are told at the start, passwords never."""
    jaas = tmp_path / "jaas.conf"
    settings = {
        "bookieAuthProviderFactoryClass": PROVIDER,
        "bookieLoginConfigPath": str(jaas),
        "authenticationEnabled": "true",
    }
    assert BookieSettings.load(URI).protocol_login() is None
    with pytest.raises(BookieSettingsError, match=r"jaas\.conf"):
        BookieSettings.load(URI, settings).protocol_login()
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Bookie {{ {module} required user_a="secret"; }};')
    assert BookieSettings.load(URI, settings).protocol_login() is not None
    for key, value in (("saslJaasBookieSectionName", "X"), ("saslJaasClientAllowedIds", "(")):
        with pytest.raises(BookieSettingsError) as raised:
            BookieSettings.load(URI, settings, {key: value}).protocol_login()
        assert "secret" not in str(raised.value)
