"""The rules of authorization. Expected answers are Apache Pulsar 4.2.4's, asked with each case."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.auth.refusal_log import one_value
from magnetar.broker.auth.authorization import (
    EVERY_SUBSCRIPTION,
    NO_GRANTS,
    NOBODY,
    Authorizer,
    Caller,
    Grants,
    Permission,
    Resource,
)
from magnetar.broker.protocol.topic_name import TopicName

LOOKUP, PRODUCE, CONSUME = Permission.LOOKUP, Permission.PRODUCE, Permission.CONSUME
TENANT_ADMIN, SUPERUSER = Permission.TENANT_ADMIN, Permission.SUPERUSER
ALL = frozenset(Permission) - {Permission.NOTHING}
ADMINS = frozenset({"ten"})
TOPIC = Resource.of_topic(TopicName.parse("t1/ns/t"))
NAMESPACE = Resource.of_namespace("t1/ns")
DOCUMENT = {
    "auth_policies": {
        "namespace_auth": {
            "prod": ["produce"],
            "cons": ["consume"],
            "both": ["produce", "consume"],
            "worker": ["functions", "sources", "sinks", "packages"],
            "proxy-p": ["produce"],
            "team*": ["consume"],
            "*-bot": ["produce"],
        },
        "destination_auth": {
            "persistent://t1/ns/t": {"guest": ["produce"]},
            "persistent://t1/ns/parted": {"guest": ["consume"], "gue*": ["produce"]},
            "persistent://t1/ns/parted-partition-0": {"zero": ["produce"]},
        },
        "subscription_auth_roles": {"only": ["other", "both"], "open": []},
    }
}
GRANTS = Grants.of_document(DOCUMENT)
RULES = Authorizer(superusers=["admin", "admin2"], proxies=["proxy", "proxy-p"])


def allowed(
    caller: Caller | str,
    resource: Resource,
    grants: Grants = GRANTS,
    rules: Authorizer = RULES,
) -> set[Permission]:
    who = Caller(caller) if isinstance(caller, str) else caller
    return {each for each in ALL if rules.allows(who, each, resource, ADMINS, grants)}


def topic(name: str, subscription: str = "") -> Resource:
    return Resource.of_topic(TopicName.parse(name), subscription)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("admin", ALL),
        ("ten", ALL - {SUPERUSER}),
        ("prod", {LOOKUP, PRODUCE}),
        ("cons", {LOOKUP, CONSUME}),
        ("both", {LOOKUP, PRODUCE, CONSUME}),
        ("worker", set()),  # these words are stored and mean nothing here
        ("nobody", set()),
        ("", set()),
        ("pro", set()),
        ("prod ", set()),
        ("PROD", set()),
    ],
)
@pytest.mark.parametrize("resource", [TOPIC, NAMESPACE], ids=["topic", "namespace"])
def test_roles_of_a_namespace(role: str, expected: set[Permission], resource: Resource) -> None:
    assert allowed(role, resource) == expected


def test_nobody_may_only_what_needs_no_right() -> None:
    assert allowed(NOBODY, TOPIC) == set()
    assert RULES.allows(NOBODY, Permission.NOTHING, Resource(), frozenset(), NO_GRANTS)
    assert RULES.without_documents(NOBODY, LOOKUP) is False


def test_a_tenant_is_its_admins_business() -> None:
    tenant = Resource("t1")
    assert allowed("ten", tenant) == ALL - {SUPERUSER}
    assert allowed("both", tenant) == set()
    assert not RULES.allows(Caller("ten"), TENANT_ADMIN, Resource("t2"), frozenset(), NO_GRANTS)


@pytest.mark.parametrize(
    ("name", "role", "expected"),
    [
        ("t1/ns/t", "guest", {LOOKUP, PRODUCE}),
        ("non-persistent://t1/ns/t", "guest", set()),
        ("t1/ns/u", "guest", set()),
        ("t1/ns/parted", "guest", {LOOKUP, CONSUME}),
        ("t1/ns/parted-partition-0", "guest", {LOOKUP, CONSUME}),
        ("t1/ns/parted-partition-17", "guest", {LOOKUP, CONSUME}),  # added after the grant
        ("t1/ns/parted-partition-0", "zero", {LOOKUP, PRODUCE}),
        ("t1/ns/parted", "zero", set()),
        ("t1/ns/parted-partition-1", "zero", set()),
        ("t1/ns/t-partition-0", "guest", {LOOKUP, PRODUCE}),
    ],
)
def test_grants_on_topics(name: str, role: str, expected: set[Permission]) -> None:
    assert allowed(role, topic(name)) == expected
    assert allowed(role, NAMESPACE) == set()


@pytest.mark.parametrize(
    ("role", "subscription", "prefix_mode", "may"),
    [
        ("cons", "free", False, True),
        ("cons", "open", False, True),
        ("cons", "only", False, False),
        ("both", "only", False, True),
        ("other", "only", False, False),  # named there, but may not consume
        ("ten", "only", False, True),
        ("admin", "only", False, True),
        ("cons", "free", True, False),
        ("cons", "cons-1", True, True),
        ("cons", "cons", True, True),
        ("both", "only", True, False),
        ("ten", "free", True, True),
        ("cons", "", True, True),
    ],
)
def test_subscriptions(role: str, subscription: str, prefix_mode: bool, may: bool) -> None:
    mode = "Prefix" if prefix_mode else "None"
    grants = Grants.of_document({**DOCUMENT, "subscription_auth_mode": mode})
    assert (CONSUME in allowed(role, topic("t1/ns/t", subscription), grants)) == may
    assert (CONSUME in allowed(role, Resource.of_namespace("t1/ns", subscription), grants)) == may
    assert LOOKUP in allowed(role, topic("t1/ns/t", subscription), grants) or role == "other"


@pytest.mark.parametrize(
    ("role", "original", "expected"),
    [
        ("proxy-p", "prod", {LOOKUP, PRODUCE}),
        ("proxy-p", "both", {LOOKUP, PRODUCE}),
        ("proxy-p", "cons", {LOOKUP}),  # each may look up, for a reason of its own
        ("proxy-p", "nobody", set()),
        ("proxy-p", "admin", {LOOKUP, PRODUCE}),
        ("proxy", "admin", set()),
        ("proxy-p", None, set()),
        ("proxy-p", "", set()),
        ("proxy-p", "proxy", set()),
        ("prod", "cons", set()),
        ("admin", "prod", set()),
        ("admin", "admin2", set()),
    ],
)
def test_who_speaks_for_somebody_may_what_both_may(
    role: str, original: str | None, expected: set[Permission]
) -> None:
    assert allowed(Caller(role, original), TOPIC) == expected


def test_a_proxy_that_is_a_superuser_lends_the_original_no_rights() -> None:
    rules = Authorizer(superusers=["admin", "gate"], proxies=["gate"])
    assert allowed(Caller("gate", "prod"), TOPIC, rules=rules) == {LOOKUP, PRODUCE}
    assert allowed(Caller("gate", "admin"), TOPIC, rules=rules) == ALL
    assert allowed("gate", TOPIC, rules=rules) == set()


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("team-a", {LOOKUP, CONSUME}),
        ("team", {LOOKUP, CONSUME}),
        ("tea", set()),
        ("my-bot", {LOOKUP, PRODUCE}),
        ("team-bot", {LOOKUP, CONSUME, PRODUCE}),
        ("bot", set()),
    ],
)
def test_wildcards(role: str, expected: set[Permission]) -> None:
    wild = Authorizer(wildcards=True)
    assert allowed(role, TOPIC, rules=wild) == expected
    assert allowed(role, TOPIC) == set()
    assert PRODUCE in allowed("guess", topic("t1/ns/parted"), rules=wild)
    assert PRODUCE in allowed("guess", topic("t1/ns/parted-partition-3"), rules=wild)


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["produce", "consume", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "persistent://t1/ns/t", "*"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "auth_policies": st.fixed_dictionaries(
                {},
                optional={
                    "namespace_auth": _ANY,
                    "destination_auth": _ANY,
                    "subscription_auth_roles": _ANY,
                },
            )
            | _ANY,
            "subscription_auth_mode": _ANY,
        },
    )
)
def test_no_document_makes_somebody_an_admin_or_fails(document: dict[str, Any]) -> None:
    grants = Grants.of_document(document)
    for wildcards in (False, True):
        rules = Authorizer(wildcards=wildcards)
        for resource in (topic("t1/ns/t", "s"), NAMESPACE):
            may = allowed("x", resource, grants, rules)
            assert may <= {LOOKUP, PRODUCE, CONSUME}
            assert PRODUCE not in may or LOOKUP in may
            text = str(document)
            assert PRODUCE not in may or "produce" in text


@pytest.mark.parametrize(
    ("role", "prefix_mode", "may"),
    [("ann", False, True), ("bob", False, False), ("ann", True, False), ("boss", True, True)],
)
def test_all_subscriptions_at_once_are_for_those_who_may_use_each(
    role: str, prefix_mode: bool, may: bool
) -> None:
    grants = Grants(
        {"ann": frozenset({"consume"}), "bob": frozenset({"consume"})},
        subscriptions={"closed": frozenset({"ann"}), "open": frozenset()},
        prefix_mode=prefix_mode,
    )
    resource = Resource.of_namespace("t/ns", EVERY_SUBSCRIPTION)
    subject = Authorizer()
    admins = frozenset({"boss"})
    assert subject.allows(Caller(role), Permission.CONSUME, resource, admins, grants) == may
    assert str(resource) == "t/ns, all subscriptions"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("alice", "alice"),
        ("ü/x:1", "ü/x:1"),
        ("", ""),
        ("a role=admin", '"a role=admin"'),
        ("a=b", '"a=b"'),
        ("a\nrefused: role=b", '"a\\nrefused: role=b"'),
        ('a" b', '"a\\" b"'),
        ("a\u202eb", '"a\\u202eb"'),
        ("x" * 500, "x" * 300),
    ],
)
def test_values_of_audit_lines_can_be_told_apart(value: str, shown: str) -> None:
    """A role, a topic or a method may be called like the rest of a line."""
    assert one_value(value) == shown


def test_without_grants_only_admins_may_anything() -> None:
    resources = (TOPIC, NAMESPACE, topic("t1/ns/t", "only"))
    for role, resource in itertools.product(("prod", "cons", "guest", "team-a"), resources):
        assert allowed(role, resource, NO_GRANTS) == set()
