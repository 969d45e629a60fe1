"""What an image would contain: deploy/install.sh into an empty folder, run as the image's user.

Packages come from this environment, zipped up as the wheels they were, so that pip does what it
does in an image, and nothing is fetched.
"""

import argparse
import asyncio.events
import importlib.util
import json
import marshal
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest

from deploy.strip_symbols import stripped
from magnetar.metadata.factory import connect_store
from tests.certificates import Authority
from tests.child_process import ChildProcess
from tests.free_port import free_port
from tests.integration.failure_tools import new_topic
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until
from tests.wheels_of_environment import requirements_of, write_wheel

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000
USER = 10_001
WAIT_S = 120.0
INSTALL_S_MAX = 900.0  # it takes ten seconds; a machine may have much else to do
SIZE_MAX = 140 << 20  # docs/guides/containers.md names what it is


@dataclass(frozen=True)
class Image:
    """Two folders of a file system: environment, and where its user may write."""

    prefix: Path
    data: Path
    user: int | None  # None: we are nobody special, and it runs as we do

    @property
    def magnetar(self) -> str:
        return str(self.prefix / "bin" / "magnetar")

    @property
    def environment(self) -> dict[str, str]:
        """Of the image, with Java's place."""
        java = str(Path(shutil.which("java") or "java").parent)
        path = f"{self.prefix}/bin:/usr/bin:/bin:{java}"
        return {"PATH": path, "HOME": str(self.data), "PYTHONUNBUFFERED": "1"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_as_user(self.user), self.magnetar, *words],
            env=self.environment,
            cwd=self.data,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def popen(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*_as_user(self.user), *command],
                env=self.environment,
                cwd=self.data,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )


def _as_user(user: int | None) -> list[str]:
    """What has to stand before a command."""
    if user is None:
        return []
    words = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    base = Path(sys.base_prefix).resolve()
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in (base, *base.parents)):
        # The interpreter is in somebody's home. It may be read, then, and nothing be written.
        words += [f"--{which}-caps=+dac_read_search" for which in ("inh", "ambient")]
    return words


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # Not below pytest's folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="magnetar-image-"))
    folder.chmod(0o755)
    try:
        yield _install(folder)
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
        shutil.rmtree(folder)


