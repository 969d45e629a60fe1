"""The settings of who may use a bookie, as configuration files name them: Pulsar's keys, and ours.

The same keys hold for a bookie and for ``magnetar autorecovery``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from magnetar.bookkeeper.auth.bookie_authenticator import AuthSettings
from magnetar.bookkeeper.auth.tokens import TokenRules

_SWITCH = "authentication_enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettingsBase:
    """Base of settings classes; attribute names are the keys in snake case."""

    authentication_enabled: bool = False
    authentication_providers: str = ""  # comma list of token, tls
    bookie_allowed_roles: str = ""  # own key: comma list of roles, *: every role
    token_secret_key: str = field(default="", repr=False)
    token_public_key: str = ""
    token_previous_secret_key: str = field(default="", repr=False)  # own keys: good as well
    token_previous_public_key: str = ""
    token_auth_claim: str = "sub"
    token_audience_claim: str = ""
    token_audience: str = ""
    token_allowed_clock_skew_seconds: float = 0.0

    def auth_settings(self) -> AuthSettings | None:
        """None: whoever comes is let in.

        Raises:
            ValueError: settings that don't go together.
        """
        if not self.authentication_enabled:
            return None
        audiences = _words(self.token_audience)
        if self.token_audience_claim and not audiences:
            raise ValueError("tokenAudienceClaim is set, but tokenAudience is not")
        return AuthSettings(
            providers=_words(self.authentication_providers),
            secret_keys=_given(self.token_secret_key, self.token_previous_secret_key),
            public_keys=_given(self.token_public_key, self.token_previous_public_key),
            rules=TokenRules(
                role_claim=self.token_auth_claim or "sub",
                audience_claim=self.token_audience_claim or ("aud" if audiences else ""),
                audiences=audiences,
                clock_skew_s=self.token_allowed_clock_skew_seconds,
            ),
            allowed_roles=frozenset(_words(self.bookie_allowed_roles)),
        )

    def without_effect(self) -> str:
        """What to warn of at the start; "": nothing.

        Whoever names keys means them to be asked for; one forgotten line, and everybody gets in.
        """
        if self.authentication_enabled:
            return ""
        given = [
            _key(each.name)
            for each in fields(AuthSettingsBase)
            if each.name != _SWITCH and getattr(self, each.name) not in (each.default, "")
        ]
        if not given:
            return ""
        return f"{', '.join(given)}: without effect, because authenticationEnabled is not true"


def _key(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _given(*sources: str) -> tuple[str, ...]:
    return tuple(source for source in sources if source)
