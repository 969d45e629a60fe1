"""Policies of a topic or a namespace: what holds and who sets it, and the form that changes one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.console.actions import check_token
from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.formats import segment
from magnetar.broker.console.policy_command import command_of
from magnetar.broker.console.policy_form import EditablePolicy, editable_policies, policy_text
from magnetar.broker.console.schema_form import ActionError, FormField, fields_of, value_of
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, Panel, View, panel

_OWN: Final = {True: "topic", False: "namespace"}
"""Source of what is set here, by whether it is a topic's."""
_UNKNOWN: Final = EditablePolicy(key="", title="", schema={}, path="")
Rows = Sequence[tuple[str, Any, str]]
"""Name, value in force and who sets it."""


@dataclass(frozen=True, slots=True)
class PolicyHolder:
    """A topic; else a namespace."""

    tenant: str
    namespace: str
    topic: TopicPath | None = None

    @classmethod
    def of(cls, names: Mapping[str, str]) -> PolicyHolder:
        topic = None
        if "topic" in names:
            topic = TopicPath.of(names)
        return cls(names["tenant"], names["namespace"], topic)

    @property
    def is_topic(self) -> bool:
        return self.topic is not None

    @property
    def name(self) -> str:
        """As commands take it."""
        return f"{self.tenant}/{self.namespace}" if self.topic is None else str(self.topic)

    @property
    def rest(self) -> str:
        """Below ``/admin/v2``."""
        if self.topic is not None:
            return self.topic.rest
        return f"namespaces/{segment(self.tenant)}/{segment(self.namespace)}"


@dataclass(frozen=True, slots=True)
class _Edited:
    """A policy before it is changed."""

    holder: PolicyHolder
    policy: EditablePolicy
    value: Any
    source: str
    below: tuple[Any, str] | None
    """What holds without it: value and source; None: it isn't known."""

    @property
    def is_own(self) -> bool:
        return self.source == _OWN[self.holder.is_topic]


def policy_rows(found: Rows, *, is_topic: bool) -> list[dict[str, Any]]:
    editable = editable_policies(is_topic=is_topic)
    of_namespace = editable_policies(is_topic=False)
    return [
        {
            "name": name,
            "value": policy_text(value),
            "source": source,
            "is_own": source == _OWN[is_topic],
            "title": (editable.get(name) or of_namespace.get(name) or _UNKNOWN).title,
            "at": "own" if name in editable else "namespace" if name in of_namespace else "",
        }
        for name, value, source in found
    ]


async def policies_tab(ask: Ask, path: TopicPath, partitions: int) -> dict[str, Any]:
    found = ask.source.policies(path)
    return {
        "policies": await panel("Policies", found, lambda each: policy_rows(each, is_topic=True))
    }


async def namespace_policies(ask: Ask) -> View:
    holder = PolicyHolder.of(ask.names)
    found = ask.source.namespace_policies(holder.tenant, holder.namespace)
    rows: Panel[Any] = await panel(
        "Policies", found, lambda each: policy_rows(each, is_topic=False)
    )
    status = 404 if rows.error is not None and rows.error.status == 404 else 200
    content = {"holder": holder, "policies": rows}
    return View("namespace_policies.html", "Policies", "namespaces", content, status)


async def policy(ask: Ask) -> View:
    """The form of one policy, with what holds in it."""
    try:
        edited = await _edited(ask)
    except AdminError as error:
        return View("message.html", "Policy", "topics", {"text": str(error)}, error.status, 0)
    return _form(ask, edited, fields_of(edited.policy.schema, edited.value))


async def change_policy(ask: Ask, typed: Mapping[str, str]) -> View | str:
    """Show what a form would change, set it, or remove it: where to go then, or the form again."""
    try:
        edited = await _edited(ask)
    except AdminError as error:
        return View("message.html", "Policy", "topics", {"text": str(error)}, error.status, 0)
    value: Any = None
    try:
        check_token(typed, ask.form_token)
        if typed.get("do") != "remove":
            value = value_of(edited.policy.schema, typed, edited.value)
        elif not edited.policy.is_removable:
            raise ActionError("it can be set only, not removed")
        if typed.get("do") in ("set", "remove"):
            await _store(ask, edited, value)
            return "../policies"
    except ActionError as error:
        shown = _as_typed(edited, typed)
        return _form(ask, edited, shown, str(error), failed=error.field, status=400)
    except AdminError as error:
        return _form(ask, edited, _as_typed(edited, typed), str(error), status=error.status)
    return _form(ask, edited, fields_of(edited.policy.schema, value), new=value)


async def _store(ask: Ask, edited: _Edited, value: Any) -> None:
    """Raises AdminError."""
    policy, query = edited.policy, dict(edited.policy.query)
    path = f"/admin/v2/{edited.holder.rest}/{policy.path}"
    if value is None:
        await ask.source.api.call("DELETE", path, query)
    elif policy.in_query:
        await ask.source.api.call(policy.method, path, query | {policy.path: value})
    else:
        await ask.source.api.call(policy.method, path, query, value)


async def _edited(ask: Ask) -> _Edited:
    """Raises AdminError: there is no such policy, topic or namespace."""
    holder, key, source = PolicyHolder.of(ask.names), ask.names["policy"], ask.source
    policy = editable_policies(is_topic=holder.is_topic).get(key)
    if policy is None:
        raise AdminError(404, f"there is no policy {key} that can be set here")
    if holder.topic is None:
        found = await source.namespace_policies(holder.tenant, holder.namespace)
        value, where = _row(found, key)
        return _Edited(holder, policy, value, where, None)
    found, below = await asyncio.gather(
        source.policies(holder.topic), _below(ask, holder, policy.of_namespace)
    )
    value, where = _row(found, key)
    return _Edited(holder, policy, value, where, below)


async def _below(ask: Ask, holder: PolicyHolder, key: str) -> tuple[Any, str] | None:
    """What a topic's namespace says; None: nobody may tell."""
    try:
        found = await ask.source.namespace_policies(holder.tenant, holder.namespace)
    except AdminError:
        return None
    value, where = _row(found, key)
    return None if value is None else (value, where)


def _row(found: Rows, key: str) -> tuple[Any, str]:
    return next(((value, where) for name, value, where in found if name == key), (None, ""))


def _as_typed(edited: _Edited, typed: Mapping[str, str]) -> tuple[FormField, ...]:
    return tuple(each.with_typed(typed) for each in fields_of(edited.policy.schema, None))


def _form(
    ask: Ask,
    edited: _Edited,
    fields: Sequence[FormField],
    failure: str = "",
    *,
    failed: str = "",
    new: Any = None,
    status: int = 200,
) -> View:
    holder, policy = edited.holder, edited.policy
    shown = edited.value if new is None else new
    content = {
        "holder": holder,
        "policy": policy,
        "value": policy_text(edited.value),
        "source": edited.source,
        "new": None if new is None else policy_text(new),
        "below": edited.below and (policy_text(edited.below[0]), edited.below[1]),
        "can_remove": edited.is_own and policy.is_removable,
        "fields": fields,
        "token": ask.form_token,
        "failure": failure,
        "failed": failed,
        "command": _command(edited, shown),
        "removal": command_of(policy, holder.name, is_topic=holder.is_topic),
    }
    return View("policy.html", policy.key, "topics", content, status, live=0)


def _command(edited: _Edited, value: Any) -> str:
    if value is None:
        return ""
    holder = edited.holder
    return command_of(edited.policy, holder.name, is_topic=holder.is_topic, value=value)
