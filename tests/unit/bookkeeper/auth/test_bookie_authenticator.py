"""Who may use a bookie, and what a client shows of itself."""

import math
import os
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.auth.bookie_authenticator import AuthSettings, BookieAuthenticator
from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError, RoleNotAllowedError
from magnetar.bookkeeper.auth.token_source import TokenSource, token_setting
from magnetar.bookkeeper.auth.tokens import TokenRules
from tests.certificates import Authority

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"fedcba9876543210fedcba9876543210"
NOW_S = 1_800_000_000.0


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def token(role: str = "broker", secret: bytes = SECRET, **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, secret, "HS256")


def data_url(secret: bytes) -> str:
    return "data:," + secret.decode()


def settings_of(**changes: object) -> AuthSettings:
    found = {
        "providers": ("token",),
        "secret_keys": (data_url(SECRET),),
        "allowed_roles": frozenset({"broker"}),
        **changes,
    }
    return AuthSettings(**found)  # type: ignore[arg-type]  # fields by name


def authenticator(clock: Clock | None = None, **changes: object) -> BookieAuthenticator:
    return BookieAuthenticator(settings_of(**changes), clock_s=clock or Clock())


def replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.replace(path)


def test_a_role_that_is_allowed() -> None:
    admission = authenticator().admit(token(), None)
    assert (admission.role, admission.until_s) == ("broker", NOW_S + 60)
    assert (
        authenticator(allowed_roles=frozenset("*")).admit(token("anybody"), None).role == "anybody"
    )


def test_a_good_token_of_a_client_opens_no_bookie() -> None:
    """Tokens of clients are often signed with the same key."""
    subject = authenticator()
    with pytest.raises(RoleNotAllowedError, match="role orders"):
        subject.admit(token("orders"), None)
    assert (subject.accepted, subject.refused) == (0, 1)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "x.y.z",
        token(secret=OTHER),
        token() + "x",
        jwt.encode({"sub": "broker"}, "", "none"),
        token(exp=NOW_S - 1),
        token(nbf=NOW_S + 10),
        token(""),
        "ü.y.z",
    ],
)
def test_what_proves_nothing(shown: str | None) -> None:
    with pytest.raises(CredentialsError) as caught:
        authenticator().admit(shown, None)
    assert not shown or shown not in str(caught.value)


def test_audiences() -> None:
    rules = TokenRules(audience_claim="aud", audiences=("bookies",))
    assert authenticator(rules=rules).admit(token(aud="bookies"), None).role == "broker"
    with pytest.raises(CredentialsError):
        authenticator(rules=rules).admit(token(aud="brokers"), None)


def test_nothing_is_believed_beyond_its_end() -> None:
    clock = Clock()
    subject = authenticator(clock)
    shown = token(exp=NOW_S + 5)
    assert subject.admit(shown, None).until_s == NOW_S + 5
    clock.now_s = NOW_S + 4.9
    assert subject.admit(shown, None).role == "broker"
    assert subject.accepted == 1  # the second time it was remembered
    clock.now_s = NOW_S + 5
    with pytest.raises(CredentialsError, match="expired"):
        subject.admit(shown, None)


