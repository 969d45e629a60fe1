"""Where ZooKeeper is and how to talk to it; read from a URL and a properties file."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.metadata.paths import ROOT, check_path
from magnetar.metadata.sasl.jaas import read_credentials

SCHEME = "zk:"
_DEFAULT_PORT = 2181
_TRUE, _FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0", ""})

# Pulsar hands its ``metadataStoreConfigPath`` file to the store's own client: these are ZooKeeper's
# property names, and the ones that Pulsar gives the same things for its other stores.
_USE_TLS = ("zookeeper.client.secure", "useTls")
_TRUSTED = ("zookeeper.ssl.trustStore.location", "tlsTrustCertsFilePath")
_KEY_AND_CERTIFICATE = "zookeeper.ssl.keyStore.location"  # one PEM file with both
_CERTIFICATE, _KEY = "tlsCertificateFilePath", "tlsKeyFilePath"
_KEY_PASSWORD = "zookeeper.ssl.keyStore.password"
_KEY_PASSWORD_PATH = "zookeeper.ssl.keyStore.passwordPath"
_CHECK_HOSTNAME = ("zookeeper.ssl.hostnameVerification", "tlsHostnameVerificationEnabled")
_STORE_TYPES = ("zookeeper.ssl.keyStore.type", "zookeeper.ssl.trustStore.type")
_DIGEST = "zookeeper.auth.digest"  # own name: ZooKeeper has no property for it
# Of SASL, as Java's clients have them as system properties.
_LOGIN_CONFIG, _LOGIN_SECTION = "java.security.auth.login.config", "zookeeper.sasl.clientconfig"
_CREATOR_ONLY = ("zkEnableSecurity",)  # of BookKeeper's
_KNOWN = frozenset(
    {*_USE_TLS, *_TRUSTED, *_CHECK_HOSTNAME, *_STORE_TYPES, _KEY_AND_CERTIFICATE}
    | {_CERTIFICATE, _KEY, _KEY_PASSWORD, _KEY_PASSWORD_PATH, _DIGEST}
    | {_LOGIN_CONFIG, _LOGIN_SECTION, *_CREATOR_ONLY}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """PEM files; they are read for every connection, so renewed ones are used by the next."""

    trusted: Path | None = None  # None: the system's authorities
    certificate: Path | None = None  # ours, with its chain; None: we have none
    key: Path | None = None  # None: in the certificate's file
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """
        Raises:
            OSError: a file can't be read or isn't what it should be (ssl.SSLError is one).
        """
        context = ssl.create_default_context(
            ssl.Purpose.SERVER_AUTH, cafile=None if self.trusted is None else str(self.trusted)
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.certificate is not None:
            # Without a password argument OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=self.key_password)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSettings:
    """
    Args:
        servers: host and port of each; tried in random order.
        chroot: everything lives below it; "" or a path, created when missing.
        session_timeout_s: wanted; the server confines it to its own limits.
        operation_timeout_s: for the answer to one request.
        start_timeout_s: for the first connection; None: the same.
        digest: "user:password", or "".
        login: SASL DIGEST-MD5: a JAAS file and the section in it; None: without.
        creator_only: what is created belongs to this user alone.
    """

    servers: tuple[tuple[str, int], ...]
    chroot: str = ""
    session_timeout_s: float = 30.0
    operation_timeout_s: float = 30.0
    start_timeout_s: float | None = None
    tls: TlsSettings | None = None
    digest: str = field(default="", repr=False)
    login: tuple[Path, str] | None = None
    creator_only: bool = False

    @property
    def first_session_s(self) -> float:
        """How long to wait for a first session."""
        return self.operation_timeout_s if self.start_timeout_s is None else self.start_timeout_s

    @classmethod
    def parse(
        cls,
        url: str,
        config_path: Path | None = None,
        *,
        session_timeout_s: float = 30.0,
        operation_timeout_s: float = 30.0,
        start_timeout_s: float | None = None,
    ) -> "ZooKeeperSettings":
        """Of "zk:host:port,host:port/chroot"; scheme and ports may be missing.

        Args:
            config_path: properties, see docs/operate/metadata.md.
        Raises:
            ValueError: the URL or a property can't be used.
            OSError: the file can't be read.
        """
        servers, chroot = _parse_url(url)
        properties = {} if config_path is None else _properties(config_path)
        if unknown := sorted(set(properties) - _KNOWN):
            raise ValueError(f"{config_path}: {unknown[0]} is not a known property")
        digest = properties.get(_DIGEST, "")
        if digest and ":" not in digest:
            raise ValueError(f"{config_path}: {_DIGEST} is not user:password")
        login = _login(properties, config_path)
        creator_only = _flag(properties, _CREATOR_ONLY, default=bool(digest))
        if creator_only and not digest and login is None:
            raise ValueError(f"{config_path}: {_CREATOR_ONLY[0]} needs a login")
        return cls(
            servers=servers,
            chroot=chroot,
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
            start_timeout_s=start_timeout_s,
            tls=_tls(properties),
            digest=digest,
            login=login,
            creator_only=creator_only,
        )

    def __str__(self) -> str:
        servers = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )
        return f"{SCHEME}{servers}{self.chroot}"


def _parse_url(url: str) -> tuple[tuple[tuple[str, int], ...], str]:
    text = url.removeprefix(SCHEME)
    hosts, slash, rest = text.partition("/")
    chroot = (slash + rest).rstrip("/")
    check_path(chroot or ROOT)
    servers = tuple(_server(each, url) for each in hosts.split(","))
    return servers, chroot


def _server(text: str, url: str) -> tuple[str, int]:
    """Of "host", "host:port", "[address]" or "[address]:port"."""
    text = text.strip()
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        is_wrong = not bracket or (port != "" and not port.startswith(":"))
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
        is_wrong = ":" in port
    if is_wrong or not host or not (port or "1").isdigit() or not 0 < int(port or 1) < 65536:
        raise ValueError(f"not host:port: {text!r} in {url!r}")
    return host, int(port) if port else _DEFAULT_PORT


def _properties(path: Path) -> dict[str, str]:
    properties = dict[str, str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        if (text := line.strip()) and not text.startswith(("#", "!")):
            key, _, value = text.partition("=")
            properties[key.strip()] = value.strip()
    return properties


def _login(properties: Mapping[str, str], config_path: Path | None) -> tuple[Path, str] | None:
    section = properties.get(_LOGIN_SECTION, "Client")
    if not (path := properties.get(_LOGIN_CONFIG, "")):
        if _LOGIN_SECTION in properties:
            raise ValueError(f"{config_path}: {_LOGIN_SECTION} goes with {_LOGIN_CONFIG}")
        return None
    read_credentials(Path(path), section)  # mistakes are told at the start
    return Path(path), section


def _tls(properties: Mapping[str, str]) -> TlsSettings | None:
    if not _flag(properties, _USE_TLS, default=False):
        return None
    for name in _STORE_TYPES:
        if (kind := properties.get(name, "PEM")) != "PEM":
            raise ValueError(f"{name}={kind}: only PEM files are supported")
    both = properties.get(_KEY_AND_CERTIFICATE, "")
    certificate, key = properties.get(_CERTIFICATE, both), properties.get(_KEY, "")
    trusted = next((properties[name] for name in _TRUSTED if properties.get(name)), "")
    password = properties.get(_KEY_PASSWORD, "")
    if password_path := properties.get(_KEY_PASSWORD_PATH):
        password = Path(password_path).read_text(encoding="utf-8").strip()
    return TlsSettings(
        trusted=Path(trusted) if trusted else None,
        certificate=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
        key_password=password,
        check_hostname=_flag(properties, _CHECK_HOSTNAME, default=True),
    )


def _flag(properties: Mapping[str, str], names: tuple[str, ...], *, default: bool) -> bool:
    for name in names:
        if (text := properties.get(name)) is not None:
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError(f"{name}={text}: neither true nor false")
            return text.lower() in _TRUE
    return default
