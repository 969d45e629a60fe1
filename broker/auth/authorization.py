"""What each role may do, decided from documents that the caller has at hand. Pure.

    superuser       may everything                                    superUserRoles
    tenant admin    may everything in its tenant, but create tenants   adminRoles of the tenant
    produce,        may just that in a namespace, or on one topic      auth_policies of the
    consume         with its partitions                                namespace's document
    others          may nothing

Two more rules take rights away again from those who only have ``consume``: a subscription that
names its roles is for these alone, and with ``subscription_auth_mode`` Prefix a subscription's name
must begin with the role's. A proxy that speaks for a client may do what both may.

Source: PulsarAuthorizationProvider, AuthorizationService; asked with every `Access` of the routes.
Everything in a document that has not the expected form grants nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from magnetar.broker.protocol.topic_name import TopicName

EVERY_SUBSCRIPTION: Final = "\0every"
"""Stands for a name in ``Resource.subscription``: all of a topic or a namespace, as they are."""


class Permission(Enum):
    """What a role must be allowed, from nothing to everything."""

    NOTHING = "nothing"  # any client that authentication admits
    LOOKUP = "produce or consume"
    PRODUCE = "produce"
    CONSUME = "consume"
    TENANT_ADMIN = "tenant admin"
    SUPERUSER = "superuser"


# Members of an enum cost 0.1 µs each time they are read.
_NOTHING, _SUPERUSER = Permission.NOTHING, Permission.SUPERUSER
_PRODUCE, _CONSUME = Permission.PRODUCE, Permission.CONSUME
_TENANT_ADMIN = Permission.TENANT_ADMIN


@dataclass(frozen=True, slots=True)
class Caller:
    """The asking client; roles as authentication has proved them."""

    role: str | None
    """None: the client has not authenticated."""
    original: str | None = None
    """For whom a proxy speaks; None: for itself."""

    def __str__(self) -> str:
        return f"{self.role}" if self.original is None else f"{self.role} for {self.original}"


NOBODY: Final = Caller(None)


@dataclass(frozen=True, slots=True)
class Resource:
    """What is asked for: a topic, else a namespace, else a tenant; "" and None where not."""

    tenant: str = ""
    namespace: str = ""
    """``tenant/ns``."""
    topic: TopicName | None = None
    subscription: str = ""

    @classmethod
    def of_topic(cls, topic: TopicName, subscription: str = "") -> Resource:
        return cls(topic.tenant, topic.namespace, topic, subscription)

    @classmethod
    def of_namespace(cls, namespace: str, subscription: str = "") -> Resource:
        return cls(namespace.partition("/")[0], namespace, None, subscription)

    def __str__(self) -> str:
        place = str(self.topic or self.namespace or self.tenant or "the cluster")
        if self.subscription == EVERY_SUBSCRIPTION:
            return f"{place}, all subscriptions"
        return f"{place} {self.subscription}" if self.subscription else place


_Roles = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Grants:
    """What a namespace's document says about roles, ready to be asked."""

    namespace: _Roles = field(default_factory=dict)
    """Actions by role, on all topics."""
    topics: Mapping[str, _Roles] = field(default_factory=dict)
    """Actions by role, by the full name of a topic."""
    subscriptions: _Roles = field(default_factory=dict)
    """The only roles that may use a subscription; one without roles is for all."""
    prefix_mode: bool = False

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Grants:
        auth = _mapping(document.get("auth_policies"))
        topics = _mapping(auth.get("destination_auth"))
        return cls(
            _roles(auth.get("namespace_auth")),
            {name: _roles(roles) for name, roles in topics.items()},
            _roles(auth.get("subscription_auth_roles")),
            prefix_mode=document.get("subscription_auth_mode") == "Prefix",
        )


NO_GRANTS: Final = Grants()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _roles(value: object) -> _Roles:
    return {role: _texts(actions) for role, actions in _mapping(value).items()}


def _texts(value: object) -> frozenset[str]:
    if not isinstance(value, list):
        return frozenset()
    return frozenset(each for each in value if isinstance(each, str))


