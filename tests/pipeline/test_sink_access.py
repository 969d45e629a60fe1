"""Credentials and TLS of the sink, without Spark: the client and the admin calls take the same."""

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jwt
import pulsar
import pytest

import magnetar
from magnetar.embedding import EmbeddedBroker
from magnetar.pipeline.admin import Admin, parse_access
from magnetar.pipeline.errors import OptionsError, WriteError
from magnetar.pipeline.sink_options import parse_sink_options
from magnetar.pipeline.task_producers import (
    RowMessage,
    TaskProducers,
    TaskRun,
    TaskWriteResult,
    open_client,
)
from tests.certificates import Authority, Pair

SECRET = bytes(range(32))
TOPIC = "persistent://public/default/guarded"


@dataclass(frozen=True, slots=True)
class Guarded:
    broker: EmbeddedBroker
    authority: Authority
    alice: Pair
    folder: Path

    def options(self, plugin: str, params: str, **options: str) -> dict[str, str]:
        return {
            "serviceUrl": self.broker.service_url_tls,
            "adminUrl": self.broker.web_url_tls,
            "topic": TOPIC,
            "tlsTrustCertsFilePath": str(self.authority.certificate),
            "authPlugin": plugin,
            "authParams": params,
            **options,
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    server = authority.sign("localhost")
    (folder / "secret.key").write_bytes(SECRET)
    with magnetar.embedded(
        brokerServicePort="",
        webServicePort="",
        brokerServicePortTls=0,
        webServicePortTls=0,
        tlsCertificateFilePath=server.certificate,
        tlsKeyFilePath=server.key,
        tlsTrustCertsFilePath=authority.certificate,
        authenticationEnabled=True,
        authenticationProviders="token,tls",
        tokenSecretKey=folder / "secret.key",
        brokerDeduplicationEnabled=True,
    ) as broker:
        yield Guarded(broker, authority, authority.sign("alice"), folder)


def _token(guarded: Guarded) -> tuple[str, str]:
    claims = {"sub": "alice", "exp": int(time.time()) + 3600}
    (guarded.folder / "token").write_text(jwt.encode(claims, SECRET, algorithm="HS256"))
    return "token", f"file://{guarded.folder / 'token'}"


def _certificate(guarded: Guarded) -> tuple[str, str]:
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
    return plugin, f"tlsCertFile:{guarded.alice.certificate},tlsKeyFile:{guarded.alice.key}"


def _write(given: dict[str, str], name: str) -> TaskWriteResult:
    options = parse_sink_options(given)
    task = TaskProducers(open_client(options), options, TaskRun(name, 0))
    try:
        for number in range(100):
            task.send(RowMessage(b"%d" % number, size=3))
        return task.finish()
    except BaseException:
        task.abandon()
        raise


@pytest.mark.parametrize("credentials", [_token, _certificate])
def test_rows_are_sent_with_credentials(
    guarded: Guarded, credentials: Callable[[Guarded], tuple[str, str]]
) -> None:
    given = guarded.options(*credentials(guarded))
    assert _write(given, credentials.__name__) == TaskWriteResult(100, 0)
    assert _write(given, credentials.__name__) == TaskWriteResult(0, 100)
    with Admin(parse_access(given)) as admin:
        assert admin.policy(TOPIC, "deduplicationEnabled") is True


def test_bad_credentials_are_told(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = base64.urlsafe_b64encode(b"{}").decode()
    with pytest.raises(OptionsError, match="option authParams: no token in it"):
        _write(guarded.options("token", "token:"), "empty")
    with pytest.raises(OptionsError, match=r"option authParams: /nowhere/token: .*No such file"):
        _write(guarded.options("token", "file:///nowhere/token"), "missing")
    with pytest.raises(OptionsError, match="option authParams: tlsCertFile"):
        _write(guarded.options("tls", "nothing"), "nothing")
    # All that the client tells is a timeout.
    with monkeypatch.context() as patch:
        patch.setattr("magnetar.pipeline.task_producers._OPERATION_S", 2)
        told = r"guarded: .* doesn't tell .* are credentials .* right"
        with pytest.raises(WriteError, match=told):
            _write(guarded.options("token", f"token:{forged}.{forged}.{forged}"), "forged")
    given = guarded.options(*_token(guarded), tlsTrustCertsFilePath="")
    assert _write(given | {"tlsAllowInsecureConnection": "true"}, "insecure") == TaskWriteResult(
        100, 0
    )


def test_a_token_is_read_anew_and_an_old_one_outlives_its_file(guarded: Guarded) -> None:
    from magnetar.pipeline.task_producers import _Tokens

    plugin, params = _token(guarded)
    tokens = _Tokens(parse_sink_options(guarded.options(plugin, params)).access)
    first = tokens()
    path = guarded.folder / "token"
    path.write_text("another")
    assert tokens() == "another" != first
    path.unlink()
    assert tokens() == "another"
    assert pulsar.AuthenticationToken(tokens) is not None
