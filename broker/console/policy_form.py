"""Policies that can be edited, and their forms; pure.

A form is made from the row of ``broker/policies/table.py``, which has the JSON schema of values.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.policies.bookie_affinity import AFFINITY_PATH, AFFINITY_SCHEMA
from magnetar.broker.policies.documents import QUOTA_SCHEMA, QUOTA_TYPES
from magnetar.broker.policies.table import POLICIES, Policy, PolicyRoute

Json = Mapping[str, Any]

_OLD_LIMIT: Final = "limit"
"""Of a quota: an older name of ``limitSize``, which would contradict it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditablePolicy:
    """A policy of a topic or of a namespace, as its routes take it."""

    key: str
    """As ``policies?applied=true`` calls it."""
    title: str
    schema: Json
    """JSON schema of its values."""
    path: str
    """Last segment of the route that sets it."""
    method: str = "POST"
    query: Mapping[str, str] = field(default_factory=dict)
    """Of the calls that set and remove it."""
    in_query: bool = False
    """The value is a parameter of the path's name."""
    is_removable: bool = True
    of_namespace: str = ""
    """A topic's: the key of what its namespace sets; empty: nothing does."""


@functools.cache
def editable_policies(*, is_topic: bool) -> Mapping[str, EditablePolicy]:
    """By key."""
    found: dict[str, EditablePolicy] = {}
    for policy in POLICIES:
        at = policy.topic if is_topic else policy.namespace
        if at is not None and policy.inner is None and not at.bodiless:
            found[at.path] = _editable(policy, at, is_topic=is_topic)
    properties = {
        name: each for name, each in QUOTA_SCHEMA["properties"].items() if name != _OLD_LIMIT
    }
    for kind in QUOTA_TYPES:
        key = f"backlogQuota/{kind}"
        found[key] = EditablePolicy(
            key=key,
            title="what a subscription may be behind, and what happens then",
            schema={**QUOTA_SCHEMA, "properties": properties},
            path="backlogQuota",
            query={"backlogQuotaType": kind},
            of_namespace=key if is_topic else "",
        )
    if not is_topic:
        found[AFFINITY_PATH] = EditablePolicy(
            key=AFFINITY_PATH,
            title="groups of bookies that store its ledgers, from each topic's next one on",
            schema=AFFINITY_SCHEMA,
            path=AFFINITY_PATH,
        )
    return found


def _editable(policy: Policy, at: PolicyRoute, *, is_topic: bool) -> EditablePolicy:
    return EditablePolicy(
        key=at.path,
        title=policy.title,
        schema=policy.kind.schema,
        path=at.path,
        method=at.method,
        in_query=at.in_query,
        is_removable=at.removable,
        of_namespace=policy.namespace.path if is_topic and policy.namespace else "",
    )


def policy_text(value: Any) -> str:
    """A value for a person: JSON, nothing as a dash."""
    return "–" if value is None else json.dumps(value, ensure_ascii=False)
