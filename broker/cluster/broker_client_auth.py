"""The credentials of this broker at other brokers: the settings ``brokerClient...``."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.errors import BrokerError, ServiceNotReadyError

if TYPE_CHECKING:
    from magnetar.broker.auth.authenticator import Authenticator
    from magnetar.broker.cluster.broker_client import BrokerEndpoint
    from magnetar.broker.config import BrokerConfig
    from magnetar.bundles.lookup import BrokerLookup

T = TypeVar("T")

_SETTING: Final = "brokerClientAuthenticationParameters"


class BrokerClientAuth:
    """Credentials and trust between brokers; files are read when they are needed."""

    def __init__(self, config: BrokerConfig, authenticator: Authenticator | None) -> None:
        self._over_tls = config.broker_client_tls_enabled
        self._authenticator = authenticator
        self._access = ClientAuth(
            config.broker_client_authentication_plugin,
            config.broker_client_authentication_parameters,
            config.broker_client_trust_certs_file_path,
            insecure=config.tls_allow_insecure_connection,
        )

    def url_of(self, peer: BrokerEndpoint) -> str:
        """Where it is asked, without a slash at the end.

        Raises:
            ServiceNotReadyError: it doesn't offer what brokerClientTlsEnabled wants.
        """
        url = peer.http_url_tls if self._over_tls else peer.http_url
        if not url:
            kind = "HTTPS" if self._over_tls else "HTTP"
            raise ServiceNotReadyError(
                f"Broker {peer.name} can't be asked: it has no {kind}"
                f" (brokerClientTlsEnabled={str(self._over_tls).lower()})"
            )
        return url.rstrip("/")

    def binary_url_of(self, peer: BrokerLookup) -> str:
        """The same for the binary protocol. Raises ServiceNotReadyError."""
        url = peer.broker_url_tls if self._over_tls else peer.broker_url
        if not url:
            raise ServiceNotReadyError(
                f"Broker {peer.http_url or peer.http_url_tls} can't be asked: it has no binary port"
                f" for brokerClientTlsEnabled={str(self._over_tls).lower()}"
            )
        return url

    def tls_context(self) -> ssl.SSLContext | bool:
        """Raises ServiceNotReadyError: a certificate can't be used."""
        if not self._over_tls:
            return False  # nothing is asked over TLS
        try:
            return self._access.tls()
        except ClientAuthError as error:
            raise ServiceNotReadyError(f"brokerClient...: {error}") from error

    async def headers(self, caller: str | None) -> dict[str, str]:
        """Of a request in the name of a role; None: of the broker's own.

        Raises:
            ServiceNotReadyError: the credentials can't be read.
        """
        nothing: dict[str, str] = {}
        headers, original = await self._credentials(self._access.headers, nothing, caller)
        return headers if original is None else {**headers, "X-Original-Principal": original}

    async def login(self, caller: str | None) -> tuple[tuple[str, bytes], str | None]:
        """The same for CONNECT: method and data; as a proxy, the role it speaks for.

        Raises:
            ServiceNotReadyError: the credentials can't be read.
        """
        data, original = await self._credentials(self._access.data, b"", caller)
        return (self._access.method if self._access.plugin else "", data), original

    async def _credentials(
        self, read: Callable[[], T], nothing: T, caller: str | None
    ) -> tuple[T, str | None]:
        if not self._access.plugin:
            return nothing, None
        try:
            # In a thread: files are read, and OAuth 2.0 asks its issuer.
            found = await asyncio.to_thread(read)
            return found, caller if caller is not None and await self._is_proxy() else None
        except (ClientAuthError, BrokerError) as error:
            raise ServiceNotReadyError(f"{_SETTING}: {error}") from error

    async def _is_proxy(self) -> bool:
        """Whether our own role must name the role it speaks for; brokers share their settings."""
        authenticator = self._authenticator
        if authenticator is None or not authenticator.chain.proxy_roles:
            return False
        data = await asyncio.to_thread(self._access.data)
        certificate = self._access.certificate() if self._access.method == "tls" else None
        credentials = Credentials(self._access.method, data, certificate)
        return (await authenticator.authenticate(credentials)).role in (
            authenticator.chain.proxy_roles
        )
