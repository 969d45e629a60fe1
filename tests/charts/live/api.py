"""The API server's HTTP interface, as little of it as a kubelet needs."""

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import yaml

from tests.charts.renderings import Object

_WATCH_S: Final = 10  # of one request; the next one goes on where it ended
_PATCH: Final = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """The API server refused; ``status`` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


class Gone(ApiError):
    """There is no such object, or what a watch begins after is forgotten: list anew."""


class ApiServer:
    """Requests with the rights of a KUBECONFIG, a connection each; threads may share it."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text("utf-8"))
        cluster = config["clusters"][0]["cluster"]
        url = urlsplit(cluster["server"])
        self.host, self.port = url.hostname or "", url.port or 443
        self.authority = Path(cluster["certificate-authority"]).read_bytes()
        self._tls = ssl.create_default_context(cadata=self.authority.decode())
        self._token = config["users"][0]["user"]["token"]

    def get(self, path: str, **query: str) -> Any:
        return self._request("GET", path + (f"?{urlencode(query)}" if query else ""))

    def create(self, path: str, body: Object) -> Any:
        return self._request("POST", path, body)

    def patch(self, path: str, body: Object) -> Any:
        """Strategic: conditions are merged by their type, statuses of containers replaced."""
        return self._request("PATCH", path, body, _PATCH)

    def delete(self, path: str, body: Object | None = None) -> None:
        self._request("DELETE", path, body)

    def watch(self, path: str, version: str, **query: str) -> Iterator[Object]:
        """What happens after a version, for a while.

        Raises:
            Gone: the version is too old.
        """
        words = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_S)}
        connection = self._connect(_WATCH_S + 15)
        try:
            connection.request("GET", f"{path}?{urlencode({**words, **query})}", headers=self._me())
            answer = connection.getresponse()
            if answer.status != 200:
                raise _error(answer.status, answer.read().decode())
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code", 500), str(event["object"]))
                yield event
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> Any:
        text = None if body is None else json.dumps(body)
        connection = self._connect(30)
        try:
            headers = {**self._me(), "Content-Type": kind}
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            content = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300:
            raise _error(answer.status, content)
        return json.loads(content)

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=timeout_s, context=self._tls
        )

    def _me(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}


def _error(status: int, text: str) -> ApiError:
    return (Gone if status in (404, 410) else ApiError)(status, text)
