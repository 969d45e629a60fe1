"""Settings of a bookie process: bookkeeper.conf's keys, in the units they have there.

Unlike ``config.py``, which is what the bookie's parts are given: sizes in bytes, times in seconds.
"""

import functools
import logging
import re
import resource
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.bookie.config import BookieConfig, GarbageCollectionConfig, StorageConfig
from magnetar.bookkeeper.bookie.integrity.integrity_check import IntegrityConfig
from magnetar.bookkeeper.bookie.integrity.integrity_service import IntegrityServiceConfig
from magnetar.bookkeeper.bookie.integrity.scrubber import ScrubConfig
from magnetar.bookkeeper.bookie_protocol.config import FRAME_BYTES_MAX
from magnetar.bookkeeper.bookie_protocol.login_server import (
    ALLOWED_IDS,
    PROVIDER,
    SECTION,
    LoginPlugin,
    SaslLoginPlugin,
)
from magnetar.bookkeeper.environment import PREFIXES
from magnetar.bookkeeper.layout.cookie_format import Directories
from magnetar.bookkeeper.network_location import place
from magnetar.bookkeeper.process_settings import ALIASES, ProcessSettings
from magnetar.bookkeeper.settings_parser import SettingsParser, raising
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.metadata.sasl.jaas import read_passwords

_log = logging.getLogger(__name__)

# The later one wins.
ENVIRONMENT_PREFIXES: Final = (*PREFIXES, "BOOKIE_", "MAGNETAR_BOOKIE_")
_MIB: Final = 1024 * 1024
_LEDGERS: Final = "/ledgers"


