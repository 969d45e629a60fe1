"""What the console creates, grants, splits and deletes: as its visitor, and as commands do."""

import itertools
import re
import shlex
from collections.abc import AsyncIterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from magnetar.broker.cli.admin_command import _arguments
from magnetar.broker.cli.admin_commands import commands_of
from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.request import request_of
from magnetar.broker.console.actions import Subject, subscription_path
from magnetar.broker.console.admin_api import AdminError, query_text
from magnetar.broker.console.local_api import LocalApi
from magnetar.broker.console.resource_actions import (
    CLUSTER_ACTIONS,
    NAMESPACE_ACTIONS,
    SETTING_ACTIONS,
    SUBSCRIPTION_FORMS,
    TENANT_ACTIONS,
    TOPIC_FORMS,
    ClusterSubject,
    NamespaceSubject,
    SettingSubject,
    TenantSubject,
)
from magnetar.broker.console.settings_page import without_secrets
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.transactions_page import TRANSACTION_ACTIONS, TransactionSubject
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.console.test_console_actions import token_in
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

LOCAL = "http://localhost"
CONSOLE = "/console/"
NOT_ENDED = {"txnId": "(0,39)", "status": "OPEN", "openTimestamp": 0, "timeoutAt": 9}
SUBJECTS: tuple[tuple[Any, Any], ...] = (
    (CLUSTER_ACTIONS, ClusterSubject(["c1", "c2"])),
    (TENANT_ACTIONS, TenantSubject("acme", {"adminRoles": ["ops"]}, 2, ["c1", "c2"])),
    (
        NAMESPACE_ACTIONS,
        NamespaceSubject("acme", "n s", ["0x00000000", "0x80000000", "0xffffffff"]),
    ),
    (TOPIC_FORMS, Subject(TopicPath("persistent", "acme", "ns", "t+1"), 0, {})),
    (
        SUBSCRIPTION_FORMS,
        Subject(
            TopicPath("persistent", "acme", "ns", "t+1"), 0, {}, "s/1", places={"b": {"": "7:3"}}
        ),
    ),
    (SETTING_ACTIONS, SettingSubject("maxTenants", "0", "7")),
    (TRANSACTION_ACTIONS, TransactionSubject(0, 39, NOT_ENDED)),
)
TYPED = {
    "name": "first",
    "bundle": "0x80000000_0xffffffff",
    "role": "-a b,c",
    "domain": "persistent",
    "algorithm": "range_equally_divide",
    "position": "earliest",
    "id": "7:3",
    "other": "b",
    "subscription": "a/b+c%41",
    "partitions": "3",
    "bundles": "8",
    "unload": "true",
    "force": "true",
    "adminRoles": "x, y",
}
EVERY = [
    (each, subject)
    for actions, subject in SUBJECTS
    for each in actions
    # Commands take how much is kept, not the message; a place is read by a step of its command.
    if each.key not in ("offload", "move")
]
IDS = [f"{type(subject).__name__} {each.key}" for each, subject in EVERY]


def typed_for(schema: Mapping[str, Any] | None) -> dict[str, str]:
    if schema is None:
        return {}
    if schema["type"] != "object":
        return {"value": "12"}
    typed: dict[str, str] = {}
    for name, each in schema["properties"].items():
        boxes = each.get("items", {}).get("enum", ())
        typed |= {f"value.{name}.{box}": "on" for box in boxes} or {f"value.{name}": TYPED[name]}
    return typed


@pytest.mark.parametrize(("action", "subject"), EVERY, ids=IDS)
def test_a_command_does_the_same(action: Any, subject: Any) -> None:
    """It is read back by the command line's own parser."""
    call = action.call_for(subject, typed_for(action.schema(subject)))
    words = shlex.split(call.command)[1:]
    options = build_parser(words).parse_args(words)
    (arguments,) = _arguments(commands_of(options.group)[options.word], options)
    request = request_of(arguments)
    assert (request.method, request.path) == (call.method, f"/admin/{call.version}/{call.path}")
    assert query_text(dict(sorted(request.query.items()))) == query_text(call.query)
    assert (request.body or None) == (call.body or None)
    assert action.title
    assert action.loses(subject).endswith(".")


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as found:
        yield found


