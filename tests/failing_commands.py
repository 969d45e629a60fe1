"""Every command of the binary protocol that is answered, with fields made from PulsarApi.

Nothing lists them: the broker's table of handlers does. For ``tests/failing_operations.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from magnetar.broker.connection.handlers import FIELDS
from magnetar.broker.protocol import pulsar_api_pb2 as pb

_VALUES: Final[Mapping[str, object]] = {
    "subscription": "shared",
    "namespace": "public/default",
    "topics_pattern": ".*",
    "message_publish_time": 1,
    "type": pb.Schema.String,
    "tc_id": 0,
    "txn_ttl_millis": 10 * 86_400_000,
}
"""Of fields by name, also of optional ones; others are filled if they are required."""
TRANSACTION: Final[Mapping[str, Any]] = {"txnid_most_bits": 0, "txnid_least_bits": 0}
"""The first one of the only coordinator."""
_NEW: Final[Mapping[str, object]] = {"subscription": "new", "consumer_id": 2, "producer_id": 2}
_AWAY: Final = (pb.MetadataError, pb.PersistenceError, pb.ServiceNotReady, pb.UnknownError)


def commands(topic: str) -> Iterator[tuple[str, int, Sequence[Mapping[str, object]]]]:
    """Name, type and values: of what is new, until one succeeds, and of what is there."""
    for kind, name in FIELDS.items():
        command: Any = getattr(pb.BaseCommand(), name)
        fields = command.DESCRIPTOR.fields_by_name
        if "request_id" not in fields:
            continue
        new, there = (
            {**TRANSACTION, "topic": x, "partitions": [x]} for x in (f"{topic}-new", topic)
        )
        ways: list[Mapping[str, object]] = [{**new, **_NEW}, {**there, **_NEW}, there]
        told = f"command: {name}"
        yield told, kind, ways
        if not {"topic", "subscription"}.isdisjoint(fields):
            yield f"{told} of what is there", kind, ways[1:]
        if "txn_action" in fields:
            yield f"{told}: abort", kind, [{**there, "txn_action": pb.ABORT}]
        if kind == pb.BaseCommand.ACK:
            yield f"{told} without a transaction", kind, [{}]


def command_of(kind: int, values: Mapping[str, object], request_id: int) -> pb.BaseCommand:
    """What a client sends."""
    command = pb.BaseCommand()
    command.type = kind  # type: ignore[assignment]  # a number of the enum
    _fill(getattr(command, FIELDS[kind]), {**_VALUES, **values, "request_id": request_id})
    return command


def _fill(message: Any, values: Mapping[str, object]) -> None:
    for each in message.DESCRIPTOR.fields:
        if each.message_type is not None:
            if each.is_required or each.name in values:
                part = getattr(message, each.name)
                _fill(part.add() if each.is_repeated else part, values)
        elif each.name not in values:
            if each.is_required:
                setattr(message, each.name, _blank(each))
        elif each.is_repeated:
            getattr(message, each.name).extend(values[each.name])
        else:
            setattr(message, each.name, values[each.name])


def _blank(field: Any) -> object:
    if field.enum_type is not None:
        return field.enum_type.values[0].number
    return {field.TYPE_STRING: "", field.TYPE_BYTES: b""}.get(field.type, 1)


def status_of(answer: pb.BaseCommand, request_id: int) -> int | None:
    """As HTTP has it; None: the answer to something else."""
    body: Any = next((x for _, x in answer.ListFields() if not isinstance(x, int)), None)
    if getattr(body, "request_id", None) != request_id:
        return None
    for name in ("error", "error_code"):
        if name in body.DESCRIPTOR.fields_by_name and body.HasField(name):
            return 503 if getattr(body, name) in _AWAY else 412
    return 200
