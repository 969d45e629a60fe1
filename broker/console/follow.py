"""New messages of a topic for its page, as the visitor may see them."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.messages_page import asked_of, wanted
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, Streamed
from magnetar.broker.errors import BrokerError

logger = logging.getLogger(__name__)

_TEXT = "application/x-ndjson"


async def follow(ask: Ask) -> Streamed:
    """From ``position`` on, else from now on. Raises AdminError: it is refused."""
    path = TopicPath.of(ask.names)
    asked = asked_of({"filter": ask.query.get("filter", "")})
    search = await wanted(ask, path, asked, ask.query.get("partition"))
    query = {**search.query, "position": ask.query.get("position", "latest")}
    stack = AsyncExitStack()
    pieces = await stack.enter_async_context(ask.source.follow(search.topic, query))
    headers = {"X-Accel-Buffering": "no"}  # nothing on the way may collect what is to arrive now
    return Streamed(_until_broken(pieces, ask.has_ended), _TEXT, headers, stack.aclose)


async def _until_broken(
    pieces: AsyncIterator[bytes], has_ended: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """The page asks again, and is told then."""
    try:
        async for piece in pieces:
            if await has_ended():  # in another tab: this one leads to the login then
                return
            yield piece
    except (AdminError, BrokerError) as error:
        logger.debug("new messages can't be told any more: %s", error)