def form_of(typed: Mapping[str, str]) -> dict[str, str]:
    """With the names of the form: ``new_name`` is a field, ``name`` confirms."""
    own = {"name": "name", "value": "value", "new_name": "value.name"}
    return {own.get(name, f"value.{name}"): text for name, text in typed.items()}


async def send(client: httpx.AsyncClient, step: str, **typed: str) -> httpx.Response:
    """A step's form."""
    token = token_in(await client.get(CONSOLE + step))
    return await client.post(CONSOLE + step, data={"token": token, **form_of(typed)})


def page_after(step: str, answer: httpx.Response) -> str:
    """Below ``/console/``."""
    assert answer.is_redirect, answer.text
    return urljoin(LOCAL + CONSOLE + step, answer.headers["location"]).removeprefix(LOCAL + CONSOLE)


async def rest(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(f"/admin/v2/{path}")).json()


async def test_from_a_tenant_to_a_subscription_and_back(client: httpx.AsyncClient) -> None:
    """Each step leads to the page of what it has made; every name is typed to delete it."""
    clusters = await rest(client, "clusters")
    boxes = {f"allowedClusters.{each}": "on" for each in clusters}
    step = "do/create-tenant"
    made = await send(client, step, new_name="acme", adminRoles="ops, dev", **boxes)
    assert page_after(step, made) == "tenant/acme"
    info = {"adminRoles": ["dev", "ops"], "allowedClusters": clusters}
    assert await rest(client, "tenants/acme") == info
    step = "tenant/acme/do/create-namespace"
    made = await send(client, step, new_name="web", bundles="2")
    assert page_after(step, made) == "ns/acme/web"
    assert (await rest(client, "namespaces/acme/web/bundles"))["numBundles"] == 2
    assert "<b>web</b>" in (await client.get(f"{CONSOLE}tenant/acme")).text
    step = "ns/acme/web/do/create-topic"
    for name, count, domain in (("one", "", "persistent"), ("a b", "3", "non-persistent")):
        made = await send(client, step, new_name=name, partitions=count, domain=domain)
        assert page_after(step, made) == f"topic/{domain}/acme/web/{name.replace(' ', '%20')}"
    assert (await rest(client, "non-persistent/acme/web/a%20b/partitions"))["partitions"] == 3
    again = await send(client, step, new_name="one", domain="persistent")
    assert again.status_code == 409
    assert 'name="value.name" value="one"' in again.text
    topic = "topic/persistent/acme/web/one"
    made = await send(client, f"{topic}/do/subscribe", new_name="s+1", position="earliest")
    assert page_after(f"{topic}/do/subscribe", made) == f"{topic}/subscriptions"
    assert await rest(client, "persistent/acme/web/one/subscriptions") == ["s+1"]
    for step, name in (
        (f"{topic}/do/unsubscribe?subscription=s%2B1", "s+1"),
        (f"{topic}/do/delete", "one"),
        ("topic/non-persistent/acme/web/a%20b/do/delete", "a b"),
        ("ns/acme/web/do/delete", "acme/web"),
        ("tenant/acme/do/delete", "acme"),
    ):
        wrong = await send(client, step, name=f"{name}x")
        assert wrong.status_code == 400
        assert 'aria-invalid="true" aria-describedby="failure"' in wrong.text
        assert (await send(client, step, name=name)).is_redirect, step
    assert (await client.get("/admin/v2/tenants/acme")).status_code == 404
    changes = (await rest(client, "audit"))["changes"]
    assert {(each["method"], each["path"]) for each in changes} >= {
        ("PUT", "/admin/v2/tenants/acme"),
        ("DELETE", "/admin/v2/namespaces/acme/web"),
    }


async def test_what_is_not_empty_stays(client: httpx.AsyncClient) -> None:
    assert (await client.put("/admin/v2/persistent/public/default/kept")).is_success
    for step, name in (("ns/public/default", "public/default"), ("tenant/public", "public")):
        refused = await send(client, f"{step}/do/delete", name=name)
        assert refused.status_code == 409
        assert 'role="alert"' in refused.text
    assert "1 namespace is in it" in (await client.get(f"{CONSOLE}tenant/public/do/delete")).text


