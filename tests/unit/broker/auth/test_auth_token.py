"""Tokens: what is accepted, and everything that must not be."""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError
from magnetar.bookkeeper.auth.keys import (
    PrivateKey,
    VerificationKey,
    load_private_key,
    load_public_key,
    load_secret_key,
    read_source,
)
from magnetar.bookkeeper.auth.tokens import Principal, TokenRules
from magnetar.broker.auth.provider import TokenProvider
from magnetar.broker.auth.provider_factory import build, key_files
from magnetar.broker.config import BrokerConfig

NOW_S = 1_800_000_000.0
SECRET = bytes(range(32))
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
DER, PEM = serialization.Encoding.DER, serialization.Encoding.PEM


def public_bytes(key: PrivateKey, encoding: serialization.Encoding = DER) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, form)


def provider(key: VerificationKey | None = None, **rules: Any) -> TokenProvider:
    return TokenProvider(key or load_secret_key(SECRET, "key"), TokenRules(**rules))


def login(subject: TokenProvider, token: str | bytes, now_s: float = NOW_S) -> Principal:
    data = token.encode() if isinstance(token, str) else token
    return subject.authenticate("token", data, None, now_s)


def signed(claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, key, algorithm)


def test_the_subject_is_the_role() -> None:
    assert login(provider(), signed({"sub": "alice"})) == Principal("alice", None)
    assert login(provider(role_claim="name"), signed({"name": "bob"})).role == "bob"
    assert login(provider(role_claim="roles"), signed({"roles": ["a", "b"]})).role == "a"


def test_expiry_ends_it_to_the_second_with_the_clocks_allowed_difference() -> None:
    token = signed({"sub": "a", "exp": NOW_S + 5})
    assert login(provider(), token) == Principal("a", NOW_S + 5)
    with pytest.raises(CredentialsError, match="expired"):
        login(provider(), token, NOW_S + 5)
    assert login(provider(clock_skew_s=10), token, NOW_S + 14).expires_at_s == NOW_S + 15
    with pytest.raises(CredentialsError, match="expired"):
        login(provider(clock_skew_s=10), token, NOW_S + 15)


def test_not_before_is_respected() -> None:
    token = signed({"sub": "a", "nbf": NOW_S + 5})
    with pytest.raises(CredentialsError, match="not valid yet"):
        login(provider(), token)
    assert login(provider(clock_skew_s=5), token).role == "a"
    assert login(provider(), token, NOW_S + 5).role == "a"


@pytest.mark.parametrize("audience", ["other", ["x", "y"], None, 7, {"our": 1}, [["our"]], ""])
def test_another_audience_is_refused(audience: object) -> None:
    rules: dict[str, Any] = {"audience_claim": "aud", "audiences": ("our",)}
    with pytest.raises(CredentialsError, match="another audience"):
        login(provider(**rules), signed({"sub": "a", "aud": audience}))
    assert login(provider(**rules), signed({"sub": "a", "aud": ["x", "our"]})).role == "a"
    assert login(provider(**rules), signed({"sub": "a", "aud": "our"})).role == "a"


@pytest.mark.parametrize(
    "role", [None, "", "  ", 7, True, [], [7], {"a": 1}, "line\nbreak", "x" * 1025, "a\u202eb"]
)
def test_a_role_must_be_plain_text(role: object) -> None:
    with pytest.raises(CredentialsError):
        login(provider(role_claim="role"), signed({"role": role}))


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("value", ["soon", True, [1], "1800000001", 1e400, 10**400])
def test_times_must_be_numbers(claim: str, value: object) -> None:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps({"sub": "a", claim: value}).encode()).rstrip(b"=")
    text = head + b"." + body
    digest = hmac.digest(SECRET, text, "sha256")
    token = text + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")
    with pytest.raises(CredentialsError):
        login(provider(), token)


def test_a_changed_token_is_refused() -> None:
    head, body, signature = signed({"sub": "alice"}).split(".")
    forged = base64.urlsafe_b64encode(b'{"sub":"admin"}').rstrip(b"=").decode()
    with pytest.raises(CredentialsError, match="InvalidSignatureError"):
        login(provider(), f"{head}.{forged}.{signature}")
    with pytest.raises(CredentialsError):
        login(provider(), f"{head}.{body}.")


def test_a_token_of_another_key_is_refused() -> None:
    with pytest.raises(CredentialsError, match="InvalidSignatureError"):
        login(provider(), signed({"sub": "a"}, b"y" * 32))
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ours = load_public_key(public_bytes(RSA_KEY), "key")
    with pytest.raises(CredentialsError, match="InvalidSignatureError"):
        login(provider(ours), signed({"sub": "a"}, other, "RS256"))


def _by_hand(header: dict[str, Any], sign: Any) -> bytes:
    text = b".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (header, {"sub": "admin"})
    )
    return text + b"." + base64.urlsafe_b64encode(sign(text)).rstrip(b"=")


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", None, "HS256 ", "hs256", 7])
def test_the_header_cannot_choose_to_go_unsigned(name: object) -> None:
    unsigned = _by_hand({"alg": name}, lambda _: b"")
    for key in (load_secret_key(SECRET, "key"), load_public_key(public_bytes(RSA_KEY), "key")):
        with pytest.raises(CredentialsError):
            login(provider(key), unsigned)


