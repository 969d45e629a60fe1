"""A topic's schema: its versions, and a new one, whose compatibility is asked before."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from magnetar.broker.console.actions import check_token
from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.schema_form import ActionError
from magnetar.broker.console.schema_view import schema_versions
from magnetar.broker.console.source import schema_path
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, View, panel

_TYPES: Final = (
    *("AVRO", "JSON", "PROTOBUF_NATIVE", "STRING", "BYTES", "BOOLEAN"),
    *("INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE"),
    *("DATE", "TIME", "TIMESTAMP", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME"),
)


@dataclass(frozen=True, slots=True)
class _Typed:
    """What the form holds."""

    type: str = "AVRO"
    definition: str = ""

    @property
    def document(self) -> dict[str, Any]:
        return {"type": self.type, "schema": self.definition, "properties": {}}


async def schema_tab(ask: Ask, path: TopicPath, partitions: int) -> dict[str, Any]:
    return {"schemas": await panel("Schema", _stored(ask, path), schema_versions)}


async def new_schema(ask: Ask) -> View:
    """The form, with the newest version in it."""
    topic = TopicPath.of(ask.names)
    typed, failure = _Typed(), ""
    try:
        if stored := await _stored(ask, topic):
            newest = schema_versions(stored)[0]
            typed = _Typed(newest.type, str(stored[-1].get("data", "")) and newest.text)
    except AdminError as error:
        failure = str(error)
    return _form(ask, typed, failure)


async def upload_schema(ask: Ask, fields: Mapping[str, str]) -> View | str:
    """Ask whether the version is compatible, or store it: where to go then, or the form again."""
    typed = _Typed(fields.get("type", ""), fields.get("definition", ""))
    path = f"/admin/v2/{schema_path(TopicPath.of(ask.names))}"
    try:
        check_token(fields, ask.form_token)
        if typed.type not in _TYPES:
            raise ActionError(f"no type {typed.type}")
        if fields.get("do") == "upload":
            await ask.source.api.call("POST", f"{path}/schema", body=typed.document)
            return "../schema"
        found = await ask.source.api.call("POST", f"{path}/compatibility", body=typed.document)
    except ActionError as error:
        return _form(ask, typed, str(error), status=400)
    except AdminError as error:
        return _form(ask, typed, str(error), status=error.status)
    strategy = found.get("schemaCompatibilityStrategy") or "?"
    if not found.get("compatibility"):
        return _form(ask, typed, f"It is not compatible with the stored versions ({strategy}).")
    return _form(ask, typed, verdict=f"It is compatible ({strategy}).")


async def _stored(ask: Ask, topic: TopicPath) -> list[Mapping[str, Any]]:
    """All versions, the oldest first; none: empty. Raises AdminError."""
    try:
        answer = await get(ask.source.api, f"{schema_path(topic)}/schemas")
    except AdminError as error:
        if error.status == 404:
            return []
        raise
    return list(answer["getSchemaResponses"])


def _form(
    ask: Ask, typed: _Typed, failure: str = "", *, verdict: str = "", status: int = 200
) -> View:
    topic = TopicPath.of(ask.names)
    names = "/".join((topic.tenant, topic.namespace, topic.local))
    content = {
        "topic": topic,
        "typed": asdict(typed),
        "types": _TYPES,
        "token": ask.form_token,
        "failure": failure,
        "verdict": verdict,
        "command": f"magnetar admin schemas upload {names} -f schema.json",
    }
    return View("schema_new.html", "New schema version", "topics", content, status, live=0)