async def test_a_subscription_begins_where_it_is_told(client: httpx.AsyncClient) -> None:
    topic = "persistent/public/default/log"
    assert (await client.put(f"/admin/v2/{topic}")).is_success
    body = {"producerName": "p", "messages": [{"payload": each} for each in "abc"]}
    results = (await client.post(f"/topics/{topic}", json=body)).json()["messagePublishResults"]
    second = ":".join(results[1]["messageId"].split(":")[:2])
    step = f"topic/{topic}/do/subscribe"
    for name, position, id_ in (
        ("all", "earliest", ""),
        ("new", "latest", ""),
        ("from", "message id", second),
    ):
        made = await send(client, step, new_name=name, position=position, id=id_)
        assert made.is_redirect, made.text
    found = (await rest(client, f"{topic}/stats"))["subscriptions"]
    backlogs = {name: each["msgBacklog"] for name, each in found.items()}
    assert backlogs == {"all": 3, "new": 0, "from": 2}
    for wrong in ("", "7", "a:b", "9" * 30 + ":1"):
        refused = await send(client, step, new_name="x", position="message id", id=wrong)
        assert refused.status_code == 400
        assert "ledger:entry is needed" in refused.text
    assert len(await rest(client, f"{topic}/subscriptions")) == 3


async def test_partitions_grow_and_never_shrink(client: httpx.AsyncClient) -> None:
    topic = "persistent/public/default/wide"
    assert (await client.put(f"/admin/v2/{topic}/partitions", json=2)).is_success
    step = f"topic/{topic}/do/partitions"
    assert "more than 2" in (await client.get(CONSOLE + step)).text
    for wrong in ("2", "1", "0", "-3", "many", ""):
        refused = await send(client, step, value=wrong)
        assert refused.status_code == 400
        assert "Partitions: " in refused.text
    assert (await send(client, step, value="5")).is_redirect
    assert (await rest(client, f"{topic}/partitions"))["partitions"] == 5
    assert "message id" not in (await client.get(f"{CONSOLE}topic/{topic}/do/subscribe")).text


@pytest.mark.parametrize("place", ["ns/public/default", "topic/persistent/public/default/t"])
async def test_roles_are_granted_and_lose_it(client: httpx.AsyncClient, place: str) -> None:
    assert (await client.put("/admin/v2/persistent/public/default/t")).is_success
    path = place.removeprefix("topic/").replace("ns/", "namespaces/") + "/permissions"
    page = f"{CONSOLE}{place}" + ("/permissions" if "topic" in place else "")
    refused = await send(client, f"{place}/do/grant", role="billing")
    assert "tick what it may do" in unescape(refused.text)
    ticked = {"actions.produce": "on", "actions.consume": "on"}
    assert (await send(client, f"{place}/do/grant", role="a b", **ticked)).is_redirect
    assert {name: sorted(x) for name, x in (await rest(client, path)).items()} == {
        "a b": ["consume", "produce"]
    }
    (change,) = re.findall(r'href="([^"]*/do/grant\?[^"]*)"', (await client.get(page)).text)
    form = (await client.get(urljoin(LOCAL + page, unescape(change)))).text
    assert form.count(" checked>") == 2
    assert 'name="value.role" value="a b"' in form
    assert (
        await send(client, f"{place}/do/grant", role="a b", **{"actions.produce": "on"})
    ).is_redirect
    assert await rest(client, path) == {"a b": ["produce"]}
    assert (await send(client, f"{place}/do/revoke", role="a b")).is_redirect
    assert await rest(client, path) == {}


