"""Settings that a bookie and ``magnetar autorecovery`` share, by their names in files."""

from dataclasses import dataclass, field, fields
from typing import Final

from magnetar.bookkeeper.auth.bookie_authenticator import AuthSettings
from magnetar.bookkeeper.auth.token_source import token_setting
from magnetar.bookkeeper.auth.tokens import TokenRules
from magnetar.bookkeeper.network_location import DEFAULT_LOCATION, ZONE_LABEL, check_place
from magnetar.bookkeeper.origin_check import host_names

_SWITCH: Final = "authentication_enabled"
_MIB: Final = 1024 * 1024
_LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

# Other names of the same things: Pulsar's, and older ones of BookKeeper.
ALIASES: Final = {
    "metadataStoreUrl": "metadata_service_uri",
    "zkServers": "metadata_service_uri",
    "zooKeeperServers": "metadata_service_uri",
    "zooKeeperSessionTimeoutMillis": "zk_timeout",
    "metadataStoreSessionTimeoutMillis": "zk_timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettingsBase:
    """Who may use the process; attribute names are the keys in snake case."""

    authentication_enabled: bool = False
    authentication_providers: str = ""  # comma list of token, tls
    bookie_allowed_roles: str = ""  # own key: comma list of roles, *: every role
    token_secret_key: str = field(default="", repr=False)
    token_public_key: str = ""
    token_previous_secret_key: str = field(default="", repr=False)  # own keys: good as well
    token_previous_public_key: str = ""
    token_auth_claim: str = "sub"
    token_audience_claim: str = ""
    token_audience: str = ""
    token_allowed_clock_skew_seconds: float = 0.0

    def auth_settings(self) -> AuthSettings | None:
        """None: every caller is let in.

        Raises:
            ValueError: settings that don't go together.
        """
        if not self.authentication_enabled:
            return None
        audiences = _words(self.token_audience)
        if self.token_audience_claim and not audiences:
            raise ValueError("tokenAudienceClaim is set, but tokenAudience is not")
        return AuthSettings(
            providers=_words(self.authentication_providers),
            secret_keys=_given(self.token_secret_key, self.token_previous_secret_key),
            public_keys=_given(self.token_public_key, self.token_previous_public_key),
            rules=TokenRules(
                role_claim=self.token_auth_claim or "sub",
                audience_claim=self.token_audience_claim or ("aud" if audiences else ""),
                audiences=audiences,
                clock_skew_s=self.token_allowed_clock_skew_seconds,
            ),
            allowed_roles=frozenset(_words(self.bookie_allowed_roles)),
        )

    def without_effect(self) -> str:
        """What to warn of at the start; "": nothing.

        A file with keys means them to be asked for; without one line, every caller is let in.
        """
        if self.authentication_enabled:
            return ""
        given = [
            key_of(each.name)
            for each in fields(AuthSettingsBase)
            if each.name != _SWITCH and getattr(self, each.name) not in (each.default, "")
        ]
        if not given:
            return ""
        return f"{', '.join(given)}: without effect, because authenticationEnabled is not true"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings(AuthSettingsBase):
    """Base of settings classes; attribute names are the keys in snake case."""

    # --- where
    metadata_service_uri: str = ""  # zk:host:port,.../chroot, or BookKeeper's zk+...://.../ledgers
    metadata_store_config_path: str = ""  # Pulsar's key: TLS and login (docs/operate/metadata.md)
    zk_timeout: int = 30_000  # ms
    # own key: how long a start waits for a metadata store that isn't there yet
    metadata_store_start_timeout_seconds: int = 300
    network_location: str = DEFAULT_LOCATION  # own key: /zone/upgrade-domain
    zone: str = ""  # own key: instead of the first part of networkLocation
    upgrade_domain: str = ""  # own key: instead of the second
    # own key: without a zone, that of this node of Kubernetes (network_location.py)
    node_name: str = ""
    zone_label: str = ZONE_LABEL  # own key: of that node

    # --- how bookies are talked to
    netty_max_frame_size_bytes: int = 0  # the largest entry; 0: see entry_bytes_max
    bookkeeper_client_authentication_plugin: str = ""  # token: what bookies are shown ...
    bookkeeper_client_authentication_parameters: str = field(default="", repr=False)  # ... of

    # --- HTTP: probes and metrics
    http_server_enabled: bool = False
    http_server_host: str = "127.0.0.1"
    http_server_allowed_hosts: str = ""  # own key: names, *.suffix, *
    http_server_port: int = 8080  # 0: any free port
    cluster_name: str = ""  # own key: label of all series

    # --- log
    log_level: str = "INFO"
    log_format: str = "text"  # own key: "json"

    def check_process(self) -> None:
        """
        Raises:
            ValueError: a setting of this class can't be used.
        """
        if not 0 <= self.http_server_port <= 65_535:
            raise ValueError(f"httpServerPort={self.http_server_port}: not a port number")
        if self.log_level not in _LOG_LEVELS or self.log_format not in ("text", "json"):
            raise ValueError(f"logLevel={self.log_level}, logFormat={self.log_format}")
        check_place(self.zone, self.upgrade_domain)
        host_names(self.http_server_allowed_hosts)
        self.client_token()

    @property
    def entry_bytes_max(self) -> int:
        """What our own connections and disks take."""
        return self.netty_max_frame_size_bytes or 64 * _MIB

    def client_token(self) -> str:
        """Where the token is that bookies are shown; "": none. Raises ValueError."""
        return token_setting(
            self.bookkeeper_client_authentication_plugin,
            self.bookkeeper_client_authentication_parameters,
        )


def key_of(name: str) -> str:
    """``journal_max_size`` -> ``journalMaxSize``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _given(*sources: str) -> tuple[str, ...]:
    return tuple(source for source in sources if source)
