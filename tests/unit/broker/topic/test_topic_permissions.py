"""Grants on topics: documents in, documents out."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.errors import PreconditionFailedError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic import topic_permissions as grants

TOPIC = TopicName.parse("persistent://t/ns/p")
ACTIONS = st.lists(st.sampled_from(["produce", "consume", "functions"]), max_size=4)
ROLES = st.sampled_from(["joe", "ann", "a/b"])
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "auth_policies": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "namespace_auth": st.none() | st.dictionaries(ROLES, ACTIONS),
                "destination_auth": st.none()
                | st.dictionaries(
                    st.sampled_from([str(TOPIC), "persistent://t/ns/other"]),
                    st.dictionaries(ROLES, ACTIONS),
                ),
            },
        ),
        "replication_clusters": st.just(["standalone"]),
    },
)


def test_a_grant_is_written_for_every_partition() -> None:
    names = grants.names_of(TOPIC, 2)
    assert names == [str(TOPIC), f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
    document = grants.granted({}, names, "joe", ["produce", "consume", "produce"])
    assert grants.of_topic(document, names[2]) == {"joe": ["produce", "consume"]}
    assert grants.of_topic(document, "persistent://t/ns/other") == {}
    assert grants.revoked(document, names, "joe") == {"auth_policies": {"destination_auth": {}}}


def test_grants_of_the_namespace_are_united_but_not_revoked() -> None:
    document = {"auth_policies": {"namespace_auth": {"joe": ["consume"]}}}
    changed = grants.granted(document, [str(TOPIC)], "joe", ["produce"])
    assert grants.of_topic(changed, str(TOPIC)) == {"joe": ["consume", "produce"]}
    with pytest.raises(PreconditionFailedError, match="not set at the topic level"):
        grants.revoked(document, [str(TOPIC)], "joe")


@given(DOCUMENTS, ROLES, ACTIONS)
def test_granting_and_revoking_change_nothing_else(
    document: dict[str, Any], role: str, actions: list[str]
) -> None:
    before = copy.deepcopy(document)
    changed = grants.granted(document, [str(TOPIC)], role, actions)
    assert document == before, "the stored document is never changed"
    united = grants.of_topic(changed, str(TOPIC))
    namespace = (before.get("auth_policies") or {}).get("namespace_auth") or {}
    assert set(united[role]) == {*actions, *namespace.get(role, [])}
    other = "persistent://t/ns/other"
    assert grants.of_topic(changed, other) == grants.of_topic(before, other)
    left = grants.revoked(changed, [str(TOPIC)], role)
    assert grants.of_topic(left, other) == grants.of_topic(before, other)
    assert grants.of_topic(left, str(TOPIC)).get(role, []) == list(
        dict.fromkeys(namespace.get(role, []))
    )
    with pytest.raises(PreconditionFailedError):
        grants.revoked(left, [str(TOPIC)], role)


@given(DOCUMENTS)
def test_a_deleted_topic_leaves_no_grants(document: dict[str, Any]) -> None:
    names = grants.names_of(TOPIC, 3)
    changed = grants.granted(document, [*names, f"{TOPIC}x"], "joe", ["produce"])
    assert grants.holds_grants(changed, TOPIC)
    left = grants.without(changed, TOPIC)
    assert not grants.holds_grants(left, TOPIC)
    assert grants.holds_grants(left, TopicName.parse(f"{TOPIC}x"))
