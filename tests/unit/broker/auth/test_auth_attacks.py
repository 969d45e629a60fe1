"""What somebody forges who knows the public key, the broker's source, and other people's tricks."""

import base64
import hashlib
import hmac
import json
from collections import Counter
from pathlib import Path
from typing import Any

import bcrypt
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.auth import token_signatures
from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError
from magnetar.bookkeeper.auth.keys import (
    PublicKey,
    VerificationKey,
    algorithms_of,
    load_public_key,
    load_secret_key,
    read_source,
)
from magnetar.bookkeeper.auth.token_signatures import verified_claims
from magnetar.bookkeeper.auth.tokens import Principal, TokenRules, header_of
from magnetar.broker.auth.basic import BasicProvider, parse_htpasswd
from magnetar.broker.auth.openid import OpenIdProvider, parse_key_set
from magnetar.broker.auth.provider import KeysNeededError, TokenProvider

NOW_S = 1_800_000_000.0
SECRET = bytes(range(64))
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
MINE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ISSUER = "https://issuer.test"
GOOD = jwt.encode({"sub": "alice", "exp": NOW_S + 9}, SECRET, "HS256")
PUBLIC: dict[str, PublicKey] = {
    "rsa": RSA_KEY.public_key(),
    "ec": EC_KEY.public_key(),
    "ed": ED_KEY.public_key(),
}


def part(value: object) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def forged(header: dict[str, Any], signature: bytes = b"", claims: object = None) -> bytes:
    body = {"sub": "admin", "iss": ISSUER, "aud": "us", "exp": NOW_S + 60}
    return b".".join((part(header), part(claims or body), part(signature)))


def hmac_signed(header: dict[str, Any], key: bytes) -> bytes:
    text = forged(header).rpartition(b".")[0]
    return text + b"." + part(hmac.digest(key, text, "sha256"))


