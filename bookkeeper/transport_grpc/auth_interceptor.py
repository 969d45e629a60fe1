"""The interceptor of a bookie's calls: what gRPC says of a caller, and how one is refused.

A caller is judged by the head of the call, before any of its messages is read: whoever isn't known
costs a stream and no memory.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.auth.errors import CredentialsError, RoleNotAllowedError
from magnetar.bookkeeper.auth.refusal_log import RefusalLog
from magnetar.bookkeeper.bookie_protocol.own_login import REFUSED
from magnetar.bookkeeper.transport_grpc.config import AUTHORIZATION_HEADER, BEARER

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

    async def left_s(self, context: Any) -> float:
        """How long a call that was let in may go on before it has to ask again."""
        token = _token_of(context.invocation_metadata())
        certificate = None if token is not None else certificate_of(context)
        try:
            return self.authenticator.left_s(token, certificate)
        except CredentialsError as error:
            await self._refuse(context, error)
            raise  # abort never returns

    async def _check_certificate(self, context: Any) -> None:
        try:
            self.authenticator.admit(None, certificate_of(context))
        except CredentialsError as error:
            await self._refuse(context, error)

    async def _refuse(self, context: Any, error: CredentialsError) -> None:
        self._refusals.add(address=context.peer(), listener="bookie", reason=str(error))
        if isinstance(error, RoleNotAllowedError):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "This role may not use bookies")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)


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
