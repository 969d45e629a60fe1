"""The other brokers of the cluster, asked by their HTTP interface as Pulsar's brokers do it.

What concerns one topic is done by the broker that serves it. ``on_owner`` does it here when that is
this one and asks the other one else; who it is, is looked up anew when the topic has moved in
between. So no answer of a broker sends our credentials anywhere: a ``Location`` is never followed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import orjson

from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.bundles.errors import BundleBusyError, BundleError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OWNERS_ROOT, Redirect
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    import httpx

    from magnetar.broker.cluster.broker_client_auth import BrokerClientAuth
    from magnetar.broker.service.broker_service import BrokerService

T = TypeVar("T")

CALLER: ContextVar[str | None] = ContextVar("magnetar_caller", default=None)
"""The role in whose name a request is served; None: unknown, or a job of the broker itself."""
ANSWER_S: Final = 30.0
"""Until a silent broker is given up; Pulsar's metadataStoreOperationTimeoutSeconds."""
_CONNECT_S: Final = 5.0
_MOVES_MAX: Final = 5
_CONNECTIONS_MAX: Final = 256
_IDLE_S: Final = 5.0
"""Shorter than any server's: what it just closed would fail a call that can't be repeated."""
_NOT_AUTHENTICATED: Final = "Authentication required"


class BrokerRefusedError(BrokerError):
    """Another broker's refusal; ``str(error)`` is its reason, ``http_status`` its status."""

    def __init__(self, broker: str, status: int, reason: str) -> None:
        super().__init__(reason)
        self.broker = broker
        self.http_status = status  # type: ignore[misc] # as that broker has answered


class BrokerUnreachableError(ServiceNotReadyError):
    """Another broker, named in the text, gave no answer."""


class _MovedError(ServiceNotReadyError):
    """What was asked for isn't served there any more; nothing was done."""

    def __init__(self, broker: str, location: str) -> None:
        super().__init__(f"Broker {broker} says that another one is to be asked")
        self.location = location


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Another broker; without the URL that it doesn't offer."""

    http_url: str | None
    http_url_tls: str | None
    is_chosen: bool = field(default=False, compare=False)
    """It is to own what it is asked about, and doesn't yet."""

    @classmethod
    def of(cls, lookup: BrokerLookup, *, is_chosen: bool = False) -> BrokerEndpoint:
        return cls(lookup.http_url, lookup.http_url_tls, is_chosen)

    @property
    def name(self) -> str:
        """``host:port`` of its web address."""
        return (self.http_url or self.http_url_tls or "//without HTTP").partition("//")[2]


@dataclass(frozen=True, slots=True)
class BrokerCall:
    """A request, good for any broker."""

    method: str
    path: str  # percent-encoded, from the root
    query: str = ""  # encoded
    body: Any = None  # to be sent as JSON; None: none
    wants_text: bool = False
    """The JSON of its answer is wanted as it comes: it may be too long for a turn of the loop."""

    def about(self, path: str) -> BrokerCall:
        return replace(self, path=path)


def topic_path(name: TopicName, tail: str = "") -> str:
    """Path of a topic's calls; ``tail``: what follows, encoded, with its slash."""
    parts = (name.domain, *name.namespace.split("/"), name.local)
    return "/admin/v2/" + "/".join(quote(part, safe="") for part in parts) + tail


def as_authoritative(query: str) -> str:
    """An encoded query: a broker is to take what has no owner, without asking the leader."""
    kept = [each for each in query.split("&") if each and not each.startswith("authoritative=")]
    return "&".join((*kept, "authoritative=true"))


