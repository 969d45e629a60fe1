"""The image's and the laptop's files in deploy/, judged without an engine that could run them."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.replication.settings import ENVIRONMENT_PREFIXES, KEYS
from magnetar.broker.cli.main import build_parser
from magnetar.broker.config import BrokerConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
INSTALL = (DEPLOY / "install.sh").read_text()
TARGETS = ("pipeline", "zookeeper", "magnetar")
TAGGED = re.compile(r"[\w./-]+:(?!latest)[\w.-]+")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")


def instructions() -> list[tuple[str, str]]:
    """Words and their arguments; continued lines are one."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    whole = text.replace("\\\n", " ").splitlines()
    lines = [" ".join(line.split()) for line in whole if line.strip()]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """By name, the one each begins with first; what stands before the first one is left out."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = [(word, base)]
        elif name:
            found[name].append((word, rest))
    return found


def lineage(target: str) -> list[tuple[str, str]]:
    """All instructions of a target, with those of the stages it is made of."""
    own = stages()[target]
    base = own[0][1]
    return (lineage(base) if base in stages() else []) + own


def test_bases_are_named_exactly() -> None:
    images = {
        rest.split("=")[0]: rest.split("=")[1] for word, rest in instructions() if "IMAGE=" in rest
    }
    # What compiles is what runs: the compiled code is of its version.
    assert images.pop("BUILD_IMAGE") == "${PYTHON_IMAGE}"
    assert set(images) == {"PYTHON_IMAGE", "JAVA_IMAGE"}
    for image in images.values():
        tagged, digest = image[: image.index("@")], image[image.index("@") :]
        assert TAGGED.fullmatch(tagged), image
        assert DIGEST.fullmatch(digest), image
    bases = {stage[0][1] for stage in stages().values()}
    assert bases <= {f"${{{name}}}" for name in (*images, "BUILD_IMAGE")} | set(stages())


def test_nothing_else_is_fetched_to_build() -> None:
    """A ``# syntax=`` line makes BuildKit load a builder of that name, which nobody pinned."""
    assert "syntax=" not in (DEPLOY / "Dockerfile").read_text()
    froms = {
        rest.split()[0] for word, rest in instructions() if word == "COPY" and "--from" in rest
    }
    assert {each.removeprefix("--from=") for each in froms} <= set(stages())


def test_all_work_is_done_by_the_one_script() -> None:
    compiler, *runs = [rest for word, rest in instructions() if word == "RUN"]
    assert "no-install-recommends gcc libc6-dev" in compiler
    assert len(runs) == 3
    for run in runs:
        words = shlex.split(run)
        assert words[:2] == ["sh", "/source/deploy/install.sh"], run
        for option in filter(lambda word: word.startswith("--"), words):
            assert f"        {option}) " in INSTALL, option
    for word, rest in instructions():
        assert word != "ADD", rest
        assert rest == compiler or "apt-get" not in rest.split(), rest


@pytest.mark.parametrize("target", TARGETS)
def test_targets_run_as_nobody_in_particular(target: str) -> None:
    found = lineage(target)
    values = dict(found)
    assert values["USER"] == "10001:10001"
    assert json.loads(values["ENTRYPOINT"]) == ["magnetar"]
    assert "HEALTHCHECK" in values
    assert "org.opencontainers.image.version" in values["LABEL"]
    # Sources and tools stay behind: only what the script made comes along.
    copies = [rest for word, rest in found if word == "COPY"]
    assert all("--from=build" in copy or "--from=java" in copy for copy in copies), copies
    # The folder that is written is made by a copy that gives it to the user; by WORKDIR it would
    # be root's, and stay so when it is copied to.
    order = [(word, rest) for word, rest in found if word in ("COPY", "USER", "WORKDIR")]
    assert order[-3] == (
        "COPY",
        f"{copies[-1].split()[0]} --chown=10001:10001 /image/var/lib/ /var/lib/",
    )
    assert order[-2:] == [("USER", "10001:10001"), ("WORKDIR", "/var/lib/magnetar")]
    assert "WORKDIR" not in {word for word, _ in order[:-1]}
    for words in (json.loads(values["CMD"]), json.loads(values["HEALTHCHECK"].split("CMD ")[1])):
        arguments = words[1:] if words[0] == "magnetar" else words
        build_parser(arguments).parse_args(arguments)


def test_the_default_target_is_the_small_one() -> None:
    assert list(stages())[-1] == "magnetar"
    assert not any("java" in rest for _, rest in lineage("magnetar"))


def test_the_script_s_user_is_the_image_s() -> None:
    assert "\nuser=10001\n" in INSTALL


def test_the_context_holds_what_is_installed_and_nothing_else() -> None:
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = re.search(r"^for name in (pyproject.toml .*?); do", INSTALL, re.MULTILINE | re.DOTALL)
    assert copied is not None
    sources = set(copied[1].replace("\\", " ").split())
    tools = set(re.findall(r'"\$source/(deploy/\w+\.py)"', INSTALL))
    assert len(tools) == 2
    assert allowed == sources | tools | {"constraints.txt", "deploy/install.sh"}
    packages = re.search(r"include = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert packages is not None
    assert set(re.findall(r'"(\w+)\*"', packages[1])) <= sources


# --- compose.yaml


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


SERVICES = [pytest.param(each, id=name) for name, each in compose()["services"].items()]


@pytest.mark.parametrize("service", SERVICES)
def test_services_are_confined(service: dict[str, Any]) -> None:
    assert TAGGED.fullmatch(service["image"]), service["image"]
    assert service["build"]["target"] in TARGETS
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    volumes = [volume.split(":") for volume in service.get("volumes", ())]
    assert all(
        name in compose()["volumes"] and place == "/var/lib/magnetar" for name, place in volumes
    )


@pytest.mark.parametrize("service", SERVICES)
def test_services_are_told_what_there_is(service: dict[str, Any]) -> None:
    """Words of the command line and keys of the environment."""
    arguments = service["command"]
    build_parser(arguments).parse_args(arguments)
    environment = service.get("environment", {})
    match arguments[0]:
        case "broker" | "standalone":
            config = BrokerConfig.load(environment=environment)
            assert config.metadata_store_url or arguments[0] == "standalone"
            assert config.web_service_allowed_hosts
            keys = BrokerConfig().as_keys().keys()
            known = {name.removeprefix("MAGNETAR_") for name in environment} <= keys
        case "bookie":
            found = BookieSettings.environment(environment)
            BookieSettings.load(found).check()
            assert BookieSettings.load(found).http_server_allowed_hosts
            known = len(found) == len(environment)
        case "autorecovery":
            known = "metadataServiceUri" in KEYS.environment(environment, ENVIRONMENT_PREFIXES)
        case _:
            known = environment == {}
    assert known, environment


def test_ports_of_the_host_are_taken_once() -> None:
    ports = [
        port.split(":")[1]
        for service in compose()["services"].values()
        for port in service.get("ports", ())
    ]
    assert len(set(ports)) == len(ports)


def test_without_a_profile_there_is_one_process() -> None:
    alone = [name for name, service in compose()["services"].items() if not service.get("profiles")]
    assert alone == ["standalone"]
    assert "depends_on" not in compose()["services"]["standalone"]


def test_compose_itself_takes_it() -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker")
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "--profile", "cluster"]
    if subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False
    ).returncode:
        pytest.skip("docker has no compose")
    done = subprocess.run(
        [*command, "config", "-q"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
