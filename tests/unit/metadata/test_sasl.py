"""DIGEST-MD5 by RFC 2831's examples, and names and passwords out of JAAS files."""

import hashlib
from pathlib import Path

import pytest

from magnetar.metadata.sasl.digest_md5 import (
    DigestMd5Client,
    DigestMd5Server,
    SaslCredentials,
    SaslError,
)
from magnetar.metadata.sasl.jaas import read_credentials, read_passwords

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
# Section 4: service, nonce, client's nonce, response, the server's proof.
EXAMPLES = (
    ("imap", "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk"),
    ("acap", "OA9BSXrbuRhWay", "OA9BSuZWMSpW8m"),
)
RESPONSES = ("d388dad90d4bbd760a152321f2143af7", "6084c6db3fede7352c551284490fd0fc")
PROOFS = ("ea40f60335c427b5527b84dbabcdfffd", "2f0b3d7c3c2e486600ef710726aa2eae")
HOST = "elwood.innosoft.com"


def client_of(
    service: str = "acap", nonce: str = "OA9BSuZWMSpW8m", user: str = "chris"
) -> DigestMd5Client:
    return DigestMd5Client(SaslCredentials(user, "secret"), service, HOST, nonce)


@pytest.mark.parametrize(
    ("example", "response", "proof"), list(zip(EXAMPLES, RESPONSES, PROOFS, strict=True))
)
def test_examples_of_the_rfc(example: tuple[str, str, str], response: str, proof: str) -> None:
    service, nonce, client_nonce = example
    client = client_of(service, client_nonce)
    challenge = f'realm="{HOST}",nonce="{nonce}",qop="auth",algorithm=md5-sess,charset=utf-8'
    assert client.respond(b"") == b""
    answer = client.respond(challenge.encode())
    assert f"response={response}".encode() in answer.split(b",")
    assert f'digest-uri="{service}/{HOST}"'.encode() in answer.split(b",")
    assert not client.is_complete
    assert client.respond(f"rspauth={proof}".encode()) == b""
    assert client.is_complete


def test_a_wrong_proof_is_refused() -> None:
    client = client_of()
    client.respond(b'nonce="n",algorithm=md5-sess')
    with pytest.raises(SaslError, match="didn't prove"):
        client.respond(f"rspauth={PROOFS[0]}".encode())
    assert not client.is_complete


@pytest.mark.parametrize(
    "challenge",
    [
        b'nonce="n"',
        b"algorithm=md5-sess",
        b'nonce="n,algorithm=md5-sess',
        b'nonce="n",algorithm=md5-sess,qop="auth-conf"',
        b"\xff" * 20,
        b"=",
        b'nonce="' + b"n" * 3000 + b'",algorithm=md5-sess',
    ],
)
def test_what_is_no_challenge(challenge: bytes) -> None:
    client = client_of()
    with pytest.raises(SaslError) as caught:
        client.respond(challenge)
    assert "secret" not in str(caught.value)


def test_names_are_quoted_and_beyond_latin_1_only_in_utf_8() -> None:
    challenge = b'nonce="n\\"",algorithm=md5-sess,qop="auth-int, auth"'
    answer = client_of(user='a"\\b').respond(challenge)
    assert b'username="a\\"\\\\b"' in answer
    assert b'nonce="n\\""' in answer
    with pytest.raises(SaslError, match="can't read"):
        client_of(user="\u0416").respond(challenge)
    answer = client_of(user="\u0416").respond(challenge + b",charset=utf-8")
    assert 'username="\u0416"'.encode() in answer


def server_of(nonce: str = "OA9BSXrbuRhWay") -> DigestMd5Server:
    passwords = {"chris": "secret", "\u0416": "\u00e9\u0416"}
    return DigestMd5Server(passwords, "acap", HOST, nonce)


