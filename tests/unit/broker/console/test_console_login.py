"""Login by token: the cookie is the console's alone, expires, and isn't for other sites."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.http.middleware.console_sessions import ConsoleSessions, set_cookie
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker

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


def _scope(cookie: str, path: bytes = b"/console/", **state: bool) -> dict[str, object]:
    return {
        "type": "http",
        "scheme": "http",
        "server": ("localhost", 8080),
        "path": path.decode(),
        "raw_path": path,
        "headers": [(b"cookie", cookie.encode())],
        "state": state,
    }


def test_a_session_ends_when_nobody_uses_it() -> None:
    now_s = [0.0]
    sessions = ConsoleSessions(lambda: now_s[0])
    kept = Credentials("token", b"t")
    cookie = f"a=b; magnetar-console-8080={sessions.open(kept, 'anna')}"
    for now_s[0] in (7 * 3600.0, 14 * 3600.0):  # each use counts
        assert sessions.credentials(_scope(cookie)) is kept
    assert sessions.credentials(_scope(cookie, b"/admin/v2/clusters")) is None
    assert sessions.credentials(_scope(cookie, is_foreign=True)) is None
    now_s[0] = 22.5 * 3600.0
    assert sessions.credentials(_scope(cookie)) is None
    now_s[0] = 14 * 3600.0
    assert sessions.credentials(_scope(cookie)) is None


def test_a_page_that_fetches_its_figures_does_not_keep_a_session() -> None:
    now_s = [0.0]
    sessions = ConsoleSessions(lambda: now_s[0])
    cookie = f"magnetar-console-8080={sessions.open(Credentials('token', b't'), 'anna')}"
    poll = _scope(cookie)
    poll["headers"] = [(b"cookie", cookie.encode()), (b"magnetar-fragment", b"1")]
    for now_s[0] in (4 * 3600.0, 7.9 * 3600.0):
        assert sessions.credentials(poll) is not None
    now_s[0] = 8.1 * 3600.0
    assert sessions.credentials(poll) is None


def test_a_role_has_at_most_a_hundred_sessions_and_ends_its_own_only() -> None:
    sessions = ConsoleSessions(lambda: 0.0)
    other = sessions.open(Credentials("token", b"o"), "bert")
    first, *_, last = [sessions.open(Credentials("token", b"%d" % n), "anna") for n in range(101)]
    assert sessions.credentials(_scope(f"magnetar-console-8080={first}")) is None
    for value in (other, last):
        assert sessions.credentials(_scope(f"magnetar-console-8080={value}")) is not None


def test_over_tls_the_cookie_is_bound_to_this_host() -> None:
    text = set_cookie({"scheme": "https"}, "v")
    assert text.startswith("__Host-magnetar=v; Path=/; ")
    assert text.endswith("; Secure")