class BookieSettingsError(ValueError):
    """A setting can't be used; the text names the key and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSettings(ProcessSettings):
    """Attribute names are the keys in snake case: ``journalMaxSizeMB`` -> ``journal_max_size_mb``.

    "own key" marks what bookkeeper.conf doesn't have. ``ProcessSettings`` has more of them.
    """

    # --- name and place
    bookie_id: str = ""  # "": advertised address and port
    bind_address: str = "127.0.0.1"  # own key
    bookie_port: int = 3181  # 0: any free port
    # own key: BookKeeper's protocol, for entries, and for clients of Apache BookKeeper; 0: any free
    # port
    bookie_protocol_port: int = 0
    advertised_address: str = ""  # "": the bind address, or the host's name for 0.0.0.0
    upgrade_domains: int = 0  # own key: > 0: /zone/ud<number at the host name's end, modulo this>

    # own key: SIGTERM sends writers away first, for so long; 0: at once (drain.py)
    shutdown_drain_timeout_ms: int = 0

    # --- directories
    journal_directories: str = ""  # comma list; "": the first of ledgerDirectories
    ledger_directories: str = "data/bookie"  # comma list; the first has index and cookie, too
    accept_data_loss: bool = False  # own key: start although acknowledged bytes are gone

    # --- journal, entry logs, collection
    journal_max_size_mb: int = 64  # small, so that recycled (already zeroed) ones come soon
    journal_max_group_bytes: int = 8 * _MIB  # own key
    journal_queue_bytes: int = 256 * _MIB  # own key: accepted and not yet durable
    db_storage_write_cache_max_size_mb: int = 64
    db_storage_read_ahead_cache_max_size_mb: int = 32
    log_size_limit: int = 1024 * _MIB
    entry_log_cached_mb: int = 256  # own key: newest of entry logs, in the page cache
    flush_interval: int = 30_000  # ms
    gc_wait_time: int = 900_000  # ms

    # --- compaction: logs with a smaller share of live bytes are rewritten
    minor_compaction_threshold: float = 0.2
    minor_compaction_interval: int = 3600  # s; 0: never
    minor_compaction_max_time_millis: int = 0  # 0: no limit
    major_compaction_threshold: float = 0.5
    major_compaction_interval: int = 86_400  # s; 0: never
    major_compaction_max_time_millis: int = 0
    compaction_rate_by_bytes: int = 64 * _MIB  # a second; 0: as fast as it goes
    gc_overreplicated_ledger_wait_time: int = 86_400_000  # ms; 0: never

    # --- the state of the data
    scrub_enabled: bool = True  # own key: read and check everything, again and again
    scrub_interval: int = 86_400_000  # own key: ms from pass to pass
    scrub_bytes_per_second: int = 4 * _MIB  # own key
    data_integrity_checking_enabled: bool = True
    open_ledger_rereplication_grace_period: int = 30_000  # ms, for writers of ledgers in limbo

    # --- disk space
    disk_usage_threshold: float = 0.95
    disk_usage_lwm_threshold: float = 0.0  # 0: 0.03 below the other
    disk_usage_warn_threshold: float = 0.90  # garbage is collected at once above this
    disk_check_interval: int = 10_000  # ms; 2 s at most while writers wait for space
    min_usable_size: int = 256 * _MIB  # own key: bytes that must be free to be writable

    # --- network
    tls_certificate_path: str = ""
    tls_key_path: str = ""
    tls_trust_path: str = ""
    tls_client_authentication: bool = False
    bookie_auth_provider_factory_class: str = ""  # SASL: a login at bookieProtocolPort
    bookie_login_config_path: str = ""  # own key: JAAS file with its users and passwords
    sasl_jaas_bookie_section_name: str = SECTION  # of that file
    sasl_jaas_client_allowed_ids: str = ALLOWED_IDS  # regular expression of users
    max_connections: int = 0  # own key: of all clients; 0: half of the files that may be open
    stream_max_in_flight_bytes: int = 32 * _MIB  # own key: of one client
    read_replies_max_bytes: int = 64 * _MIB  # own key: of all clients

    # --- auto-recovery in this process: its keys are in bookkeeper/replication/settings.py
    auto_recovery_daemon_enabled: bool = False

    # --- HTTP: probes and metrics
    loop_stall_threshold_millis: int = 0  # own key: longer turns of the loop are told; 0: none
    http_server_host: str = ""  # "": bindAddress

    def __post_init__(self) -> None:
        for key, port in (
            ("bookiePort", self.bookie_port),
            ("bookieProtocolPort", self.bookie_protocol_port),
        ):
            if not 0 <= port <= 65_535:
                raise BookieSettingsError(f"{key}={port}: not a port number")
        if not self.ledgers:
            raise BookieSettingsError("ledgerDirectories is empty")
        self._check_protocol_login()
        if self.upgrade_domains < 0:
            raise BookieSettingsError(f"upgradeDomains={self.upgrade_domains}: negative")
        with raising(BookieSettingsError):
            self.check_process()
            self.tls()

    def _check_protocol_login(self) -> None:
        provider = self.bookie_auth_provider_factory_class
        if not provider:
            return
        if provider != PROVIDER:
            raise BookieSettingsError(
                f"bookieAuthProviderFactoryClass={provider}: {PROVIDER} is supported"
            )
        if not self.authentication_enabled:
            raise BookieSettingsError(
                "bookieAuthProviderFactoryClass: without authenticationEnabled=true everybody may "
                "use the bookie"
            )
        if not self.bookie_login_config_path:
            raise BookieSettingsError(
                "bookieAuthProviderFactoryClass: bookieLoginConfigPath is missing, a JAAS file"
            )

    @raising(BookieSettingsError)
    def protocol_login(self) -> LoginPlugin | None:
        """How clients of Apache BookKeeper log in; None: not at all.

        Raises:
            BookieSettingsError: settings or a file that can't be used.
        """
        if not self.bookie_auth_provider_factory_class:
            return None
        path = Path(self.bookie_login_config_path)
        read = functools.partial(read_passwords, path, self.sasl_jaas_bookie_section_name)
        try:
            read()  # mistakes are told at the start
            return SaslLoginPlugin(read, self.sasl_jaas_client_allowed_ids)
        except (OSError, re.error) as error:
            raise BookieSettingsError(f"{path}: {error}") from error

    @classmethod
    def load(
        cls, *sources: Mapping[str, str], others: Callable[[str], bool] = lambda _: False
    ) -> "BookieSettings":
        """Keys and texts; a later source wins. Unknown keys are told once and ignored.

        Args:
            others: True for keys of other parts of the process.

        Raises:
            BookieSettingsError: a value doesn't fit its key.
        """
        values, unknown = _KEYS.parse(sources)
        unknown = {key for key in unknown if not others(key)}
        if unknown:  # a stock file holds hundreds of keys of parts that aren't here
            names = ", ".join(sorted(unknown))
            _log.warning("ignored %d unknown settings: %s", len(unknown), names)
        return cls(**values)

    @classmethod
    def environment(cls, variables: Mapping[str, str]) -> dict[str, str]:
        """The settings among environment variables: ``MAGNETAR_journalDirectories``, also
        ``BOOKIE_journalDirectories``.

        Raises:
            BookieSettingsError: variables that contradict each other.
        """
        return _KEYS.environment(variables, ENVIRONMENT_PREFIXES)

    def check(self) -> None:
        """Find what doesn't go together before anything is opened.

        Raises:
            BookieSettingsError: the text says what.
        """
        if len(set(self.journals)) < len(self.journals):
            raise BookieSettingsError(f"journalDirectories={self.journal_directories}: one twice")
        if len(set(self.ledgers)) < len(self.ledgers):
            raise BookieSettingsError(f"ledgerDirectories={self.ledger_directories}: one twice")
        if set(self.journals) & set(self.ledgers[1:]) or self.ledgers[0] in self.journals[1:]:
            raise BookieSettingsError(
                "journalDirectories: directories of their own; the first may be the first of "
                "ledgerDirectories"
            )
        _ = self.metadata_url
        self.bookie("check", ("localhost", 1))
        self.integrity_service()

    @property
    def ledgers(self) -> tuple[Path, ...]:
        return _paths(self.ledger_directories)

    @property
    def journals(self) -> tuple[Path, ...]:
        return _paths(self.journal_directories)

    @property
    def advertised_host(self) -> str:
        if self.advertised_address:
            return self.advertised_address
        is_wildcard = self.bind_address in ("", "0.0.0.0", "::")
        return socket.getfqdn() if is_wildcard else self.bind_address

    @property
    def metadata_url(self) -> str:
        """``zk:host:port,.../chroot``, however it was written.

        Raises:
            BookieSettingsError: none is set, or it is of another store.
        """
        return normal_metadata_url(self.metadata_service_uri)

    def location(self, host_name: str | None = None) -> str:
        """``/zone/upgrade-domain`` of this host (default: of this machine's name).

        Raises:
            BookieSettingsError: the upgrade domain follows from the host's number, but it has none.
        """
        domain = self.upgrade_domain
        if self.upgrade_domains and not domain:
            name = (host_name or socket.gethostname()).partition(".")[0]
            number = re.search(r"(\d+)$", name)
            if number is None:
                raise BookieSettingsError(
                    f"upgradeDomains={self.upgrade_domains}: host name {name!r} ends with no number"
                )
            domain = f"ud{int(number[1]) % self.upgrade_domains}"
        return place(self.network_location, self.zone, domain)

    def tls(self) -> TlsFiles | None:
        """None: plain connections."""
        if not self.tls_certificate_path and not self.tls_key_path:
            if self.tls_client_authentication:
                raise ValueError("tlsClientAuthentication=true needs a certificate and a key")
            return None
        return TlsFiles(
            self.tls_certificate_path,
            self.tls_key_path,
            self.tls_trust_path,
            self.tls_client_authentication,
        )

    @property
    def protocol_frame_bytes_max(self) -> int:
        """Of BookKeeper's protocol. What its clients wrote, they must be able to read: a longer
        frame ends their connection, with all their other requests."""
        return self.netty_max_frame_size_bytes or FRAME_BYTES_MAX

    def transport(self) -> TransportConfig:
        return TransportConfig(
            entry_bytes_max=self.entry_bytes_max,
            connection_bytes_max=self.stream_max_in_flight_bytes,
            read_bytes_max=self.read_replies_max_bytes,
            token=self.client_token(),
            connections_max=self.max_connections or _half_of_files(),
        )

    @raising(BookieSettingsError)
    def authenticator(self) -> BookieAuthenticator | None:
        """Judges callers of the bookie; None: every caller is let in.

        Raises:
            BookieSettingsError: settings that can't be used.
        """
        settings = self.auth_settings()
        if settings is None:
            return None
        if "tls" in settings.providers and not self.tls_client_authentication:
            # gRPC asks for a certificate only where it insists on one.
            raise BookieSettingsError("the tls provider needs tlsClientAuthentication=true")
        return BookieAuthenticator(settings)

    @raising(BookieSettingsError)
    def integrity_service(self) -> IntegrityServiceConfig:
        """How the bookie looks after its data.

        Raises:
            BookieSettingsError: a value is out of range.
        """
        scrub = ScrubConfig(self.scrub_interval / 1000, self.scrub_bytes_per_second)
        integrity = IntegrityConfig(self.open_ledger_rereplication_grace_period / 1000)
        return IntegrityServiceConfig(
            self.scrub_enabled, scrub, self.data_integrity_checking_enabled, integrity
        )

    def collection(self) -> GarbageCollectionConfig:
        """When garbage is collected, and how hard."""
        return GarbageCollectionConfig(
            minor_ratio=self.minor_compaction_threshold,
            minor_interval_s=self.minor_compaction_interval,
            minor_s_max=self.minor_compaction_max_time_millis / 1000,
            major_ratio=self.major_compaction_threshold,
            major_interval_s=self.major_compaction_interval,
            major_s_max=self.major_compaction_max_time_millis / 1000,
            compaction_bytes_per_s=self.compaction_rate_by_bytes,
            over_replicated_interval_s=self.gc_overreplicated_ledger_wait_time / 1000,
        )

    @raising(BookieSettingsError)
    def bookie(
        self,
        bookie_id: str,
        address: tuple[str, int],
        web_address: tuple[str, int] | None = None,
        rpc_address: tuple[str, int] | None = None,
    ) -> BookieConfig:
        """What the bookie itself is given.

        Raises:
            BookieSettingsError: a value is out of range.
        """
        return BookieConfig(
            bookie_id=bookie_id,
            data_dir=self.ledgers[0],
            storage=StorageConfig(
                journals=max(1, len(self.journals)),
                journal_segment_bytes=self.journal_max_size_mb * _MIB,
                journal_group_bytes_max=self.journal_max_group_bytes,
                journal_queue_bytes_max=self.journal_queue_bytes,
                flush_bytes=self.db_storage_write_cache_max_size_mb * _MIB,
                entry_log_bytes=self.log_size_limit,
                entry_log_cached_bytes=self.entry_log_cached_mb * _MIB,
                entry_bytes_max=self.entry_bytes_max,
            ),
            network_location=self.location(),
            advertised=address,
            web_advertised=web_address,
            rpc_advertised=rpc_address,
            directories=Directories(
                _absolute(self.journals or self.ledgers[:1]), _absolute(self.ledgers)
            ),
            flush_interval_s=self.flush_interval / 1000,
            read_ahead_bytes=self.db_storage_read_ahead_cache_max_size_mb * _MIB,
            disk_usage_max=self.disk_usage_threshold,
            disk_usage_low=self.disk_usage_lwm_threshold or None,
            disk_reserve_bytes=self.min_usable_size,
            disk_usage_warn=self.disk_usage_warn_threshold,
            disk_check_interval_s=min(2.0, self.disk_check_interval / 1000),
            disk_idle_check_interval_s=self.disk_check_interval / 1000,
            collection=self.collection(),
            accept_data_loss=self.accept_data_loss,
        )


def normal_metadata_url(text: str) -> str:
    """``zk:host:port,.../chroot`` of any of the usual forms.

    BookKeeper's own form names the ledgers' root behind the chroot, and divides hosts by ``;``.

    Raises:
        BookieSettingsError: empty, or another store's.
    """
    url = text.strip().removeprefix("metadata-store:")
    is_uri = match = re.fullmatch(r"zk(?:\+\w+)?://(.*)", url)
    if match is not None:
        url = "zk:" + match[1].replace(";", ",")
    if is_uri or text.strip().startswith("metadata-store:"):
        if not url.endswith(_LEDGERS):
            raise BookieSettingsError(f"metadataServiceUri={text}: must end with {_LEDGERS}")
        url = url.removesuffix(_LEDGERS)
    if not url:
        raise BookieSettingsError("metadataServiceUri is not set: zk:HOST:PORT")
    if not url.startswith("zk:") and "://" in url:
        raise BookieSettingsError(f"metadataServiceUri={text}: only ZooKeeper (zk:HOST:PORT)")
    return url if url.startswith("zk:") else f"zk:{url}"


def _half_of_files() -> int:
    """Connections take no file that entry logs, index and journal need."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, limit // 2) if limit != resource.RLIM_INFINITY else 0


def _absolute(paths: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(str(path.absolute()) for path in paths)


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part.strip()) for part in text.split(",") if part.strip())


_KEYS: Final = SettingsParser(
    BookieSettings,
    {
        **ALIASES,
        "journalDirectory": "journal_directories",
        "ledgerDirectory": "ledger_directories",
        "tlsCertificateFilePath": "tls_certificate_path",
        "tlsKeyFilePath": "tls_key_path",
        "tlsKeyStore": "tls_key_path",  # with tlsKeyStoreType=PEM
        "tlsTrustCertsFilePath": "tls_trust_path",
        "tlsTrustStore": "tls_trust_path",
        "tlsRequireTrustedClientCertOnConnect": "tls_client_authentication",
    },
    BookieSettingsError,
)
