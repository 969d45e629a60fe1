"""Policies: forms made from their table, commands that do the same, changes made by pages."""

import re
import shlex
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.cli.admin_command import _arguments
from magnetar.broker.cli.admin_commands import commands_of
from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.request import request_of
from magnetar.broker.console.policy_command import command_of
from magnetar.broker.console.policy_form import EditablePolicy, editable_policies
from magnetar.broker.console.schema_form import ActionError, fields_of, value_of
from magnetar.broker.http.server.app import create_app
from magnetar.broker.policies.bookie_affinity import AFFINITY_EXAMPLE, AFFINITY_PATH
from magnetar.broker.policies.documents import QUOTA_EXAMPLE
from magnetar.broker.policies.table import POLICIES
from tests.unit.broker.console.test_console_actions import token_in
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

TOPIC = "persistent/public/default/orders"
NAMES = {True: "persistent://public/default/orders", False: "public/default"}
PLACES = {True: f"/admin/v2/{TOPIC}", False: "/admin/v2/namespaces/public/default"}
EVERY = [
    (is_topic, each)
    for is_topic in (True, False)
    for each in editable_policies(is_topic=is_topic).values()
]
IDS = [f"{'topic' if is_topic else 'namespace'} {each.key}" for is_topic, each in EVERY]


def example_of(policy: EditablePolicy, is_topic: bool) -> Any:
    if policy.path == "backlogQuota":
        return QUOTA_EXAMPLE
    if policy.path == AFFINITY_PATH:
        return AFFINITY_EXAMPLE
    rows = [(each, each.topic if is_topic else each.namespace) for each in POLICIES]
    (row,) = [each for each, at in rows if at is not None and at.path == policy.key]
    return row.example


def without(value: Any, *names: str) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if name not in names}


def typed_of(policy: EditablePolicy, value: Any) -> dict[str, str]:
    typed: dict[str, str] = {}
    for each in fields_of(policy.schema, value):
        typed |= {f"{each.name}.{choice}": "on" for choice, is_on in each.boxes if is_on}
        if not each.boxes:
            typed[each.name] = each.value
    return typed


@pytest.mark.parametrize(("is_topic", "policy"), EVERY, ids=IDS)
def test_a_form_holds_its_value(is_topic: bool, policy: EditablePolicy) -> None:
    value = example_of(policy, is_topic)
    found = value_of(policy.schema, typed_of(policy, value), value)
    kinds = ("s3Driver", "gcsDriver", "fileSystemDriver")  # the broker adds them
    assert found == without(value, *kinds)


WITHOUT_COMMAND = {
    (True, "subscriptionExpirationTime"),
    (True, "replicateSubscriptionState"),
    (False, "allowedTopicPropertyKeysForMetrics"),
    (False, "schemaAutoUpdateCompatibilityStrategy"),
}
"""pulsar-admin has none for them, or not for this value."""


@pytest.mark.parametrize(("is_topic", "policy"), EVERY, ids=IDS)
def test_a_command_does_the_same(is_topic: bool, policy: EditablePolicy) -> None:
    """It is read back by the command line's own parser."""
    value = value_of(policy.schema, typed_of(policy, example_of(policy, is_topic)))
    line = command_of(policy, NAMES[is_topic], is_topic=is_topic, value=value)
    assert bool(line) == ((is_topic, policy.key) not in WITHOUT_COMMAND)
    if not line:
        return
    words = shlex.split(line)[1:]
    options = build_parser(words).parse_args(words)
    (arguments,) = _arguments(commands_of(options.group)[options.word], options)
    request = request_of(arguments)
    assert (request.method, request.path) == (policy.method, f"{PLACES[is_topic]}/{policy.path}")
    sent = request.query.get(policy.path) if policy.in_query else request.body
    assert with_defaults(policy, sent) == value


