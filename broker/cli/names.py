"""Names that a cluster knows: which of them are like one that it doesn't know."""

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Final
from urllib.parse import quote

from magnetar.broker.cli.admin_client import AdminClient
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.request import Arguments, topic_parts

_SHOWN_MAX: Final = 5
_PARTITION: Final = re.compile(r"-partition-\d+$")


class ClusterNames:
    """Asks a broker. All methods raise CliError."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def tenants(self) -> list[str]:
        return self._get("tenants")

    def namespaces(self, tenant: str) -> list[str]:
        """Local names."""
        return [name.partition("/")[2] for name in self._get("namespaces", tenant)]

    def topics(
        self, domain: str, tenant: str, namespace: str, *, partitions: bool = False
    ) -> list[str]:
        """Local names; of a partitioned topic its own and, unless asked for, no partition's."""
        plain = self._get(domain, tenant, namespace)
        partitioned = self._get(domain, tenant, namespace, "partitioned")
        start = f"{domain}://{tenant}/{namespace}/"
        whole = {name.removeprefix(start) for name in partitioned}
        names = (name.removeprefix(start) for name in plain)
        return sorted(
            whole.union(n for n in names if partitions or _PARTITION.sub("", n) not in whole)
        )

    def subscriptions(self, domain: str, tenant: str, namespace: str, topic: str) -> list[str]:
        return self._get(domain, tenant, namespace, topic, "subscriptions")

    def _get(self, *parts: str) -> list[str]:
        path = "/".join(quote(part, safe="") for part in parts)
        return [str(name) for name in self._client.json("GET", f"/admin/v2/{path}")]


def hint_on(names: ClusterNames, arguments: Arguments) -> str:
    """Which name of a command isn't there, the outermost first, and what is; "": nobody knows."""
    for kind, name, place, known_by in _lookups(names, arguments):
        try:
            known = known_by()
        except CliError:  # only superusers may see tenants, say
            continue
        if name not in known:
            return like(kind, name, place, known)
    return ""


_Lookup = tuple[str, str, str, Callable[[], list[str]]]


def _lookups(names: ClusterNames, arguments: Arguments) -> Iterator[_Lookup]:
    """What a name is, the name, where it should be, and what gives the names that are there."""
    given = arguments.positionals
    domain = topic = ""
    tenant, _, namespace = given.get("namespace", given.get("tenant", "")).partition("/")
    if arguments.topic is not None:
        domain, tenant, namespace, topic = topic_parts(arguments.topic)
    subscription = given.get("subscription", arguments.options.get("path:subscription"))
    if tenant:
        yield "tenant", tenant, "", names.tenants
    if namespace:
        yield "namespace", namespace, tenant, lambda: names.namespaces(tenant)
    if topic:
        place = f"{tenant}/{namespace}"
        whole = _PARTITION.sub("", topic)
        yield "topic", whole, place, lambda: names.topics(domain, tenant, namespace)
        if subscription is not None:
            yield (
                "subscription",
                str(subscription),
                f"{place}/{topic}",
                lambda: names.subscriptions(domain, tenant, namespace, topic),
            )


def like(kind: str, name: str, place: str, known: list[str]) -> str:
    """There is no ``name``, and these are like it."""
    text = f"There is no {kind} {name}{f' in {place}' if place else ''}"
    if not known:
        return f"{text}, nor any other."
    parts = [each for each in known if name.lower() in each.lower()]
    near = [*get_close_matches(name, known, _SHOWN_MAX), *parts]
    near = list(dict.fromkeys(near))[:_SHOWN_MAX]
    if near:
        return f"{text}. Names like it: {', '.join(near)}"
    if len(known) <= _SHOWN_MAX:
        return f"{text}. There are: {', '.join(sorted(known))}"
    return f"{text}, nor one with a name like it; there are {len(known)}."