def encodings(key: PublicKey) -> list[bytes]:
    """The bytes of a public key that somebody could take for a secret."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    der = key.public_bytes(serialization.Encoding.DER, form)
    pem = key.public_bytes(serialization.Encoding.PEM, form)
    return [der, pem, pem.strip(), base64.b64encode(der), pem.replace(b"\n", b"\r\n")]


def provider_of(key: PublicKey) -> TokenProvider:
    return TokenProvider(load_public_key(encodings(key)[0], "key"), TokenRules())


def refused(subject: TokenProvider | OpenIdProvider, token: bytes) -> None:
    with pytest.raises(CredentialsError):
        subject.authenticate("token", token, None, NOW_S)


@pytest.mark.parametrize("kind", PUBLIC)
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_no_form_of_a_public_key_is_a_secret(kind: str, algorithm: str) -> None:
    key = PUBLIC[kind]
    for secret in [*encodings(key), b""]:
        text = forged({"alg": algorithm, "typ": "JWT"}).rpartition(b".")[0]
        digest = hmac.new(secret, text, getattr(hashlib, f"sha{algorithm[2:]}")).digest()
        refused(provider_of(key), text + b"." + part(digest))


@pytest.mark.parametrize("kind", PUBLIC)
@pytest.mark.parametrize(
    "algorithm", ["RS256", "PS256", "ES256", "ES256K", "ES384", "ES512", "EdDSA", "none", "HS256"]
)
@pytest.mark.parametrize(
    "signature", [b"", bytes(64), bytes(96), bytes(132), bytes(256), b"\xff" * 64, b"\0" * 31]
)
def test_empty_signatures_of_all_sizes(kind: str, algorithm: str, signature: bytes) -> None:
    """Zeros are a good signature of ECDSA to who forgets to look."""
    refused(provider_of(PUBLIC[kind]), forged({"alg": algorithm}, signature))
    refused(
        TokenProvider(load_secret_key(SECRET, "key"), TokenRules()),
        forged({"alg": algorithm}, signature),
    )


def test_another_kind_of_key_than_the_brokers() -> None:
    secret = TokenProvider(load_secret_key(SECRET, "key"), TokenRules())
    tokens = {
        "rsa": jwt.encode({"sub": "admin"}, RSA_KEY, "RS256").encode(),
        "ec": jwt.encode({"sub": "admin"}, EC_KEY, "ES256").encode(),
        "ed": jwt.encode({"sub": "admin"}, ED_KEY, "EdDSA").encode(),
    }
    for kind, token in tokens.items():
        refused(secret, token)
        for other, key in PUBLIC.items():
            if other != kind:
                refused(provider_of(key), token)


@pytest.mark.parametrize(
    "extra",
    [
        {"jwk": json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(MINE.public_key()))},
        {"jku": "https://evil.test/keys"},
        {"x5u": "https://evil.test/certificate"},
        {"x5c": ["AAAA"]},
        {"kid": "../../../../dev/null"},
        {"kid": "' OR 1=1 --"},
        {"kid": ""},
        {"typ": "at+jwt"},
        {"cty": "JWT"},
        {"zip": "DEF"},
    ],
)
def test_a_header_cannot_bring_its_own_key(extra: dict[str, Any]) -> None:
    token = jwt.encode({"sub": "admin"}, MINE, "RS256", headers=extra).encode()
    refused(provider_of(RSA_KEY.public_key()), token)
    for secret in (b"", b"\0", json.dumps(extra.get("jwk", {})).encode()):
        token = hmac_signed({"alg": "HS256", **extra}, secret)
        refused(TokenProvider(load_secret_key(SECRET, "key"), TokenRules()), token)


@pytest.mark.parametrize("kid", [None, 7, ["one"], {"a": 1}, "two", "", "one\0", "../one"])
def test_key_ids_of_issuers_are_texts_that_are_listed(kid: object) -> None:
    entry = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY.public_key()))
    keys = parse_key_set(json.dumps({"keys": [{**entry, "kid": "one"}]}).encode(), ISSUER)
    rules = TokenRules(audience_claim="aud", audiences=("us",), needs_expiry=True)
    provider = OpenIdProvider(frozenset({ISSUER}), rules, {ISSUER: keys})
    claims = {"sub": "admin", "iss": ISSUER, "aud": "us", "exp": NOW_S + 60}
    good = jwt.encode(claims, RSA_KEY, "RS256", headers={"kid": "one"}).encode()
    assert provider.authenticate("token", good, None, NOW_S).role == "admin"
    text = part({"alg": "RS256", "kid": kid}) + b"." + part(claims)
    with pytest.raises((CredentialsError, KeysNeededError)):
        provider.authenticate("token", text + b"." + good.rpartition(b".")[2], None, NOW_S)


def test_a_json_token_of_many_signatures_is_none() -> None:
    """JWS has a second form, in which one good signature can stand beside bad ones."""
    head, body, signature = GOOD.encode().split(b".")
    form = {
        "payload": body.decode(),
        "signatures": [{"protected": head.decode(), "signature": signature.decode()}],
    }
    subject = TokenProvider(load_secret_key(SECRET, "key"), TokenRules())
    refused(subject, json.dumps(form).encode())
    for other in (
        GOOD.encode() + b"." + body,
        GOOD.encode() + b".",
        b"." + GOOD.encode(),
        b"..",
        head + b".." + signature,
    ):
        refused(subject, other)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_change_of_a_good_token_is_refused(data: st.DataObject) -> None:
    token = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.integers(0, 2)):
            case 0:
                token[data.draw(st.integers(0, len(token) - 1))] = data.draw(st.integers(0, 255))
            case 1:
                del token[data.draw(st.integers(0, len(token) - 1))]
            case _:
                token.insert(data.draw(st.integers(0, len(token))), data.draw(st.integers(0, 255)))
    try:
        found = TokenProvider(load_secret_key(SECRET, "key"), TokenRules()).authenticate(
            "token", bytes(token), None, NOW_S
        )
    except CredentialsError:
        return
    # What a decoder of base64 skips, or reads alike, can't say anything else.
    assert found == Principal("alice", NOW_S + 9)


SIGNING: dict[str, tuple[VerificationKey, Any]] = {
    "HS256": (load_secret_key(SECRET, "key"), SECRET),
    "HS512": (load_secret_key(SECRET, "key"), SECRET),
    "RS256": (load_public_key(encodings(PUBLIC["rsa"])[0], "key"), RSA_KEY),
    "PS384": (load_public_key(encodings(PUBLIC["rsa"])[0], "key"), RSA_KEY),
    "ES256": (load_public_key(encodings(PUBLIC["ec"])[0], "key"), EC_KEY),
    "EdDSA": (load_public_key(encodings(PUBLIC["ed"])[0], "key"), ED_KEY),
}


HEADERS: list[dict[str, Any]] = [
    *({}, {"kid": "a"}, {"kid": 7}, {"b64": True}, {"b64": False, "crit": ["b64"]}),
    *({"crit": ["x"], "x": 1}, {"x": "\ud800"}),
]


def by_the_library(token: bytes, key: VerificationKey) -> Any:
    """The claims, or None."""
    try:
        return json.loads(jwt.PyJWS().decode(token, key.key, key.algorithms))
    except (jwt.PyJWTError, ValueError):
        return None


@pytest.mark.parametrize("algorithm", SIGNING)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_look_at_the_signature_first_changes_no_answer(
    algorithm: str, data: st.DataObject
) -> None:
    """It may refuse nothing that the library takes, and let nothing through that it doesn't."""
    key, secret = SIGNING[algorithm]
    headers = data.draw(st.sampled_from(HEADERS))
    head = {"alg": algorithm, "typ": "JWT", **headers}
    text = part(head) + b"." + part({"sub": "a" * data.draw(st.integers(0, 5))})
    signature = part(jwt.PyJWS().get_algorithm_by_name(algorithm).sign(text, secret))
    token = bytearray(text + b"." + signature)
    what = data.draw(st.sampled_from(["nothing", "padding", "bytes"]))
    if what == "padding":
        token += b"=" * data.draw(st.integers(1, 3))
    elif what == "bytes":
        for _ in range(data.draw(st.integers(1, 2))):
            at = data.draw(st.integers(0, len(token) - 1))
            token[at : at + data.draw(st.integers(0, 1))] = data.draw(
                st.sampled_from([b"", b"=", b".", b"A", b"-", b"+", b"\n", b"\xff"])
            )
    try:
        found: Any = verified_claims(bytes(token), key)
    except CredentialsError:
        found = None
    assert found == by_the_library(bytes(token), key)
    if what == "nothing" and "crit" not in headers and headers != {"kid": 7}:
        assert found is not None


