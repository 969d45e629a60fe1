"""Profiles: the addresses of several clusters by name, in a file that only its owner reads.

What a command talks to, and as whom, is decided here, in this order: its own options, the profile
named by ``--profile``, MAGNETAR_SERVICE_URL, MAGNETAR_ADMIN_URL, MAGNETAR_AUTH_PLUGIN,
MAGNETAR_AUTH_PARAMS and MAGNETAR_TLS_TRUST_CERT_PATH, the profile named by MAGNETAR_PROFILE, the
one in use (``magnetar profiles use``), this machine's default ports.

A profile's credentials go to its own addresses only: where another address takes the place of one,
they are left out, unless the profile was named with ``--profile``.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.output import print_value

if TYPE_CHECKING:
    import argparse

    from magnetar.broker.cli.admin_client import AdminClient

_OTHERS_MAY = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """One cluster as the command line reaches it, and as whom."""

    service_url: str
    admin_url: str
    auth_plugin: str = ""
    auth_params: str = field(default="", repr=False)
    tls_trust_cert_path: str = ""
    tls_allow_insecure: bool = False
    listener_name: str = ""  # "": whatever address a broker gives
    proxy_url: str = ""  # "": straight to the brokers

    @property
    def access(self) -> ClientAuth:
        return ClientAuth(
            self.auth_plugin, self.auth_params, self.tls_trust_cert_path, self.tls_allow_insecure
        )

    def as_fields(self) -> dict[str, str | bool]:
        """The fields that are set, as they are stored."""
        addresses = ("service_url", "admin_url")
        return {name: value for name, value in asdict(self).items() if value or name in addresses}

    def admin_client(self, timeout_s: float) -> AdminClient:
        from magnetar.broker.cli.admin_client import AdminClient  # of commands that need it only

        access = self.access
        tls = access.tls() if self.admin_url.startswith("https:") else None
        return AdminClient(self.admin_url, timeout_s, access.headers(), tls)


DEFAULT = ClusterTarget("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")


class Profiles:
    """The file; every change is written at once."""

    def __init__(self, path: Path) -> None:
        """Read it; a missing one is empty.

        Raises:
            CliError: it can't be read, isn't ours, or others may read it.
        """
        self._path = path
        self.current = ""
        self.targets: dict[str, ClusterTarget] = {}
        try:
            mode = path.stat().st_mode
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"{path}: {error}") from error
        if mode & _OTHERS_MAY:
            raise CliError(f"{path}: others may read or change it: chmod 600 it first")
        try:
            content = json.loads(text)
            self.current = str(content.get("current", ""))
            self.targets = {
                str(name): replace(DEFAULT, **fields)
                for name, fields in content.get("profiles", {}).items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise CliError(f"{path}: not a file of profiles: {error}") from error

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> Profiles:
        home = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return cls(Path(home) / "magnetar" / "profiles.json")

    def add(self, name: str, target: ClusterTarget) -> None:
        """Add or replace one; the first one is in use at once."""
        self.targets[name] = target
        self.current = self.current or name
        self._write()

    def use(self, name: str) -> None:
        """Raises CliError: there is none of that name."""
        self.get(name)
        self.current = name
        self._write()

    def remove(self, name: str) -> None:
        """Raises CliError: there is none of that name."""
        self.get(name)
        del self.targets[name]
        self.current = "" if self.current == name else self.current
        self._write()

    def get(self, name: str) -> ClusterTarget:
        """Raises CliError: there is none of that name."""
        if name not in self.targets:
            known = ", ".join(sorted(self.targets)) or "none yet"
            raise CliError(f"no profile {name!r} (there are: {known})")
        return self.targets[name]

    def _write(self) -> None:
        content = {
            "current": self.current,
            "profiles": {name: target.as_fields() for name, target in sorted(self.targets.items())},
        }
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made with mode 600, complete before it has its name: no reader sees half of it.
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=".profiles-")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump(content, file, indent=2)
                    file.write("\n")
                os.replace(name, self._path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise CliError(f"{self._path}: {error}") from error


def resolve(
    profile: str | None,
    service_url: str | None,
    admin_url: str | None,
    environment: Mapping[str, str] | None = None,
) -> ClusterTarget:
    """The cluster that a command talks to; None: the option wasn't given.

    Raises:
        CliError: no such profile, or the file can't be used.
    """
    environment = os.environ if environment is None else environment
    variables = (environment.get("MAGNETAR_SERVICE_URL"), environment.get("MAGNETAR_ADMIN_URL"))
    if profile:
        target = Profiles.of_user(environment).get(profile)
    elif all(variables) or (service_url and admin_url):
        target = DEFAULT  # nothing of it is used
    else:
        profiles = Profiles.of_user(environment)
        name = environment.get("MAGNETAR_PROFILE") or profiles.current
        target = profiles.get(name) if name else DEFAULT
    if not profile:
        if service_url or admin_url or any(variables):
            target = ClusterTarget(target.service_url, target.admin_url)  # without its credentials
        target = _with_variables(target, environment)
    return replace(
        target,
        service_url=service_url or target.service_url,
        admin_url=admin_url or target.admin_url,
    )


def _with_variables(target: ClusterTarget, environment: Mapping[str, str]) -> ClusterTarget:
    plugin = environment.get("MAGNETAR_AUTH_PLUGIN")
    return replace(
        target,
        service_url=environment.get("MAGNETAR_SERVICE_URL") or target.service_url,
        admin_url=environment.get("MAGNETAR_ADMIN_URL") or target.admin_url,
        auth_plugin=plugin or target.auth_plugin,
        auth_params=environment.get("MAGNETAR_AUTH_PARAMS", "") if plugin else target.auth_params,
        tls_trust_cert_path=environment.get("MAGNETAR_TLS_TRUST_CERT_PATH")
        or target.tls_trust_cert_path,
    )


def target_of(options: argparse.Namespace) -> ClusterTarget:
    """The cluster that a command's options name, with everything that they leave open.

    Raises:
        CliError: no such profile, the file can't be used, or options that don't fit each other.
    """
    target = resolve(
        options.profile, getattr(options, "url", None), getattr(options, "admin_url", None)
    )
    return with_access(target, options)


def with_access(target: ClusterTarget, options: argparse.Namespace) -> ClusterTarget:
    """The target with what the options say about credentials and trust. Raises CliError."""
    if options.auth_params is not None and options.auth_plugin is None:
        raise CliError("--auth-params needs --auth-plugin")
    if options.auth_plugin is not None:
        target = replace(
            target, auth_plugin=options.auth_plugin, auth_params=options.auth_params or ""
        )
    names = ("tls_trust_cert_path", "listener_name", "proxy_url")
    given = {name: getattr(options, name, None) for name in names}
    target = replace(target, **{name: text for name, text in given.items() if text is not None})
    if options.tls_allow_insecure:
        target = replace(target, tls_allow_insecure=True)
    if getattr(options, "proxy_protocol", None) is not None and not target.proxy_url:
        raise CliError("--proxy-protocol needs --proxy-url")
    return target


def run_profiles(options: argparse.Namespace) -> int:
    """Raises CliError: no such profile, or the file can't be used."""
    profiles = Profiles.of_user(os.environ)
    match options.action:
        case "list":
            _show(profiles, as_json=options.json)
        case "add":
            known = profiles.targets.get(options.name, DEFAULT)
            target = replace(
                known,
                service_url=options.url or known.service_url,
                admin_url=options.admin_url or known.admin_url,
            )
            target = with_access(target, options)
            target.admin_client(1.0)  # refuses what is no URL, no plugin or no file
            profiles.add(options.name, target)
        case "use":
            profiles.use(options.name)
        case "remove":
            profiles.remove(options.name)
    return 0


def _show(profiles: Profiles, *, as_json: bool) -> None:
    if as_json:
        known = {name: target.as_fields() for name, target in profiles.targets.items()}
        for fields in known.values():
            if "auth_params" in fields:
                fields["auth_params"] = "******"
        print_value({"current": profiles.current, "profiles": known}, as_json=True)
        return
    for name, target in sorted(profiles.targets.items()):
        mark = "*" if name == profiles.current else " "
        who = f"  {target.auth_plugin}" if target.auth_plugin else ""
        print(f"{mark} {name}  {target.service_url}  {target.admin_url}{who}")
