"""A tenant and namespace that one test has for itself."""

from __future__ import annotations

import itertools
import logging
import ssl
import uuid
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from magnetar.broker.cli.admin_client import AdminClient
from magnetar.broker.cli.errors import CliError
from magnetar.errors import EmbeddedError

if TYPE_CHECKING:
    from magnetar.duration import Duration
    from magnetar.embedding import EmbeddedBroker
    from magnetar.faults import Faults

logger = logging.getLogger(__name__)

_REQUEST_S_MAX = 30.0
_NAMESPACE = "tests"


class FreshNamespace:
    """The ``magnetar`` fixture gives it: a broker that runs, and names nobody else uses."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.service_url = broker.service_url or broker.service_url_tls
        """``pulsar://host:port``, for clients; ``pulsar+ssl`` where nothing else is served."""
        self.web_url = broker.web_url or broker.web_url_tls
        """``http://host:port``: admin, REST, WebSocket, metrics; or ``https``."""
        self.tenant = f"test-{uuid.uuid4().hex[:12]}"
        self.namespace = f"{self.tenant}/{_NAMESPACE}"
        self._numbers = itertools.count(1)

    def topic(
        self,
        name: str = "",
        *,
        domain: Literal["persistent", "non-persistent"] = "persistent",
        partitions: int = 0,
    ) -> str:
        """The full name of a topic in this namespace; another one by each call without a name.

        Args:
            partitions: above 0: it is created, with so many. Without, a client's first use does.
        Raises:
            EmbeddedError: the broker refused to create it.
        """
        local = name or f"topic-{next(self._numbers)}"
        if partitions > 0:
            path = f"/admin/v2/{domain}/{self.namespace}/{quote(local, safe='')}/partitions"
            self.admin("PUT", path, partitions)
        return f"{domain}://{self.namespace}/{local}"

    def advance(self, span: Duration) -> None:
        """Set the broker's clock ahead: see `EmbeddedBroker.advance`."""
        self.broker.advance(span)

    @property
    def faults(self) -> Faults:
        """Of the broker; they stop at the end of the test."""
        return self.broker.faults

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the admin API; what it answered, decoded from JSON.

        With ``authenticationEnabled`` and ``tokenSecretKey`` it is the first of
        ``superUserRoles`` (or ``admin``) who asks.

        Args:
            path: from ``/admin/v2`` on, quoted.
        Raises:
            EmbeddedError: refused; the text has the status and the reason. Or the broker wants
                credentials, and there is no key to make some.
        """
        headers = {}
        config = self.broker.config
        can_log_in = config.token_secret_key or config.anonymous_user_role
        if config.authentication_enabled and not can_log_in:
            raise EmbeddedError(
                f"{method} {path} needs tokenSecretKey among the settings: the broker wants"
                " credentials"
            )
        if config.authentication_enabled and config.token_secret_key:
            administrator = config.super_user_roles.partition(",")[0].strip() or "admin"
            headers["Authorization"] = f"Bearer {self.broker.token(administrator)}"
        try:
            with AdminClient(self.web_url, _REQUEST_S_MAX, headers, self._tls()) as client:
                return client.json(method, path, body)
        except CliError as error:
            text = ": ".join(str(error).splitlines())
            raise EmbeddedError(f"{method} {path}: {text}") from error

    def _tls(self) -> ssl.SSLContext | None:
        """Trusts the broker's certificate and no other, whoever has signed it."""
        if not self.web_url.startswith("https:"):
            return None
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # it may be made for any name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # its issuer isn't known here
        context.load_verify_locations(self.broker.config.tls_certificate_file_path)
        return context

    def __enter__(self) -> Self:
        if (error := self.broker.error) is not None:
            raise EmbeddedError(f"the broker ended: {error}") from error
        clusters = self.admin("GET", "/admin/v2/clusters")
        tenant = {"adminRoles": [], "allowedClusters": clusters}
        self.admin("PUT", f"/admin/v2/tenants/{self.tenant}", tenant)
        self.admin("PUT", f"/admin/v2/namespaces/{self.namespace}")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.faults.stop()
            self.admin("DELETE", f"/admin/v2/tenants/{self.tenant}?force=true")
        except EmbeddedError as error:
            # Not the test's fault: a client it left open may create its topic anew meanwhile.
            logger.info("%s stays until the broker ends: %s", self.tenant, error)
