"""What a broker of a cluster makes of its settings."""

from pathlib import Path

import pytest

from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.server.bookie_transport_settings import transport_config
from magnetar.broker.server.cluster_broker import tls_files


def test_bookies_are_talked_to_with_the_brokers_limits() -> None:
    config = BrokerConfig(
        bookkeeper_client_timeout_in_seconds=7,
        max_message_publish_buffer_size_in_mb=100,
        max_message_size=80 << 20,
    )
    transport = transport_config(config)
    assert (transport.add_timeout_s, transport.read_timeout_s) == (7, 7)
    assert transport.pending_bytes_max >= transport.backlog_bytes + (100 << 20)
    assert transport.entry_bytes_max > 80 << 20
    assert transport_config(BrokerConfig()).entry_bytes_max == 64 << 20


def test_tls_is_used_when_a_file_is_named(tmp_path: Path) -> None:
    assert tls_files(BrokerConfig()) is None
    for name in ("certificate", "key", "trust"):
        (tmp_path / name).write_text("x")
    config = BrokerConfig().with_keys(
        {
            "bookkeeperTLSCertificateFilePath": tmp_path / "certificate",
            "bookkeeperTLSKeyFilePath": tmp_path / "key",
            "bookkeeperTLSTrustCertsFilePath": tmp_path / "trust",
            "bookkeeperTLSClientAuthentication": True,
        }
    )
    files = tls_files(config)
    assert files is not None
    assert files.certificate == str(tmp_path / "certificate")
    assert files.trust == str(tmp_path / "trust")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bookkeeperTLSTrustCertsFilePath": "/nowhere/x"}, "No such file"),
        ({"bookkeeperTLSCertificateFilePath": "/nowhere/x"}, "certificate and key"),
        ({"bookkeeperTLSClientAuthentication": True}, "needs a certificate"),
    ],
)
def test_files_that_cannot_be_used_are_told(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        tls_files(BrokerConfig().with_keys(settings))
