"""Settings among environment variables: ``MAGNETAR_<key>`` in every process of ours.

Kubernetes adds variables of its own for each service of a namespace, named after the service: of
one called ``magnetar-broker`` comes ``MAGNETAR_BROKER_SERVICE_PORT``, which reads like the key
``brokerServicePort``. They are told from settings by what always comes with them: ``..._PORT`` with
a URL such as ``tcp://10.0.0.1:6650``.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

PREFIXES: Final = ("PULSAR_PREFIX_", "MAGNETAR_")
"""Of all processes; the later one wins. The first is what Pulsar's images read."""
_HOST: Final = "_SERVICE_HOST"
_URL: Final = re.compile(r"(tcp|udp|sctp)://")


def settings_among(
    variables: Mapping[str, str], prefixes: Iterable[str], knows: Callable[[str], bool]
) -> dict[str, str]:
    """Keys and texts, in the order in which a later one of the same meaning wins.

    Of one prefix the order of variables doesn't count: a container's runtime has none.

    Args:
        prefixes: a later one wins.
        knows: whether it is a key. Other variables may begin like this too (homes, test switches).
    Raises:
        ValueError: one key in two spellings, with two values.
    """
    links = service_links(variables)
    found: dict[str, str] = {}
    for prefix in prefixes:
        names: dict[str, str] = {}  # by the key without case and punctuation
        for name in sorted(variables):
            key = name.removeprefix(prefix)
            if not name.startswith(prefix) or name in links or not knows(key):
                continue
            other = names.setdefault(normalize_key(key), name)
            if variables[other] and variables[name] and variables[other] != variables[name]:
                raise ValueError(f"{other} and {name}: two values of one setting")
            if variables[name]:  # rather than one that is there and says nothing
                names[normalize_key(key)] = name
        for name in names.values():
            key = name.removeprefix(prefix)
            found.pop(key, None)  # its place is behind those of the prefixes before
            found[key] = variables[name]
    return found


def normalize_key(key: str) -> str:
    """A key without case and punctuation: how keys are compared."""
    return re.sub(r"[^a-z0-9]", "", key.lower())


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
