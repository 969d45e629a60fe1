"""The OpenAPI document: every operation says what it is, takes, answers and refuses, by example."""

import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from magnetar.broker.config import BrokerConfig
from magnetar.broker.http.openapi import TAGS, operations
from magnetar.broker.http.server.app import create_app


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    service: Any = SimpleNamespace(config=BrokerConfig(), access=None, schemas=None)
    made: dict[str, Any] = create_app(service).state.openapi()
    return made


def lacking(document: dict[str, Any], complaint: Any) -> list[str]:
    return [
        f"{method.upper()} {path}: {what}"
        for method, path, operation in operations(document)
        for what in complaint(path, operation)
    ]


def _examples(content: dict[str, Any]) -> list[str]:
    return [
        kind
        for kind, media in content.items()
        if "example" not in media
        and "examples" not in media
        and not {"example", "examples"} & media.get("schema", {}).keys()
    ]


def test_every_operation_has_one_known_tag_and_a_summary(document: dict[str, Any]) -> None:
    def complain(path: str, operation: dict[str, Any]) -> Any:
        if len(operation.get("tags", [])) != 1 or operation["tags"][0] not in TAGS:
            yield f"tags {operation.get('tags')}"
        summary = operation.get("summary", "")
        if not summary or len(summary) > 120:
            yield f"summary {summary!r}"
        # FastAPI makes one up of the function's name: that tells nothing.
        if re.fullmatch(r"([A-Z][a-z0-9]* ?)+", summary) and summary.count(" ") > 0:
            yield f"summary {summary!r} is the function's name"

    assert lacking(document, complain) == []
    assert {tag["name"] for tag in document["tags"]} <= TAGS.keys()


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_every_name_in_a_path_is_described(document: dict[str, Any]) -> None:
    def complain(path: str, operation: dict[str, Any]) -> Any:
        given = {each["name"]: each for each in operation.get("parameters", [])}
        for name in re.findall(r"\{([^}]+)\}", path):
            if name not in given or given[name]["in"] != "path":
                yield f"{name} is not described"

    assert lacking(document, complain) == []


def test_every_parameter_says_what_it_is(document: dict[str, Any]) -> None:
    def complain(path: str, operation: dict[str, Any]) -> Any:
        for parameter in operation.get("parameters", []):
            if not parameter.get("description"):
                yield f"parameter {parameter['name']} has no description"
            if "schema" not in parameter:
                yield f"parameter {parameter['name']} has no schema"

    assert lacking(document, complain) == []


def test_every_body_has_an_example(document: dict[str, Any]) -> None:
    def complain(path: str, operation: dict[str, Any]) -> Any:
        if (body := operation.get("requestBody")) is not None:
            yield from (f"body {kind} without example" for kind in _examples(body["content"]))

    assert lacking(document, complain) == []


def test_every_answer_is_described_with_an_example(document: dict[str, Any]) -> None:
    def complain(path: str, operation: dict[str, Any]) -> Any:
        responses = operation["responses"]
        refused = operation["summary"].startswith("Refused: ")
        if refused is any(status < "300" for status in responses):
            yield "no success, or one that never comes"
        if "422" in responses and "HTTPValidationError" in str(responses["422"]):
            yield "FastAPI's 422"
        for status, response in responses.items():
            if not response.get("description"):
                yield f"{status} has no description"
            content = response.get("content", {})
            if status in ("200", "201", "202") and not content:
                yield f"{status} has no content"
            yield from (f"{status} {kind} without example" for kind in _examples(content))

    assert lacking(document, complain) == []


def test_errors_have_one_shape(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        for status, response in operation["responses"].items():
            assert "X-Request-ID" in response["headers"]
            if status >= "400":
                media = response["content"]["application/json"]
                assert media["schema"] == {"$ref": "#/components/schemas/Error"}
                for example in _values(media):
                    assert list(example) == ["reason"], (operation["summary"], status)


def _values(media: dict[str, Any]) -> list[Any]:
    if "example" in media:
        return [media["example"]]
    return [each["value"] for each in media["examples"].values()]


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    service: Any = SimpleNamespace(config=BrokerConfig(), access=None, schemas=None)
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = await client.get("/docs")
        assert page.status_code == 200
        assert "//" not in page.text.replace("</", "")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(links) == 5
        for link in links:
            answer = await client.get(link)
            assert answer.status_code == 200, link
            assert len(answer.content) > 100, link
        packed = await client.get("/docs/swagger-ui-bundle.js")
        assert packed.headers["content-encoding"] == "gzip"
        plain = await client.get(
            "/docs/swagger-ui-bundle.js", headers={"accept-encoding": "identity"}
        )
        assert plain.content == packed.content
        assert (await client.get("/docs/..%2Fmain.py")).status_code == 404
