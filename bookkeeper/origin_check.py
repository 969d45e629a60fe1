"""Which web pages may use an HTTP port, and by which names it is known: ``Origin`` and ``Host``.

A browser runs the pages of unauthenticated clients inside its user's network, and two ways lead
from them here:

- a page sends requests that need no permission: forms, images, WebSockets. Browsers say so, by
  ``Sec-Fetch-Site`` or ``Origin``, which no page can change;
- a page's own name is pointed to this address while it is open (DNS rebinding). For the browser it
  is then the same site, and reads answers, too. Only ``Host`` tells: it holds the page's name.

Other clients send neither of the first two headers, and as ``Host`` the name that they were given.
An address of digits is no name and can't be re-pointed: it is always known.

INVARIANT: what a browser sends for a page of another site is answered only if the site is one of
``origins``, or if the visitor followed a link: a GET that replaces the page and that no page reads.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

ANY: Final = "*"
_TELLING: Final = frozenset({b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"})
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})  # none: by the user, not by a page
_SAFE: Final = frozenset({"GET", "HEAD"})
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_KNOWN_MAX: Final = 256  # remembered texts of Host: there are few spellings of few names

Refusal = tuple[HTTPStatus, str]
"""Status and reason."""


class OriginCheck:
    """Pure. One of a port: ``refusal`` for every request, WebSockets too."""

    def __init__(
        self,
        *,
        hosts: Iterable[str] | None,
        hosts_setting: str,
        origins: Iterable[str] = (),
        origins_setting: str = "",
    ) -> None:
        """
        Args:
            hosts: names by which the port is known beside ``localhost`` (``host_names``: also
                ``*.suffix`` and ``*``); None: any.
            hosts_setting: what lists them, for the answer.
            origins: sites whose pages may ask (``https://console.example``); ``*``: all.
            origins_setting: what lists those; "": nothing.
        """
        self._hosts: frozenset[str] | None = None
        self._suffixes: tuple[str, ...] = ()
        if hosts is not None and ANY not in (names := {each.lower() for each in hosts}):
            self._suffixes = tuple(each[1:] for each in names if each.startswith("*."))
            self._hosts = frozenset(names) | {"localhost"}
        self._known: set[bytes] = set()
        sites = frozenset(each.encode() for each in origins)
        self._origins = sites - {ANY.encode()}
        self.is_open = sites != self._origins
        self._unknown_host = f"Unknown host ({hosts_setting})"
        self._other_site = "A page of another site"
        if origins_setting:
            self._other_site += f" ({origins_setting})"

    def refusal(
        self,
        method: str,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        is_page: bool = True,
    ) -> Refusal | None:
        """How a request is refused; None: it isn't.

        Args:
            headers: names in lower case.
            is_page: a GET of it may be what a link leads to: it changes nothing. Not so for
                WebSockets and for what hands out messages.
        """
        for name, value in headers if self._hosts is not None else ():
            if name == b"host" and value not in self._known and not self._knows(value):
                return HTTPStatus.MISDIRECTED_REQUEST, self._unknown_host
        if not self.is_open and self.is_foreign(method, headers, is_page=is_page):
            return HTTPStatus.FORBIDDEN, self._other_site
        return None

    def is_foreign(
        self, method: str, headers: Sequence[tuple[bytes, bytes]], *, is_page: bool = True
    ) -> bool:
        """Whether a page asks that none of the named origins has; as if ``*`` were none."""
        site = mode = target = b""
        origins: list[bytes] = []
        for name, value in headers:
            if name not in _TELLING:
                continue
            if name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site":
                site = site if value in _OWN_SITE and site else value
            elif name == b"sec-fetch-mode":
                mode = value
            else:
                target = value
        if not (site or origins) or site in _OWN_SITE:
            return False
        if origins and all(each in self._origins for each in origins):
            return False
        if not site:  # of old browsers, and over plain HTTP from elsewhere
            own = {value.lower() for name, value in headers if name == b"host"} - {b""}
            return not all(each.partition(b"://")[2].lower() in own for each in origins)
        is_link = mode == b"navigate" and target == b"document" and not origins
        return not (is_link and is_page and method in _SAFE)

    def _knows(self, value: bytes) -> bool:
        assert self._hosts is not None
        name = _name_of(value.decode("latin-1").strip().lower())
        if not (name in self._hosts or name.endswith(self._suffixes) or _is_address(name)):
            return False
        if len(self._known) < _KNOWN_MAX:
            self._known.add(value)
        return True


def host_names(text: str) -> tuple[str, ...]:
    """A setting's comma list: names, ``*.suffix``, ``*``, addresses.

    Raises:
        ValueError: one of them isn't any of that (with a port, or a URL).
    """
    names = tuple(each.strip().lower() for each in text.split(",") if each.strip())
    for name in names:
        if name != ANY and not _HOST.fullmatch(name) and not _is_address(name):
            raise ValueError(f"{name} is no host name (without port), *.suffix or *")
    return names


def names_to_answer(
    allowed: str, *, bind_address: str, own: Iterable[str], is_authenticated: bool
) -> tuple[str, ...] | None:
    """``hosts`` of a port's ``OriginCheck``.

    Where credentials are asked for, a page of another name has none to show; and who listens for
    other machines may have any number of names. Both are bound by ``allowed`` alone.

    Args:
        allowed: the setting; see ``host_names``, also for errors.
        own: what the process is called anyway: its advertised addresses.
    """
    names = host_names(allowed)
    if names or (is_loopback(bind_address) and not is_authenticated):
        return (*names, bind_address, *own)
    return None


def pages_check(
    allowed: str, *, bind_address: str, own: Iterable[str], is_authenticated: bool
) -> OriginCheck:
    """Of the HTTP port of a bookie or of auto-recovery: ``names_to_answer``, no foreign pages."""
    hosts = names_to_answer(
        allowed, bind_address=bind_address, own=own, is_authenticated=is_authenticated
    )
    return OriginCheck(hosts=hosts, hosts_setting="httpServerAllowedHosts")


def is_loopback(bind_address: str) -> bool:
    """Whether only processes of this machine can connect there."""
    if bind_address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(bind_address.strip("[]")).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """Without a port, and the dot that DNS may end with."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
