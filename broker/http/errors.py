"""Errors of the HTTP surface and their one body: ``{"reason": "..."}``.

    RedirectError             307: another broker serves it
    ApiError                  a status and a reason, raised by routes
    BrokerError (broker)      carries its own http_status; 503 where the metadata store is the cause
    BundleError (bundles)     503 while a bundle is changing hands, or nobody can tell whose it is;
                              307 where another broker owns it
    MetadataError (metadata)  503 when the store can't be reached or can't tell; 412 for a value
                              that is larger than a node of it

Everything else is our bug: 500, logged with a request id that the answer repeats.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from magnetar.broker.errors import BrokerError
from magnetar.broker.http.page_answers import refusal_for
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.logs import REQUEST_ID
from magnetar.broker.protocol.topic_name import InvalidTopicNameError
from magnetar.bundles.errors import BundleBusyError, BundleNotReadyError
from magnetar.metadata.errors import (
    MetadataWriteError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
    StoreUnreachableError,
    ValueTooLargeError,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_UNAVAILABLE = (
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,  # this broker is shutting down
    StoreUnreachableError,
    MetadataWriteError,
)
"""Of the metadata store: nothing is wrong with the request, and it may be made again."""
_CHANGING = (BundleBusyError, BundleNotReadyError)
"""Of bundles: the same. Not InvalidBundleError: that is a document nobody can read."""


class ApiError(Exception):
    """An answer other than success; ``str(error)`` is the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@contextmanager
def answer_for(kind: type[Exception], status: int, reason: str = "") -> Iterator[None]:
    """Raise an ApiError in place of errors of a kind; without ``reason``: with their own."""
    try:
        yield
    except kind as error:
        raise ApiError(status, reason or str(error)) from error


class RedirectError(Exception):
    """Another broker serves this: the client is to ask there, with the same method and body."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


def error_response(status: int, reason: str) -> Response:
    return JsonResponse({"reason": reason}, status)


async def refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or an upgrade to WebSocket, with it."""
    if scope["type"] == "http":
        await refusal_for(scope, response)(scope, receive, send)
        return
    kind = "websocket.http.response"
    status, headers = response.status_code, response.raw_headers
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": bytes(response.body)})


def _is_of_store(error: BaseException | None) -> bool:
    """Whether it was raised because the metadata store didn't answer."""
    while error is not None and not isinstance(error, _UNAVAILABLE):
        error = error.__cause__
    return error is not None


def response_of(error: Exception) -> Response:
    """The answer for an error raised while a request was served."""
    match error:
        case RedirectError():
            return Response(status_code=307, headers={"Location": error.location})
        case ApiError():
            return error_response(error.status, str(error))
        case BrokerError():
            status = error.http_status
            return error_response(
                503 if status == 500 and _is_of_store(error) else status, str(error)
            )
        case InvalidTopicNameError() | ValueTooLargeError():
            return error_response(412, str(error))
        case _ if isinstance(error, _UNAVAILABLE):
            return error_response(503, f"metadata store: {error}")
        case _ if isinstance(error, _CHANGING):
            return error_response(503, str(error))
        case HTTPException():
            answer = error_response(error.status_code, str(error.detail))
            answer.headers.update(error.headers or {})
            return answer
    request_id = REQUEST_ID.get() or secrets.token_hex(6)
    logger.error("request %s failed", request_id, exc_info=error)
    return error_response(500, f"Internal server error, see the broker's log for {request_id}")
