"""Grants on single topics, kept in their namespace's policies. Pure: documents in, documents out.

``auth_policies.destination_auth`` of a Policies document: topic -> role -> actions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from magnetar.broker.errors import PreconditionFailedError
from magnetar.broker.protocol.topic_name import TopicName

Document = dict[str, Any]


def names_of(topic: TopicName, partitions: int | None) -> list[str]:
    """Every full name that a grant on the topic is written under."""
    return [str(topic), *(str(topic.partition(index)) for index in range(partitions or 0))]


def _grants(document: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    auth = document.get("auth_policies") or {}
    return dict(auth.get("destination_auth") or {})


def _with_grants(document: Mapping[str, Any], grants: Mapping[str, Any]) -> Document:
    auth = {**(document.get("auth_policies") or {}), "destination_auth": grants}
    return {**document, "auth_policies": auth}


def of_topic(document: Mapping[str, Any], topic: str) -> dict[str, list[str]]:
    """Actions by role: those of the namespace and those of the topic, united."""
    auth = document.get("auth_policies") or {}
    united: dict[str, dict[str, None]] = {}
    for grants in (auth.get("namespace_auth") or {}, _grants(document).get(topic) or {}):
        for role, actions in grants.items():
            united[role] = {**united.get(role, {}), **dict.fromkeys(actions)}
    return {role: list(actions) for role, actions in united.items()}


def granted(
    document: Mapping[str, Any], topics: Iterable[str], role: str, actions: Sequence[str]
) -> Document:
    """The document in which ``role`` may do just ``actions`` on each of the topics."""
    grants = _grants(document)
    for topic in topics:
        grants[topic] = {**(grants.get(topic) or {}), role: list(dict.fromkeys(actions))}
    return _with_grants(document, grants)


def revoked(document: Mapping[str, Any], topics: Sequence[str], role: str) -> Document:
    """The document without the role's grants on the topics.

    Raises:
        PreconditionFailedError: the first topic has no grant of its own for the role.
    """
    grants = _grants(document)
    if role not in (grants.get(topics[0]) or {}):
        raise PreconditionFailedError("Permissions are not set at the topic level")
    for topic in topics:
        left = {name: actions for name, actions in grants.get(topic, {}).items() if name != role}
        grants[topic] = left
        if not left:
            del grants[topic]
    return _with_grants(document, grants)


def holds_grants(document: Mapping[str, Any], topic: TopicName) -> bool:
    """Whether the topic, or a partition of it, has grants of its own."""
    auth = document.get("auth_policies") or {}
    return any(_is_of(name, topic) for name in auth.get("destination_auth") or ())


def without(document: Mapping[str, Any], topic: TopicName) -> Document:
    """The document in which a topic that is gone has left no grants to its successor."""
    kept = {name: roles for name, roles in _grants(document).items() if not _is_of(name, topic)}
    return _with_grants(document, kept)


def _is_of(name: str, topic: TopicName) -> bool:
    return name == str(topic) or name.startswith(f"{topic}-partition-")
