"""The page of a step: what it costs, what it asks for, and the form that does it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.console.actions import (
    SUBSCRIPTION_ACTIONS,
    TOPIC_ACTIONS,
    Action,
    Subject,
    call_of,
    check_token,
)
from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.formats import segment
from magnetar.broker.console.resource_actions import (
    CLUSTER_ACTIONS,
    NAMESPACE_ACTIONS,
    SETTING_ACTIONS,
    SUBSCRIPTION_FORMS,
    TENANT_ACTIONS,
    TOPIC_FORMS,
    TOPICS_ACTIONS,
    ClusterSubject,
    NamespaceSubject,
    SettingSubject,
    TenantSubject,
    TopicsSubject,
)
from magnetar.broker.console.schema_form import ActionError, FormField, fields_of
from magnetar.broker.console.settings_page import without_secrets
from magnetar.broker.console.subject import read_subject, with_places
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.transactions_page import TRANSACTION_ACTIONS, read_transaction
from magnetar.broker.console.views import Ask, View


async def step(ask: Ask) -> View:
    """What a step costs, and its form; parameters of the page's address fill its fields."""
    try:
        action, subject = await _step(ask)
    except AdminError as error:
        return View("message.html", "Not found", "topics", {"text": str(error)}, error.status, 0)
    return _form(ask, action, subject)


async def act(ask: Ask, typed: Mapping[str, str]) -> View | str:
    """Do a step: where to go then, by a relative address, or the form again."""
    try:
        action, subject = await _step(ask)
    except AdminError as error:
        return View("message.html", "Not found", "topics", {"text": str(error)}, error.status, 0)
    try:
        check_token(typed, ask.form_token)
        call = call_of(action, subject, typed)
        path = f"/admin/{call.version}/{call.path}"
        answer = await ask.source.api.call(call.method, path, call.query, call.body)
    except ActionError as error:
        return _form(ask, action, subject, typed, str(error), error.field, 400)
    except AdminError as error:
        fields = _fields(action, subject, {})
        only = fields[0].name if len(fields) == 1 and error.status in (400, 412) else ""
        return _form(ask, action, subject, typed, str(error), only, error.status)
    if action.answer is not None:
        return _form(ask, action, subject, typed, answer=action.answer(answer))
    return ask.root + (call.then or action.back(subject))


def _form(
    ask: Ask,
    action: Action[Any],
    subject: Any,
    typed: Mapping[str, str] | None = None,
    failure: str = "",
    failed: str = "",
    status: int = 200,
    answer: Sequence[tuple[str, str]] = (),
) -> View:
    """
    Args:
        typed: what was sent; None: nothing yet.
        failed: name of the input that the failure is about; empty: no single one.
        answer: what was found, see `Action`.
    """
    fields = _fields(action, subject, ask.query, typed)
    content = {
        "action": action,
        "subject": subject,
        "back": action.back(subject),
        "loses": action.loses(subject),
        "fields": fields,
        "token": ask.form_token,
        "command": _command(action, subject, _example(fields) if typed is None else typed),
        "failure": failure,
        "failed": failed,
        "answer": answer,
    }
    return View("action.html", action.title, subject.menu, content, status, live=0)


def _fields(
    action: Action[Any],
    subject: Any,
    given: Mapping[str, str],
    typed: Mapping[str, str] | None = None,
) -> Sequence[FormField]:
    """
    Args:
        given: values by name, those of lists with commas.
        typed: what was sent, which is shown again; None: nothing yet.
    """
    if (schema := action.schema(subject)) is None:
        return ()
    if typed is not None:
        return [each.with_typed(typed) for each in fields_of(schema, None)]
    properties: Mapping[str, Any] = schema.get("properties", {})
    known = {name: text for name, text in given.items() if name in properties}
    lists = {
        name: text.split(",") for name, text in known.items() if properties[name]["type"] == "array"
    }
    return fields_of(schema, known | lists if properties else given.get("value"))


