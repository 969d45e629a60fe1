"""A message that a form makes: its fields as they are typed, and what they mean. Pure."""

import json
import shlex
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from magnetar.broker.console.actions import seconds_of
from magnetar.broker.console.schema_form import ActionError
from magnetar.broker.console.topic_path import TopicPath

_NUMBER_LENGTH_MAX: Final = 18
VALUE_BYTES_MAX: Final = 256 * 1024
"""Of a value in a form."""
_FORM_LOSES: Final = frozenset("\r\0")
"""Browsers send another text for these."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is typed into the form; empty: not given."""

    topic: str
    value: str = ""
    encoding: str = "text"
    """Or ``base64``: of the value's bytes."""
    key: str = ""
    key_encoding: str = "text"
    properties: str = ""
    """``name=value`` a line, or a JSON object."""
    event: str = ""
    delay: str = ""
    partition: str = ""
    schema: str = ""
    """Version that the value is encoded by; empty: the latest."""

    @classmethod
    def of(cls, fields: Mapping[str, str], topic: str) -> Self:
        """Of a form that was sent, for a topic if it names none."""
        given = {"topic": topic}
        given |= {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        for name in given.keys() & {"value", "properties"}:  # browsers send each line with CR LF
            given[name] = given[name].replace("\r\n", "\n")
        return cls(**given)

    @property
    def target(self) -> TopicPath:
        """Raises ActionError: no name of a topic."""
        name = self.topic.strip()
        if "://" not in name:
            name = f"persistent://{name}"
        found = TopicPath.parse(name)
        if found.domain not in ("persistent", "non-persistent") or not found.local:
            raise ActionError("a topic is persistent://tenant/namespace/topic")
        return found


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a draft asks for."""

    topic: TopicPath
    message: Mapping[str, Any]
    """As the route ``/topics/...`` takes it."""
    partition: int | None
    """None: the broker chooses."""
    version: int | None
    """Of the schema; None: the latest."""


def delivery_of(draft: Draft, now_ms: int) -> Delivery:
    """Raises ActionError: what is wrong with a field."""
    message: dict[str, Any] = {"payload": draft.value}
    if draft.encoding != "text":
        message["encoding"] = draft.encoding
    if draft.key:
        message["key"] = draft.key
        if draft.key_encoding != "text":
            message["keyEncoding"] = draft.key_encoding
    if properties := properties_of(draft.properties):
        message["properties"] = properties
    if draft.event.strip():
        message["eventTime"] = str(_time_ms(draft.event.strip()))
    if draft.delay.strip():
        message["deliverAt"] = now_ms + seconds_of(draft.delay) * 1000
    partition = _number(draft.partition, "a partition")
    return Delivery(draft.target, message, partition, _number(draft.schema, "a schema version"))


def _number(text: str, what: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ActionError(f"{what} is a number, from 0")
    return int(text)


def _time_ms(text: str) -> int:
    """Of milliseconds since 1970, or an ISO time, in UTC unless it names a zone."""
    if text.isascii() and text.isdecimal() and len(text) <= _NUMBER_LENGTH_MAX:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is not None and found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    if found is None or (moment_s := found.timestamp()) < 0:
        raise ActionError("a time is 2026-11-28T09:00:00Z, or milliseconds since 1970")
    return round(moment_s * 1000)


def properties_of(text: str) -> dict[str, str]:
    """Raises ActionError: they are written neither way."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ActionError(f"the properties are no JSON: {error}") from error
        if not all(isinstance(each, str) for each in found.values()):
            raise ActionError("the values of properties are texts")
        return dict(found)
    pairs = [line.partition("=") for line in text.split("\n") if line.strip()]
    if not all(mark for _, mark, _ in pairs):
        raise ActionError("a property is a line: name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _written(properties: Mapping[str, str]) -> str:
    lines = "\n".join(f"{name}={value}" for name, value in properties.items())
    try:
        is_same = properties_of(lines) == dict(properties)
    except ActionError:
        is_same = False
    return lines if is_same else json.dumps(properties, ensure_ascii=False)


def draft_again(message: Mapping[str, Any], topic: TopicPath, partition: str) -> Draft:
    """A message that a search has found, whole.

    Raises:
        ActionError: it can't be made again from what is shown of it.
    """
    for name, why in (
        ("encryptionKeys", "it is encrypted, and the keys aren't here"),
        ("chunkId", "it is a piece of a larger one"),
        ("error", "it can't be decoded"),
        ("isMasked", "values of it are withheld here"),
    ):
        if name in message:
            raise ActionError(f"The message can't be filled in: {why}.")
    version = message.get("schemaVersion")
    draft = Draft(
        str(topic),
        key=message.get("key", ""),
        key_encoding=message.get("keyEncoding", "text"),
        properties=_written(message.get("properties", {})),
        event=str(message.get("eventTime", "")),
        partition=partition,
        schema="" if version is None else str(version),
    )
    return _with_value(draft, message)


def _with_value(draft: Draft, message: Mapping[str, Any]) -> Draft:
    shown, encoding = message.get("payload", ""), message.get("encoding", "text")
    if encoding == "json":
        if message.get("schemaType") == "KEY_VALUE":
            draft = replace(draft, key=_text(shown["key"]), key_encoding="text")
            shown = shown["value"]
        shown, encoding = _text(shown), "text"
    if len(shown) > VALUE_BYTES_MAX:
        raise ActionError("The message can't be filled in: it is too large for a form.")
    if encoding == "text" and not _FORM_LOSES.isdisjoint(shown):
        shown, encoding = b64encode(shown.encode()).decode(), "base64"
    if not (_FORM_LOSES | {"\n"}).isdisjoint(draft.key):
        raise ActionError("The message can't be filled in: its key has letters that forms lose.")
    return replace(draft, value=shown, encoding=encoding)


def _text(value: Any) -> str:
    """As the route for producing takes it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def command_of(
    delivery: Delivery, body: Mapping[str, Any] | None, web_url: str, *, has_schema: bool
) -> str:
    """What does the same on a command line; "": nothing does.

    Args:
        body: of the call; None: there is none.
        has_schema: of the topic.
    """
    message = delivery.message
    properties: Mapping[str, str] = message.get("properties", {})
    is_plain = message.keys() <= {"payload", "key", "properties"} and not has_schema
    texts = "".join(properties) + "".join(properties.values())
    if is_plain and delivery.partition is None and "," not in texts:
        words = ["magnetar", "produce", str(delivery.topic), "-s", ""]
        words.append(f"--messages={message['payload']}")
        words += [f"--key={message['key']}"] if "key" in message else []
        pairs = ",".join(f"{name}={value}" for name, value in properties.items())
        return shlex.join(words + ([f"--properties={pairs}"] if pairs else []))
    if body is None:
        return ""
    kind = "Content-Type: application/json"
    url = web_url + produce_path(delivery)
    return shlex.join(["curl", url, "-H", kind, "-d", json.dumps(body, ensure_ascii=False)])


def produce_path(delivery: Delivery) -> str:
    """Of the call, from the root."""
    tail = "" if delivery.partition is None else f"/partitions/{delivery.partition}"
    return f"/topics/{delivery.topic.rest}{tail}"