class Authorizer:
    """The rules, with the settings that they depend on."""

    def __init__(
        self,
        superusers: Iterable[str] = (),
        proxies: Iterable[str] = (),
        *,
        wildcards: bool = False,
    ) -> None:
        """``wildcards``: roles of grants may begin or end with ``*``, for any text."""
        self._superusers = frozenset(superusers)
        self._proxies = frozenset(proxies)
        self._wildcards = wildcards

    def without_documents(self, caller: Caller, permission: Permission) -> bool | None:
        """The answer where it needs no document; None: ``allows`` can tell."""
        if permission is _NOTHING:
            return True
        if not self._is_sane(caller):
            return False
        role, original = caller.role, caller.original
        if role in self._superusers and (original is None or original in self._superusers):
            return True
        return False if permission is _SUPERUSER else None

    def allows(
        self,
        caller: Caller,
        permission: Permission,
        resource: Resource,
        admins: frozenset[str],
        grants: Grants,
    ) -> bool:
        """Whether the caller may.

        Args:
            admins: of the resource's tenant; empty when there is no such tenant.
            grants: of the resource's namespace; ``NO_GRANTS`` when there is none.
        """
        known = self.without_documents(caller, permission)
        if known is not None:
            return known
        assert caller.role is not None
        if not self._role_may(caller.role, permission, resource, admins, grants):
            return False
        return caller.original is None or self._role_may(
            caller.original, permission, resource, admins, grants
        )

    def _is_sane(self, caller: Caller) -> bool:
        """Whether a proxy, and no other role, speaks for a role that is no proxy."""
        if not caller.role:
            return False
        if caller.role in self._proxies:
            return bool(caller.original) and caller.original not in self._proxies
        return caller.original is None

    def _role_may(
        self,
        role: str,
        permission: Permission,
        resource: Resource,
        admins: frozenset[str],
        grants: Grants,
    ) -> bool:
        if role in self._superusers or role in admins:
            return True
        if permission is _TENANT_ADMIN or not resource.namespace:
            return False
        if permission is _PRODUCE:
            return self._has("produce", role, resource.topic, grants)
        if permission is _CONSUME:
            return _may_use(role, resource.subscription, grants) and self._has(
                "consume", role, resource.topic, grants
            )
        return self._has("produce", role, resource.topic, grants) or self._has(
            "consume", role, resource.topic, grants
        )

    def _has(self, action: str, role: str, topic: TopicName | None, grants: Grants) -> bool:
        if self._is_in(action, role, grants.namespace):
            return True
        if topic is None or not grants.topics:
            return False
        roles = grants.topics.get(topic.full)
        if roles is not None and self._is_in(action, role, roles):
            return True
        if topic.partition_index < 0:
            return False
        # A partition that was added after the grant has none of its own.
        roles = grants.topics.get(topic.base.full)
        return roles is not None and self._is_in(action, role, roles)

    def _is_in(self, action: str, role: str, roles: _Roles) -> bool:
        actions = roles.get(role)
        if actions is not None and action in actions:
            return True
        return self._wildcards and any(
            action in actions and matches(pattern, role) for pattern, actions in roles.items()
        )


def _may_use(role: str, subscription: str, grants: Grants) -> bool:
    """What is asked besides the right to consume."""
    if not subscription:
        return True
    if subscription == EVERY_SUBSCRIPTION:  # Pulsar lets a role empty even those closed to it
        return not grants.prefix_mode and all(
            role in roles for roles in grants.subscriptions.values() if roles
        )
    roles = grants.subscriptions.get(subscription)
    if roles and role not in roles:
        return False
    return not grants.prefix_mode or subscription.startswith(role)


def matches(pattern: str, role: str) -> bool:
    """PulsarAuthorizationProvider.checkWildcardPermission: ``x*`` or ``*x``, never both."""
    if pattern.endswith("*"):
        return role.startswith(pattern[:-1])
    return pattern.startswith("*") and role.endswith(pattern[1:])
