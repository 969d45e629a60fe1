"""HTTP calls of the command line with the standard library: one server, one kept connection.

Brokers send calls on to each other (307), so credentials have to go along to other hosts. Nobody
here can tell a broker of the cluster from another server: the list of brokers is for superusers,
and would come from whoever sends us on, who has seen the credentials by then. So what is sent on
must be what brokers send on, the call as it was, and TLS is never left: docs/guides/security.md,
"Where credentials go".
"""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urljoin, urlsplit

from magnetar.broker.cli.errors import CliError, RefusedError, UnreachableError

REDIRECTS_MAX = 5


@dataclass(frozen=True, slots=True)
class AdminResponse:
    """The server's answer; header names are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def value(self) -> Any:
        """The body as JSON; as text when it is none, None when there is none."""
        text = self.body.decode(errors="replace")
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text

    @property
    def reason(self) -> str:
        """Why a call was refused, as the server said it."""
        value = self.value()
        if isinstance(value, dict) and "reason" in value:
            return str(value["reason"])
        return self.body.decode(errors="replace").strip() or "none given"

    def check(self) -> None:
        """Raises RefusedError: it is a refusal; the text has the status and the reason."""
        if not self.ok:
            raise RefusedError(f"HTTP {self.status}\nReason: {self.reason}", self.status)


class AdminClient:
    """Calls to one server; usable as a context manager."""

    def __init__(
        self,
        url: str,
        timeout_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        named_by: str = "",
    ) -> None:
        """
        Args:
            headers: credentials, sent with every call, also where brokers send it on to.
            tls: for https; None: trusts what the system trusts.
            named_by: the server that gave the URL; "": the user did.
        Raises:
            CliError: not an HTTP URL.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise CliError(f"{url}: not an admin URL (http://host:port)")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})
        self._tls = tls
        self._named_by = named_by
        if parts.scheme == "https":
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout_s, context=tls
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def json(self, method: str, path: str, body: Any = None) -> Any:
        """A call that must succeed; its answer as `AdminResponse.value`.

        Raises:
            CliError: no answer, or refused, as `AdminResponse.check` says it.
        """
        answer = self.call(method, path, body)
        answer.check()
        return answer.value()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        redirects: int = REDIRECTS_MAX,
    ) -> AdminResponse:
        """One call; follows 307 with method, body and credentials.

        Args:
            path: with its query, quoted.
            body: sent as JSON; None: no body, bytes: as they are.
            content_type: of the body, when JSON isn't all to say.
        Raises:
            UnreachableError: no connection, or no answer in time.
            CliError: sent where credentials mustn't go.
        """
        headers = {"Accept": "application/json", **self._headers}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers["Content-Type"] = content_type or "application/json"
        try:
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            what = f"{self.url} does not answer: {str(error) or type(error).__name__}"
            raise UnreachableError(what, self.url, self._named_by) from error
        location = response.headers.get("Location")
        if response.status == 307 and redirects and location:
            with self._at(path, location) as (other, path):
                return other.call(
                    method, path, body, content_type=content_type, redirects=redirects - 1
                )
        names = {name.lower(): text for name, text in response.headers.items()}
        return AdminResponse(response.status, content, names)

    @contextmanager
    def _at(self, asked: str, location: str) -> "Iterator[tuple[AdminClient, str]]":
        """A client of the server that a redirect names, and the path there.

        Raises:
            CliError: that server mustn't see the credentials.
        """
        target = urlsplit(urljoin(self.url + asked, location))
        path = f"{target.path}?{target.query}" if target.query else target.path
        url = f"{target.scheme}://{target.netloc}"
        if self.url.startswith("https:") and target.scheme != "https":
            raise CliError(f"{self.url} leads to {url}, where credentials would be readable")
        if self._headers and url != self.url and not _is_same_call(asked, target.path):
            raise CliError(
                f"{self.url} leads to {url}{target.path}, which is another call: "
                "no broker does that, and credentials are not shown there"
            )
        with AdminClient(
            url, self._timeout_s, self._headers, self._tls, named_by=self.url
        ) as other:
            yield other, path


def _is_same_call(asked: str, path: str) -> bool:
    """Whether a broker could have sent on what was asked: with its path, as it was.

    Of a split it may name the bundle that was meant by a word (LARGEST).
    """
    parts, others = ([*map(unquote, each.split("/"))] for each in (urlsplit(asked).path, path))
    if parts[-1] == others[-1] == "split":
        del parts[-2:], others[-2:]
    return parts == others
