"""Which provider is asked, who may speak for others, what is remembered."""

import asyncio
import json
import logging
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError
from magnetar.bookkeeper.auth.keys import load_secret_key
from magnetar.bookkeeper.auth.tokens import Principal, TokenRules
from magnetar.broker.auth.authenticator import Authenticator
from magnetar.broker.auth.basic import BasicProvider
from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.openid import OpenIdProvider, parse_discovery, parse_key_set
from magnetar.broker.auth.password_checks import PasswordChecks
from magnetar.broker.auth.provider import (
    AuthenticationProvider,
    KeysNeededError,
    TokenProvider,
)
from magnetar.broker.auth.provider_chain import Credentials, ProviderChain
from magnetar.broker.auth.provider_factory import build
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.errors import AuthenticationError, AuthorizationError

SECRET = b"0123456789abcdef0123456789abcdef"
NOW_S = 1_800_000_000.0
ISSUER = "https://issuer.test/realm"


class Counting:
    """A provider that says yes to one word and counts."""

    is_slow = False

    def __init__(self, method: str, word: bytes) -> None:
        self.method, self.word = method, word
        self.calls = 0

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        self.calls += 1
        if data != self.word:
            raise AuthenticationError("no")
        return Principal(self.word.decode(), now_s + 100)


class Unknown:
    """A provider whose issuer's keys aren't known."""

    method, is_slow = "token", False

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        raise KeysNeededError(ISSUER)


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def authenticator(
    *providers: AuthenticationProvider, anonymous: str = "", clock: Clock | None = None
) -> Authenticator:
    return Authenticator(ProviderChain(providers, anonymous, frozenset()), clock_s=clock or Clock())


async def test_providers_of_one_method_are_asked_in_turn() -> None:
    first, second = Counting("token", b"a"), Counting("token", b"b")
    subject = authenticator(first, second)
    assert subject.authenticate_nowait(Credentials("token", b"b")) == Principal("b", NOW_S + 100)
    assert (first.calls, second.calls) == (1, 1)
    with pytest.raises(AuthenticationError):
        subject.authenticate_nowait(Credentials("token", b"c"))


async def test_no_credentials_are_anonymous_only_where_there_is_such_a_role() -> None:
    with pytest.raises(AuthenticationError):
        authenticator(Counting("token", b"a")).authenticate_nowait(Credentials("none"))
    subject = authenticator(Counting("token", b"a"), anonymous="nobody")
    assert subject.authenticate_nowait(Credentials("none")) == Principal("nobody")
    with pytest.raises(AuthenticationError):  # wrong ones are not none
        subject.authenticate_nowait(Credentials("token", b"x"))


async def test_credentials_are_remembered_for_a_minute_and_never_beyond_their_end() -> None:
    clock, provider = Clock(), Counting("token", b"a")
    subject = authenticator(provider, clock=clock)
    shown = Credentials("token", b"a")
    for seconds, calls in ((0, 1), (59, 1), (60, 2), (119, 2), (120, 3)):
        clock.now_s = NOW_S + seconds
        subject.authenticate_nowait(shown)
        assert provider.calls == calls
    ends = authenticator(
        TokenProvider(load_secret_key(SECRET, "k"), TokenRules()), clock=(clock := Clock())
    )
    token = Credentials("token", jwt.encode({"sub": "a", "exp": NOW_S + 5}, SECRET).encode())
    assert ends.authenticate_nowait(token) is not None
    clock.now_s = NOW_S + 5
    with pytest.raises(AuthenticationError, match="expired"):
        ends.authenticate_nowait(token)


async def test_what_was_remembered_of_one_method_or_certificate_says_nothing_of_another() -> None:
    token, password = Counting("token", b"a"), Counting("basic", b"b")
    subject = authenticator(token, password)
    subject.authenticate_nowait(Credentials("token", b"a"))
    with pytest.raises(AuthenticationError):
        subject.authenticate_nowait(Credentials("basic", b"a"))
    # One part must not run over into the next
    subject.authenticate_nowait(Credentials("token", b"a", b"xy"))
    assert token.calls == 2


