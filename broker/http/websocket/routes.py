"""The WebSocket endpoints: refuse with an HTTP status, or accept and run a session."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from magnetar.broker.auth.authorization import Permission, Resource
from magnetar.broker.errors import (
    BrokerError,
    ConsumerBusyError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededExceptionError,
    TopicTerminatedError,
)
from magnetar.broker.http.dependencies import form_decode, make_topic_name
from magnetar.broker.http.errors import ApiError, error_response, response_of
from magnetar.broker.http.routing.route_permissions import (
    Access,
    authorize_websocket,
    caller_of,
    require,
)
from magnetar.broker.http.websocket.channel import CLOSE_BASE, INTERNAL, Session, WebSocketChannel
from magnetar.broker.http.websocket.consumer import ConsumerSession, ReaderSession
from magnetar.broker.http.websocket.parameters import (
    ConsumerParameters,
    ProducerParameters,
    ReaderParameters,
)
from magnetar.broker.http.websocket.pattern import TOPICS_MAX, NamePattern, PatternSession
from magnetar.broker.http.websocket.producer import ProducerSession
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.broker.service.access_control import AccessControl, Right
from magnetar.broker.service.broker_service import BrokerService

if TYPE_CHECKING:
    from magnetar.broker.http.middleware.authenticated_requests import AuthenticatedRequest

logger = logging.getLogger(__name__)

_NOT_AUTHORIZED = CLOSE_BASE + 6


def websocket_routes() -> list[WebSocketRoute]:
    base = "{domain}/{tenant}/{namespace}/{topic}"
    return [
        WebSocketRoute(
            f"/ws/v2/producer/{base}",
            partial(_serve, make=_producer_session, rule=Access.PRODUCE_403),
        ),
        WebSocketRoute(
            f"/ws/v2/consumer/{base}/{{subscription}}", partial(_serve, make=_consumer_session)
        ),
        WebSocketRoute(f"/ws/v2/reader/{base}", partial(_serve, make=_reader_session)),
        WebSocketRoute("/ws/v3/consumer/{subscription}", partial(_serve, make=_consumer_session)),
    ]


def unknown_route() -> WebSocketRoute:
    """For every other path; the application's last route."""
    return WebSocketRoute("/{path:path}", _unknown)


def _producer_session(websocket: WebSocket, service: BrokerService) -> Session:
    parameters = ProducerParameters.parse(_query(websocket))
    return ProducerSession(service, _topics(websocket)[0], parameters)


def _consumer_session(websocket: WebSocket, service: BrokerService) -> Session:
    parameters, subscription = ConsumerParameters.parse(_query(websocket)), _subscription(websocket)
    if (pattern := _pattern(websocket)) is None:
        return ConsumerSession(service, _topics(websocket), subscription, parameters)
    app = websocket.app.state
    guard = _PatternAuthorizer(websocket) if app.access is not None else None
    return PatternSession(service, pattern, subscription, parameters, app.topic_changes, guard)


def _query(websocket: WebSocket) -> dict[str, str]:
    """Of parameters that are given twice the first one holds, as in Pulsar."""
    return dict(reversed(websocket.query_params.multi_items()))


def _pattern(websocket: WebSocket) -> NamePattern | None:
    """The pattern of a socket whose path and query name no topics. Raises ApiError: 400."""
    query = _query(websocket)
    if "topic" in websocket.path_params or "topics" in query or "topicsPattern" not in query:
        return None
    return NamePattern(query["topicsPattern"])


class _PatternAuthorizer:
    """Asks for the topics that a pattern meets."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def rights_of(self, name: TopicName, writes: Iterable[TopicName]) -> list[Right]:
        websocket = self._websocket
        access: AccessControl = websocket.app.state.access
        caller = caller_of(websocket.scope)
        consumed = Resource.of_topic(name, _subscription(websocket))
        rights = [
            (caller, Permission.CONSUME, consumed),
            *((caller, Permission.PRODUCE, Resource.of_topic(each)) for each in writes),
        ]
        await require(access, websocket.scope, rights, 403)
        return rights


def _topics(websocket: WebSocket) -> list[TopicName]:
    """The topics of a socket: of its path, else of ``topics``, full names with commas."""
    names = websocket.path_params
    if "topic" in names:
        return [make_topic_name(*(names[part] for part in _TOPIC_PARTS))]
    query = _query(websocket)
    if "topicsPattern" in query:
        raise ApiError(400, "topics or topicsPattern, not both")
    try:
        topics = [TopicName.parse(each) for each in query.get("topics", "").split(",") if each]
    except InvalidTopicNameError as error:
        raise ApiError(400, f"Invalid query parameter topics: {error}") from error
    if not 0 < len(topics) <= TOPICS_MAX:
        raise ApiError(400, f"topics must name 1 to {TOPICS_MAX} topics, separated by commas")
    if len({str(name) for name in topics}) < len(topics):
        raise ApiError(400, "topics names a topic twice")
    return topics


_TOPIC_PARTS = ("domain", "tenant", "namespace", "topic")


def _subscription(websocket: WebSocket) -> str:
    return form_decode(form_decode(websocket.path_params.get("subscription", "")))


async def _unknown(websocket: WebSocket) -> None:
    """Starlette's own refusal would be 403."""
    await _refuse(websocket, ApiError(404, "There is no such WebSocket endpoint"))


