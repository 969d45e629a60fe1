"""What a process of auto-recovery says of its own certificates and token, for the doctor."""

import base64
import json
from pathlib import Path

import pytest

from magnetar.bookkeeper.auth.certificates import certificate_end_ms
from magnetar.bookkeeper.replication import stated_ends as module
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings
from magnetar.bookkeeper.replication.stated_ends import (
    CREDENTIALS_PATH,
    EndsStatement,
    StatedEnd,
    files_of,
    stated_ends,
)
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.certificates import Authority
from tests.unit.bookkeeper.replication.memory_store import Server
from tests.waiting import eventually

END_S = 1_900_000_000


def token(end_s: int) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": end_s}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.c2ln"


def settings(**given: str) -> AutoRecoverySettings:
    return AutoRecoverySettings.load(given)


async def test_all_that_is_used_is_told_until_the_process_ends(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("worker")
    (tmp_path / "token").write_text(token(END_S))
    zookeeper = tmp_path / "zookeeper.properties"
    zookeeper.write_text(f"useTls=true\ntlsTrustCertsFilePath={tmp_path / 'none.pem'}\n")
    used = settings(
        clientCertificatePath=str(pair.certificate),
        clientKeyPath=str(pair.key),
        clientTrustPath=str(authority.certificate),
        bookkeeperClientAuthenticationPlugin="token",
        bookkeeperClientAuthenticationParameters=f"file://{tmp_path / 'token'}",
        metadataStoreConfigPath=str(zookeeper),
    )
    server = Server()
    statement = EndsStatement(server.new_store(), "a/b:1", lambda: files_of(used))
    statement.start()
    doctor = server.new_store()
    await eventually(lambda: stated_ends(doctor))
    found = await stated_ends(doctor)
    end_ms = certificate_end_ms(pair.certificate)
    own, trusted, shown, missing = found
    assert own == StatedEnd(
        "a/b:1", "clientCertificatePath", str(pair.certificate), False, end_ms, ""
    )
    assert (trusted.setting, trusted.ends_ms is not None) == ("clientTrustPath", True)
    assert (shown.is_token, shown.ends_ms, shown.path) == (True, 1000 * END_S, "")
    assert missing.setting == "metadataStoreConfigPath: none.pem"
    assert "No such file" in missing.problem
    assert token(END_S) not in str(found)
    await statement.close()
    assert await stated_ends(doctor) == []


async def test_a_renewed_file_is_told_and_a_lost_session_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    file = tmp_path / "token"
    file.write_text(token(END_S))
    used = settings(
        bookkeeperClientAuthenticationPlugin="token",
        bookkeeperClientAuthenticationParameters=f"file://{file}",
    )
    server = Server()
    store, doctor = server.new_store(), server.new_store()
    statement = EndsStatement(store, "one", lambda: files_of(used))
    statement.start()

    async def told(end_s: int) -> bool:
        return [each.ends_ms for each in await stated_ends(doctor)] == [1000 * end_s]

    await eventually(lambda: told(END_S))
    file.write_text(token(END_S + 9))
    await eventually(lambda: told(END_S + 9))
    store.lose()
    server.expire(store.session_id)
    store.begin_again()
    await eventually(lambda: told(END_S + 9))
    await statement.close()


async def test_a_process_that_shows_nothing_says_nothing() -> None:
    store = EmbeddedMetadataStore.open(None)
    statement = EndsStatement(store, "one", lambda: files_of(settings()))
    assert statement._ends() == []
    statement.start()
    await statement.close()
    assert await store.get(CREDENTIALS_PATH) is None
    await store.close()


async def test_what_a_newer_release_says_hides_nothing_else() -> None:
    store = EmbeddedMetadataStore.open(None)
    one = {"setting": "s", "path": "p", "isToken": False, "endsMs": 7, "problem": ""}
    good = json.dumps({"credentials": [one]}).encode()
    for name, value in (("a", b"?"), ("b", b"{}"), ("c", good)):
        await store.put(f"{CREDENTIALS_PATH}/{name}", value, -1)
    assert await stated_ends(store) == [StatedEnd("c", "s", "p", False, 7, "")]
    await store.close()
