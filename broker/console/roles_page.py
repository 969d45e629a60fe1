"""The pages of roles: who has grants, and all grants of one role with where each comes from."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.broker.console.source import GrantsOfRole, Roles
from magnetar.broker.console.views import Ask, View, panel, row_id

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoleRow:
    id: str
    name: str
    tenants: int
    """That it is an admin of."""
    namespaces: int
    topics: int
    subscriptions: int


@dataclass(frozen=True, slots=True)
class GrantRow:
    id: str
    source: str
    """``tenant``, ``namespace``, ``topic`` or ``subscription``: whose document has it."""
    resource: str
    subscription: str
    actions: str
    pattern: str
    """What the grant names in place of the role, if that is a pattern."""
    command: str
    """Takes it away."""


async def roles(ask: Ask) -> View:
    """Roles that have grants, and how many of each kind."""
    found = await panel("Roles", ask.source.roles(ask.query.get("after", "")), _shown)
    content = {"roles": found, "address": ask.address, "note": ask.source.roles_note}
    return View("roles.html", "Roles", "roles", content)


def _shown(found: Roles) -> dict[str, Any]:
    rows = [
        RoleRow(
            row_id(name),
            name,
            each.get("tenant", 0),
            each.get("namespace", 0),
            each.get("topic", 0),
            each.get("subscription", 0),
        )
        for name, each in sorted(found.counts.items())
    ]
    return {"rows": rows, "superusers": found.superusers, "next": found.next}


async def role(ask: Ask) -> View:
    """One role, which may be one that nobody has granted anything."""
    name = ask.names["role"]
    found = await panel("Grants", ask.source.role(name, ask.query.get("after", "")), _grants)
    content = {"name": name, "grants": found, "note": ask.source.roles_note, "address": ask.address}
    return View("role.html", name, "roles", content)


def _grants(found: GrantsOfRole) -> dict[str, Any]:
    rows = [grant_row(found.role, each) for each in found.grants]
    return {"rows": rows, "is_superuser": found.is_superuser, "next": found.next}


def grant_row(role: str, grant: Json) -> GrantRow:
    source, resource = grant["source"], grant["resource"]
    subscription, granted = grant.get("subscription") or "", grant.get("role") or role
    return GrantRow(
        row_id(source, resource, subscription, granted),
        source,
        resource,
        subscription,
        ", ".join(grant.get("actions") or ()),
        granted if granted != role else "",
        _revoke(source, resource, subscription, granted),
    )


def _revoke(source: str, resource: str, subscription: str, role: str) -> str:
    """Empty for an admin of a tenant: the command takes the roles that are left."""
    words = {
        "namespace": ["namespaces", "revoke-permission", resource, "--role", role],
        "topic": ["topics", "revoke-permission", resource, "--role", role],
        "subscription": [
            *("namespaces", "revoke-subscription-permission", resource),
            *("--subscription", subscription, "--role", role),
        ],
    }.get(source)
    return "" if words is None else shlex.join(["magnetar", "admin", *words])