def _install(folder: Path) -> Image:
    wheels = folder / "wheels"
    wheels.mkdir()
    for name in requirements_of(["magnetar", "setuptools", "cython"]) - {"magnetar"}:
        write_wheel(name, wheels)
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    options = {
        "--prefix": folder / "opt",
        "--root": folder / "root",
        "--wheels": wheels,
        "--jars-below": Path(spark.origin).parents[1],
    }
    done = subprocess.run(
        [
            "sh",
            str(ROOT / "deploy/install.sh"),
            *(str(w) for pair in options.items() for w in pair),
        ],
        env={
            "PATH": os.environ["PATH"],
            "PYTHON": sys.executable,
            "SOURCE_DATE_EPOCH": str(EPOCH),
            "HOME": str(folder),
            "CFLAGS": "-O0",  # what is compiled is installed, not measured
        },
        capture_output=True,
        text=True,
        timeout=INSTALL_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MiB in the environment" in done.stdout
    is_root = os.geteuid() == 0
    return Image(folder / "opt", folder / "root/var/lib/magnetar", USER if is_root else None)


class ImageStandalone(StandaloneProcess):
    """``magnetar standalone`` of the image."""

    def __init__(self, image: Image, *options: str) -> None:
        super().__init__(image.data / "standalone", *options)
        self._image = image

    def _launch(self, port: int, web_port: int) -> subprocess.Popen[bytes]:
        return self._image.popen(
            [
                *(self._image.magnetar, "standalone", "--bind", "127.0.0.1"),
                *("--data", str(self.data), *self._options),
                *("--port", str(port), "--web-port", str(web_port)),
            ],
            self._log_path,
        )


def test_code_is_read_only_and_complete(image: Image) -> None:
    files = [path for path in image.prefix.rglob("*") if not path.is_symlink()]
    writable = [path for path in files if path.stat().st_mode & 0o222]
    assert writable == []
    unreadable = [path for path in files if not path.stat().st_mode & stat.S_IROTH]
    assert unreadable == []
    assert {path.stat().st_mtime for path in files} == {EPOCH}
    names = {path.name for path in image.prefix.rglob("*")}
    assert names.isdisjoint({"pip", "setuptools", "pyspark", "pytest", "tests"})
    assert "direct_url.json" not in names, "it holds the name of a temporary folder"
    sources = [path for path in files if path.suffix == ".py" and path.stat().st_size > 0]
    compiled = {
        path.parents[1] / path.name.split(".")[0] for path in files if path.suffix == ".pyc"
    }
    assert len(sources) > 1000
    assert [path for path in sources if path.with_suffix("") not in compiled] == []
    assert sum(path.stat().st_size for path in files if path.is_file()) < SIZE_MAX


def test_compiled_code_is_believed_without_times(image: Image) -> None:
    """Bit 0: by a hash; bit 1, that it is compared with the source, isn't set."""
    compiled = next(image.prefix.rglob("broker/server/__pycache__/standalone.*.pyc"))
    assert int.from_bytes(compiled.read_bytes()[4:8], "little") == 0b01


def test_libraries_have_nothing_left_to_cut(image: Image) -> None:
    libraries = [(path.name, path.read_bytes()) for path in image.prefix.rglob("*.so")]
    assert len(libraries) > 20
    assert [name for name, library in libraries if len(stripped(library)) < len(library)] == []


def test_python_s_own_library_is_compiled(image: Image) -> None:
    """With a hash (bit 0) that is compared with the source (bit 1): the base may change."""
    found = {}
    for source in (argparse.__file__, asyncio.events.__file__):
        place = Path(importlib.util.cache_from_source(source)).relative_to("/")
        compiled = (image.data.parents[2] / place).read_bytes()
        assert compiled[:4] == importlib.util.MAGIC_NUMBER
        assert int.from_bytes(compiled[4:8], "little") == 0b11
        assert compiled[8:16] == importlib.util.source_hash(Path(source).read_bytes())
        found[source] = marshal.loads(compiled[16:]).co_filename
    assert found == {source: source for source in found}


def test_the_user_has_a_name_and_a_folder(image: Image) -> None:
    etc = image.data.parents[2] / "etc"
    lines = (etc / "passwd").read_text().splitlines()
    assert [line for line in lines if line.split(":")[2] == str(USER)] == [
        f"magnetar:x:{USER}:{USER}:Magnetar:/var/lib/magnetar:/usr/sbin/nologin"
    ]
    assert lines[0].startswith("root:")
    assert f"magnetar:x:{USER}:" in (etc / "group").read_text()
    if image.user is not None:
        assert (image.data.stat().st_uid, image.data.stat().st_gid) == (USER, USER)
    assert image.data.stat().st_mode & 0o777 == 0o750


def test_a_standalone_runs_keeps_and_ends(image: Image) -> None:
    topic = new_topic()
    process = ImageStandalone(image, "--log-format", "json")
    with process:
        if image.user is not None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in status
        client = pulsar.Client(process.service_url, operation_timeout_seconds=60)
        client.subscribe(topic, "kept").close()
        producer = client.create_producer(topic)
        for number in range(10):
            producer.send(b"%d" % number)
        client.close()
        assert image.run("probe", f"{process.admin_url}/livez").returncode == 0
        ready = image.run("probe", f"{process.admin_url}/readyz")
        assert (ready.returncode, json.loads(ready.stdout)) == (0, {"status": "ready"})
        assert image.run("probe", f"{process.admin_url}/nothing").returncode == 1
        assert process.stop(WAIT_S) == 0, process.log
        log = [line for line in process.log.splitlines() if not line.startswith("magnetar ")]
        assert log
        assert {"time", "level", "logger", "message"} <= json.loads(log[0]).keys()
        process.start()
        client = pulsar.Client(process.service_url, operation_timeout_seconds=60)
        consumer = client.subscribe(topic, "kept")
        assert [consumer.receive(60_000).data() for _ in range(10)] == [
            b"%d" % n for n in range(10)
        ]
        client.close()
        with urllib.request.urlopen(f"{process.admin_url}/metrics", timeout=60) as answer:
            assert answer.status == 200
        assert process.stop(WAIT_S) == 0
    written = [path for path in image.prefix.rglob("*") if path.lstat().st_mtime > EPOCH]
    assert written == [], "a process wrote into the code"


def test_nobody_can_write_the_code(image: Image) -> None:
    if image.user is None and os.access(image.prefix, os.W_OK):
        pytest.skip("whoever runs this may write everywhere")
    command = [str(image.prefix / "bin/python"), "-c", "open('x', 'w')"]
    done = subprocess.run(
        [*_as_user(image.user), *command],
        cwd=image.prefix,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"Permission denied" in done.stderr
    assert not (image.prefix / "x").exists()


class _Server(ChildProcess):
    """``magnetar zookeeper`` of the image, which has no PySpark."""

    def __init__(self, image: Image, name: str, **settings: object) -> None:
        super().__init__(image.data / f"{name}.log")
        self.image, self.port, self.data = image, free_port(), image.data / name
        self._settings = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]

    def start(self) -> None:
        self._process = self.image.popen(
            [
                *(self.image.magnetar, "zookeeper", "--bind", "127.0.0.1", "--heap", "96m"),
                *("--client-port", str(self.port), "--data", str(self.data)),
                *(word for each in self._settings for word in ("--set", each)),
                *("--log-format", "json"),
            ],
            self._log_path,
        )

    def check(self, what: str) -> bool:
        assert self.is_running, self.log
        words = ("zookeeper", "--check", what, "--client-port", str(self.port))
        return self.image.run(*words).returncode == 0


async def test_zookeeper_runs_from_its_own_jars(image: Image, tmp_path: Path) -> None:
    """Over TLS for clients; probes ask the plain port, which is this machine's alone."""
    jars = {path.name.split("-3.9")[0] for path in (image.prefix / "share/zookeeper").iterdir()}
    assert "zookeeper" in jars
    authority = Authority(tmp_path)
    pair, secure_port = authority.sign("server"), free_port()
    trusted, both = image.data / "authority.pem", image.data / "server-with-key.pem"
    trusted.write_bytes(authority.certificate.read_bytes())
    both.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    settings = {
        "secureClientPort": secure_port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl__keyStore__location": both,
        "ssl__trustStore__location": trusted,
    }
    config = tmp_path / "metadata.properties"
    config.write_text(
        f"useTls=true\ntlsTrustCertsFilePath={authority.certificate}\n"
        f"tlsCertificateFilePath={pair.certificate}\ntlsKeyFilePath={pair.key}\n"
    )
    with _Server(image, "zookeeper", **settings) as server:
        wait_until(lambda: server.check("ready"), f"ready: {server.log}", WAIT_S)
        assert server.check("live")
        assert all("message" in json.loads(line) for line in server.log.splitlines())
        store = await connect_store(f"zk:127.0.0.1:{secure_port}", config)
        await store.put("/node", b"over TLS")
        await store.close()
        # Java's own way to say that it ended by SIGTERM: the command became Java.
        assert server.stop(WAIT_S) == 143


@pytest.mark.parametrize("words", [["--nonsense", "x"], ["--prefix"], [], ["--prefix", "/"]])
def test_wrong_words_do_nothing(words: list[str]) -> None:
    done = subprocess.run(
        ["sh", str(ROOT / "deploy/install.sh"), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("install.sh: ")
