"""Addresses of a broker for clients of several networks: ``advertisedListeners`` of broker.conf.

Pure. A client names the listener whose addresses it can reach, and every lookup answers those.
"""

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

Listeners: TypeAlias = Mapping[str, Mapping[str, str]]
"""By name, in the order of the setting; then by the word that ownership data has for the scheme."""

_WORDS: Final = {
    "pulsar": "brokerServiceUrl",
    "pulsar+ssl": "brokerServiceUrlTls",
    "http": "brokerHttpUrl",
    "https": "brokerHttpsUrl",
}
# name:scheme://host:port, where the host may be an IPv6 address in brackets
_LISTENER: Final = re.compile(r"([\w.-]+):([a-z+]+)://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


def parse_listeners(text: str) -> Listeners:
    """``name:pulsar://host:port,name:pulsar+ssl://host:port,other:...``

    Raises:
        ValueError: not of that form, twice the same scheme of a listener, or an address of two.
    """
    listeners: dict[str, dict[str, str]] = {}
    owners: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = _LISTENER.fullmatch(part)
        if match is None or match[2] not in _WORDS or not 0 < int(match[4]) <= 65_535:
            raise ValueError(f"{part} is not NAME:SCHEME://HOST:PORT ({', '.join(_WORDS)})")
        name, scheme, host, port = match.groups()
        urls = listeners.setdefault(name, {})
        if _WORDS[scheme] in urls:
            raise ValueError(f"{name} has two addresses of {scheme}")
        if owners.setdefault(f"{host}:{port}", name) != name:
            raise ValueError(f"{host}:{port} belongs to two listeners")
        urls[_WORDS[scheme]] = f"{scheme}://{host}:{port}"
    return listeners


def address_of(listeners: Listeners, internal: str, scheme: str) -> str | None:
    """What clients get that name no listener; None: the broker's own address.

    Args:
        internal: the listener for them; "": the first that has the scheme.
    """
    word = _WORDS[scheme]
    if internal:
        return listeners[internal].get(word)
    return next((urls[word] for urls in listeners.values() if word in urls), None)


def hosts_of(listeners: Listeners) -> frozenset[str]:
    """The names in the addresses, without brackets and ports."""
    urls = (url for each in listeners.values() for url in each.values())
    return frozenset(url.partition("://")[2].rpartition(":")[0].strip("[]") for url in urls)
