"""Login by token: the cookie is the console's alone, expires, and isn't for other sites."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.http.middleware import console_sessions
from magnetar.broker.http.middleware.console_sessions import ConsoleSessions, set_cookie
from magnetar.broker.http.server.app import create_app
from magnetar.metadata.store import MetadataStore
from tests.unit.broker.doubles import Broker
from tests.unit.managed_ledger.cluster import eventually

KEY = b"k" * 32
HTML = {"Accept": "text/html"}


def token_of(role: str) -> str:
    return jwt.encode({"sub": role}, KEY, "HS256")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    (tmp_path / "key").write_bytes(KEY)
    broker = await Broker(
        authentication_enabled=True,
        authentication_providers="token",
        token_secret_key=f"file://{tmp_path / 'key'}",
        authorization_enabled=True,
        super_user_roles="admin",
    ).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found
    await broker.close()


async def log_in(client: httpx.AsyncClient, token: str, after: str = "") -> httpx.Response:
    return await client.post("/console/login", data={"token": token, "next": after})


@pytest.mark.parametrize(
    "page", ["/console/", "/console/topics?q=a", "/console/topic/persistent/a/b/c"]
)
async def test_without_a_login_pages_lead_there_and_back(
    client: httpx.AsyncClient, page: str
) -> None:
    answer = await client.get(page)
    assert answer.status_code == 303
    target = httpx.URL(f"http://localhost{page}").join(answer.headers["location"])
    assert target.path == "/console/login"
    assert "x-frame-options" in (await client.get(target)).headers
    (after,) = parse_qs(urlsplit(str(target)).query, keep_blank_values=True)["next"]
    assert f"/console/{after}" == page
    done = await log_in(client, token_of("admin"), after)
    assert done.status_code == 303
    assert target.join(done.headers["location"]) == httpx.URL(f"http://localhost{page}")
    assert (await client.get(page)).status_code in (200, 404)


async def test_the_cookie_is_the_consoles_alone_and_no_script_sees_it(
    client: httpx.AsyncClient,
) -> None:
    done = await log_in(client, token_of("admin"))
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert token_of("admin") not in cookie
    page = await client.get("/console/")
    assert page.status_code == 200
    assert ">admin<" in page.text
    assert "superuser" in page.text
    assert (await client.get("/admin/v2/clusters")).status_code == 401
    assert (await client.get("/metrics/x")).status_code == 401


async def test_each_page_is_seen_as_its_role(client: httpx.AsyncClient) -> None:
    await log_in(client, token_of("somebody"))
    page = await client.get("/console/settings")
    assert "(401)" in page.text or "(403)" in page.text
    assert "brokerDeduplicationEnabled" not in page.text


async def test_wrong_credentials_and_logout(client: httpx.AsyncClient) -> None:
    for wrong in ("", "x", token_of("admin")[:-2]):
        answer = await log_in(client, wrong)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    await log_in(client, token_of("admin"))
    out = await client.post("/console/logout")
    assert (await client.post("/console/logout")).status_code == 303
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert (await client.get("/console/")).status_code == 303


async def test_a_form_that_outlasts_its_session_is_sent_again_after_a_login(
    client: httpx.AsyncClient,
) -> None:
    await log_in(client, token_of("admin"))
    url = "/console/do/create-tenant"
    page = (await client.get(url)).text
    (form_token,) = re.findall(r'name="token" value="(\w+)"', page)
    form = {"token": form_token, "value.name": "acme", "value.allowedClusters.standalone": "on"}
    assert (await client.get("/console/login?next=topics")).headers["location"] == "topics"
    await client.post("/console/logout")
    assert (await client.get("/console/login")).status_code == 200
    refused = await client.post(url, data=form, headers=HTML)
    assert refused.status_code == 401
    assert "www-authenticate" not in refused.headers, "a browser would ask for a password"
    assert "nothing was done" in refused.text
    (start,) = re.findall('href="([^"]+)"', refused.text)
    assert refused.url.join(start).path == "/console/"
    for role, status in (("somebody", 403), ("admin", 303)):
        await log_in(client, token_of(role))
        assert (await client.post(url, data=form, headers=HTML)).status_code == status, role
    assert "acme" in (await client.get("/console/namespaces")).text


async def test_new_messages_are_not_followed_behind_the_end_of_the_session(
    client: httpx.AsyncClient,
) -> None:
    topic = "persistent/public/default/orders"
    assert isinstance(client._transport, httpx.ASGITransport)
    app: Any = client._transport.app
    admin = {"Authorization": f"Bearer {token_of('admin')}"}

    async def publish(text: str) -> None:
        body = {"producerName": "p", "messages": [{"payload": text}]}
        assert (await client.post(f"/topics/{topic}", json=body, headers=admin)).is_success

    await publish("first")
    await log_in(client, token_of("admin"))
    following = asyncio.create_task(client.get(f"/console/topic/{topic}/messages/follow"))
    await eventually(lambda: len(app.state.followers) == 1)
    await client.post("/console/logout")
    await publish("secret")
    answer = await asyncio.wait_for(following, 30)
    assert answer.status_code == 200
    assert "secret" not in answer.text
    assert (await client.get(f"/console/topic/{topic}/messages/follow")).status_code == 303


async def test_a_form_of_too_many_fields_is_none(client: httpx.AsyncClient) -> None:
    fields = {"token": token_of("admin"), **{f"a{number}": "" for number in range(100)}}
    assert (await client.post("/console/login", data=fields)).status_code == 401


async def test_a_login_leads_to_pages_of_ours_only(client: httpx.AsyncClient) -> None:
    foreign = ("//evil.example", "https://evil.example", "../admin", "javascript:alert(1)")
    steps = ("topic/../../x", "brokers/%2e%2e", "//", "topics//", "brokers/x/../y")
    for after in (*foreign, *steps):
        assert (await log_in(client, token_of("admin"), after)).headers["location"] == "./"
    for after in ("brokers/x\r\nSet-Cookie: a=1", "topics?q=\r\nX: y", "topics?q=日"):
        place = (await log_in(client, token_of("admin"), after)).headers["location"]
        assert place.isascii()
        assert place.isprintable()


async def test_a_cookie_taken_from_another_login_ends_with_it(client: httpx.AsyncClient) -> None:
    await log_in(client, token_of("admin"))
    stolen = dict(client.cookies)
    await client.post("/console/logout")
    client.cookies.clear()
    client.cookies.update(stolen)
    assert (await client.get("/console/")).status_code == 303


async def test_files_need_no_login(client: httpx.AsyncClient) -> None:
    page = (await client.get("/console/login")).text
    style = page.split('rel="stylesheet" href="')[1].split('"')[0]
    assert (await client.get(f"/console/{style}")).status_code == 200


def _scope(cookie: str, path: bytes = b"/console/", **state: bool) -> dict[str, Any]:
    return {
        "type": "http",
        "scheme": "http",
        "server": ("localhost", 8080),
        "path": path.decode(),
        "raw_path": path,
        "headers": [(b"cookie", cookie.encode())],
        "state": state,
    }


class Brokers:
    """Two brokers with one metadata store; ``now_s`` is the time of both."""

    def __init__(self, store: MetadataStore) -> None:
        self.now_s = 1e9
        self.one, self.two = (
            ConsoleSessions(lambda: store, lambda: self.now_s, lambda: self.now_s) for _ in range(2)
        )

    async def refresh(self) -> None:
        await self.one.refresh()
        await self.two.refresh()


@pytest.fixture
async def brokers(broker: Broker) -> Brokers:
    found = Brokers(broker.service.store)
    await found.refresh()
    return found


def _shown(value: str) -> str:
    """As a browser sends back what it was given."""
    given = [text.decode() for _, text in set_cookie(_scope(""), value)]
    return "a=b; " + "; ".join(each.partition(";")[0] for each in given)


async def test_a_session_of_one_broker_is_good_at_all(brokers: Brokers) -> None:
    kept = Credentials("token", b"t" * 8000)
    cookie = _shown(brokers.one.open(kept))
    assert cookie.count("magnetar-console-8080") == 4
    for each in (brokers.one, brokers.two):
        assert each.credentials(_scope(cookie)) == kept
        assert each.credentials(_scope(cookie, b"/admin/v2/clusters")) is None
        assert each.credentials(_scope(cookie, is_foreign=True)) is None
        assert each.credentials(_scope(cookie.rpartition(";")[0])) is None
    assert brokers.one.form_key() == brokers.two.form_key()


async def test_a_session_that_was_ended_ends_everywhere_for_every_copy(brokers: Brokers) -> None:
    cookie = _shown(brokers.one.open(Credentials("basic", b"u:p")))
    brokers.now_s += 3600
    scope = _scope(cookie)
    assert brokers.two.credentials(scope) is not None
    copy = _shown(scope["state"]["console_cookie"])
    other = _shown(brokers.one.open(Credentials("basic", b"u:p")))
    await brokers.one.close(_scope(cookie))
    assert brokers.one.credentials(_scope(copy)) is None
    brokers.now_s += 11
    assert await brokers.two.has_ended(_scope(copy)), "asked by a request that goes on"
    assert not await brokers.two.has_ended(_scope(other))
    assert brokers.two.credentials(_scope(copy)) is None
    assert brokers.two.credentials(_scope(other)) is not None


async def test_what_is_stored_of_ended_sessions_ends_too(brokers: Brokers, broker: Broker) -> None:
    for _ in range(3):
        await brokers.one.close(_scope(_shown(brokers.one.open(Credentials("token", b"t")))))
    stored = await broker.service.store.children("/console/ended-sessions")
    assert len(stored) == 3
    brokers.now_s += 9 * 3600
    await brokers.one.close(_scope(_shown(brokers.one.open(Credentials("token", b"t")))))
    assert len(await broker.service.store.children("/console/ended-sessions")) == 1


async def test_too_many_ended_sessions_end_those_of_who_ended_most(
    brokers: Brokers, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_sessions, "_ENDED_MAX", 6)
    monkeypatch.setattr(console_sessions, "_ENDED_OF_ONE_MAX", 4)
    many = [Credentials("token", b"%d" % number) for number in range(4)]
    kept = [_shown(brokers.one.open(each)) for each in (Credentials("token", b"t"), *many)]
    for _ in range(2):
        for each in many:
            await brokers.one.close(_scope(_shown(brokers.one.open(each))))
            stored = await broker.service.store.children("/console/ended-sessions")
            assert len(stored) <= 6
    brokers.now_s += 11
    await brokers.refresh()
    good = [brokers.two.credentials(_scope(cookie)) is not None for cookie in kept]
    assert good[0], "who has ended none"
    assert good.count(False) == 2, "two were to make room"


async def test_too_many_ended_sessions_of_as_many_people_end_all(
    brokers: Brokers, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_sessions, "_ENDED_MAX", 2)
    other = _shown(brokers.one.open(Credentials("token", b"t")))
    for number in range(3):
        assert brokers.two.credentials(_scope(other)) is not None
        await brokers.one.close(
            _scope(_shown(brokers.one.open(Credentials("token", b"%d" % number))))
        )
    brokers.now_s += 11
    await brokers.refresh()
    assert brokers.two.credentials(_scope(other)) is None
    assert await broker.service.store.children("/console/ended-sessions") == []
    again = _shown(brokers.one.open(Credentials("token", b"t")))
    assert brokers.two.credentials(_scope(again)) is not None


async def test_nobody_ends_the_sessions_of_others_by_ending_many(
    brokers: Brokers, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_sessions, "_ENDED_MAX", 4)
    monkeypatch.setattr(console_sessions, "_ENDED_OF_ONE_MAX", 2)
    mine, theirs = Credentials("token", b"t"), Credentials("token", b"u")
    before, other = (_shown(brokers.one.open(each)) for each in (mine, theirs))
    for _ in range(10):
        brokers.now_s += 1
        await brokers.one.close(_scope(_shown(brokers.one.open(mine))))
        stored = await broker.service.store.children("/console/ended-sessions")
        assert len(stored) <= 2
        assert not any(b"t".hex() in name.split("-") for name in stored)
    brokers.now_s += 11
    await brokers.refresh()
    for each in (brokers.one, brokers.two):
        assert each.credentials(_scope(other)) == theirs
        assert each.credentials(_scope(before)) is None  # so are the others of who has ended many
        assert each.credentials(_scope(_shown(brokers.one.open(mine)))) == mine


async def test_a_session_ends_when_nobody_uses_it(brokers: Brokers) -> None:
    cookie = _shown(brokers.one.open(Credentials("token", b"t")))
    for _ in range(3):  # each use counts
        brokers.now_s += 7 * 3600
        scope = _scope(cookie)
        assert brokers.one.credentials(scope) is not None
        cookie = _shown(scope["state"]["console_cookie"])
    brokers.now_s += 8.1 * 3600
    assert brokers.one.credentials(_scope(cookie)) is None


async def test_a_page_that_fetches_its_figures_does_not_keep_a_session(brokers: Brokers) -> None:
    cookie = _shown(brokers.one.open(Credentials("token", b"t")))
    brokers.now_s += 7 * 3600
    poll = _scope(cookie)
    poll["headers"] = [(b"cookie", cookie.encode()), (b"magnetar-fragment", b"1")]
    assert brokers.one.credentials(poll) is not None
    assert poll["state"] == {}


async def test_a_cookie_that_no_broker_made_is_none(brokers: Brokers, broker: Broker) -> None:
    value = brokers.one.open(Credentials("token", b"t"))
    changed = value[:30] + ("A" if value[30] != "A" else "B") + value[31:]
    for wrong in (changed, value[:-4], "", "AAAA", "é", "1"):
        assert brokers.one.credentials(_scope(_shown(wrong))) is None
    for wrong in ("", "1.", "99.x", "²." + value, "0." + value):
        assert brokers.one.credentials(_scope(f"magnetar-console-8080={wrong}")) is None
    await broker.service.store.delete("/console/key")  # ends all sessions
    brokers.now_s += 11
    await brokers.refresh()
    assert brokers.two.credentials(_scope(_shown(value))) is None


@pytest.mark.parametrize("trusts", [True, False])
async def test_behind_a_proxy_that_ends_tls(tmp_path: Path, *, trusts: bool) -> None:
    (tmp_path / "key").write_bytes(KEY)
    broker = await Broker(
        authentication_enabled=True,
        authentication_providers="token",
        token_secret_key=f"file://{tmp_path / 'key'}",
        web_service_trust_x_forwarded_for=trusts,
    ).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    for told, is_secure in (("https", trusts), ("HTTPS, http", trusts), ("http", False)):
        headers = {"X-Forwarded-Proto": told}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as client:
            cookie = (await log_in(client, token_of("admin"))).headers["set-cookie"]
            assert cookie.startswith("__Host-magnetar=") == is_secure
            assert ("; Secure" in cookie) == is_secure
    await broker.close()


def test_over_tls_the_cookie_is_bound_to_this_host() -> None:
    ((_, text),) = set_cookie({"scheme": "https"}, "v")
    assert text.startswith(b"__Host-magnetar=1.v; Path=/; ")
    assert text.endswith(b"; Secure")


async def test_a_login_is_good_at_another_broker_after_a_restart_and_renewed(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(client, token_of("admin"))
    app = client._transport.app  # type: ignore[attr-defined]
    again = create_app(app.state.service)  # what it knew is gone
    transport = httpx.ASGITransport(again)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", cookies=client.cookies
    ) as other:
        page = await other.get("/console/")
        assert page.status_code == 200
        assert "set-cookie" not in page.headers
        later = time.time() + 3600
        monkeypatch.setattr(again.state.console_sessions, "_clock_s", lambda: later)
        page = await other.get("/console/")
        assert ">admin<" in page.text
        assert "HttpOnly" in page.headers["set-cookie"]
        path = "/console/topic/persistent/public/default/x/produce"
        # A form of the first broker's page is good at the second one.
        assert (await client.put("/admin/v2/persistent/public/default/x")).status_code == 401
        bearer = {"Authorization": f"Bearer {token_of('admin')}"}
        made = await client.put("/admin/v2/persistent/public/default/x", headers=bearer)
        assert made.is_success
        token = re.findall(r'name="token" value="(\w+)"', (await client.get(path)).text)[0]
        assert token in (await other.get(path)).text
