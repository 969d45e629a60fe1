#!/usr/bin/env python3
"""Ask a Pulsar with authorization for the answers that access_answers.txt expects of Magnetar.

    scripts/compare_access.py http://127.0.0.1:8080 SECRET_KEY_FILE

Pulsar runs with authenticationEnabled=true, authorizationEnabled=true, superUserRoles=admin, the
token provider and that secret key (raw bytes). Each route is asked with each role, in a tenant made
for this run, with the bodies of our OpenAPI document. Printed: the routes where Pulsar lets in, or
refuses, another role, or with another status. Answers that come before its rules were asked (400,
404, 405, 412) prove nothing: those to roles that we refuse are listed. Exit code 1 when a
difference is left.
"""

import re
import secrets
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jwt

from magnetar.broker.config import BrokerConfig
from magnetar.broker.http.server.app import create_app

ROOT = Path(__file__).resolve().parents[1]
ANSWERS = ROOT / "tests" / "unit" / "broker" / "http" / "access_answers.txt"
ROLES = ("nobody", "prod", "cons", "ten")
REFUSED, SILENT = (401, 403), (0, 400, 404, 405, 412, 415, 422, 500)
NAMES = {
    "domain": "persistent",
    "namespace": "ns",
    "topic": "t",
    "subscription": "s",
    "cluster": "standalone",
    "bundle": "0x00000000_0x40000000",
}
# docs/reference/http-differences.md has the reasons.
KNOWN = {"createMissedPartitions", "subscriptionAuthMode"}


def bodies() -> dict[tuple[str, str], Any]:
    """An example body by method and template."""
    service: Any = SimpleNamespace(
        config=BrokerConfig(), access=None, authenticator=None, schemas=None
    )
    found = {}
    for path, methods in create_app(service).state.openapi()["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            example = content.get("application/json", {}).get("example")
            if method in ("put", "post"):
                found[method.upper(), path] = {} if example is None else example
    return found


class Pulsar:
    def __init__(self, url: str, key: bytes) -> None:
        self._key = key
        self._client = httpx.Client(base_url=url, timeout=10)

    def ask(self, role: str, method: str, path: str, body: Any = None) -> int:
        token = jwt.encode({"sub": role}, self._key, "HS256")
        headers = {"Authorization": f"Bearer {token}"}
        try:
            return self._client.request(method, path, headers=headers, json=body).status_code
        except httpx.HTTPError:
            return 0

    def prepare(self, tenant: str) -> None:
        """Everything that a route may have deleted or changed before."""
        base = f"/admin/v2/namespaces/{tenant}/ns"
        info = {"adminRoles": ["ten"], "allowedClusters": ["standalone"]}
        self.ask("admin", "PUT", f"/admin/v2/tenants/{tenant}", info)
        self.ask("admin", "POST", f"/admin/v2/tenants/{tenant}", info)
        self.ask("admin", "PUT", base)
        self.ask("admin", "PUT", f"/admin/v2/persistent/{tenant}/ns/t")
        self.ask("admin", "POST", f"{base}/permissions/prod", ["produce"])
        self.ask("admin", "POST", f"{base}/permissions/cons", ["consume"])
        self.ask("admin", "POST", f"{base}/subscriptionAuthMode", "None")
        self.ask("admin", "DELETE", f"{base}/permissions/s/billing")


def main(url: str, key_file: str) -> int:
    pulsar, tenant, examples = (
        Pulsar(url, Path(key_file).read_bytes()),
        secrets.token_hex(4),
        bodies(),
    )
    names, left, compared, silent = {**NAMES, "tenant": tenant}, 0, 0, set()
    for line in ANSWERS.read_text().splitlines():
        if line.startswith("#"):
            continue
        method, template, status, answers = line.split()
        if method == "WEBSOCKET" or status == "-" or "shutdown" in template:
            continue
        path = re.sub(r"{(\w+)}", lambda match: names.get(match[1], "1"), template)
        for role, may in zip(ROLES, answers, strict=True):
            if may == "y" and method == "DELETE":
                continue  # what comes next needs it
            pulsar.prepare(tenant) if method != "GET" else None
            answer = pulsar.ask(role, method, path, examples.get((method, template)))
            refused = answer in REFUSED
            compared += answer not in SILENT
            if answer in SILENT and may == "n":
                silent.add(f"{method} {template} {role} {answer}")
            if answer in SILENT or (refused and may == "n" and answer == int(status)):
                continue
            if not refused and may == "y":
                continue
            known = any(word in template for word in KNOWN)
            left += not known
            print("known" if known else "DIFFERS", method, template, role, may, status, answer)
    print(f"{compared} answers compared, {left} differ; {len(silent)} that we refuse say nothing:")
    print(*sorted(silent), sep="\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
