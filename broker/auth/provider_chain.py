"""The providers that are asked for each method, and the roles that may speak for others."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.auth.tokens import checked_role
from magnetar.broker.auth.provider import AuthenticationProvider
from magnetar.broker.errors import AuthenticationError, AuthorizationError


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows on one connection or with one request."""

    method: str  # "" or "none": nothing
    data: bytes = field(default=b"", repr=False)
    certificate: bytes | None = None  # DER, verified by TLS


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """The client at the other end."""

    role: str  # proved
    original_role: str | None = None  # for whom a proxy speaks; None: for itself
    expires_at_s: float | None = None  # then credentials have to be renewed


class ProviderChain:
    """The configured providers in their order; pure."""

    def __init__(
        self,
        providers: Sequence[AuthenticationProvider],
        anonymous_role: str,
        proxy_roles: frozenset[str],
    ) -> None:
        """``anonymous_role``: of clients that show nothing; "": they are refused."""
        self.anonymous_role = anonymous_role
        self.proxy_roles = proxy_roles
        self._by_method: dict[str, tuple[AuthenticationProvider, ...]] = {}
        for provider in providers:
            known = self._by_method.get(provider.method, ())
            self._by_method[provider.method] = (*known, provider)

    @property
    def methods(self) -> tuple[str, ...]:
        """In configured order."""
        return tuple(self._by_method)

    def providers(self, method: str) -> tuple[AuthenticationProvider, ...]:
        """The providers that judge credentials of a method; none: the client is anonymous.

        Raises:
            AuthenticationError: no provider knows the method, and there is no anonymous role.
        """
        found = self._by_method.get(method, ())
        if not found and not self.anonymous_role:
            raise AuthenticationError("no credentials of a method that is configured")
        return found

    def check_original(self, role: str, original: str | None, *, same_is_good: bool) -> str | None:
        """The role for which ``role`` speaks (AuthorizationService.isValidOriginalPrincipal).

        Args:
            original: the role that it names; None or "": none.
            same_is_good: naming oneself is no claim (HTTP).
        Raises:
            AuthorizationError: it may not, or a proxy names no role.
            AuthenticationError: what it names is no role.
        """
        if role in self.proxy_roles:
            if not original or not original.strip():
                raise AuthorizationError("a proxy role must name an original principal")
            if original in self.proxy_roles:
                raise AuthorizationError("the original principal can't be a proxy role")
            try:
                return checked_role(original)
            except CredentialsError as error:
                raise AuthenticationError(str(error)) from None
        if original and original.strip() and not (same_is_good and original == role):
            raise AuthorizationError("only proxy roles may name an original principal")
        return None