def test_two_keys_are_good_while_one_replaces_the_other(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = tmp_path / "public.der"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    subject = authenticator(
        secret_keys=(data_url(SECRET), data_url(OTHER)), public_keys=(f"file://{public}",)
    )
    assert subject.admit(token(secret=OTHER), None).role == "broker"
    assert subject.admit(token(), None).role == "broker"
    assert subject.admit(jwt.encode({"sub": "broker"}, key, "ES256"), None).role == "broker"
    with pytest.raises(CredentialsError):  # no HMAC with the public key's bytes
        subject.admit(jwt.encode({"sub": "broker"}, bytes(range(32)), "HS256"), None)


def test_a_changed_key_holds_within_a_minute_and_a_broken_file_changes_nothing(
    tmp_path: Path,
) -> None:
    clock, file = Clock(), tmp_path / "key"
    file.write_bytes(SECRET)
    subject = authenticator(clock, secret_keys=(str(file),))
    assert subject.admit(token(), None).role == "broker"
    replace(file, b"too short")
    clock.now_s += 61
    assert subject.admit(token(), None).role == "broker"
    replace(file, OTHER)
    clock.now_s += 1.1  # a bad file isn't read at each call
    assert subject.admit(token(secret=OTHER), None).role == "broker"
    with pytest.raises(CredentialsError):
        subject.admit(token(), None)
    file.unlink()
    clock.now_s += 61
    assert subject.admit(token(secret=OTHER), None).role == "broker"


def test_unauthenticated_clients_can_neither_fill_the_log_nor_read_files_while_a_key_file_is_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "key", Clock()
    file.write_bytes(SECRET)
    subject = authenticator(clock, secret_keys=(str(file),))
    replace(file, b"short")
    for _ in range(100):
        clock.now_s += 0.001
        with pytest.raises(CredentialsError):
            subject.admit(token(secret=OTHER), None)
    assert len(caplog.records) == 1
    replace(file, OTHER)
    clock.now_s += 1.1
    assert subject.admit(token(secret=OTHER), None).role == "broker"


def test_certificates_where_they_are_asked_for(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("broker")
    pem = pair.certificate.read_bytes()
    both = authenticator(providers=("token", "tls"))
    assert both.admit(None, pem).role == "broker"
    with pytest.raises(CredentialsError):  # a wrong token isn't made good by a certificate
        both.admit("x.y.z", pem)
    with pytest.raises(CredentialsError, match="no credentials"):
        both.admit(None, None)
    with pytest.raises(CredentialsError, match="unreadable"):
        both.admit(None, b"nonsense")
    with pytest.raises(CredentialsError):
        authenticator().admit(None, pem)
    other_certificate = Authority(tmp_path, "second").sign("orders")
    with pytest.raises(RoleNotAllowedError):
        both.admit(None, other_certificate.certificate.read_bytes())
    only = authenticator(providers=("tls",), secret_keys=())
    assert only.admit("whatever", pem).role == "broker"  # tokens are nobody's business there
    for other in (
        None,
        other_certificate.certificate.read_bytes(),
    ):  # what was found is of both together
        with pytest.raises(CredentialsError):
            only.admit("whatever", other)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"providers": ()}, "authenticationProviders"),
        ({"providers": ("token", "basic")}, "basic; a bookie knows token and tls"),
        ({"allowed_roles": frozenset()}, "bookieAllowedRoles"),
        ({"secret_keys": ()}, "tokenSecretKey or tokenPublicKey"),
        ({"secret_keys": ("data:,short",)}, "tokenSecretKey: 5 bytes"),
        ({"public_keys": ("data:,short",)}, "tokenPublicKey"),
        ({"secret_keys": ("file:///nowhere/at/all",)}, "can't be read"),
        ({"rules": TokenRules(clock_skew_s=math.nan)}, "tokenAllowedClockSkewSeconds=nan"),
        ({"rules": TokenRules(clock_skew_s=math.inf)}, "tokenAllowedClockSkewSeconds=inf"),
        ({"rules": TokenRules(clock_skew_s=-1)}, "tokenAllowedClockSkewSeconds=-1"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BookieAuthenticator(settings_of(**changes))


def test_secrets_are_in_no_representation() -> None:
    assert SECRET.decode() not in repr(settings_of())


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
@settings(max_examples=200, deadline=None)
def test_any_token_is_checked(shown: str) -> None:
    with pytest.raises(CredentialsError):
        authenticator().admit(shown, None)


# --- a client's token


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    shown = token()
    file = tmp_path / "token"
    file.write_text(f"{shown}\n")
    for source in (f"token:{shown}", shown, str(file), f"file://{file}"):
        assert TokenSource(source).token() == shown


@pytest.mark.parametrize("source", ["token:", "nowhere", "file:///nowhere", "token:a b.c.d", "a.b"])
def test_what_is_no_token(source: str) -> None:
    with pytest.raises(KeyFormatError, match="token for bookies"):
        TokenSource(source)


def test_a_renewed_file_is_noticed_within_a_second_or_at_once(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "token"
    file.write_text(token(exp=NOW_S))
    source = TokenSource(str(file), clock_s=clock)
    assert source.expires_at_s() == NOW_S
    replace(file, token(exp=NOW_S + 100).encode())
    assert source.expires_at_s() == NOW_S
    assert source.token() == token(exp=NOW_S)
    clock.now_s += 1
    assert source.token() == token(exp=NOW_S + 100)
    assert (source.generation, source.expires_at_s()) == (1, NOW_S + 100)
    for broken in (b"", b"half a tok", b"\xff"):
        replace(file, broken)
        assert source.token(at_once=True) == token(exp=NOW_S + 100)
    file.unlink()
    assert source.token(at_once=True) == token(exp=NOW_S + 100)
    replace(file, token().encode())
    assert source.token(at_once=True) == token()
    assert (source.generation, source.expires_at_s()) == (2, None)
    os.utime(file)  # touched, and the same
    source.token(at_once=True)
    assert source.generation == 2


def test_the_two_settings_of_a_client() -> None:
    assert token_setting("", "") == ""
    assert token_setting("token", "file:///x") == "file:///x"
    java = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    assert token_setting(java, "token:x") == "token:x"
    for plugin, parameters in (("token", ""), ("", "file:///x"), ("kerberos", "x")):
        with pytest.raises(ValueError, match="bookkeeperClientAuthenticationPlugin"):
            token_setting(plugin, parameters)


def test_a_token_that_is_replaced() -> None:
    """By who is told another one, rather than finding it in a file."""
    source = TokenSource(f"token:{token('one')}")
    shown = source.token()
    source.replace(token("one"))
    assert (source.token(), source.generation) == (shown, 0)
    assert source.token() is shown  # the same object: connections compare no texts
    with pytest.raises(KeyFormatError):
        source.replace("not fit\nfor a header")
    assert source.token() is shown
    source.replace(token("two"))
    assert (source.token(), source.generation) == (token("two"), 1)
