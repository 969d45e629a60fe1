"""The table of command handlers, by BaseCommand type."""

from typing import Any, Final, Protocol

from magnetar.broker.connection.consumer_commands import HANDLERS as CONSUMER_HANDLERS
from magnetar.broker.connection.lookup_commands import HANDLERS as LOOKUP_HANDLERS
from magnetar.broker.connection.producer_commands import HANDLERS as PRODUCER_HANDLERS
from magnetar.broker.connection.schema_commands import HANDLERS as SCHEMA_HANDLERS
from magnetar.broker.connection.session_commands import HANDLERS as SESSION_HANDLERS
from magnetar.broker.connection.transaction_commands import HANDLERS as TRANSACTION_HANDLERS
from magnetar.broker.connection.unsupported_commands import HANDLERS as UNSUPPORTED_HANDLERS
from magnetar.broker.protocol import pulsar_api_pb2 as pb


class Handler(Protocol):
    def __call__(self, connection: Any, command: Any, /) -> None:
        """Handle one command at once; what must wait goes through ``connection.run``."""


_BY_NUMBER = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}

HANDLERS: Final[dict[int, Handler]] = {
    **SESSION_HANDLERS,
    **LOOKUP_HANDLERS,
    **PRODUCER_HANDLERS,
    **CONSUMER_HANDLERS,
    **SCHEMA_HANDLERS,
    **TRANSACTION_HANDLERS,
    **UNSUPPORTED_HANDLERS,
}
# A sub-message's field number equals the type's number. SEND has its own path (send_path.py).
FIELDS: Final[dict[int, str]] = {
    kind: _BY_NUMBER[kind] for kind in (*HANDLERS, pb.BaseCommand.SEND)
}
"""Name of the sub-message of each command that a broker accepts."""
