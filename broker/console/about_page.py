"""What runs here, who looks and what he may, what is kept of a visit, licences of files."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, View, panel

_TEXT_MAX: Final = 400
_METHODS: Final = {"tls": "client certificate", "basic": "user and password"}


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file below ``static/`` that others have made, see ``NOTICE``."""

    file: str
    name: str
    version: str
    owner: str
    licence: str


FOREIGN_FILES: Final = (
    ForeignFile("idiomorph.min.js", "idiomorph", "0.8.0", "Big Sky Software", "0BSD"),
)


@dataclass(frozen=True, slots=True)
class ConsoleVisitor:
    """Who looks, as the cluster tells it."""

    role: str
    original: str
    """For whom a proxy asks; empty: it is none."""
    method: str
    """What proves the role; empty: nothing."""
    until_ms: int | None
    """End of the credentials, in milliseconds since 1970; None: they have none."""
    is_known: bool
    """Whether somebody is asked who he is."""
    may_all: bool
    """Whether everything is allowed: a superuser, or authorization is off."""
    tenants: list[str]
    """That he administers."""
    next_tenant: str
    """Last of the tenants that were looked at, if there are more; empty: there are none."""
    permissions: Mapping[str, list[str]]
    """By the name that was asked about."""


async def about(ask: Ask) -> View:
    asked = ask.query.get("of", "").strip()[:_TEXT_MAX]
    after = ask.query.get("after", "")
    visitor, addresses = await asyncio.gather(
        panel("Who you are", ask.source.whoami(_names(asked), after), _visitor),
        panel("Addresses", ask.source.addresses(), dict),
    )
    content = {
        "visitor_told": visitor,
        "addresses": addresses,
        "asked": asked,
        "address": ask.address,
        "contents": ask.contents,
        "masked": sorted(ask.source.masked),
        "remembers_changes": ask.source.remembers_changes,
        "foreign_files": FOREIGN_FILES,
    }
    return View("about.html", "About", "", content, live=0)


def _names(asked: str) -> dict[str, str]:
    """What ``whoami`` is asked about: a topic, a namespace or a tenant, by its slashes."""
    if not asked:
        return {}
    if "://" in asked or asked.count("/") > 1:
        return {"topic": str(TopicPath.typed(asked))}
    return {"namespace" if "/" in asked else "tenant": asked}


def _visitor(found: Mapping[str, Any] | None) -> ConsoleVisitor | None:
    """None: the cluster doesn't tell."""
    if found is None:
        return None
    method = found["method"] or ""
    return ConsoleVisitor(
        role=found["role"] or "anonymous",
        original=found["originalRole"] or "",
        method=_METHODS.get(method, method),
        until_ms=found["expiresAt"],
        is_known=found["authenticationEnabled"],
        may_all=found["superuser"] or not found["authorizationEnabled"],
        tenants=found["adminOf"],
        next_tenant=found["nextTenant"] or "",
        permissions={name: each["permissions"] for name, each in found["rights"].items()},
    )
