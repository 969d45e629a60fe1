"""Asks the rules of authorization with the documents of this cluster, and keeps asking.

Exists only while authorization is enabled. A command costs two look-ups in memory; nothing is asked
per message: a client keeps its producer, consumer or session until a document changes; then each
one that this concerns is asked again (``_AccessWatch``) and ended if the right is gone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, Protocol, TypeAlias

from magnetar.bookkeeper.auth.refusal_log import RefusalLog
from magnetar.broker.auth.authorization import NO_GRANTS, Authorizer, Caller, Permission, Resource
from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.connection import Connection
from magnetar.broker.errors import AuthorizationError, BrokerMetadataError
from magnetar.broker.producer.producer import Producer
from magnetar.broker.resources.resources import POLICIES, Resources
from magnetar.broker.service.store_follower import EVERYTHING, StoreFollower
from magnetar.broker.subscription.consumer import Consumer
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

Right: TypeAlias = tuple[Caller, Permission, Resource]
_SLICE: Final = 200
"""Questions before others get their turn on the loop: half a millisecond."""


class AuthorizedSession(Protocol):
    """What goes on using a right after it was checked: a WebSocket, a REST session."""

    @property
    def rights(self) -> Iterable[Right]:
        """All that must be allowed for it to go on."""

    def revoke(self) -> None:
        """One of them isn't any more: end at once."""


class AccessControl:
    """Decides what each role may do, for all ports of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        resources: Resources,
        connections: Collection[Connection],
    ) -> None:
        """``connections``: those that there are; asked again when documents change."""
        self._resources = resources
        self._authorizer = Authorizer(
            roles_of(config.super_user_roles),
            roles_of(config.proxy_roles),
            wildcards=config.authorization_allow_wildcards_matching,
        )
        self._refusals = RefusalLog(logging.getLogger("magnetar.broker.audit"))
        self.refused = 0
        """For the metrics page."""
        self.live: set[AuthorizedSession] = set()
        """Those that ``start_use`` has added; their owners discard them at their end."""
        self._watch = _AccessWatch(self, store, connections)
        self.close = self._watch.close

    def may_nowait(self, caller: Caller, permission: Permission, resource: Resource) -> bool | None:
        """Whether the caller may; None: documents must be read, ``may`` can tell."""
        known = self._authorizer.without_documents(caller, permission)
        if known is not None:
            return known
        access = self._resources.access_nowait(resource.tenant, resource.namespace)
        if access is None:
            return None
        admins, grants = access
        return self._authorizer.allows(
            caller, permission, resource, admins or frozenset(), grants or NO_GRANTS
        )

    async def may(self, caller: Caller, permission: Permission, resource: Resource) -> bool:
        """Raises BrokerMetadataError, MetadataError: the documents can't be read."""
        known = self.may_nowait(caller, permission, resource)
        if known is not None:
            return known
        admins, grants = await self._resources.access(resource.tenant, resource.namespace)
        return self._authorizer.allows(
            caller, permission, resource, admins or frozenset(), grants or NO_GRANTS
        )

    async def require(
        self, caller: Caller, permission: Permission, resource: Resource, listener: str, remote: str
    ) -> None:
        """Raises AuthorizationError, and logs it; BrokerMetadataError, MetadataError."""
        if not await self.may(caller, permission, resource):
            self.refusal(listener, remote, caller, permission, resource)
            raise AuthorizationError(f"{caller} lacks {permission.value} on {resource}")

    async def has_tenant(self, tenant: str) -> bool:
        """Raises BrokerMetadataError, MetadataError."""
        return (await self._resources.access(tenant, "")).admins is not None

    async def grants_topics(self, namespace: str) -> bool:
        """Whether roles may something on single topics of ``tenant/ns``.

        Raises:
            BrokerMetadataError, MetadataError.
        """
        _, grants = await self._resources.access(namespace.partition("/")[0], namespace)
        return grants is not None and bool(grants.topics)

    def start_use(self, use: AuthorizedSession) -> None:
        """Watch a use of rights, which were checked; it may be revoked at once.

        Between the check and now a document may have changed: so they are asked for again.
        """
        self.live.add(use)
        for right in list(use.rights):
            may = self.may_nowait(*right)
            if may is None:
                self._watch.ask_soon(right[2])
            elif not may:
                use.revoke()
                return

    def created(self, connection: Connection, created: Producer | Consumer) -> None:
        """Ask again: the right may have been taken away while the topic was loaded."""
        right, end = _use_of(connection, created)
        may = self.may_nowait(*right)
        if may is None:
            self._watch.ask_soon(right[2])
        elif not may:
            end()

    def refusal(
        self, listener: str, remote: str, caller: Caller, permission: Permission, resource: Resource
    ) -> None:
        """Count a refusal and log it, unless there are very many."""
        self.refused += 1
        self._refusals.add(
            address=remote,
            listener=listener,
            role=str(caller),
            permission=permission.value,
            resource=str(resource),
        )


