"""The page that sends one message to a topic, new or as one that is stored."""

import time
from collections.abc import Mapping
from urllib.parse import quote

from magnetar.broker.console.actions import check_token
from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.draft import (
    VALUE_BYTES_MAX,
    Delivery,
    Draft,
    command_of,
    delivery_of,
    draft_again,
)
from magnetar.broker.console.formats import segment
from magnetar.broker.console.message_view import stored_id
from magnetar.broker.console.schema_form import ActionError
from magnetar.broker.console.source import TopicSchema
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, View


async def produce(ask: Ask) -> View:
    """An empty form; with ``from``, the id of a stored message, one that makes it again."""
    topic = TopicPath.of(ask.names)
    draft, failure = Draft(str(topic), partition=ask.query.get("partition", "")), ""
    if again := ask.query.get("from", ""):
        try:
            draft = await _stored(ask, topic, again)
        except AdminError as error:
            failure = str(error)
        except ActionError as error:
            failure = str(error)
    return await _form(ask, draft, failure)


async def send(ask: Ask, fields: Mapping[str, str]) -> View | str:
    """What the form asks for: where to go then, by a relative address, or the form again."""
    draft = Draft.of(fields, str(TopicPath.of(ask.names)))
    try:
        check_token(fields, ask.form_token)
        if len(draft.value.encode(errors="replace")) > VALUE_BYTES_MAX:
            raise ActionError("the value is longer than 256 KiB: use magnetar produce -f")
        delivery = delivery_of(draft, int(time.time() * 1000))
        schema = await ask.source.schema(delivery.topic, delivery.version)
        stored = await ask.source.produce(delivery, schema)
    except ActionError as error:
        return await _form(ask, draft, str(error), 400)
    except AdminError as error:
        return await _form(ask, draft, str(error), error.status)
    there = delivery.topic
    parts = (there.domain, there.tenant, there.namespace, there.local)
    return "../" * 4 + "/".join(map(segment, parts)) + f"/produce?stored={quote(stored, safe='')}"


async def _stored(ask: Ask, topic: TopicPath, message_id: str) -> Draft:
    """Raises AdminError, ActionError: it isn't there, or can't be made again."""
    if ask.contents != "full":
        raise AdminError(403, "webConsoleMessages withholds what messages hold")
    partition = ask.query.get("partition", "")
    at = topic.partition(int(partition)) if partition.isdecimal() and partition.isascii() else topic
    query = {"position": message_id, "limit": "1", "payload": "whole"}
    found = await ask.source.messages(at, query)
    messages = found["messages"]
    if not messages or stored_id(messages[0]) != message_id:
        raise AdminError(404, f"There is no message {message_id} any more")
    if messages[0].get("isMasked"):
        raise AdminError(403, "webConsoleMaskedFields withholds a part of this message")
    return draft_again(messages[0], topic, partition)


async def _form(ask: Ask, draft: Draft, failure: str = "", status: int = 200) -> View:
    schema, command = None, ""
    try:
        delivery = delivery_of(draft, int(time.time() * 1000))
        schema = await ask.source.schema(delivery.topic, delivery.version)
        command = await _command(ask, delivery, schema)
    except (ActionError, AdminError) as error:
        if not failure:
            failure = str(error)
    content = {
        "topic": TopicPath.of(ask.names),
        "draft": draft,
        "schema": schema,
        "stored": _id_parts(ask.query.get("stored", "")),
        "is_again": "from" in ask.query,
        "token": ask.form_token,
        "command": command,
        "failure": failure,
    }
    return View("produce.html", "Produce", "topics", content, status, live=0)


async def _command(ask: Ask, delivery: Delivery, schema: TopicSchema | None) -> str:
    try:
        web_url = (await ask.source.addresses())["web_url"]
    except AdminError:  # not for everybody
        web_url = "http://BROKER:8080"
    body = ask.source.produce_body(delivery, schema)
    return command_of(delivery, body, web_url, has_schema=schema is not None)


def _id_parts(text: str) -> tuple[str, str] | None:
    """Id and partition of a stored message, as REST tells them; None: it is none."""
    parts = text.split(":")
    numbers = [each.removeprefix("-") for each in parts]
    if len(parts) not in (3, 4) or not all(x.isascii() and x.isdecimal() for x in numbers):
        return None
    return f"{parts[0]}:{parts[1]}", "" if parts[2] == "-1" else parts[2]