def _reader_session(websocket: WebSocket, service: BrokerService) -> Session:
    parameters = ReaderParameters.parse(_query(websocket))
    return ReaderSession(service, _topics(websocket)[0], parameters)


async def _serve(
    websocket: WebSocket,
    make: Callable[[WebSocket, BrokerService], Session],
    rule: Access = Access.CONSUME_403,
) -> None:
    """Open the session first, so that a refusal can still be an HTTP status."""
    service: BrokerService = websocket.app.state.service
    client = websocket.client
    remote = f"{client.host}:{client.port}" if client else "unknown:0"
    agent = websocket.headers.get("user-agent", "WebSocket")
    session: Session | None = None
    try:
        try:
            if not service.config.web_socket_service_enabled:
                raise ApiError(404, "webSocketServiceEnabled is false")
            rights = await _authorized(websocket, rule)
            session = make(websocket, service)
            if rights:
                rights += await _may_write(websocket, session)
            await session.open(remote, agent)
        except Exception as error:  # whatever it is, the client gets a status
            await _refuse(websocket, error)
            return
        await _run(websocket, session, service, rights)
    except WebSocketDisconnect:
        pass
    finally:
        if session is not None:
            session.close()


async def _authorized(websocket: WebSocket, rule: Access) -> list[Right]:
    """Raises ApiError: 400 the path or the query names no topics, 403."""
    if (pattern := _pattern(websocket)) is not None:
        return await _may_list(websocket, pattern)
    subscription = _subscription(websocket)
    resources = [Resource.of_topic(name, subscription) for name in _topics(websocket)]
    return await authorize_websocket(websocket, rule, resources)


async def _may_list(websocket: WebSocket, pattern: NamePattern) -> list[Right]:
    """A pattern looks at all names, as WATCH_TOPIC_LIST does; each topic is asked about when it is
    met. Raises ApiError: 403.
    """
    access: AccessControl | None = websocket.app.state.access
    if access is None:
        return []
    listed = Resource.of_namespace(pattern.namespace)
    rights = [(caller_of(websocket.scope), Permission.LOOKUP, listed)]
    await require(access, websocket.scope, rights, 403)
    return rights


async def _may_write(websocket: WebSocket, session: Session) -> list[Right]:
    """A consumer's dead letters are published in its name. Raises ApiError: 403."""
    access: AccessControl = websocket.app.state.access
    caller = caller_of(websocket.scope)
    rights = [(caller, Permission.PRODUCE, Resource.of_topic(name)) for name in session.writes_to]
    await require(access, websocket.scope, rights, 403)
    return rights


class _AuthorizedSocket:
    """An open socket that ends when one of its rights is taken away."""

    def __init__(self, rights: list[Right], session: Session, channel: WebSocketChannel) -> None:
        self._rights = rights
        self._session, self._channel = session, channel

    @property
    def rights(self) -> list[Right]:
        return [*self._rights, *self._session.rights]

    def revoke(self) -> None:
        self._end("Not authorized any more")

    def lose_login(self) -> None:
        """The credentials of the upgrade have expired, or their key was taken away."""
        self._end("Not authenticated any more")

    def _end(self, reason: str) -> None:
        self._session.close()  # at once; what is queued may take the client a while to read
        self._channel.close_soon(_NOT_AUTHORIZED, reason)


async def _run(
    websocket: WebSocket, session: Session, service: BrokerService, rights: list[Right]
) -> None:
    config = service.config
    await websocket.accept()
    channel = WebSocketChannel(
        websocket,
        config.web_socket_session_idle_timeout_millis / 1000,
        config.web_socket_max_text_frame_size,
    )
    channel.watch_idle()
    guarded = _AuthorizedSocket(rights, session, channel)
    live: AuthenticatedRequest | None = websocket.scope["state"].get("live_request")
    if live is not None:
        live.end = guarded.lose_login
    try:
        if (access := service.access) is not None:
            access.start_use(guarded)
            if isinstance(session, PatternSession):
                session.on_rights = partial(access.start_use, guarded)
        await channel.run(session.run)
    except (WebSocketDisconnect, OSError):
        pass
    except Exception:
        logger.exception("WebSocket session failed")
        channel.close_soon(INTERNAL, "Internal error")
    finally:
        if service.access is not None:
            service.access.live.discard(guarded)
        await channel.finish()


async def _refuse(websocket: WebSocket, error: Exception) -> None:
    await websocket.send_denial_response(_denial(error))


def _denial(error: Exception) -> Response:
    """HTTP status of a refused upgrade."""
    match error:
        case ApiError(status=412):
            return error_response(400, str(error))
        case TopicTerminatedError():
            return error_response(503, str(error))
        case ProducerBlockedQuotaExceededError() | ProducerBlockedQuotaExceededExceptionError():
            return error_response(503, str(error))
        case ConsumerBusyError():
            return error_response(409, str(error))
        case BrokerError() if error.http_status == 412:
            return error_response(400, str(error))
    return response_of(error)