@pytest.mark.parametrize("encoding", [DER, PEM])
def test_a_public_key_is_no_secret_of_hmac(encoding: serialization.Encoding) -> None:
    public = public_bytes(RSA_KEY, encoding)
    forged = _by_hand(
        {"alg": "HS256"}, lambda text: hmac.new(public, text, hashlib.sha256).digest()
    )
    with pytest.raises(CredentialsError, match="InvalidAlgorithmError"):
        login(provider(load_public_key(public, "key")), forged)


def test_a_key_inside_the_token_is_not_believed() -> None:
    theirs = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    own_key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(theirs.public_key()))
    token = jwt.encode({"sub": "admin"}, theirs, "RS256", headers={"jwk": own_key})
    with pytest.raises(CredentialsError):
        login(provider(load_public_key(public_bytes(RSA_KEY), "key")), token)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (RSA_KEY, "RS256"),
        (RSA_KEY, "RS512"),
        (RSA_KEY, "PS256"),
        (EC_KEY, "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    ],
)
def test_key_pairs_in_both_encodings(key: PrivateKey, algorithm: str) -> None:
    private = key.private_bytes(
        DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    signing = load_private_key(private, "key")
    assert algorithm in signing.algorithms
    token = signed({"sub": "a"}, signing.key, algorithm)
    for encoding in (DER, PEM):
        verification = load_public_key(public_bytes(key, encoding), "key")
        assert login(provider(verification), token).role == "a"


def test_weak_and_wrong_keys_are_refused_when_they_are_loaded() -> None:
    with pytest.raises(KeyFormatError, match="at least 32"):
        load_secret_key(b"x" * 31, "key")
    with pytest.raises(KeyFormatError, match="PEM"):
        load_secret_key(public_bytes(RSA_KEY, PEM), "key")
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    with pytest.raises(KeyFormatError, match="1024 bits"):
        load_public_key(public_bytes(weak), "key")
    with pytest.raises(KeyFormatError, match="not a public key"):
        load_public_key(b"nonsense", "key")
    assert load_secret_key(b"x" * 32, "key").algorithms == ("HS256",)
    assert load_secret_key(b"x" * 64, "key").algorithms == ("HS256", "HS384", "HS512")


def test_sources_of_keys(tmp_path: Any) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(SECRET)
    encoded = base64.b64encode(SECRET).decode()
    for source in (f"file://{file}", f"file:{file}", str(file), f"data:;base64,{encoded}", encoded):
        assert read_source(source, "key") == SECRET
    assert read_source("data:,a%20b", "key") == b"a b"


@pytest.mark.parametrize(
    "source",
    ["file:///nowhere/at/all", "data:;base64", "data:;base64,***", "not base64!", "a\0b", ""],
)
def test_bad_sources_are_told_without_their_contents(source: str) -> None:
    with pytest.raises(KeyFormatError, match="tokenSecretKey") as caught:
        read_source(source, "tokenSecretKey")
    assert "***" not in str(caught.value)


def test_errors_do_not_repeat_the_token() -> None:
    token = signed({"sub": "very-secret-role"}, b"y" * 32)
    with pytest.raises(CredentialsError) as caught:
        login(provider(), token)
    assert not any(part in str(caught.value) for part in token.split("."))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("header", [{"crit": ["x"], "x": 1}, {"b64": False, "crit": ["b64"]}])
def test_headers_that_must_be_understood_and_are_not(header: dict[str, Any]) -> None:
    token = _by_hand({"alg": "HS256", **header}, lambda text: hmac.digest(SECRET, text, "sha256"))
    with pytest.raises(CredentialsError):
        login(provider(), token)


@given(st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(CredentialsError):
        login(provider(), data)


_json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["sub", "exp", "nbf", "aud", "crit", "b64"]), _json))
@settings(max_examples=150, deadline=None)
def test_any_claims_give_a_role_or_a_refusal(claims: dict[str, Any]) -> None:
    text = b".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256"}, claims)
    )
    digest = hmac.digest(SECRET, text, "sha256")
    token = text + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")
    try:
        principal = login(provider(), token)
    except CredentialsError:
        return
    assert principal.role
    assert principal.role.isprintable()


def test_a_deep_token_is_refused() -> None:
    body = base64.urlsafe_b64encode(b"[" * 30_000).rstrip(b"=")
    head = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=")
    digest = hmac.digest(SECRET, head + b"." + body, "sha256")
    with pytest.raises(CredentialsError):
        login(provider(), head + b"." + body + b"." + base64.urlsafe_b64encode(digest).rstrip(b"="))
    with pytest.raises(CredentialsError, match="bytes"):
        login(provider(), b"a" * 70_000)


def test_a_previous_key_is_good_beside_the_one_in_use(tmp_path: Path) -> None:
    old, new, other = (bytes([number] * 32) for number in range(3))
    for name, content in (("old", old), ("new", new)):
        (tmp_path / name).write_bytes(content)
    config = BrokerConfig(
        authentication_enabled=True,
        authentication_providers="token",
        token_secret_key=str(tmp_path / "new"),
        token_previous_secret_key=str(tmp_path / "old"),
    )
    parts = build(config)
    assert parts is not None
    (provider,) = parts.chain.providers("token")

    def role(secret: bytes, **claims: object) -> str:
        shown = jwt.encode({"sub": "alice", **claims}, secret, "HS256").encode()
        return provider.authenticate("token", shown, None, 1_000.0).role

    assert role(new) == role(old) == "alice"
    for secret, claims in ((other, {}), (old, {"exp": 999})):
        with pytest.raises(CredentialsError):
            role(secret, **claims)
    assert "tokenPreviousSecretKey" in {each.setting for each in key_files(config)}
    assert config.as_keys()["tokenPreviousSecretKey"] == "******"
