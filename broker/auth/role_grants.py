"""Which grants a role has, and which roles have grants: the documents read from that side. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.broker.auth.authorization import Grants, matches

ADMIN: Final = ("admin",)
_CONSUME: Final = ("consume",)


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """One grant: what the role may do, and which document says so."""

    source: str
    """``tenant`` (an admin role), ``namespace``, ``topic`` or ``subscription``."""
    resource: str
    """``tenant``, ``tenant/ns`` or the topic's full name."""
    actions: Collection[str]
    role: str
    """As it is granted: with wildcards perhaps a pattern."""
    subscription: str = ""
    """The one that is for its roles alone."""


def grants_of_tenant(role: str, tenant: str, admins: Collection[str]) -> Iterator[RoleGrant]:
    if role in admins:
        yield RoleGrant("tenant", tenant, ADMIN, role)


def grants_of_namespace(
    role: str, namespace: str, grants: Grants, *, wildcards: bool
) -> Iterator[RoleGrant]:
    """What one role was given in a namespace.

    Args:
        wildcards: roles of grants may be patterns; see ``Authorizer``.
    """
    places = (("namespace", namespace, grants.namespace),)
    topics = (("topic", name, roles) for name, roles in grants.topics.items())
    for source, resource, roles in (*places, *topics):
        for granted in _matching(role, roles) if wildcards else (role,) if role in roles else ():
            yield RoleGrant(source, resource, sorted(roles[granted]), granted)
    for subscription, named in grants.subscriptions.items():
        if role in named:
            yield RoleGrant("subscription", namespace, _CONSUME, role, subscription)


def _matching(role: str, roles: Mapping[str, Collection[str]]) -> Iterator[str]:
    return (granted for granted in roles if granted == role or matches(granted, role))


def count_roles(grants: Grants, into: Mapping[str, Counter[str]]) -> None:
    """Count a namespace's grants: for each source, by role."""
    into["namespace"].update(grants.namespace.keys())
    for roles in grants.topics.values():
        into["topic"].update(roles.keys())
    for named in grants.subscriptions.values():
        into["subscription"].update(named)
