"""The wheel, installed beside a project whose own packages are called as our folders are.

The wheel is built without a network and installed into an environment of its own. That one sees
the packages of this environment, but neither its editable installation nor this checkout.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.checkout_copy import FOLDERS, ROOT, WAIT_S, copy_sources, pip
from tests.nightly import NIGHTLY

# "error" but for what pytest-asyncio says about a project that doesn't set it up.
INI = """
    [pytest]
    filterwarnings = error
    asyncio_default_fixture_loop_scope = function
    """
CONFTEST = """
    import broker.config
    from pipeline.steps import STEPS

    assert broker.config.OURS == "broker" and STEPS == ["metadata"]
    """
TEST = """
    import sys
    from importlib import import_module
    from pathlib import Path

    import pulsar
    import pytest

    import magnetar as package

    HERE = Path(__file__).parent
    FOLDERS = {folders}


    def test_messages(magnetar):
        client = pulsar.Client(
            magnetar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        topic = magnetar.topic("orders")
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(30_000).data() == b"hello"
        client.close()


    @pytest.mark.parametrize("name", FOLDERS)
    def test_ours_and_theirs(magnetar, name):
        ours, theirs = import_module(name), import_module(f"magnetar.{{name}}")
        assert ours.NAME == name
        assert Path(ours.__file__).parent == HERE / name
        assert Path(theirs.__file__).parent == Path(package.__file__).parent / name


    def test_theirs_is_the_wheel():
        assert Path(package.__file__).is_relative_to(sys.prefix)
        assert not any((Path(entry) / "managed_ledger/README.md").exists() for entry in sys.path)
    """


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build writes beside its sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    copy_sources(source)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(built), str(source))
    (path,) = built.glob("magnetar-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment's Python, in which the wheel is installed."""
    prefix = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(prefix)}))
    # Only the path: this environment's own .pth files, so its editable packages, aren't read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Though pip sees the editable one, by that path.
    install = ("install", "--no-compile", "--ignore-installed", str(wheel))
    pip("--python", str(prefix / "bin" / "python"), *install)
    return prefix / "bin" / "python"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Has a package of each of our folders' names, in which nothing of ours is."""
    for name in FOLDERS:
        _write(tmp_path / name / "__init__.py", f'NAME = "{name}"\n')
    _write(tmp_path / "broker" / "config.py", 'OURS = "broker"\n')
    _write(tmp_path / "pipeline" / "steps.py", "import metadata\n\nSTEPS = [metadata.NAME]\n")
    _write(tmp_path / "pytest.ini", INI)
    _write(tmp_path / "conftest.py", CONFTEST)
    _write(tmp_path / "test_orders.py", TEST.format(folders=FOLDERS))
    return tmp_path


def test_the_wheel_has_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"magnetar"}
    assert "magnetar/py.typed" in names
    # Whatever is tracked in the folders is in it, but for what nobody reads at run time.
    listing = subprocess.run(
        ["git", "ls-files", *(f"{name}/*.py" for name in FOLDERS)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    sources = {f"magnetar/{line}" for line in listing.stdout.splitlines() if (ROOT / line).exists()}
    assert sources - set(names) == set()


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_project_with_packages_of_our_names(python: Path, project: Path, mode: str) -> None:
    done = _run(
        python, "-m", "pytest", "-p", "no:cacheprovider", "--magnetar-mode", mode, cwd=project
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(FOLDERS) + 2} passed" in done.stdout


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: mypy once more, over all of it")
def test_types_are_found(python: Path, project: Path) -> None:
    """``py.typed``: mypy takes ours from the package, and theirs from the project."""
    program = """
        import broker.config
        import magnetar
        from magnetar.broker.config import BrokerConfig

        config: BrokerConfig = BrokerConfig()
        reveal_type(config.max_message_size)
        reveal_type(magnetar.embedded)
        reveal_type(broker.config.OURS)
        """
    _write(project / "app.py", program)
    checked = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    done = subprocess.run(
        [*checked, "--cache-dir", os.devnull, "app.py"],
        cwd=project,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert ["int" in revealed[0], "EmbeddedBroker" in revealed[1], "str" in revealed[2]] == [
        True
    ] * 3


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))


def _run(python: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *words],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