@pytest.mark.parametrize("user", ["chris", "\u0416"])
def test_both_sides(user: str) -> None:
    client, server = client_of(user=user), server_of()
    if user != "chris":
        credentials = SaslCredentials(user, "\u00e9\u0416")
        client = DigestMd5Client(credentials, "acap", HOST, "OA9BSuZWMSpW8m")
    challenge = server.respond(client.respond(b""))
    response = client.respond(challenge)
    assert server.username != user
    proof = server.respond(response)
    assert server.username == user
    if user == "chris":
        assert f"response={RESPONSES[1]}".encode() in response.split(b",")
        assert proof == f"rspauth={PROOFS[1]}".encode()
    client.respond(proof)
    assert client.is_complete
    with pytest.raises(SaslError, match="behind the last"):
        server.respond(response)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"response=6", b"response=7", "user 'chris' is not known, or the password is wrong"),
        (b'"chris"', b'"nobody"', "user 'nobody' is not known, or the password is wrong"),
        (b"OA9BSXrbuRhWay", b"another", "another challenge"),
        (b"nc=00000001", b"nc=00000002", "another challenge"),
        (b"acap/", b"imap/", "another challenge"),
        (b"qop=auth,", b"qop=auth-conf,", "integrity or encryption"),
        (b"qop=", b'authzid="root",qop=', "wants to be another one"),
        (b'"chris"', b'"\xff"', "can't be read"),
        (b"nc=", b'x="' + b"x" * 5000 + b'",nc=', "bytes"),
        (b"nc=", b"", "."),
    ],
)
def test_responses_that_are_refused(old: bytes, new: bytes, says: str) -> None:
    server, client = server_of(), client_of()
    response = client.respond(server.respond(client.respond(b"")))
    assert old in response
    with pytest.raises(SaslError, match=says) as caught:
        server.respond(response.replace(old, new, 1))
    assert "secret" not in str(caught.value)
    assert server.username is None


def test_an_identity_is_part_of_the_response() -> None:
    """Java's client says who it wants to be: itself. Of its own digest."""
    response = (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="n",nc=00000001,'
        b'cnonce="c",digest-uri="acap/elwood.innosoft.com",maxbuf=65536,'
        b'response=%s,qop=auth,authzid="chris"'
    )
    inner = hashlib.md5(f"chris:{HOST}:secret".encode()).digest()
    secret = hashlib.md5(inner + b":n:c:chris").hexdigest()
    a2 = hashlib.md5(f"AUTHENTICATE:acap/{HOST}".encode()).hexdigest()
    digest = hashlib.md5(f"{secret}:n:00000001:c:auth:{a2}".encode()).hexdigest()
    server = server_of("n")
    server.respond(b"")
    server.respond(response % digest.encode())
    assert server.username == "chris"


def write(folder: Path, text: str) -> Path:
    path = folder / "jaas.conf"
    path.write_text(text)
    return path


def test_a_section_of_a_jaas_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""// servers
Bookie {{ /* theirs */ {MODULE} required user_a="x; }}"; }};
# ours
BookKeeper {{
    {MODULE} required
    username="broker"
    password = "s \\"cret\\\\ {{;}}";
    com.example.Other optional username="not this";
}};""",
    )
    assert read_credentials(path, "BookKeeper") == SaslCredentials("broker", 's "cret\\ {;}')
    assert "cret" not in repr(read_credentials(path, "BookKeeper"))
    assert read_passwords(path, "Bookie") == {"a": "x; }"}
    with pytest.raises(ValueError, match="user_NAME"):
        read_passwords(path, "BookKeeper")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A {};", "no section BookKeeper"),
        ("BookKeeper {", "ends within a section"),
        (f'BookKeeper {{ {MODULE} required username="a }};', "quoted text has no end"),
        (f'BookKeeper {{ {MODULE} required username="a"; }};', "username and password"),
        ("BookKeeper { x.Module required; };", "module 'x.Module' isn't supported"),
        (
            "BookKeeper { com.sun.security.auth.module.Krb5LoginModule required; };",
            r"GSSAPI \(Kerberos\) isn't supported, DIGEST-MD5",
        ),
        ("BookKeeper x", "{ is expected"),
        ("BookKeeper { a; } b", "; is expected"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_credentials(write(tmp_path, text), "BookKeeper")
