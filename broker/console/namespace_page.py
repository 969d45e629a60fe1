"""Tenants and namespaces: what is in them; bundles and who serves them; what roles may do."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.find_page import Found, alike
from magnetar.broker.console.formats import segment
from magnetar.broker.console.source import NamespaceSums
from magnetar.broker.console.views import Ask, Panel, View, panel, row_id
from magnetar.metadata.loop_turns import in_turns
from magnetar.metadata.sorted_names import sort_in_turns

ROWS_MAX: Final = 500
"""Of a page: the field at its head finds the others."""


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    id: str
    tenant: str
    local: str
    figures: Mapping[str, Any]
    """Empty: no topic is known."""


@dataclass(frozen=True, slots=True)
class ServedBundle:
    id: str
    range: str
    """As ``0x00000000_0x40000000``."""
    broker: str
    """Empty: no broker says that it serves it."""


async def namespaces(ask: Ask) -> View:
    """Tenants, and the namespaces that have topics with the sums of their figures."""
    sums = await panel("Namespaces", _sums(ask), lambda found: found)
    known = _rows(sums)
    tenants = await panel("Tenants", _tenants(ask, known), list)
    names = await sort_in_turns(list(known))
    content = {
        "tenants": tenants,
        "sums": sums,
        "rows": [namespace_row(name, known) for name in names[:ROWS_MAX]],
        "row_count": len(names),
        "not_loaded": await _not_loaded(sums, names),
    }
    return View("namespaces.html", "Namespaces", "namespaces", content)


def _sums(ask: Ask) -> Awaitable[NamespaceSums]:
    return ask.source.namespaces(partial=True)


def _rows(sums: Panel[NamespaceSums]) -> Mapping[str, Any]:
    return {} if sums.value is None else sums.value.rows


async def _not_loaded(sums: Panel[NamespaceSums], names: Iterable[str]) -> int:
    """Topics of these namespaces whose figures are missing in the sums."""
    if sums.value is None:
        return 0
    return sum([sums.value.not_loaded(each) async for each in in_turns(names)])


async def _tenants(ask: Ask, sums: Mapping[str, Any]) -> list[str]:
    """Those with topics for somebody who may not know all. Raises AdminError."""
    try:
        return sorted(await get(ask.source.api, "tenants"))
    except AdminError as error:
        if error.status not in (401, 403):
            raise
        return sorted({name.partition("/")[0] for name in sums})


def namespace_row(name: str, sums: Mapping[str, Any]) -> NamespaceRow:
    tenant, _, local = name.partition("/")
    return NamespaceRow(row_id(name), tenant, local, sums.get(name, {}))


async def tenant(ask: Ask) -> View:
    """One tenant: all its namespaces, who administers it, and where it may have namespaces."""
    name, api = ask.names["tenant"], ask.source.api
    names, info, sums = await asyncio.gather(
        panel("Namespaces", get(api, f"namespaces/{segment(name)}"), list),
        panel("Tenant", get(api, f"tenants/{segment(name)}"), dict),
        panel("Figures", _sums(ask), lambda found: found),
    )
    if names.error is not None and names.error.status == 404:
        near = await _near(ask, "tenants", name)
        links = [Found(each, f"tenant/{segment(each)}") for each in near]
        text = {"text": names.error.reason, "near": links}
        return View("message.html", "Nothing here", "namespaces", text, 404, live=0)
    sorted_names = sorted(names.value or ())
    content = {
        "name": name,
        "names": names,
        "rows": [namespace_row(each, _rows(sums)) for each in sorted_names[:ROWS_MAX]],
        "row_count": len(sorted_names),
        "not_loaded": await _not_loaded(sums, sorted_names),
        "info": info,
        "sums": sums,
    }
    return View("tenant.html", name, "namespaces", content)


async def namespace(ask: Ask) -> View:
    tenant, local = ask.names["tenant"], ask.names["namespace"]
    name, api = f"{tenant}/{local}", ask.source.api
    rest = f"namespaces/{segment(tenant)}/{segment(local)}"
    sums, bundles, permissions = await asyncio.gather(
        panel("Figures", _sums(ask), lambda found: found),
        panel("Bundles", _bundles(ask, name, rest), list),
        panel("Permissions", get(api, f"{rest}/permissions"), dict),
    )
    errors = [each.error for each in (bundles, permissions) if each.error is not None]
    if len(errors) == 2 and errors[0].status in (404, 412):  # none, or no name of one
        near = await _near(ask, f"namespaces/{segment(tenant)}", local)
        links = [Found(each, f"ns/{segment(tenant)}/{segment(each)}") for each in near]
        text = {"text": errors[0].reason, "near": links}
        return View("message.html", "Nothing here", "namespaces", text, errors[0].status, live=0)
    content = {
        "tenant": tenant,
        "local": local,
        "name": name,
        "sums": sums,
        "figures": _rows(sums).get(name),
        "not_loaded": await _not_loaded(sums, [name]),
        "bundles": bundles,
        "permissions": permissions,
    }
    return View("namespace.html", name, "namespaces", content)


async def _near(ask: Ask, rest: str, missing: str) -> list[str]:
    """Of the tenants, or of a tenant's namespaces, those that a name may mean that is none."""
    try:
        names: list[str] = await get(ask.source.api, rest)
    except AdminError:
        return []
    return alike(missing, (each.rpartition("/")[2] for each in names))


async def _bundles(ask: Ask, name: str, rest: str) -> list[ServedBundle]:
    """All bundles, with the brokers that say what they serve. Raises AdminError."""
    api = ask.source.api
    boundaries: list[str] = (await get(api, f"{rest}/bundles"))["boundaries"]
    try:
        cluster = segment(await ask.source.cluster())
        brokers: list[str] = await get(api, f"brokers/{cluster}")
    except AdminError:  # not for everybody
        brokers = []

    async def owned(broker: str) -> Mapping[str, Any]:
        try:
            path = f"brokers/{cluster}/{segment(broker)}/ownedNamespaces"
            return dict(await get(api.at(broker), path))
        except AdminError:  # it is silent
            return {}

    answers = await asyncio.gather(*map(owned, brokers))
    return served_bundles(name, boundaries, dict(zip(brokers, answers, strict=True)))


def served_bundles(
    name: str, boundaries: Sequence[str], answers: Mapping[str, Mapping[str, Any]]
) -> list[ServedBundle]:
    """
    Args:
        answers: of ``ownedNamespaces``, by broker.
    """
    owners = {bundle: broker for broker, owned in answers.items() for bundle in owned}
    ranges = [f"{first}_{end}" for first, end in pairwise(boundaries)]
    return [
        ServedBundle(row_id(name, each), each, owners.get(f"{name}/{each}", "")) for each in ranges
    ]
