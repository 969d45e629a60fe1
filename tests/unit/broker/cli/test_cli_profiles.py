"""Profiles: the file's safety, and which address wins."""

import json
from pathlib import Path

import pytest

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.main import main
from magnetar.broker.cli.profiles import DEFAULT, ClusterTarget, Profiles, resolve

ONE = ClusterTarget("pulsar://one:6650", "http://one:8080")
TWO = ClusterTarget("pulsar://two:6650", "http://two:8080")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Two profiles, the first in use."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    profiles = Profiles.of_user(environment)
    profiles.add("one", ONE)
    profiles.add("two", TWO)
    return environment


def test_the_file_is_its_owners_alone(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "magnetar" / "profiles.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["profiles.json"]
    file.chmod(0o644)
    with pytest.raises(CliError, match="others may read or change it"):
        Profiles.of_user(environment)


def test_what_is_given_nearest_wins(environment: dict[str, str]) -> None:
    assert resolve(None, None, None, {"XDG_CONFIG_HOME": "/no/such/folder"}) == DEFAULT
    assert resolve(None, None, None, environment) == ONE
    named = {**environment, "MAGNETAR_PROFILE": "two"}
    assert resolve(None, None, None, named) == TWO
    variables = {**named, "MAGNETAR_SERVICE_URL": "pulsar://three:1"}
    assert resolve(None, None, None, variables) == ClusterTarget("pulsar://three:1", TWO.admin_url)
    assert resolve("one", None, None, variables) == ONE
    assert resolve("one", "pulsar://four:1", None, variables).service_url == "pulsar://four:1"
    assert resolve(None, None, "http://four:1", environment) == ClusterTarget(
        ONE.service_url, "http://four:1"
    )
    with pytest.raises(CliError, match=r"no profile 'three' \(there are: one, two\)"):
        resolve("three", None, None, environment)


def test_a_profile_that_goes_is_not_in_use(environment: dict[str, str]) -> None:
    Profiles.of_user(environment).remove("one")
    assert resolve(None, None, None, environment) == DEFAULT
    Profiles.of_user(environment).use("two")
    assert resolve(None, None, None, environment) == TWO


@pytest.mark.parametrize("text", ["no json", "[]", '{"profiles": {"a": {"other": 1}}}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "magnetar"
    folder.mkdir()
    (folder / "profiles.json").write_text(text)
    (folder / "profiles.json").chmod(0o600)
    with pytest.raises(CliError, match=r"profiles\.json: not a file of profiles"):
        Profiles.of_user({"XDG_CONFIG_HOME": str(tmp_path)})


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["profiles", "add", "a", "--url", "pulsar://a:1", "--admin-url", "http://a:2"]) == 0
    assert main(["profiles", "add", "b", "--url", "pulsar://b:1"]) == 0
    assert main(["profiles", "use", "b"]) == 0
    assert main(["profiles", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  a  pulsar://a:1  http://a:2",
        "* b  pulsar://b:1  http://127.0.0.1:8080",
    ]
    assert main(["profiles", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["current"] == "b"
    assert main(["profiles", "remove", "c"]) == 1
    assert main(["profiles", "add", "c", "--admin-url", "ftp://x"]) == 1
    assert "not an admin URL" in capsys.readouterr().err
