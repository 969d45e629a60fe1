"""The page "About": versions, what its visitor may do as REST tells it, files of others."""

import re
from html import unescape
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from magnetar.broker.console.about_page import FOREIGN_FILES
from magnetar.broker.console.admin_api import AdminApi, AdminError
from magnetar.broker.console.console import ClusterLook, Console
from magnetar.broker.console.pulsar_source import PulsarSource
from magnetar.broker.http.server.app import create_app, product_version
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

ROOT = Path(__file__).parents[4]


def rows(page: str) -> dict[str, str]:
    """Terms and what stands beside them, without markup."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    return {term: " ".join(unescape(re.sub("<[^>]+>", "", text)).split()) for term, text in found}


async def test_versions_and_settings_of_the_console(broker: Broker) -> None:
    async with client_of(create_app(broker.service), None) as client:
        page = (await client.get("/console/about")).text
    told = rows(page)
    assert told["Brokers"] == f"Magnetar {product_version()}"
    assert told["Steps"] == "each is done with your rights"
    assert told["Messages"] == "with their values"
    assert "This console" not in told
    assert "whoever reaches this address may do everything" in page
    assert 'action="about"' not in page  # everything is allowed everywhere


async def test_what_is_withheld_is_told() -> None:
    broker = Broker(
        web_console_messages="metadata",
        web_console_masked_fields="email,card",
        web_console_read_only=True,
    )
    await broker.start()
    async with client_of(create_app(broker.service), None) as client:
        told = rows((await client.get("/console/about")).text)
    await broker.close()
    assert told["Steps"] == "none: this console is read-only"
    assert told["Messages"] == "without their values, without the fields card, email"


@pytest.mark.parametrize("role", ["admin", "ten", "prod", "cons"])
async def test_rights_are_those_of_rest(role: str) -> None:
    topic = "persistent://t1/ns/orders"
    async with (
        authorized_broker() as broker,
        client_of(create_app(broker.service), role) as client,
    ):
        asked = {"topic": topic, "namespace": "t1/ns", "tenant": "t1"}
        found = (await client.get("/admin/v2/whoami", params=asked)).json()
        for text, name in (("t1/ns/orders", topic), ("t1/ns", "t1/ns"), ("t1", "t1")):
            told = rows((await client.get("/console/about", params={"of": text})).text)
            allowed = " ".join(found["rights"][name]["permissions"])
            assert told[name] == (allowed or "nothing is allowed there")
        refused = (await client.get("/console/about?of=a://b/c/d")).text
    assert told["Role"] == role
    may = {"admin": "do everything", "ten": "administer t1"}.get(role, "administer no tenant")
    assert told["May"] == may
    assert 'class="fail"' in refused


class NobodyIsTold(AdminApi):
    """Apache Pulsar, as far as this page asks it."""

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        urls = {"brokerServiceUrl": "pulsar://p:6650", "serviceUrl": "http://p:8080"}
        known = {"clusters": ["c"], "clusters/c": urls}
        if (found := known.get(path.removeprefix("/admin/v2/"))) is None:
            raise AdminError(404, "not asked by this page")
        return found


async def test_in_front_of_apache_pulsar() -> None:
    source = PulsarSource(NobodyIsTold())
    console = Console(ClusterLook("c", source.product, "4", own_version="9"), lambda _: source)

    async def page(request: Request) -> Response:
        return await console.respond(request, "about")

    transport = httpx.ASGITransport(Starlette(routes=[Route("/", page)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        text = (await client.get("/")).text
    await console.close()
    await source.close()
    told = rows(text)
    assert told["This console"] == "Magnetar 9, a process of its own"
    assert told["For clients"] == "pulsar://p:6650"
    assert "Apache Pulsar doesn't tell who asks" in unescape(text)
    assert told["In the cluster"] == "what Apache Pulsar logs of calls"


def test_licences_of_files_of_others_are_told() -> None:
    """What is minified isn't ours."""
    files = resources.files("magnetar.broker.console").joinpath("static").iterdir()
    assert {each.name for each in files if ".min." in each.name} == {
        each.file for each in FOREIGN_FILES
    }
    notice = (ROOT / "NOTICE").read_text()
    for each in FOREIGN_FILES:
        assert f"{each.file} is {each.name} {each.version} ({each.owner})" in notice
        assert (each.licence, "Zero-Clause BSD" in notice) == ("0BSD", True)