async def test_steps_of_a_namespace(client: httpx.AsyncClient) -> None:
    topic, space = "persistent/public/default/t", "ns/public/default"
    body = {"producerName": "p", "messages": [{"payload": each} for each in "abc"]}
    for name in ("one", "two"):
        assert (await client.put(f"/admin/v2/{topic}/subscription/{name}")).is_success
    assert (await client.post(f"/topics/{topic}", json=body)).is_success

    async def backlogs() -> list[int]:
        found = (await rest(client, f"{topic}/stats"))["subscriptions"]
        return [found[name]["msgBacklog"] for name in ("one", "two")]

    wrong = await send(client, f"{space}/do/clear-backlog", subscription="one", name="default")
    assert wrong.status_code == 400
    assert await backlogs() == [3, 3]
    done = await send(
        client, f"{space}/do/clear-backlog", subscription="one", name="public/default"
    )
    assert done.is_redirect
    assert await backlogs() == [0, 3]
    assert (await send(client, f"{space}/do/clear-backlog", name="public/default")).is_redirect
    assert await backlogs() == [0, 0]
    before = (await rest(client, "namespaces/public/default/bundles"))["boundaries"]
    bundle = f"{before[0]}_{before[1]}"
    assert f"do/split?bundle={bundle}" in (await client.get(CONSOLE + space)).text
    typed = {"bundle": bundle, "algorithm": "range_equally_divide", "unload": "true"}
    assert (await send(client, f"{space}/do/split", **typed)).is_redirect
    after = (await rest(client, "namespaces/public/default/bundles"))["boundaries"]
    assert len(after) == len(before) + 1
    for bundle in ("", f"{after[0]}_{after[1]}"):
        assert (await send(client, f"{space}/do/unload", bundle=bundle)).is_redirect
    hostile = await send(client, f"{space}/do/unload", bundle="../../x")
    assert hostile.status_code == 400


async def test_a_schema_is_deleted(client: httpx.AsyncClient) -> None:
    topic = "persistent/public/default/typed"
    assert (await client.put(f"/admin/v2/{topic}")).is_success
    path = "schemas/public/default/typed"
    schema = {"type": "STRING", "schema": "", "properties": {}}
    assert (await client.post(f"/admin/v2/{path}/schema", json=schema)).is_success
    step = f"topic/{topic}/do/delete-schema"
    assert "/do/delete-schema" in (await client.get(f"{CONSOLE}topic/{topic}/schema")).text
    for force, next_version in (("false", 2), ("true", 0)):
        assert (await send(client, step, name="typed", force=force)).is_redirect
        assert (await client.get(f"/admin/v2/{path}/schema")).status_code == 404
        added = await client.post(f"/admin/v2/{path}/schema", json=schema)
        assert added.json()["version"] == next_version


async def test_dynamic_settings(client: httpx.AsyncClient) -> None:
    step = "settings/maxTenants/do/"
    for wrong, status in (("many", 400), ("-1", 412)):
        refused = await send(client, f"{step}set", value=wrong)
        assert refused.status_code == status
        assert (
            f'value="{wrong}" autocomplete="off" spellcheck="false" aria-invalid="true"'
            in refused.text
        )
    assert (await send(client, f"{step}set", value="")).status_code == 400
    assert page_after(f"{step}set", await send(client, f"{step}set", value="77")) == "settings"
    assert await rest(client, "brokers/configuration/values") == {"maxTenants": "77"}
    page = (await client.get(f"{CONSOLE}settings")).text
    (row,) = [each for each in re.findall(r"<tr.*?</tr>", page) if "maxTenants/do" in each]
    assert '<td class="v">77</td><td class="v hide3"><span class="tag a">77</span>' in row
    assert page.index("maxTenants") < page.index("allowAutoTopicCreation")  # what is set is first
    assert (await send(client, f"{step}delete")).is_redirect
    assert await rest(client, "brokers/configuration/values") == {}
    assert (await client.get(f"{CONSOLE}settings/clusterName/do/set")).status_code == 404


def test_secrets_of_settings_are_not_shown() -> None:
    """Apache Pulsar tells them."""
    found = {"brokerClientAuthenticationParameters": "token:x", "tlsKeyPassword": "", "a": "b"}
    shown = {"brokerClientAuthenticationParameters": "•••", "tlsKeyPassword": "", "a": "b"}
    assert without_secrets(found) == shown


STEPS = (
    ("do/create-tenant", {"new_name": "x", "allowedClusters.standalone": "on"}),
    ("tenant/public/do/create-namespace", {"new_name": "x"}),
    ("ns/public/default/do/create-topic", {"new_name": "x", "domain": "persistent"}),
    ("topics/do/create-topic", {"new_name": "public/default/y", "domain": "persistent"}),
    ("topic/persistent/public/default/t/do/subscribe", {"new_name": "x", "position": "latest"}),
    ("topic/persistent/public/default/t/do/grant", {"role": "x", "actions.produce": "on"}),
    ("topic/persistent/public/default/t/do/delete", {"name": "t"}),
    ("settings/maxTenants/do/set", {"value": "5"}),
)