class Checks(PasswordChecks):
    """No processes: a hash is its password, and answers come when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[bytes, bool]] = []
        self.is_asked, self.go = asyncio.Event(), asyncio.Event()

    async def check(
        self, digest: str, password: bytes, *, address: str, name: str, is_trusted: bool
    ) -> bool:
        self.asked.append((password, is_trusted))
        self.is_asked.set()
        await self.go.wait()
        return password == digest.encode()


def by_password(checks: Checks, clock: Clock | None = None) -> Authenticator:
    chain = ProviderChain([BasicProvider({"joe": "a"})], "", frozenset())
    return Authenticator(chain, passwords=checks, clock_s=clock or Clock())


async def test_a_slow_check_leaves_the_loop_and_equal_ones_are_one() -> None:
    checks = Checks()
    subject = by_password(checks)
    shown = Credentials("basic", b"joe:a")
    assert subject.authenticate_nowait(shown) is None
    logins = [asyncio.create_task(subject.authenticate(shown)) for _ in range(50)]
    await asyncio.wait_for(checks.is_asked.wait(), 30)
    logins[0].cancel()  # a client that left takes nobody with it
    checks.go.set()
    roles = await asyncio.gather(*logins, return_exceptions=True)
    assert [role for role in roles[1:] if role != Principal("joe")] == []
    assert checks.asked == [(b"a", False)]
    assert subject.authenticate_nowait(shown) is not None
    subject.close()


async def test_whose_password_was_good_before_waits_for_nobody() -> None:
    clock, checks = Clock(), Checks()
    subject = by_password(checks, clock)
    checks.go.set()
    shown = Credentials("basic", b"joe:a")
    for seconds in (0, 61, 10_000):
        clock.now_s = NOW_S + seconds
        assert subject.authenticate_nowait(shown) is None  # too long ago to be believed unchecked
        assert (await subject.authenticate(shown)).role == "joe"
    with pytest.raises(AuthenticationError):
        await subject.authenticate(Credentials("basic", b"joe:b"))
    assert checks.asked == [(b"a", False), (b"a", True), (b"a", True), (b"b", False)]
    subject.use(ProviderChain([BasicProvider({"joe": "b"})], "", frozenset()))
    with pytest.raises(AuthenticationError):
        await subject.authenticate(shown)
    assert checks.asked[4:] == [(b"a", False)]
    subject.close()


async def test_who_waits_for_an_issuer_leaves_room_for_others() -> None:
    """Random key ids, sent faster than issuers answer, kept everybody else out."""
    subject, go = authenticator(Unknown()), asyncio.Event()

    class Issuers:
        async def fetch(self, issuer: str) -> bool:
            await go.wait()
            return False

        def close(self) -> None:
            pass

    subject.issuers = Issuers()  # type: ignore[assignment]  # the part that is used
    guesses = [
        asyncio.create_task(subject.authenticate(Credentials("token", b"%d" % number), "10.0.0.1"))
        for number in range(1000)
    ]
    await asyncio.wait(guesses, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    one_more = Credentials("token", b"a")
    with pytest.raises(TooManyChecksError):
        subject.authenticate_or_wait(one_more, "10.0.0.1")
    assert subject.authenticate_or_wait(one_more, "10.0.0.2") is None
    go.set()
    errors = await asyncio.gather(*guesses, return_exceptions=True)
    assert len([error for error in errors if isinstance(error, TooManyChecksError)]) == 1000 - 128
    assert subject.authenticate_or_wait(one_more, "10.0.0.1") is None
    assert not subject._fetching_for
    subject.close()


def test_who_may_speak_for_others() -> None:
    chain = ProviderChain((), "", frozenset({"proxy", "other-proxy"}))
    assert chain.check_original("alice", None, same_is_good=False) is None
    assert chain.check_original("alice", "", same_is_good=False) is None
    assert chain.check_original("proxy", "alice", same_is_good=False) == "alice"
    assert chain.check_original("alice", "alice", same_is_good=True) is None
    for role, original, same in (
        ("alice", "bob", True),
        ("alice", "alice", False),
        ("alice", "proxy", False),
        ("proxy", None, False),
        ("proxy", " ", False),
        ("proxy", "proxy", True),
        ("proxy", "other-proxy", False),
    ):
        with pytest.raises(AuthorizationError):
            chain.check_original(role, original, same_is_good=same)
    with pytest.raises(AuthenticationError):
        chain.check_original("proxy", "a\nb", same_is_good=False)


async def test_refusals_are_logged_but_not_all_of_a_flood(caplog: Any) -> None:
    subject = authenticator(Counting("token", b"a"))
    with caplog.at_level(logging.WARNING, "magnetar.broker.audit"):
        for _ in range(1000):
            subject.refusal("10.0.0.1:5", "binary", "to\nken", AuthenticationError("no token"))
    assert subject.refused == {"other": 1000}
    assert 10 <= len(caplog.records) < 100
    text = 'address=10.0.0.1:5 listener=binary method="to\\nken" reason="no token"'
    assert text in caplog.text


# --- settings


def config(**settings: object) -> BrokerConfig:
    return BrokerConfig().with_keys({"authenticationEnabled": True, **settings})


TOKEN = {"authenticationProviders": "token", "tokenSecretKey": "data:," + SECRET.decode()}
JAVA = "org.apache.pulsar.broker.authentication."


def test_off_is_nothing_at_all() -> None:
    assert build(BrokerConfig()) is None
    assert Authenticator.of_config(BrokerConfig()) is None


@pytest.mark.parametrize("name", ["token", JAVA + "AuthenticationProviderToken"])
def test_providers_by_their_names(name: str) -> None:
    parts = build(config(**{**TOKEN, "authenticationProviders": name}))
    assert parts is not None
    assert parts.chain.methods == ("token",)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "needs authenticationProviders"),
        ({"authenticationProviders": "kerberos"}, "kerberos is not one of"),
        ({"authenticationProviders": JAVA + "AuthenticationProviderSasl"}, "Sasl is not one of"),
        ({"authenticationProviders": "token"}, "tokenSecretKey or tokenPublicKey"),
        ({**TOKEN, "tokenPublicKey": "data:,x"}, "not both"),
        ({**TOKEN, "authenticationProviders": "token,token"}, "twice"),
        ({**TOKEN, "tokenAudienceClaim": "aud"}, "tokenAudience is not"),
        ({**TOKEN, "tokenSecretKey": "data:,short"}, "tokenSecretKey: 5 bytes"),
        ({"authenticationProviders": "basic"}, "basicAuthConf"),
        ({"authenticationProviders": "basic", "basicAuthConf": "data:,x"}, "line 1"),
        ({"authenticationProviders": "tls"}, "tlsTrustCertsFilePath"),
        (
            {
                "authenticationProviders": "tls",
                "tlsTrustCertsFilePath": "ca.pem",
                "tlsAllowInsecureConnection": True,
            },
            "anybody could be anyone",
        ),
        ({"authenticationProviders": "openid"}, "openIDAllowedTokenIssuers"),
        (
            {
                "authenticationProviders": JAVA + "oidc.AuthenticationProviderOpenID",
                "openIDAllowedTokenIssuers": "http://issuer.test",
                "openIDAllowedAudiences": "us",
            },
            "does not use https",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_start(
    settings: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        build(config(**settings))


def test_secrets_are_not_shown_with_the_settings() -> None:
    settings = config(**TOKEN, basicAuthConf="data:,u:pw")
    shown = json.dumps(settings.as_keys()) + repr(settings)
    assert SECRET.decode() not in shown
    assert "u:pw" not in shown


# --- OpenID Connect


def _key_set(*keys: tuple[str, rsa.RSAPrivateKey], **extra: object) -> bytes:
    listed = [
        {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": kid, **extra}
        for kid, key in keys
    ]
    return json.dumps({"keys": listed}).encode()


RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CLAIMS = {"iss": ISSUER, "aud": "us", "sub": "carol", "exp": NOW_S + 60}
RULES = TokenRules(audience_claim="aud", audiences=("us",), needs_expiry=True)


def _ask(provider: OpenIdProvider, claims: dict[str, Any], kid: str = "one") -> Principal:
    claims = {name: value for name, value in claims.items() if value is not None}
    token = jwt.encode(claims, RSA_KEY, "RS256", headers={"kid": kid})
    return provider.authenticate("token", token.encode(), None, NOW_S)


def test_open_id_tokens_are_checked_with_the_issuers_keys() -> None:
    known = {ISSUER: parse_key_set(_key_set(("one", RSA_KEY)), ISSUER)}
    provider = OpenIdProvider(frozenset({ISSUER}), RULES, known)
    assert _ask(provider, CLAIMS) == Principal("carol", NOW_S + 60)
    for change, text in (
        ({"iss": "https://evil.test"}, "isn't allowed"),
        ({"aud": "them"}, "another audience"),
        ({"exp": NOW_S - 1}, "expired"),
        ({"exp": None}, "never expires"),
        ({"iss": None}, "no issuer"),
        ({"sub": ""}, "no role"),
    ):
        with pytest.raises(CredentialsError, match=text):
            _ask(provider, {**CLAIMS, **change})
    with pytest.raises(KeysNeededError):
        _ask(provider, CLAIMS, kid="two")
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forged = jwt.encode(CLAIMS, other, "RS256", headers={"kid": "one"})
    with pytest.raises(CredentialsError, match="InvalidSignature"):
        provider.authenticate("token", forged.encode(), None, NOW_S)


def test_keys_of_an_issuer_are_for_their_own_use_only() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    listed = json.loads(_key_set(("one", RSA_KEY), alg="RS512"))["keys"]
    content = json.dumps({"keys": [secret, 7, {"kty": "RSA", "kid": "x"}, *listed]}).encode()
    keys = parse_key_set(content, ISSUER)
    assert list(keys) == ["one"]
    assert keys["one"].algorithms == ("RS512",)
    for useless in (b"", b"[]", b'{"keys":[]}', _key_set(("one", RSA_KEY), use="enc")):
        with pytest.raises(KeyFormatError):
            parse_key_set(useless, ISSUER)


_entry = st.dictionaries(
    st.sampled_from(["kty", "kid", "use", "alg", "n", "e", "crv", "x", "y", "k"]),
    st.none()
    | st.integers()
    | st.sampled_from(["RSA", "EC", "OKP", "oct", "sig", "AQAB", "P-256"]),
)


@given(st.lists(_entry | st.integers()) | st.none())
@settings(max_examples=100, deadline=None)
def test_any_key_set_is_parsed_or_refused(listed: object) -> None:
    try:
        keys = parse_key_set(json.dumps({"keys": listed}).encode(), ISSUER)
    except KeyFormatError:
        return
    assert all(key.algorithms for key in keys.values())


def test_a_discovery_document_must_be_the_issuers_own() -> None:
    good = {"issuer": ISSUER, "jwks_uri": "https://issuer.test/keys"}
    assert parse_discovery(json.dumps(good).encode(), ISSUER) == "https://issuer.test/keys"
    documents: list[object] = [{**good, "issuer": "https://evil.test"}, {"issuer": ISSUER}, []]
    for bad in documents:
        with pytest.raises(KeyFormatError):
            parse_discovery(json.dumps(bad).encode(), ISSUER)