@pytest.mark.parametrize("algorithm", SIGNING)
def test_the_library_is_not_asked_about_forgeries(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 5 ms for a token of 64 KiB, which everybody who is known would wait for."""

    def decode_complete(*args: object, **more: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(token_signatures._JWS, "decode_complete", decode_complete)
    key, secret = SIGNING[algorithm]
    heads: list[Any] = [{"alg": algorithm}, {"alg": "none"}, {"alg": None}, {"alg": ["HS256"]}]
    for head in (*heads, {}, []):
        for size in (0, 40_000):
            signed = part(head) + b"." + part({"sub": "a" * size})
            for signature in (b"", b"AAAA", part(bytes(32)), part(bytes(256)), b"\xff" * 86):
                with pytest.raises(CredentialsError):
                    verified_claims(signed + b"." + signature, key)
    for nonsense in (b"A", b"A" * 60_000, b".." * 30_000, b"[" * 20_000 + b"..", b"\xff.\xff.\xff"):
        with pytest.raises(CredentialsError):
            verified_claims(nonsense, key)
    with pytest.raises(AssertionError, match="asked"):  # a good one is
        verified_claims(jwt.encode({"sub": "a"}, secret, algorithm).encode(), key)


def test_what_is_read_before_the_signature_is_bounded() -> None:
    token = jwt.encode({"sub": "a"}, SECRET, "HS256", headers={"x": "y" * 20_000}).encode()
    with pytest.raises(CredentialsError, match="DecodeError"):
        verified_claims(token, load_secret_key(SECRET, "key"))
    with pytest.raises(CredentialsError, match="not a JSON Web Token"):
        header_of(token)
    usual = jwt.encode({"sub": "a"}, SECRET, "HS256", headers={"x": "y" * 8_000}).encode()
    assert verified_claims(usual, load_secret_key(SECRET, "key")) == {"sub": "a"}


@given(
    st.lists(
        st.tuples(
            st.text(alphabet="abü :#\t", max_size=6),
            st.text(alphabet="ab:$12{}SHAy./0567", max_size=70)
            | st.sampled_from(["{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "iYm1R3oI1XrnU", "$apr1$"]),
        ),
        max_size=5,
    )
)
@settings(max_examples=200, deadline=None)
def test_password_files_by_lines(lines: list[tuple[str, str]]) -> None:
    content = "\n".join(f"{user}:{digest}" for user, digest in lines).encode()
    try:
        users = parse_htpasswd(content, "f")
    except KeyFormatError:
        return
    for user in users:
        assert user == user.lstrip()  # of the line; a blank before the colon is the name's
        assert ":" not in user
        provider = BasicProvider(users)
        with pytest.raises(CredentialsError):
            provider.authenticate("basic", f"{user}:never the password".encode(), None, 0)


def test_loading_slow_hashes_computes_none_of_them() -> None:
    """Cost 31 takes days; somebody's typing error must not stop the start."""
    digest = bcrypt.hashpw(b"x", bcrypt.gensalt(4)).decode().replace("$04$", "$31$")
    slow = "$6$rounds=999999999$saltsalt$" + "a" * 86
    assert set(parse_htpasswd(f"a:{digest}\nb:{slow}\n".encode(), "f")) == {"a", "b"}
    with pytest.raises(KeyFormatError):
        parse_htpasswd(f"a:{digest.replace('$31$', '$32$')}".encode(), "f")


def test_unknown_users_do_the_same_work_as_known_ones() -> None:
    """Also where kinds of hashes differ: none of them may be what only strangers cost."""
    kinds = {f"user-{index}": ("cheap", "dear")[index % 2] for index in range(100)}
    provider = BasicProvider(kinds)  # of a hash, only its kind

    unknown_users = [f"stranger-{index}" for index in range(1000)]

    def ask(names: list[str]) -> dict[str, int]:
        questions = [provider.question(f"{name}:x".encode()) for name in names]
        for question in questions:
            with pytest.raises(CredentialsError, match="unknown user or invalid password"):
                question.answer(good=question.name in unknown_users)  # their stand-in's, by chance
        return dict(Counter(question.digest for question in questions))

    assert ask(list(kinds)) == {"cheap": 50, "dear": 50}
    found = ask(unknown_users)
    assert sum(found.values()) == 1000
    assert min(found.values()) > 300
    assert [ask([name]) for name in unknown_users[:20]] == [
        ask([name]) for name in unknown_users[:20]
    ]


@pytest.mark.parametrize(
    "source",
    [
        "/run/secrets/magnetar/token/signing/secretkey0",
        "/aaaabbbbccccddddeeeeffffgggghhhhiiiijjjjkkkk",
    ],
)
def test_the_path_of_a_missing_file_is_not_taken_for_the_key(source: str) -> None:
    """All its characters are base64's, so whoever guesses the path could sign tokens."""
    source += "A" * (-len(source) % 4)
    assert len(base64.b64decode(source, validate=True)) >= 32
    with pytest.raises(KeyFormatError, match="no such file"):
        read_source(source, "tokenSecretKey")


def test_a_relative_path_is_not_taken_for_the_key_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "conf/keys/signing/magnetar/brokers/secretkey"
    assert len(base64.b64decode(source, validate=True)) >= 32
    assert read_source(source, "key") == base64.b64decode(source)  # could as well be one
    (tmp_path / "conf").mkdir()
    with pytest.raises(KeyFormatError, match="no such file"):
        read_source(source, "key")


@pytest.mark.parametrize("size", [32, 64])
def test_keys_in_base64_may_begin_with_a_slash(size: int) -> None:
    key = b"\xff\xff" + bytes(size - 2)
    text = base64.b64encode(key).decode()
    assert text.startswith("/")
    assert read_source(text, "key") == key


def test_all_sorts_of_keys_have_algorithms_of_one_family() -> None:
    families = [{name[:2] for name in algorithms_of(key, "key")} for key in PUBLIC.values()]
    assert families == [{"RS", "PS"}, {"ES"}, {"Ed"}]
    assert {name[:2] for name in load_secret_key(SECRET, "key").algorithms} == {"HS"}