@pytest.mark.parametrize(("step", "typed"), STEPS, ids=[step for step, _ in STEPS])
async def test_any_call_may_fail(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, step: str, typed: dict[str, str]
) -> None:
    """Then the page says so, and nothing was changed: the change is the last call."""
    assert (await client.put("/admin/v2/persistent/public/default/t")).is_success
    changes = len((await rest(client, "audit"))["changes"])
    call, count, at = LocalApi.call, itertools.count(1), 0

    async def failing(*arguments: Any, **more: Any) -> Any:
        if next(count) == at:
            raise AdminError(503, "the broker is silent")
        return await call(*arguments, **more)

    monkeypatch.setattr(LocalApi, "call", failing)
    form = {"token": token_in(await client.get(CONSOLE + step)), **form_of(typed)}
    for at in range(1, 20):  # noqa: B007 # `failing` reads it
        count = itertools.count(1)
        answer = await client.post(CONSOLE + step, data=form)
        if answer.is_redirect:
            break
        assert answer.status_code == 503
        assert "the broker is silent" in answer.text
        assert len((await rest(client, "audit"))["changes"]) == changes
    assert answer.is_redirect
    assert at > 1
    assert len((await rest(client, "audit"))["changes"]) == changes + 1


async def test_nothing_is_changed_by_a_read_only_console() -> None:
    broker = await Broker(web_console_read_only=True).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as client:
        assert (await client.put("/admin/v2/persistent/public/default/t")).is_success
        for step, typed in STEPS:
            assert "read-only" in (await client.get(CONSOLE + step)).text
            answer = await client.post(CONSOLE + step, data={"token": "x", **form_of(typed)})
            assert answer.status_code == 403
        for page in ("topics", "namespaces", "tenant/public", "ns/public/default", "settings"):
            assert "/do/" not in (await client.get(CONSOLE + page)).text
    await broker.close()


async def test_a_step_needs_the_visitors_right() -> None:
    """A tenant's admin may do what REST lets him do, a role that produces nothing."""
    answers: dict[str, list[int]] = {}
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        async with client_of(app, "admin") as client:
            assert (await client.put("/admin/v2/persistent/t1/ns/t")).is_success
            (cluster,) = await rest(client, "clusters")
            box = f"allowedClusters.{cluster}"
            changed = await send(client, "tenant/t1/do/change", adminRoles="ten", **{box: "on"})
            assert changed.is_redirect
        for role in ("prod", "ten", "admin"):
            async with client_of(app, role) as client:
                topic, found = "topic/persistent/t1/ns/t", answers.setdefault(role, [])
                for step, typed in (
                    ("do/create-tenant", {"value.name": "x", f"value.{box}": "on"}),
                    ("tenant/t1/do/create-namespace", {"value.name": "x"}),
                    (
                        "ns/t1/ns/do/create-topic",
                        {"value.name": role, "value.domain": "persistent"},
                    ),
                    (
                        "topics/do/create-topic",
                        {"value.name": f"t1/ns/{role}-2", "value.domain": "persistent"},
                    ),
                    (f"{topic}/do/grant", {"value.role": "r", "value.actions.produce": "on"}),
                    ("settings/maxTenants/do/set", {"value": "5"}),
                ):
                    page = await client.get(CONSOLE + step)
                    token = re.findall(r'name="token" value="(\w+)"', page.text)
                    form = {"token": token[0] if token else "x", **typed}
                    found.append((await client.post(CONSOLE + step, data=form)).status_code)
    assert all(each in (401, 403) for each in answers["prod"])
    assert answers["ten"] == [401, 303, 303, 303, 303, 401]
    assert answers["admin"] == [303, 409, 303, 303, 303, 303]


def test_names_of_subscriptions_are_encoded_twice() -> None:
    """Brokers decode them twice below topics: ``a+b`` would be another one."""
    path = subscription_path(TopicPath("persistent", "t", "n", "a"), "a+b/%41")
    assert path == "persistent/t/n/a/subscription/a%252Bb%252F%252541"
