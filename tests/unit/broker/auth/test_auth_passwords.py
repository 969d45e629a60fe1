"""Password files and the basic provider."""

from unittest import mock

import bcrypt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passlib.hash import apr_md5_crypt, sha256_crypt

from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError
from magnetar.broker.auth.basic import BasicProvider, parse_htpasswd
from magnetar.broker.auth.password_hashes import verify

# What `htpasswd -nb user secret` printed with -m, -s, -d and `openssl passwd -5/-6/-1 secret`
HASHES = {
    "apr1": "$apr1$fCeK4YCo$C.bsGUMW/hlwSnULumeqB.",
    "sha": "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    "crypt": "iYm1R3oI1XrnU",
    "md5": "$1$ZRPwrAoq$3asPtob7lrVKHZ51Djsr4/",
    "bcrypt": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$"),
}


@pytest.mark.parametrize("kind", HASHES)
def test_kinds_of_hashes(kind: str) -> None:
    users = parse_htpasswd(f"# ours\n\nalice:{HASHES[kind]}\n".encode(), "basicAuthConf")
    provider = BasicProvider(users)
    assert provider.authenticate("basic", b"alice:secret", None, 0).role == "alice"
    for data in (b"alice:Secret", b"alice:", b"bob:secret", b"alice", b":", b"", b"\xff:secret"):
        with pytest.raises(CredentialsError):
            provider.authenticate("basic", data, None, 0)


def test_a_password_may_hold_colons() -> None:
    digest = bcrypt.hashpw(b"a:b", bcrypt.gensalt(4)).decode()
    provider = BasicProvider(parse_htpasswd(f"u:{digest}".encode(), "f"))
    assert provider.authenticate("basic", b"u:a:b", None, 0).role == "u"


def test_long_passwords_do_not_fail_the_check() -> None:
    digest = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    provider = BasicProvider(parse_htpasswd(f"u:{digest}".encode(), "f"))
    assert provider.authenticate("basic", b"u:" + b"x" * 100, None, 0).role == "u"
    with pytest.raises(CredentialsError):
        provider.authenticate("basic", b"u:" + b"x" * 5000, None, 0)


@pytest.mark.parametrize("kind", ["apr1", "sha-256"])
def test_nobody_chooses_how_long_a_check_takes(kind: str) -> None:
    """Where the hash's cost grows with the password, it may be as long as htpasswd takes it."""
    cheap = sha256_crypt.using(rounds=1000)  # type: ignore[no-untyped-call]
    handler = {"apr1": apr_md5_crypt, "sha-256": cheap}[kind]
    for size, good in ((256, True), (257, False)):
        digest = handler.hash(b"x" * size)
        assert verify(digest, b"x" * size) is good
    with mock.patch.object(sha256_crypt, "verify", side_effect=AssertionError("computed")):
        assert not verify(digest, b"x" * 4096)


@pytest.mark.parametrize("kind", HASHES)
def test_nul_bytes_are_no_password(kind: str) -> None:
    provider = BasicProvider(parse_htpasswd(f"u:{HASHES[kind]}".encode(), "f"))
    with pytest.raises(CredentialsError):
        provider.authenticate("basic", b"u:secret\0", None, 0)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        ":x",
        "alice:plain-text",
        "alice:$2y$05$short",
        "alice:$apr1$",
        "alice:",
        "a\x01b:iYm1R3oI1XrnU",
        "b:iYm1R3oI1XrnU\nb:iYm1R3oI1XrnU",
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str) -> None:
    with pytest.raises(KeyFormatError, match=r"line [12]") as caught:
        parse_htpasswd(line.encode(), "basicAuthConf")
    assert "plain-text" not in str(caught.value)


def test_an_empty_file_lets_nobody_in() -> None:
    with pytest.raises(CredentialsError):
        BasicProvider({}).authenticate("basic", b"a:b", None, 0)


@given(st.binary(max_size=120) | st.text(alphabet="ab:$12{}SHAy.\n", max_size=60).map(str.encode))
@settings(max_examples=200, deadline=None)
def test_any_file_is_parsed_or_refused(content: bytes) -> None:
    try:
        users = parse_htpasswd(content, "f")
    except KeyFormatError:
        return
    assert all(name and name.isprintable() for name in users)
