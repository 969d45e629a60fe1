"""Commands that are understood and declined: scalable topics, watches of coordinators.

No client sends them unasked: CONNECTED doesn't say that this broker has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection


def _decline(id_field: str, what: str) -> Callable[[Connection, Any], None]:
    """With ERROR for the id that the sender waits by: not each of these has a request id."""

    def decline(connection: Connection, command: Any) -> None:
        connection.reply_error(getattr(command, id_field), pb.NotAllowedError, what)

    return decline


def on_close(connection: Connection, command: Any) -> None:
    """Nothing was opened, and no answer is expected."""


_NO_WATCHES: Final = "Coordinators of transactions are looked up"
_NO_SCALABLE_TOPICS: Final = "Scalable topics are not supported by this broker"
HANDLERS: Final[dict[int, Any]] = {
    pb.BaseCommand.SCALABLE_TOPIC_LOOKUP: _decline("session_id", _NO_SCALABLE_TOPICS),
    pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: _decline("request_id", _NO_SCALABLE_TOPICS),
    pb.BaseCommand.SCALABLE_TOPIC_CLOSE: on_close,
    pb.BaseCommand.WATCH_SCALABLE_TOPICS: _decline("watch_id", _NO_SCALABLE_TOPICS),
    pb.BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE: on_close,
    pb.BaseCommand.WATCH_TC_ASSIGNMENTS: _decline("watch_id", _NO_WATCHES),
    pb.BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE: on_close,
}