def busy_bundle(error: BaseException) -> str | None:
    """The bundle, if that another broker owns it is why ``error`` was raised."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BundleBusyError):
        cause = cause.__cause__
    return None if cause is None else cause.bundle


class BrokerClient:
    """One broker's client of all others. Costs nothing before the first call."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._client: httpx.AsyncClient | None = None
        self._access: BrokerClientAuth | None = None

    async def other_owner(self, bundle: str) -> BrokerLookup | None:
        """The broker that owns ``tenant/ns/range``; None: this one does, or none.

        Raises:
            MetadataError, InvalidBundleError: it can't be told.
        """
        service = self._service
        if bundle in service.bundles.owned_bundles:
            return None
        if (node := await service.store.get(f"{OWNERS_ROOT}/{bundle}")) is None:
            return None
        owner = BrokerLookup.decode(node.value)
        return None if owner == service.bundles.broker else owner

    async def owner_of(self, name: TopicName) -> BrokerEndpoint | None:
        """The broker that serves a topic, or is to, if none does; None: this one, which takes it.

        Raises:
            ServiceNotReadyError: it can't be told now.
        """
        bundles = self._service.bundles
        if bundles.owns_nowait(str(name)):
            return None
        try:
            found = await bundles.lookup(str(name), authoritative=False)
            if isinstance(found, Redirect) and not found.authoritative:
                if (chosen := await self._chosen_by(found, name)) is not None:
                    return chosen
                found = await bundles.lookup(str(name))  # it is ours to take
        except BundleError as error:
            raise ServiceNotReadyError(str(error)) from error
        if found is None:
            raise ServiceNotReadyError(f"Nobody serves {name} now")
        if found.broker == bundles.broker:
            return None
        return BrokerEndpoint.of(found.broker, is_chosen=isinstance(found, Redirect))

    async def _chosen_by(self, leader: Redirect, name: TopicName) -> BrokerEndpoint | None:
        """The broker that the leader assigns a topic without one; None: this one.

        Raises:
            BundleNotReadyError: no broker may serve it.
        """
        path = topic_path(name).replace("/admin/v2/", "/lookup/v2/topic/", 1)
        # Also of one that clients can't make: this may be the call that makes it.
        call = BrokerCall("GET", path, "authoritative=false&placement=true")
        try:
            found = await self.ask(BrokerEndpoint.of(leader.broker), call)
        except _MovedError as error:
            return await self.at(error.location)
        except BrokerRefusedError:
            # The caller may not look it up. The choice needs no leader, but by epochs.
            sharing = self._service.sharing
            decided = await sharing.choose(leader.bundle, alone=True) if sharing else None
            return None if decided is None else BrokerEndpoint.of(decided.broker, is_chosen=True)
        peer = BrokerEndpoint(found.get("httpUrl"), found.get("httpUrlTls"))
        return None if peer == BrokerEndpoint.of(self._service.bundles.broker) else peer

    async def at(self, location: str) -> BrokerEndpoint | None:
        """The broker of an address; None: this one. Raises ServiceNotReadyError: of none."""
        members = self._service.cluster_members
        for broker_id in await members.ids():
            if (found := await members.find(broker_id)) is not None:
                peer = BrokerEndpoint.of(found, is_chosen=True)
                for url in (peer.http_url, peer.http_url_tls):
                    if url and location.startswith(url.rstrip("/") + "/"):
                        return None if broker_id == self._service.broker_id else peer
        raise ServiceNotReadyError("The leader names a broker that has left: ask again")

    async def serving(self, name: TopicName) -> BrokerLookup | None:
        """The broker that a client connects to for a topic; None: this one.

        If none serves it, the chosen one takes it first.

        Raises:
            ServiceNotReadyError, BrokerRefusedError.
        """
        service = self._service
        if str(name) in service.topics:
            return None
        for _ in range(_MOVES_MAX):
            if (peer := await self.owner_of(name)) is None:
                return None
            if peer.is_chosen:
                path = topic_path(name).replace("/admin/v2/", "/lookup/v2/topic/", 1)
                with suppress(_MovedError):
                    await self.ask(peer, BrokerCall("GET", path))
            try:
                found = await self.other_owner(await service.bundles.bundle_of(str(name)))
            except (BundleError, MetadataError) as error:
                raise ServiceNotReadyError(str(error)) from error
            if found is not None:
                return found
        raise ServiceNotReadyError(f"{name} is just changing its broker: ask again")

    async def on_owner(
        self,
        name: TopicName,
        local: Callable[[], Awaitable[T]],
        call: Callable[[], BrokerCall],
        *,
        until_s: float | None = None,
    ) -> T | Any:
        """Do something with a topic where it is served: the result, or the JSON of the answer.

        Args:
            local: does it here. What fails since another broker owns the bundle isn't done.
            call: what another broker is asked; made when one is.
            until_s: loop time until which that broker is waited for; None: ``ANSWER_S`` from now.
        Raises:
            BrokerRefusedError: that broker's refusal; BrokerUnreachableError; what ``local``
            raises.
        """
        return await self._where_owned(str(name), lambda: self.owner_of(name), local, call, until_s)

    async def on_bundle_owner(
        self,
        bundle: str,
        local: Callable[[], Awaitable[T]],
        call: Callable[[], BrokerCall],
        *,
        until_s: float | None = None,
    ) -> T | Any:
        """The same for a bundle, ``tenant/ns/range``: here also if no broker owns it."""

        async def owner() -> BrokerEndpoint | None:
            try:
                found = await self.other_owner(bundle)
            except BundleError as error:
                raise ServiceNotReadyError(str(error)) from error
            return None if found is None else BrokerEndpoint.of(found)

        return await self._where_owned(bundle, owner, local, call, until_s)

    async def _where_owned(
        self,
        what: str,
        find_owner: Callable[[], Awaitable[BrokerEndpoint | None]],
        local: Callable[[], Awaitable[T]],
        call: Callable[[], BrokerCall],
        until_s: float | None,
    ) -> T | Any:
        moved: Exception | None = None
        for _ in range(_MOVES_MAX):
            try:
                if (owner := await find_owner()) is None:
                    return await local()
                return await self.ask(owner, call(), until_s=until_s)
            except _MovedError as error:
                moved = error
            except Exception as error:  # `local` may raise any; all but one kind go on
                if busy_bundle(error) is None:
                    raise
                moved = error
        raise ServiceNotReadyError(f"{what} is just changing its broker: ask again") from moved

    async def ask(
        self, peer: BrokerEndpoint, call: BrokerCall, *, until_s: float | None = None
    ) -> Any:
        """The JSON that another broker answers with, see `BrokerCall`; None for an empty answer.

        Raises:
            BrokerRefusedError: an answer of 400 and above.
            BrokerUnreachableError: no answer until then.
            ServiceNotReadyError: it says that another broker is to be asked.
        """
        import httpx

        request = await self._request(peer, call)
        done = "" if call.method == "GET" else "; it may have done it"
        if until_s is None:
            until_s = self._service.loop.time() + ANSWER_S
        try:
            async with asyncio.timeout_at(until_s):
                answer = await self._client_now(self.access).send(request)
        except TimeoutError as error:
            raise BrokerUnreachableError(
                f"Broker {peer.name} has not answered in time{done}"
            ) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise BrokerUnreachableError(f"Broker {peer.name} can't be reached: {error}") from error
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise BrokerUnreachableError(
                f"Broker {peer.name} has not answered: {what}{done}"
            ) from error
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        if call.wants_text and is_json and answer.is_success:
            return answer.content
        return self._value_of(peer, answer)

    @asynccontextmanager
    async def stream(
        self, peer: BrokerEndpoint, call: BrokerCall, silent_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer that goes on, by pieces as they come.

        Args:
            silent_s: so long without a piece means that it will not go on.
        Raises:
            as ``ask``; BrokerUnreachableError also from the pieces.
        """
        import httpx

        request = await self._request(peer, call)
        request.extensions["timeout"] = {"connect": _CONNECT_S, "read": silent_s}
        try:
            answer = await self._client_now(self.access).send(request, stream=True)
            try:
                if not answer.is_success:
                    await answer.aread()
                    self._value_of(peer, answer)
                yield _pieces(peer, answer)
            finally:
                await answer.aclose()
        except httpx.HTTPError as error:
            raise _left(peer, error) from error

    async def _request(self, peer: BrokerEndpoint, call: BrokerCall) -> httpx.Request:
        access = self.access
        query = as_authoritative(call.query) if peer.is_chosen else call.query
        url = access.url_of(peer) + call.path + (f"?{query}" if query else "")
        headers = {"Accept": "application/json", **await access.headers(CALLER.get())}
        body = None
        if call.body is not None:
            body, headers["Content-Type"] = orjson.dumps(call.body), "application/json"
        client = self._client_now(access)
        return client.build_request(call.method, url, content=body, headers=headers)

    def _value_of(self, peer: BrokerEndpoint, answer: httpx.Response) -> Any:
        status = answer.status_code
        if 300 <= status < 400:
            raise _MovedError(peer.name, answer.headers.get("location", ""))
        try:
            value = orjson.loads(answer.content) if answer.content else None
        except orjson.JSONDecodeError as error:
            if status < 300 and not answer.headers.get("content-type", "").startswith("text/"):
                raise BrokerUnreachableError(f"Broker {peer.name} answers no JSON") from error
            value = answer.text
        if status < 300:
            return value
        reason = value.get("reason", "") if isinstance(value, dict) else ""
        if status == 401 and reason == _NOT_AUTHENTICATED:
            raise BrokerUnreachableError(
                f"Broker {peer.name} does not let this broker in: see "
                "brokerClientAuthenticationPlugin and brokerClientAuthenticationParameters"
            )
        raise BrokerRefusedError(
            peer.name, status, reason or f"Broker {peer.name} answers {status}"
        )

    @property
    def access(self) -> BrokerClientAuth:
        """The credentials of this broker."""
        if self._access is None:
            from magnetar.broker.cluster.broker_client_auth import (
                BrokerClientAuth,  # only in clusters
            )

            self._access = BrokerClientAuth(self._service.config, self._service.authenticator)
        return self._access

    def _client_now(self, access: BrokerClientAuth) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            # A line for each call would tell what the other broker's log of calls tells as well.
            logging.getLogger("httpx").setLevel(logging.WARNING)
            self._client = httpx.AsyncClient(
                verify=access.tls_context(),
                timeout=httpx.Timeout(None, connect=_CONNECT_S),  # the whole: see ``ask``
                limits=httpx.Limits(max_connections=_CONNECTIONS_MAX, keepalive_expiry=_IDLE_S),
                follow_redirects=False,
                trust_env=False,  # no proxy of the environment is between brokers
            )
        return self._client

    async def close(self) -> None:
        if (client := self._client) is not None:
            self._client = None
            await client.aclose()


async def _pieces(peer: BrokerEndpoint, answer: httpx.Response) -> AsyncIterator[bytes]:
    import httpx

    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx.HTTPError as error:
        raise _left(peer, error) from error


def _left(peer: BrokerEndpoint, error: Exception) -> BrokerUnreachableError:
    what = str(error) or type(error).__name__
    return BrokerUnreachableError(f"Broker {peer.name} has left: {what}")
