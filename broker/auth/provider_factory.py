"""The chain of providers that the settings ask for; keys and password files are read here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.auth.errors import KeyFormatError
from magnetar.bookkeeper.auth.keys import (
    VerificationKey,
    file_of,
    load_key,
    read_source,
)
from magnetar.bookkeeper.auth.tokens import TokenRules
from magnetar.broker.auth.basic import BasicProvider, parse_htpasswd
from magnetar.broker.auth.file_renewal import KeyFile
from magnetar.broker.auth.issuer_keys import IssuerKeys, IssuerSettings
from magnetar.broker.auth.openid import OpenIdProvider
from magnetar.broker.auth.provider import AuthenticationProvider, CertificateProvider, TokenProvider
from magnetar.broker.auth.provider_chain import ProviderChain
from magnetar.broker.config import BrokerConfig, ConfigError

_PREFIX: Final = "org.apache.pulsar.broker.authentication."
_NAMES: Final = {
    "token": "token",
    "tls": "tls",
    "basic": "basic",
    "openid": "openid",
    "AuthenticationProviderToken": "token",
    "AuthenticationProviderTls": "tls",
    "AuthenticationProviderBasic": "basic",
    "oidc.AuthenticationProviderOpenID": "openid",
    "AuthenticationProviderOpenID": "openid",
}
_TOKEN_KEYS: Final = (
    ("tokenSecretKey", "token_secret_key", True),
    ("tokenPublicKey", "token_public_key", False),
    ("tokenPreviousSecretKey", "token_previous_secret_key", True),
    ("tokenPreviousPublicKey", "token_previous_public_key", False),
)
"""Setting, attribute, whether the key is secret."""


@dataclass(frozen=True, slots=True)
class AuthenticationParts:
    chain: ProviderChain
    issuers: IssuerKeys | None  # with an openid provider


def words(text: str) -> tuple[str, ...]:
    """The members of a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def build(config: BrokerConfig, issuers: IssuerKeys | None = None) -> AuthenticationParts | None:
    """What ``authenticationEnabled=true`` means; None: it is off.

    Args:
        issuers: of an earlier call, with the keys that they have fetched since.
    Raises:
        ConfigError: an unknown provider, or a key or file that can't be used.
    """
    if not config.authentication_enabled:
        return None
    try:
        return _build(config, issuers)
    except KeyFormatError as error:
        raise ConfigError(str(error)) from None


def _build(config: BrokerConfig, issuers: IssuerKeys | None) -> AuthenticationParts:
    kinds = [_kind(name) for name in words(config.authentication_providers)]
    if len(set(kinds)) < len(kinds):
        raise ConfigError("authenticationProviders names a provider twice")
    if not kinds and not config.anonymous_user_role:
        raise ConfigError("authenticationEnabled=true needs authenticationProviders")
    providers: list[AuthenticationProvider] = []
    for kind in kinds:
        match kind:
            case "token":
                key, *more = _token_keys(config)
                providers.append(TokenProvider(key, _token_rules(config), *more))
            case "basic":
                if not config.basic_auth_conf:
                    raise ConfigError("the basic provider needs basicAuthConf")
                content = read_source(config.basic_auth_conf, "basicAuthConf")
                providers.append(BasicProvider(parse_htpasswd(content, "basicAuthConf")))
            case "tls":
                providers.append(_certificate_provider(config))
            case _:
                issuers = issuers or IssuerKeys(_issuer_settings(config))
                providers.append(_open_id_provider(config, issuers))
    chain = ProviderChain(
        providers, config.anonymous_user_role, frozenset(words(config.proxy_roles))
    )
    return AuthenticationParts(chain, issuers)


def key_files(config: BrokerConfig) -> list[KeyFile]:
    """The files among the settings of authentication."""
    found = []
    for setting, name, is_secret in (*_TOKEN_KEYS, ("basicAuthConf", "basic_auth_conf", True)):
        try:
            path = file_of(source) if (source := getattr(config, name)) else None
        except (OSError, ValueError):  # `_build` tells it
            path = None
        if path is not None:
            found.append(KeyFile(setting, path, is_secret))
    return found


def _kind(name: str) -> str:
    if (kind := _NAMES.get(name.removeprefix(_PREFIX))) is None:
        known = ", ".join(sorted(set(_NAMES.values())))
        raise ConfigError(f"authenticationProviders: {name} is not one of {known}")
    return kind


def _token_keys(config: BrokerConfig) -> list[VerificationKey]:
    """The one in use, then those that are good beside it, until their tokens have
    expired."""
    secret, public = config.token_secret_key, config.token_public_key
    if bool(secret) == bool(public):
        raise ConfigError("the token provider needs tokenSecretKey or tokenPublicKey, not both")
    keys = [
        load_key(source, setting, is_secret=is_secret)
        for setting, name, is_secret in _TOKEN_KEYS
        if (source := getattr(config, name))
    ]
    algorithm, known = config.token_public_alg, keys[0].algorithms
    if public and algorithm and algorithm not in known:
        raise ConfigError(f"tokenPublicAlg={algorithm}: tokenPublicKey is for {', '.join(known)}")
    return keys


def _token_rules(config: BrokerConfig) -> TokenRules:
    claim, audiences = config.token_audience_claim, words(config.token_audience)
    if claim and not audiences:
        raise ConfigError("tokenAudienceClaim is set, but tokenAudience is not")
    return TokenRules(
        role_claim=config.token_auth_claim or "sub",
        # An audience alone is checked, too; Pulsar would ignore it.
        audience_claim=claim or ("aud" if audiences else ""),
        audiences=audiences,
        clock_skew_s=config.token_allowed_clock_skew_seconds,
    )


def _certificate_provider(config: BrokerConfig) -> CertificateProvider:
    if not config.tls_trust_certs_file_path:
        raise ConfigError("the tls provider needs tlsTrustCertsFilePath")
    if config.tls_allow_insecure_connection:
        raise ConfigError(
            "the tls provider and tlsAllowInsecureConnection=true: anybody could be anyone"
        )
    return CertificateProvider()


def _issuer_settings(config: BrokerConfig) -> IssuerSettings:
    trusted = config.open_id_token_issuer_trust_certs_file_path
    return IssuerSettings(
        trust_certificates=Path(trusted) if trusted else None,
        timeout_s=config.open_id_http_read_timeout_millis / 1000,
        expire_s=config.open_id_cache_expiration_seconds,
        refresh_s=config.open_id_cache_refresh_after_write_seconds,
        miss_refresh_s=config.open_id_key_id_cache_miss_refresh_seconds,
        https_only=config.open_id_require_issuers_use_https,
    )


def _open_id_provider(config: BrokerConfig, issuers: IssuerKeys) -> OpenIdProvider:
    allowed = words(config.open_id_allowed_token_issuers)
    audiences = words(config.open_id_allowed_audiences)
    if not allowed or not audiences:
        raise ConfigError(
            "the openid provider needs openIDAllowedTokenIssuers and openIDAllowedAudiences"
        )
    for issuer in allowed:
        if config.open_id_require_issuers_use_https and not issuer.startswith("https://"):
            raise ConfigError(f"openIDAllowedTokenIssuers: {issuer} does not use https")
    rules = TokenRules(
        role_claim=config.open_id_role_claim or "sub",
        audience_claim="aud",
        audiences=audiences,
        clock_skew_s=config.open_id_accepted_time_leeway_seconds,
        needs_expiry=True,
    )
    return OpenIdProvider(frozenset(allowed), rules, issuers.known)
