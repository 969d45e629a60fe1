"""The schema registry, and REST produce by schema."""

import base64
import json
from typing import Any

from http_cases import NS, Case, T

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "string"], "default": None},
    ],
}
WIDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "c", "type": "int", "default": 0}]}
OTHER = {**ORDER, "fields": [{"name": "a", "type": "string"}]}
EARLIEST = {"ledgerId": -1, "entryId": -1}


def posted(kind: str, definition: Any = None, **properties: str) -> dict[str, Any]:
    text = "" if definition is None else json.dumps(definition)
    return {"type": kind, "schema": text, "properties": properties}


def info(kind: str, definition: Any = None, **properties: str) -> str:
    """A SchemaInfo as REST produce takes it: JSON text, its schema in base64."""
    text = "" if definition is None else json.dumps(definition)
    data = base64.b64encode(text.encode()).decode()
    return json.dumps({"name": "n", "type": kind, "schema": data, "properties": properties})


def messages(*values: str, key: str | None = None, **asked: Any) -> dict[str, Any]:
    each = [{"payload": value} | ({} if key is None else {"key": key}) for value in values]
    return {"messages": each, **asked}


def registry(path: str, topic: str) -> list[Case]:
    reason = "known: a reason instead of an empty body or a page"
    return [
        ("GET", f"{path}/schema", None, reason),
        ("GET", f"{path}/schema/0", None, reason),
        ("GET", f"{path}/schemas", None, "known: 404 as for /schema"),
        ("GET", f"{path}/metadata", None, "known: an empty body there"),
        ("POST", f"{path}/compatibility", posted("AVRO", ORDER), "known: 202 as documented"),
        ("POST", f"{path}/version", posted("AVRO", ORDER), "known: 202 as documented"),
        ("POST", f"{path}/schema", posted("AVRO", ORDER, owner="me"), "known: 202 as documented"),
        ("POST", f"{path}/schema", posted("AVRO", ORDER), "known: 202 as documented"),
        ("POST", f"{path}/schema", posted("AVRO", WIDER), "known: 202 as documented"),
        ("POST", f"{path}/schema", posted("AVRO", OTHER), reason),
        ("POST", f"{path}/schema", posted("STRING"), reason),
        ("POST", f"{path}/schema", {"type": "AVRO", "schema": "{"}, reason),
        ("GET", f"{path}/schema", None, ""),
        ("GET", f"{path}/schema/0", None, ""),
        ("GET", f"{path}/schema/9", None, reason),
        ("GET", f"{path}/schema/x", None, reason),
        ("GET", f"{path}/schemas", None, ""),
        ("GET", f"{path}-partition-3/schema", None, ""),
        ("GET", f"{path}/metadata", None, ""),
        ("POST", f"{path}/compatibility", posted("AVRO", WIDER), "known: 202 as documented"),
        ("POST", f"{path}/compatibility", posted("AVRO", OTHER), "known: answers what was asked"),
        ("POST", f"{path}/version", posted("AVRO", ORDER), "known: 202 as documented"),
        ("POST", f"{path}/version", posted("AVRO", OTHER), "known: 202 as documented"),
        ("DELETE", f"{path}/schema", None, ""),
        ("GET", f"{path}/schema", None, reason),
        ("DELETE", f"{path}/schema?force=true", None, ""),
        ("DELETE", topic, None, ""),
    ]


def rest_produce(tenant: str) -> list[Case]:
    admin, rest = f"/admin/v2/persistent/{tenant}/ns", f"/topics/persistent/{tenant}/ns"
    schemas = f"/admin/v2/schemas/{tenant}/ns"
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("text", messages("x", "y"), ""),
        ("string", messages("x", valueSchema=info("STRING")), ""),
        *(
            (kind.lower(), messages(value, valueSchema=info(kind)), "")
            for kind, value in (
                *(("INT8", "7"), ("INT16", "7"), ("INT32", "7"), ("INT64", "7")),
                *(("FLOAT", "1.5"), ("DOUBLE", "1.5"), ("BOOLEAN", "true")),
                *(("INSTANT", "2026-01-02T03:04:05Z"), ("LOCAL_DATE", "2026-01-02")),
                *(("LOCAL_TIME", "03:04:05"), ("LOCAL_DATE_TIME", "2026-01-02T03:04:05")),
            )
        ),
        ("bytes", messages("x", valueSchema=info("BYTES")), "known: raw bytes are no schema"),
        ("avro", messages('{"a":1,"b":{"string":"x"}}', valueSchema=info("AVRO", ORDER)), ""),
        ("json", messages('{"a":1,"b":"x"}', valueSchema=info("JSON", ORDER)), ""),
        (
            "pair",
            messages("5", key="k", keySchema=info("STRING"), valueSchema=info("INT32")),
            "",
        ),
        ("key", messages("v", key="7", keySchema=info("INT8")), ""),
        ("wrong", messages("x", valueSchema=info("INT32")), "known: stored empty there"),
        ("protobuf", messages("{}", valueSchema=info("PROTOBUF", ORDER)), "known: 501"),
        ("auto", messages("x", valueSchema=info("AUTO_CONSUME")), "known: 422"),
        ("broken", messages("x", valueSchema="{"), "known: 400"),
        ("notavro", messages("x", valueSchema=info("AVRO", {"type": "rec"})), "known: 422"),
        ("noversion", messages("x", schemaVersion=3), "known: 404"),
    ]
    stored = {"bytes", "wrong", "protobuf"}  # what a refused or raw message leaves there
    cases: list[Case] = []
    for name, body, note in bodies:
        cases.append(("PUT", f"{admin}/{name}", None, ""))
        cases.append(("PUT", f"{admin}/{name}/subscription/s", EARLIEST, ""))
        cases.append(("POST", f"{rest}/{name}", body, note))
        if note == "" or name in stored:
            left = "known: registered before it is refused" if name in stored else ""
            cases.append(("GET", f"{schemas}/{name}/schema", None, left))
    cases += [
        ("POST", f"{rest}/avro", messages('{"a":2,"b":null}', schemaVersion=0), ""),
        ("POST", f"{rest}/json", messages('{"a":2}', schemaVersion=0), ""),
        ("POST", f"{rest}/json", messages("text"), "known: 409"),
        ("POST", f"{rest}/json", messages("1", valueSchema=info("JSON", OTHER)), "known: 409"),
    ]
    cases += [("DELETE", f"{admin}/{name}?force=true", None, "") for name, _, _ in bodies]
    return cases


def requests(tenant: str) -> list[Case]:
    admin = f"/admin/v2/persistent/{tenant}/ns"
    return [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone"]}, ""),
        ("PUT", f"{NS}/{tenant}/ns", None, ""),
        ("PUT", f"{admin}/t", None, ""),
        *registry(f"/admin/v2/schemas/{tenant}/ns/t", f"{admin}/t"),
        *rest_produce(tenant),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]
