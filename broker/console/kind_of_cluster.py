"""Which kind of cluster answers: its `Source`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.console.source import Source

if TYPE_CHECKING:
    from magnetar.broker.console.pulsar_messages import PulsarMessages


async def connect(
    at: Callable[[str], AdminApi],
    admin_url: str,
    messages_of: Callable[[AdminApi], PulsarMessages | None] = lambda _: None,
    masked_fields: str = "",
) -> Source:
    """The kind of cluster that answers. Raises AdminError: none.

    Args:
        at: makes the access to a URL.
        messages_of: reads messages of Apache Pulsar.
    """
    base = admin_url.rstrip("/")
    api = at(base)
    try:
        who = await get(api, "whoami")
    except AdminError as error:
        if error.status not in (404, 405):
            raise
        who = None
    if isinstance(who, dict) and "authenticationEnabled" in who:
        return Source(api, masked_fields=masked_fields)
    from magnetar.broker.console.pulsar_source import PulsarSource  # schemas and their codecs

    return PulsarSource(api, messages_of(api), masked_fields)
