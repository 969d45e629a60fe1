"""Settings among environment variables: ``MAGNETAR_<key>`` in every process of ours.

Kubernetes adds variables of its own for each service of a namespace, named after the service: of
one called ``magnetar-broker`` comes ``MAGNETAR_BROKER_SERVICE_PORT``, which reads like the key
``brokerServicePort``. They are told from settings by what always comes with them: ``..._PORT`` with
a URL such as ``tcp://10.0.0.1:6650``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

__all__ = ["PREFIXES", "service_links", "settings_among"]

PREFIXES: Final = ("PULSAR_PREFIX_", "MAGNETAR_")
"""Of all processes; the later one wins. The first is what Pulsar's images read."""
_HOST: Final = "_SERVICE_HOST"
_URL: Final = re.compile(r"(tcp|udp|sctp)://")


def settings_among(
    variables: Mapping[str, str], prefixes: Iterable[str], knows: Callable[[str], bool]
) -> dict[str, str]:
    """Keys and texts; a later prefix wins.

    Args:
        knows: whether it is a key. Other variables may begin like this too (homes, test switches).
    """
    links = service_links(variables)
    return {
        name.removeprefix(prefix): value
        for prefix in prefixes
        for name, value in variables.items()
        if name.startswith(prefix) and name not in links and knows(name.removeprefix(prefix))
    }


def service_links(variables: Mapping[str, str]) -> frozenset[str]:
    """Names of the variables that Kubernetes made of services."""
    services = [
        name.removesuffix(_HOST)
        for name in variables
        if name.endswith(_HOST)
        and _URL.match(variables.get(f"{name.removesuffix(_HOST)}_PORT", ""))
    ]
    if not services:
        return frozenset()
    words = "|".join(map(re.escape, services))
    made = re.compile(
        rf"({words})_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
    )
    return frozenset(name for name in variables if made.fullmatch(name))
