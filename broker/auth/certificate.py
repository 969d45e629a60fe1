"""Client certificates: the role is the common name (AuthenticationProviderTls)."""

from magnetar.bookkeeper.auth.certificates import common_name
from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.auth.tokens import Principal, checked_role


class CertificateProvider:
    """The certificate was verified by TLS, or there would be none."""

    method = "tls"
    is_slow = False

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        if certificate is None:
            raise CredentialsError("no client certificate")
        # Not its expiry as the principal's: a live connection could not be given another one, and
        # Pulsar lets it live, too.
        return Principal(checked_role(common_name(certificate)))