def roles_of(text: str) -> list[str]:
    """Roles of a comma list, without blanks and empty ones."""
    return [role for each in text.split(",") if (role := each.strip())]


class _AccessWatch:
    """Checks rights in use again when the documents of tenants or namespaces change."""

    def __init__(
        self, control: AccessControl, store: MetadataStore, connections: Collection[Connection]
    ) -> None:
        self._control, self._connections = control, connections
        self._asked = 0
        # Watches later than the cache of the documents, which must have dropped its old ones then.
        self._follower = StoreFollower(store, (POLICIES,), _key_of, self._renew)
        self.close = self._follower.close

    def ask_soon(self, resource: Resource) -> None:
        """The documents aren't in memory: check the rights in use there once they are read."""
        self._follower.invalidate(resource.namespace)

    async def _renew(self, stale: set[str]) -> Iterable[str]:
        """Check again; answers the keys, tenants and ``tenant/ns``, whose grants can't be read."""
        try:
            await self._ask_again(stale)
        except Exception as error:
            # Rights in use stay until they are known to be gone; new ones are refused meanwhile.
            unknown = isinstance(error, MetadataError | BrokerMetadataError)
            logger.warning("grants can't be read: %s", error, exc_info=not unknown)
            return stale
        return ()

    async def _ask_again(self, stale: set[str]) -> None:
        """Raises BrokerMetadataError, MetadataError: some were not asked."""
        for connection in list(self._connections):
            if connection.producers or connection.consumers or connection.watchers:
                await self._ask_connection(connection, stale)
        for use in list(self._control.live):
            for right in list(use.rights):
                if not await self._may_still(right, stale):
                    logger.info("%s lost %s on %s", right[0], right[1].value, right[2])
                    self._end(use.revoke)
                    break

    async def _ask_connection(self, connection: Connection, stale: set[str]) -> None:
        """What is being created isn't here yet: it is asked about when it is."""
        for each in (*connection.producers.values(), *connection.consumers.values()):
            if isinstance(each, Producer | Consumer):
                right, end = _use_of(connection, each)
                if not await self._may_still(right, stale):
                    self._end(end)
        caller = Caller(connection.role, connection.original_role)
        for watcher_id, watcher in list(connection.watchers.items()):
            resource = Resource.of_namespace(watcher.namespace)
            if not await self._may_still((caller, Permission.LOOKUP, resource), stale):
                connection.service.watchers.remove(connection, watcher_id)

    async def _may_still(self, right: Right, stale: set[str]) -> bool:
        """Whether a right is still given, or isn't touched by the changes."""
        self._asked += 1
        if self._asked % _SLICE == 0:
            await asyncio.sleep(0)
        resource = right[2]
        concerned = EVERYTHING in stale or resource.tenant in stale or resource.namespace in stale
        return not concerned or await self._control.may(*right)

    def _end(self, end: Callable[[], None]) -> None:
        """One that can't be ended in order must not keep the others from being asked."""
        try:
            end()
        except Exception:
            logger.exception("ending a use of rights failed")


def _key_of(path: str) -> str | None:
    """A tenant or ``tenant/ns``."""
    if not path.startswith(POLICIES + "/"):
        return None
    try:
        return "/".join(map(decode_name, path.removeprefix(POLICIES + "/").split("/")))
    except UnicodeDecodeError:  # the name was written in another encoding
        return EVERYTHING


def _use_of(connection: Connection, used: Producer | Consumer) -> tuple[Right, Callable[[], None]]:
    """The right that a client uses, and what ends that."""
    caller = Caller(connection.role, connection.original_role)
    if isinstance(used, Producer):
        right = (caller, Permission.PRODUCE, Resource.of_topic(used.topic.name))
        return right, partial(_end_producer, caller, used)
    right = (caller, Permission.CONSUME, used.subscription.resource)
    return right, partial(_end_consumer, caller, used)


def _end_producer(caller: Caller, producer: Producer) -> None:
    logger.info("%s: %s may not produce any more", producer.topic.name, caller)
    error = AuthorizationError("Client is not authorized to Produce")
    producer.topic.dismiss_producer(producer, error)


def _end_consumer(caller: Caller, consumer: Consumer) -> None:
    logger.info("%s: %s may not consume any more", consumer.subscription.resource, caller)
    consumer.subscription.dismiss_consumer(consumer)
