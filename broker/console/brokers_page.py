"""The pages of brokers. One that is silent keeps a page waiting for less than a second."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final, TypeVar

from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.broker_view import (
    BrokerLook,
    BrokerRow,
    broker_row,
    bundle_rows,
    connection_rows,
)
from magnetar.broker.console.formats import segment
from magnetar.broker.console.source import Connections
from magnetar.broker.console.views import Ask, Panel, View, panel

T = TypeVar("T")

_ANSWER_S: Final = 0.7
"""Until a broker counts as silent: people who look at a page wait for it."""
_FEW: Final = 8
"""Brokers of the overview."""
_HEALTH_S: Final = 5.0
"""For the round trip of a message, which somebody has asked for."""
BROKER_TABS: Final = (
    ("", "Load and bundles"),
    ("connections", "Connections"),
    ("settings", "Settings"),
    ("health", "Health"),
)


async def names_and_leader(ask: Ask) -> dict[str, Any]:
    """``names`` of all brokers, ``leader`` or "". Raises AdminError."""
    cluster = await ask.source.cluster()
    names = sorted(await get(ask.source.api, f"brokers/{segment(cluster)}"))
    try:
        leader = (await get(ask.source.api, "brokers/leaderBroker")).get("brokerId", "")
    except AdminError as error:
        if error.status != 404:
            raise
        leader = ""
    return {"names": names, "leader": leader}


async def brokers(ask: Ask) -> View:
    """Each broker with its load; one that is silent with that of then."""

    async def found() -> tuple[list[BrokerRow], str]:
        known = await names_and_leader(ask)
        ask.source.load_reports.keep(known["names"])
        looks = await asyncio.gather(
            *(_look(ask, name, known["leader"]) for name in known["names"])
        )
        return [broker_row(each) for each in looks], known["leader"]

    return View(
        "brokers.html", "Brokers", "brokers", {"brokers": await panel("Brokers", found(), tuple)}
    )


async def few_brokers(ask: Ask) -> dict[str, Any]:
    """For the overview: ``rows`` of the first brokers, ``more``: how many others there are,
    ``leader`` or "". Raises AdminError.
    """
    known = await names_and_leader(ask)
    names = known["names"][:_FEW]
    looks = await asyncio.gather(*(_look(ask, name, known["leader"]) for name in names))
    rows = [broker_row(each) for each in looks]
    return {"rows": rows, "more": len(known["names"]) - len(names), "leader": known["leader"]}


async def _look(ask: Ask, name: str, leader: str) -> BrokerLook:
    """Asks for a load report. Raises AdminError: it is refused."""
    watch = ask.source.load_reports
    try:
        call = get(ask.source.api.at(name), "broker-stats/load-report")
        watch.told(name, await _soon(call, _ANSWER_S))
    except AdminError as error:
        if error.status < 500:  # what was told to others isn't for this visitor
            raise
        watch.silent(name, str(error), round(time.time() * 1000))
    return replace(watch.of(name), is_leader=name == leader)


async def _soon(call: Awaitable[T], answer_s: float) -> T:
    """Raises AdminError: also when there is no answer in that time."""
    try:
        async with asyncio.timeout(answer_s):
            return await call
    except TimeoutError:
        raise AdminError(503, f"it has not answered in {answer_s:g} s") from None


async def broker(ask: Ask) -> View:
    """One broker, by tabs."""
    name, tab = ask.names["broker"], ask.names.get("tab", "")
    known = await panel("Brokers", names_and_leader(ask), dict)
    if known.value is not None and name not in known.value["names"]:
        # Nothing is sent to a name that comes from an address alone: credentials would go along.
        text = f"There is no broker {name} now."
        return View("message.html", "Not found", "brokers", {"text": text}, 404, live=0)
    content: dict[str, Any] = {"name": name, "tab": tab, "tabs": BROKER_TABS, "broker": known}
    if known.value is None:
        return View("broker.html", name, "brokers", content)
    look = await panel("Load report", _look(ask, name, known.value["leader"]), lambda found: found)
    content["broker"] = Panel(look.value and broker_row(look.value), look.error)
    if look.value is not None and look.value.silent_ms is None:
        content["part"] = await _part(ask, name, tab, look.value)
    content["settings_note"] = ask.source.settings_note
    content["address"] = ask.address
    return View("broker.html", name, "brokers", content, live=0 if tab == "health" else 5)


async def _part(ask: Ask, name: str, tab: str, look: BrokerLook) -> Panel[Any]:
    """What a tab shows."""
    source = ask.source
    if tab == "connections":
        found = source.connections(name, ask.query.get("after", ""))
        return await panel("Connections", found, _connections)
    if tab == "settings":
        return await panel(
            "Settings", source.changed_settings(name), lambda found: sorted(found.items())
        )
    if tab == "health":
        health = _soon(get(source.api.at(name), "brokers/health"), _HEALTH_S)
        return await panel("Health", health, str)
    path = f"brokers/{segment(await source.cluster())}/{segment(name)}/ownedNamespaces"
    owned = get(source.api.at(name), path)
    return await panel("Bundles", owned, lambda found: bundle_rows(found, look.report))


def _connections(found: Connections) -> dict[str, Any]:
    return {"rows": connection_rows(found.rows), "total": found.total, "next": found.next}
