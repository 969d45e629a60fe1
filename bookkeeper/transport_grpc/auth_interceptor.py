"""The interceptor of a bookie's calls: what gRPC says of a caller, and how one is refused.

A caller is judged by the head of the call, before any of its messages is read: whoever isn't known
costs a stream and no memory. An add stream that lives on is judged again whenever what was found
may not hold any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.auth.errors import CredentialsError, RoleNotAllowedError
from magnetar.bookkeeper.auth.refusal_log import RefusalLog
from magnetar.bookkeeper.transport_grpc.config import AUTHORIZATION_HEADER, BEARER

T = TypeVar("T")

REFUSED: Final = "Failed to authenticate"
"""All that a client is told, whatever was wrong with what it has shown."""
_CERTIFICATE: Final = "x509_pem_cert"


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Lets calls pass, or answers them itself."""

    def __init__(self, authenticator: BookieAuthenticator) -> None:
        self.authenticator = authenticator
        self._refusals = RefusalLog(logging.getLogger("magnetar.bookkeeper.audit"))

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        token = _token_of(handler_call_details.invocation_metadata)
        if token is None:
            # Then by the certificate, which only the call itself knows.
            return _guarded(await continuation(handler_call_details), self._check_certificate)
        try:
            self.authenticator.admit(token, None)
        except CredentialsError as error:
            return _refusing(self._refuse, error)
        return await continuation(handler_call_details)

    def watch(self, context: Any) -> "StreamAuthorization":
        """Of an add stream that was let in."""
        return StreamAuthorization(self, context)

    async def left_s(self, context: Any) -> float:
        """How long a call that was let in may go on before it has to ask again."""
        return await self._checked(context, self.authenticator.left_s)

    async def role(self, context: Any) -> str:
        """Whose call it is that was let in."""
        return (await self._checked(context, self.authenticator.admit)).role

    async def _checked(self, context: Any, admit: Callable[[str | None, bytes | None], T]) -> T:
        token = _token_of(context.invocation_metadata())
        certificate = None if token is not None else certificate_of(context)
        try:
            return admit(token, certificate)
        except CredentialsError as error:
            await self._refuse(context, error)
            raise  # abort never returns

    async def _check_certificate(self, context: Any) -> None:
        try:
            self.authenticator.admit(None, certificate_of(context))
        except CredentialsError as error:
            await self._refuse(context, error)

    async def _refuse(self, context: Any, error: CredentialsError) -> None:
        self.note(context, error)
        if isinstance(error, RoleNotAllowedError):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "This role may not use bookies")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)

    def note(self, context: Any, error: CredentialsError) -> None:
        self._refusals.add(address=context.peer(), listener="bookie", reason=str(error))


class StreamAuthorization:
    """Judges one stream as long as it lives (``StreamAuthorizer``)."""

    def __init__(self, admissions: AuthInterceptor, context: Any) -> None:
        self._admissions = admissions
        self._context = context
        self._token = _token_of(context.invocation_metadata())
        self._certificate = None if self._token is not None else certificate_of(context)
        self._refuse: Callable[[str], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, refuse: Callable[[str], None]) -> None:
        self._refuse = refuse
        self._look()

    def end(self) -> None:
        self._refuse = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._refuse is None:
            return
        try:
            left_s = self._admissions.authenticator.left_s(self._token, self._certificate)
        except CredentialsError as error:
            self._admissions.note(self._context, error)
            self._refuse(REFUSED)
            return
        self._timer = asyncio.get_running_loop().call_later(left_s, self._look)


def certificate_of(context: Any) -> bytes | None:
    """PEM, verified by TLS; None: the client has shown none."""
    found = context.auth_context().get(_CERTIFICATE)
    return found[0] if found else None


def _token_of(metadata: Any) -> str | None:
    for key, value in metadata:
        if key == AUTHORIZATION_HEADER:
            return str(value.removeprefix(BEARER)) if isinstance(value, str) else ""
    return None


# Both as streams, whatever the call is: gRPC reads nothing of a stream before it is asked to.


def _refusing(
    refuse: Callable[[Any, CredentialsError], Awaitable[None]], error: CredentialsError
) -> Any:
    async def answer(_requests: object, context: Any) -> None:
        await refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(answer)


def _guarded(handler: Any, check: Callable[[Any], Awaitable[None]]) -> Any:
    async def answer(requests: object, context: Any) -> None:
        await check(context)
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")
        if handler.stream_stream is not None:
            await handler.stream_stream(requests, context)
            return
        request = await context.read()
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without its request")
        if handler.unary_stream is not None:
            await handler.unary_stream(request, context)
        else:
            await context.write(await handler.unary_unary(request, context))

    return grpc.stream_stream_rpc_method_handler(answer)
