"""Options of several commands: each may stand before the command's name and behind it.

``magnetar --url U produce`` and ``magnetar produce --url U`` are the same, as both are to Pulsar's
tools. Before the name they have their defaults; behind it only what is given counts.
"""

import argparse
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.cli.argument_values import KINDS


@dataclass(frozen=True, slots=True)
class _Global:
    flags: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    default: Any = None

    @property
    def dest(self) -> str:
        return self.flags[0].lstrip("-").replace("-", "_")


def _option(*flags: str, metavar: str, help: str, default: Any = None, **more: Any) -> _Global:
    return _Global(flags, {"metavar": metavar, "help": help, **more}, default)


def _switch(flag: str, help: str) -> _Global:
    return _Global((flag,), {"action": "store_true", "help": help}, default=False)


_GLOBALS: Final = (
    _option("--profile", metavar="NAME", help="cluster to talk to (magnetar profiles)"),
    _option("--url", metavar="URL", help="pulsar://host:port, or ws://host:port for HTTP's port"),
    _option("--admin-url", metavar="URL", help="http://host:port of a broker (of the profile)"),
    _option(
        "--listener-name", metavar="NAME", help="which of a broker's advertised addresses to use"
    ),
    _option(
        "--proxy-url",
        metavar="URL",
        help="pulsar+ssl://host:port that forwards by the server's name in TLS (SNI)",
    ),
    _option(
        "--proxy-protocol", metavar="SNI", help="how the proxy forwards (SNI)", choices=("SNI",)
    ),
    _option(
        *("--memory-limit", "-ml"),
        metavar="SIZE",
        help="maximum bytes in flight (produce only); 0: no limit (0)",
        type=KINDS["bytes"][1],
    ),
    _option(
        "--auth-plugin", metavar="NAME", help="token, oauth2, basic, tls, or Pulsar's class name"
    ),
    _option(
        "--auth-params",
        metavar="TEXT",
        help="token:TEXT, file:///path, or what else the plugin takes",
    ),
    _option(
        *("--tls-trust-cert-path", "--tlsTrustCertsFilePath"),
        metavar="FILE",
        help="PEM file of the authorities to trust (those of the system)",
    ),
    _switch("--tls-allow-insecure", "don't look at the server's certificate"),
    _option(
        "--request-timeout", metavar="SECONDS", help="of HTTP calls (60)", type=float, default=60.0
    ),
    _switch("--json", "always print JSON"),
    _switch("--no-color", "no colours, as with NO_COLOR=1"),
)
_ACCESS: Final = frozenset(
    ("auth_plugin", "auth_params", "tls_trust_cert_path", "tls_allow_insecure")
)
_EVERYWHERE: Final = frozenset({"no_color"})
_ADDRESSES: Final = frozenset(("url", "admin_url"))
_ROUTE: Final = frozenset(("listener_name", "proxy_url", "proxy_protocol"))
CLIENTS: Final = _EVERYWHERE | _ACCESS | _ROUTE | {"profile", "url", "memory_limit"}
ADMIN: Final = _EVERYWHERE | _ACCESS | {"profile", "admin_url", "request_timeout", "json"}
TOP: Final = ADMIN | {"url"}
CONSOLE: Final = _EVERYWHERE | _ACCESS | {"profile", "url", "admin_url"}
PROFILES: Final = _EVERYWHERE | _ACCESS | _ROUTE | {"url", "admin_url"}
VERIFY: Final = (
    _EVERYWHERE | _ACCESS | _ROUTE | {"profile", "url", "admin_url", "request_timeout", "json"}
)
PIPELINE: Final = _EVERYWHERE | _ACCESS | {"profile", "url", "admin_url", "json"}


def add_globals(
    parser: argparse.ArgumentParser,
    names: frozenset[str] | None = None,
    *,
    taken: Iterable[str] = (),
    hidden: bool = False,
) -> None:
    """Add those options to a parser.

    Args:
        names: None: all of them, with their defaults: of the whole command line.
        taken: flags that mean something else to this parser.
        hidden: not in its help, which says enough without them.
    """
    used = frozenset(taken)
    for each in _GLOBALS:
        if (names is not None and each.dest not in names) or used.intersection(each.flags):
            continue
        settings = dict(each.settings)
        if hidden:
            settings["help"] = argparse.SUPPRESS
        default = each.default if names is None else argparse.SUPPRESS
        parser.add_argument(*each.flags, dest=each.dest, default=default, **settings)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """The option of commands that read."""
    parser.add_argument(
        "--watch",
        nargs="?",
        type=interval_s,
        const=2.0,
        metavar="SECONDS",
        help="show it again and again, every 2 seconds or as many as given",
    )


def interval_s(text: str) -> float:
    """Of an argument. Raises ArgumentTypeError: it is none."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no interval: seconds from 0.1; --watch without them goes last"
        )
    return seconds


def misplaced(options: argparse.Namespace, names: frozenset[str]) -> str | None:
    """The flag of an option that was given and isn't one of the command's; None: there is none.

    Who names both addresses of a cluster may do so for all commands: each takes the one it needs.
    Of an address alone that isn't the command's, the command would go to another cluster.
    """
    given = {
        each.dest: each.flags[0]
        for each in _GLOBALS
        if getattr(options, each.dest, each.default) != each.default
    }
    ours = names | _EVERYWHERE
    if given.keys() >= _ADDRESSES and ours & _ADDRESSES:
        ours |= _ADDRESSES
    return next((flag for dest, flag in given.items() if dest not in ours), None)
