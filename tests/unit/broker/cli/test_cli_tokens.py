"""``magnetar tokens``: keys and tokens as Pulsar's own tool makes them."""

import base64
import json
import os
import stat
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

from magnetar.broker.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["tokens", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["tokens", *map(str, words)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_key_makes_tokens_that_it_validates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret.key"
    assert run(capsys, "create-secret-key", "--output", file) == ""
    assert (len(file.read_bytes()), _mode(file)) == (32, 0o600)
    token = run(capsys, "create", "-sk", f"file://{file}", "-s", "alice", "-e", "1h").strip()
    claims = json.loads(run(capsys, "validate", "-sk", file, token))
    assert claims["sub"] == "alice"
    assert jwt.decode(token, file.read_bytes(), ["HS256"]) == claims
    header, _, body = run(capsys, "show", token).partition("---\n")
    assert json.loads(header)["alg"] == "HS256"
    assert json.loads(body) == claims
    monkeypatch.setenv("TOKEN", token)
    assert json.loads(run(capsys, "validate", "-sk", file)) == claims
    # Never over a key that may be in use
    assert "exists already" in refused(capsys, "create-secret-key", "--output", file)


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_files_have_their_mode_whatever_the_umask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], umask: int
) -> None:
    secret, private, public = (tmp_path / name for name in ("secret", "private", "public"))
    before = os.umask(umask)
    try:
        run(capsys, "create-secret-key", "-o", secret)
        words = ("--output-private-key", private, "--output-public-key", public)
        run(capsys, "create-key-pair", "-a", "ES256", *words)
    finally:
        os.umask(before)
    assert [_mode(each) for each in (secret, private, public)] == [0o600, 0o600, 0o644]


def test_no_half_of_a_pair_is_made_and_nothing_is_written_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public, elsewhere = (tmp_path / name for name in ("private", "public", "elsewhere"))
    public.symlink_to(elsewhere)
    words = ("--output-private-key", private, "--output-public-key", public)
    assert "exists already" in refused(capsys, "create-key-pair", "-a", "ES256", *words)
    assert not private.exists()
    assert "exists already" in refused(capsys, "create-secret-key", "-o", public)
    assert not elsewhere.exists()


def test_secret_keys_on_standard_output_and_in_base64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded = run(capsys, "create-secret-key", "-b", "-a", "HS512").strip()
    assert len(base64.b64decode(encoded)) == 64
    token = run(capsys, "create", "-sk", f"data:;base64,{encoded}", "-s", "a").strip()
    assert jwt.get_unverified_header(token)["alg"] == "HS512"
    (tmp_path / "token").write_text(token + "\n")
    out = run(capsys, "validate", "-sk", encoded, "-f", tmp_path / "token")
    assert json.loads(out) == {"sub": "a"}


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "EdDSA"])
def test_key_pairs_are_der_files(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = tmp_path / "private.der", tmp_path / "public.der"
    pair = ("--output-private-key", private, "--output-public-key", public)
    run(capsys, "create-key-pair", "-a", algorithm, *pair)
    assert _mode(private) == 0o600
    load_der_private_key(private.read_bytes(), None)
    load_der_public_key(public.read_bytes())
    create = ("create", "-pk", private, "-s", "bob", "-hs", "kid=one")
    token = run(capsys, *create, "-a", algorithm).strip()
    assert jwt.get_unverified_header(token) == {"alg": algorithm, "typ": "JWT", "kid": "one"}
    assert json.loads(run(capsys, "validate", "-pk", public, token)) == {"sub": "bob"}


def test_what_cannot_be_done_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "secret.key"
    run(capsys, "create-secret-key", "-o", file)
    token = run(capsys, "create", "-sk", file, "-s", "a").strip()
    other = base64.b64encode(b"y" * 32).decode()
    assert "InvalidSignatureError" in refused(capsys, "validate", "-sk", other, token)
    expired = jwt.encode({"sub": "a", "exp": 1}, file.read_bytes(), "HS256")
    assert "expired" in refused(capsys, "validate", "-sk", file, expired)
    assert "not both" in refused(capsys, "validate", token)
    assert "not both" in refused(capsys, "create", "-s", "a")
    assert "one of TOKEN" in refused(capsys, "show")
    assert "10y is expected" in refused(capsys, "create", "-sk", file, "-s", "a", "-e", "soon")
    assert "the key is for HS256" in refused(capsys, "create", "-sk", file, "-s", "a", "-a", "none")
    assert "-a none" in refused(capsys, "create-secret-key", "-a", "none")
    assert "not a JSON Web Token" in refused(capsys, "show", "nonsense")