def with_defaults(policy: EditablePolicy, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = policy.schema["properties"].items()
    return {name: each["default"] for name, each in fields if each.get("default")} | value


FIELD_TEXTS = st.text(max_size=30) | st.sampled_from(["9" * 30, "1e9", "-1", "true", "\x00", "١"])


@given(st.data())
def test_what_is_typed_is_a_value_or_refused(data: st.DataObject) -> None:
    _, policy = data.draw(st.sampled_from(EVERY))
    typed = {each.name: data.draw(FIELD_TEXTS) for each in fields_of(policy.schema, None)}
    try:
        value = value_of(policy.schema, typed)
    except ActionError:
        return
    assert value_of(policy.schema, typed_of(policy, value)) == value


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        assert (await found.put(f"/admin/v2/{TOPIC}")).is_success
        yield found


OTHERS = "/console/ns/t1/ns/policies"
PAGES = {True: f"/console/topic/{TOPIC}/policies", False: "/console/ns/public/default/policies"}


async def send(client: httpx.AsyncClient, page: str, **fields: str) -> httpx.Response:
    token = token_in(await client.get(page))
    return await client.post(page, data={"token": token, **fields})


def own(text: str, name: str) -> tuple[str, str]:
    """Value and source of a row."""
    (row,) = [each for each in re.findall(r"<tr>.*?</tr>", text) if f">{name}<span" in each]
    (found,) = re.findall(r'<code>(.*?)</code>.*?<span class="tag[ a]*">(.*?)</span>', row)
    return unescape(found[0]), found[1]


@pytest.mark.parametrize(("is_topic", "policy"), EVERY, ids=IDS)
async def test_every_form_opens(
    client: httpx.AsyncClient, is_topic: bool, policy: EditablePolicy
) -> None:
    key = policy.key.replace("/", "%2F")
    listed = (await client.get(PAGES[is_topic])).text
    if policy.key == "schemaAutoUpdateCompatibilityStrategy":  # what holds is in the newer policy
        assert f"policies/{key}" not in listed
        return
    assert f"policies/{key}" in listed
    page = await client.get(f"{PAGES[is_topic]}/{key}")
    assert page.status_code == 200
    assert ("Remove</button>" in page.text) is False


async def test_a_policy_is_shown_set_and_removed(client: httpx.AsyncClient) -> None:
    topic, space = (f"{PAGES[is_topic]}/retention" for is_topic in (True, False))
    day = {"value.retentionTimeInMinutes": "1440", "value.retentionSizeInMB": "-1"}
    week = day | {"value.retentionTimeInMinutes": "10080"}
    assert (await send(client, space, do="set", **day)).headers["location"] == "../policies"
    shown = unescape((await send(client, topic, do="show", **week)).text)
    assert '<code class="new">{"retentionTimeInMinutes": 10080, "retentionSizeInMB": -1}' in shown
    assert '<dd><code>{"retentionTimeInMinutes": 1440, "retentionSizeInMB": -1}' in shown
    name = NAMES[True]
    assert f"magnetar admin topicPolicies set-retention {name} --time 10080m --size -1" in shown
    listed = (await client.get(PAGES[True])).text
    assert own(listed, "retention")[1] == "namespace"
    assert (await send(client, topic, do="set", **week)).is_redirect
    value, source = own((await client.get(PAGES[True])).text, "retention")
    assert (value, source) == (
        '{"retentionTimeInMinutes": 10080, "retentionSizeInMB": -1}',
        "topic",
    )
    form = unescape((await client.get(topic)).text)
    assert "<dt>Without it</dt>" in form
    assert f"magnetar admin topicPolicies remove-retention {name}" in form
    assert (await send(client, topic, do="remove")).is_redirect
    value, source = own((await client.get(PAGES[True])).text, "retention")
    assert (value, source) == (
        '{"retentionTimeInMinutes": 1440, "retentionSizeInMB": -1}',
        "namespace",
    )


@pytest.mark.parametrize(
    ("name", "fields", "rest"),
    [
        ("messageTTL", {"value": "60"}, 60),
        ("subscriptionTypesEnabled", {"value.Shared": "on"}, ["Shared"]),
        ("deduplicationEnabled", {"value": "true"}, True),
        ("schemaCompatibilityStrategy", {"value": "FORWARD"}, "FORWARD"),
    ],
)
async def test_each_shape_of_value(
    client: httpx.AsyncClient, name: str, fields: dict[str, str], rest: Any
) -> None:
    assert (await send(client, f"{PAGES[True]}/{name}", do="set", **fields)).is_redirect
    assert (await client.get(f"/admin/v2/{TOPIC}/{name}")).json() == rest


async def test_quotas_are_by_type(client: httpx.AsyncClient) -> None:
    page = f"{PAGES[True]}/backlogQuota%2Fmessage_age"
    fields = {"value.limitTime": "3600", "value.policy": "producer_exception"}
    assert (await send(client, page, do="set", **fields)).is_redirect
    found = (await client.get(f"/admin/v2/{TOPIC}/backlogQuotaMap")).json()
    assert found["message_age"]["limitTime"] == 3600
    assert "destination_storage" not in found
    assert (await send(client, page, do="remove")).is_redirect
    assert (await client.get(f"/admin/v2/{TOPIC}/backlogQuotaMap")).json() == {}


async def test_refusals_are_shown_in_place(client: httpx.AsyncClient) -> None:
    page = f"{PAGES[True]}/retention"
    half = {"value.retentionTimeInMinutes": "0", "value.retentionSizeInMB": "5"}
    refused = await send(client, page, do="set", **half)
    assert refused.status_code == 400
    assert "Setting a single time or size limit to 0 is invalid" in refused.text  # of REST
    assert 'name="value.retentionSizeInMB" value="5"' in refused.text
    for hostile in ("<b>1", "\x001", "9" * 40):
        refused = await send(client, page, do="set", **half | {"value.retentionSizeInMB": hostile})
        assert refused.status_code == 400
        assert "retentionSizeInMB: " in refused.text
        assert "<b>1" not in refused.text
    for bad in ("", "x"):
        answer = await client.post(page, data={"token": bad, "do": "set", **half})
        assert answer.status_code == 403
    assert (await client.get(f"{PAGES[True]}/nothing")).status_code == 404
    assert (await client.get("/console/ns/public/nowhere/policies")).status_code == 404
    assert (await client.get(f"/admin/v2/{TOPIC}/retention")).status_code == 204


async def test_the_visitor_needs_the_right() -> None:
    """A tenant's admin may set what REST lets him set, another role nothing."""
    answers = {}
    fields = {"value.tickTime": "5", "value.active": "true", "value.maxDeliveryDelayInMillis": "0"}
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        async with client_of(app, "prod") as client:
            answers["prod"] = (await client.get(f"{OTHERS}/messageTTL")).status_code
        async with client_of(app, "ten") as client:
            for key, typed in (("messageTTL", {"value": "9"}), ("delayedDelivery", fields)):
                page = f"{OTHERS}/{key}"
                answers[key] = (await send(client, page, do="set", **typed)).status_code
    assert answers == {"prod": 403, "messageTTL": 303, "delayedDelivery": 401}


@pytest.mark.parametrize("text", ["-1", "2147483648", "1.5", "1e3", ""])
def test_a_number_is_within_its_range(text: str) -> None:
    schema = editable_policies(is_topic=True)["messageTTL"].schema
    assert value_of(schema, {"value": "2147483647"}) == 2147483647
    with pytest.raises(ActionError, match="Value: a"):
        value_of(schema, {"value": text})


async def test_a_form_explains_its_fields(client: httpx.AsyncClient) -> None:
    page = unescape((await client.get(f"{PAGES[True]}/retention")).text)
    assert "minutes that acknowledged messages are kept, -1: for ever, 0: not at all" in page
    quota = unescape((await client.get(f"{PAGES[True]}/backlogQuota%2Fdestination_storage")).text)
    assert "beyond it producers wait, or are refused, or the oldest messages are skipped" in quota
    listed = unescape((await client.get(PAGES[True])).text)
    assert "seconds after which messages count as acknowledged, 0: never" in listed
    assert "else the broker's setting" in listed