def _example(fields: Sequence[FormField]) -> dict[str, str]:
    """What could be typed."""
    ticked = {f"{each.name}.{box}": "on" for each in fields for box, is_on in each.boxes if is_on}
    return ticked | {each.name: each.value or each.example for each in fields}


def _command(action: Action[Any], subject: Any, typed: Mapping[str, str]) -> str:
    """What does what was typed on a command line; empty: not enough was typed."""
    try:
        return action.call_for(subject, typed).command
    except ActionError:
        return ""


async def _step(ask: Ask) -> tuple[Action[Any], Any]:
    """Raises AdminError: no such step, or nothing that it could be about."""
    names, key = ask.names, ask.names["action"]
    actions, read = next(each for name, each in _PLACES.items() if name in names)
    if "topic" in names and "subscription" in ask.query:
        actions = (*SUBSCRIPTION_ACTIONS, *SUBSCRIPTION_FORMS)
    for action in actions:
        if action.key == key:
            is_typed = action.is_typed or (action.is_costly and ask.is_red)
            return replace(action, is_typed=is_typed), await read(ask)
    raise AdminError(404, f"there is no step {key}")


async def _topic(ask: Ask) -> Subject:
    api, subscription = ask.source.api, ask.query.get("subscription", "")
    found = await read_subject(api, TopicPath.of(ask.names), subscription)
    return found if ask.names["action"] != "move" else await with_places(api, found)


async def _cluster(ask: Ask) -> ClusterSubject:
    return ClusterSubject(await _clusters(ask))


async def _topics(_: Ask) -> TopicsSubject:
    return TopicsSubject()


async def _clusters(ask: Ask) -> list[str]:
    return [each for each in await get(ask.source.api, "clusters") if each != "global"]


async def _tenant(ask: Ask) -> TenantSubject:
    name, api = ask.names["tenant"], ask.source.api
    namespaces, clusters = await asyncio.gather(
        get(api, f"namespaces/{segment(name)}"), _clusters(ask)
    )
    try:
        info = await get(api, f"tenants/{segment(name)}")
    except AdminError as error:
        if error.status not in (401, 403):
            raise
        info = {}  # the tenant's admins create namespaces without
    return TenantSubject(name, info, len(namespaces), clusters)


async def _namespace(ask: Ask) -> NamespaceSubject:
    found = NamespaceSubject(ask.names["tenant"], ask.names["namespace"])
    bundles, sums = await asyncio.gather(
        get(ask.source.api, f"namespaces/{found.path}/bundles"), ask.source.namespaces()
    )
    figures = sums.rows.get(found.name, {})
    return NamespaceSubject(found.tenant, found.local, bundles["boundaries"], figures)


async def _setting(ask: Ask) -> SettingSubject:
    name, api = ask.names["setting"], ask.source.api
    names, stored = await asyncio.gather(
        get(api, "brokers/configuration"), get(api, "brokers/configuration/values")
    )
    if name not in names:
        raise AdminError(404, f"there is no setting {name} that can change while brokers run")
    runtime = await get(api, "brokers/configuration/runtime")
    stored, runtime = without_secrets(stored), without_secrets(runtime)
    return SettingSubject(name, runtime.get(name), stored.get(name))


_PLACES: Final[Mapping[str, tuple[Sequence[Action[Any]], Callable[[Ask], Awaitable[Any]]]]] = {
    "topic": ((*TOPIC_ACTIONS, *TOPIC_FORMS), _topic),
    "setting": (SETTING_ACTIONS, _setting),
    "most": (TRANSACTION_ACTIONS, read_transaction),
    "namespace": (NAMESPACE_ACTIONS, _namespace),
    "tenant": (TENANT_ACTIONS, _tenant),
    "list": (TOPICS_ACTIONS, _topics),
    "action": (CLUSTER_ACTIONS, _cluster),
}
"""By the part of an address that tells it, the narrowest first: its steps, and what they are about.
"""
