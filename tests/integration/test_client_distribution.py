"""The client tools alone (client/pyproject.toml), where nothing of a server's dependencies is.

Built from a copy of this checkout, without a network. An import hook stands for an environment with
its dependencies only.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.checkout_copy import ROOT, WAIT_S, copy_sources, pip
from tests.standalone_process import StandaloneProcess
from tests.wheels_of_environment import requirements_of

PROGRAM = """
import sys
from importlib.metadata import packages_distributions

hidden = {name for name, owners in packages_distributions().items() if not set(owners) & OWNERS}

class Hide:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in hidden - {"magnetar"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
import magnetar
assert magnetar.__file__.startswith(sys.argv.pop(1)), magnetar.__file__
from magnetar.broker.cli.main import main
sys.exit(main())
"""


def _requirements(path: Path) -> dict[str, Requirement]:
    found = tomllib.loads(path.read_text())["project"]["dependencies"]
    return {each.name: each for each in map(Requirement, found)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the light wheel is installed."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    copy_sources(source)
    (source / "client").mkdir()
    shutil.copy(ROOT / "client" / "pyproject.toml", source / "client")
    pip("install", "--no-build-isolation", "--target", str(site), str(source / "client"))
    return site


def _magnetar(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # As METADATA of distributions may have other names, by their normal ones and as they are.
    normal = requirements_of(_requirements(ROOT / "client" / "pyproject.toml"))
    owners = normal | {name.replace("-", "_") for name in normal} | {"PyJWT", "Pygments"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("OWNERS", repr(owners)), str(site), *words],
        cwd=site,
        env={"PATH": os.environ["PATH"], "HOME": str(site), "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_its_dependencies_are_a_part_of_the_brokers() -> None:
    ours, all_of_them = (
        _requirements(ROOT / at) for at in ("client/pyproject.toml", "pyproject.toml")
    )
    assert {name: str(each) for name, each in ours.items()} == {
        name: str(each) for name, each in all_of_them.items() if name in ours
    }
    assert len(ours) <= 12


def test_the_tools_work(site: Path, standalone: StandaloneProcess) -> None:
    admin = ("admin", "--admin-url", standalone.admin_url)
    avro = 'avro:{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    url = ("--url", standalone.service_url)
    web = ("--url", standalone.admin_url.replace("http", "ws"))
    for words, said in (
        (("version",), "."),
        (("completion", "bash"), "magnetar"),
        (("probe", f"{standalone.admin_url}/livez"), "alive"),
        ((*admin, "topics", "create", "light"), ""),
        ((*admin, "topics", "stats", "light"), "subscriptions"),
        (("produce", *url, "light", "-m", "hello"), "1 messages"),
        (("produce", *web, "light", "-m", "hello"), "1 messages"),
        (("produce", *url, "typed", "-vs", avro, "-m", '{"a": 1}'), "1 messages"),
        (("consume", *url, "light", "-s", "s", "-n", "2", "-p", "Earliest"), "hello"),
        (("read", *url, "light", "-n", "1", "-m", "earliest"), "hello"),
        (("verify", *url, *admin[1:], "--seconds", "0", "--messages", "20"), "Clean"),
        (("tokens", "create-secret-key", "--output", "key"), ""),
        (("tokens", "create", "--secret-key", "file:key", "--subject", "joe"), "ey"),
        (("profiles", "list"), ""),
        (("pipeline", "export", "--help"), "--run-bytes"),
    ):
        done = _magnetar(site, *words)
        assert done.returncode == 0, (words, done.stdout + done.stderr)
        assert said in done.stdout, words


@pytest.mark.parametrize("words", [("standalone",), ("bookie-shell", "listbookies"), ("cluster",)])
def test_what_it_lacks_is_told(site: Path, words: tuple[str, ...]) -> None:
    done = _magnetar(site, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "magnetar-client has the client tools alone" in done.stderr
    assert "Traceback" not in done.stderr
