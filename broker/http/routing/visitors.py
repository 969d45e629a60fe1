"""What a visitor of lists over all namespaces may see: the rules of every other call, asked once a
namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from magnetar.broker.auth.authorization import Caller, Permission, Resource
from magnetar.broker.http.routing.route_permissions import caller_of
from magnetar.broker.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from magnetar.broker.service.access_control import AccessControl

_SLICE: Final = 100
"""Namespaces asked about before others get their turn on the loop."""


def visitor_of(request: Request, role: str | None, original_role: str | None) -> Caller | None:
    """Whose rights count; None: a superuser's, or authorization is off: everything may be seen.

    Args:
        role: whose rights a superuser wants to count.
        original_role: for whom that role, a proxy, speaks.
    """
    access: AccessControl | None = request.app.state.access
    if access is None:
        return None
    caller = caller_of(request.scope)
    if not access.may_nowait(caller, Permission.SUPERUSER, Resource()):
        return caller
    if role is None:
        return None
    asked = Caller(role, original_role)
    return None if access.may_nowait(asked, Permission.SUPERUSER, Resource()) else asked


async def sight_of(
    access: AccessControl, visitor: Caller, namespaces: Sequence[str]
) -> dict[int, Callable[[Any], bool] | None]:
    """The namespaces, by number, in which the visitor may see all topics, or some of them.

    Raises:
        BrokerMetadataError, MetadataError: the grants can't be read.
    """
    sight: dict[int, Callable[[Any], bool] | None] = {}

    def may_see(full: str) -> bool:
        topic = TopicName.parse(full)
        return bool(access.may_nowait(visitor, Permission.LOOKUP, Resource.of_topic(topic)))

    for space, namespace in enumerate(list(namespaces)):
        if await access.may(visitor, Permission.LOOKUP, Resource.of_namespace(namespace)):
            sight[space] = None
        elif await access.grants_topics(namespace):
            sight[space] = may_see
        if space % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    return sight
