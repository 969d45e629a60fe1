"""Committed renderings of the chart: what ``helm template`` makes of each file in its ``ci``.

They stand for the chart wherever Python runs: no helm is needed to hold them against schemas and
rules. Each begins with two digests, of the chart with those values and of the rendering itself, so
that neither can change alone. ``refused.yaml`` is the same for values that the chart refuses
(``refusals.yaml``): what helm says of each. ``make chart-renderings`` makes them anew.
"""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Object: TypeAlias = dict[str, Any]
"""One Kubernetes object, as YAML has it."""

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "magnetar"
RENDERINGS = Path(__file__).parent / "renderings"
RELEASE, NAMESPACE = "m", "mq"
# Of one release, whose names are numbers to YAML if nobody quotes them.
_ODD = {"odd": ("103", "123")}
KUBERNETES = "1.36.0"  # the chart is rendered for
_NOT_RENDERED = frozenset({"README.md", "ci"})


@dataclass(frozen=True, slots=True)
class Rendering:
    """One file of values and what the chart makes of it."""

    name: str

    @property
    def values_path(self) -> Path:
        return CHART / "ci" / f"{self.name}-values.yaml"

    @property
    def path(self) -> Path:
        return RENDERINGS / f"{self.name}.yaml"

    @property
    def release(self) -> str:
        return _ODD.get(self.name, (RELEASE, NAMESPACE))[0]

    @property
    def namespace(self) -> str:
        return _ODD.get(self.name, (RELEASE, NAMESPACE))[1]

    @property
    def text(self) -> str:
        """Without its head."""
        return self.path.read_text("utf-8").split("\n", 2)[2]

    @property
    def digests(self) -> tuple[str, str]:
        """As the file says: of chart and values, and of the text."""
        first, second, _ = self.path.read_text("utf-8").split("\n", 2)
        return first.rpartition(" ")[2], second.rpartition(" ")[2]

    def input_digest(self) -> str:
        digest = hashlib.sha256(chart_digest().encode())
        digest.update(self.values_path.read_bytes())
        return digest.hexdigest()

    def objects(self) -> list[Object]:
        return objects_of(self.text)

    def write(self, text: str) -> None:
        text = "".join(_without_dashboards(text))
        head = (
            f"# Made by `make chart-renderings`; chart and values: {self.input_digest()}\n"
            f"# and what follows: {digest_of(text)}\n"
        )
        self.path.write_text(head + text, "utf-8")


VALUES = tuple(
    Rendering(path.name.removesuffix("-values.yaml"))
    for path in sorted((CHART / "ci").glob("*-values.yaml"))
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Values that the chart refuses, and what its message must say."""

    values: dict[str, Any]
    says: str
    release: str = RELEASE

    @property
    def id(self) -> str:
        return self.says.replace(" ", "-")


_REFUSALS_PATH = Path(__file__).parent / "refusals.yaml"
_REFUSED_PATH = Path(__file__).parent / "refused.yaml"
REFUSALS = tuple(Refusal(**each) for each in yaml.safe_load(_REFUSALS_PATH.read_text("utf-8")))


def refusals_digest() -> str:
    return digest_of(chart_digest() + _REFUSALS_PATH.read_text("utf-8"))


def refused() -> tuple[tuple[str, str], str]:
    """Two digests that the file of messages names, as a rendering's, and its text."""
    first, second, text = _REFUSED_PATH.read_text("utf-8").split("\n", 2)
    return (first.rpartition(" ")[2], second.rpartition(" ")[2]), text


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def chart_digest() -> str:
    """Of everything that a rendering may depend on, names and contents."""
    digest = hashlib.sha256()
    for path in sorted(CHART.rglob("*")):
        inner = path.relative_to(CHART)
        if inner.parts[0] == "dashboards":  # renderings have their names
            digest.update(f"{inner.as_posix()}\0".encode())
        elif path.is_file() and inner.parts[0] not in _NOT_RENDERED:
            digest.update(f"{inner.as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def objects_of(text: str) -> list[Object]:
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def helm_template(helm: str, rendering: Rendering, kubernetes: str = KUBERNETES) -> str:
    """What helm makes of the chart and these values.

    Raises:
        subprocess.CalledProcessError: they don't go together; ``stderr`` says why.
    """
    words = [rendering.release, "--namespace", rendering.namespace, "--kube-version", kubernetes]
    done = _run(helm, *words, "--values", str(rendering.values_path))
    done.check_returncode()
    return done.stdout


def _run(helm: str, release: str, *words: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [helm, "template", release, str(CHART), *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": "/usr/bin:/bin", "HOME": home},
        )


def _message_of(helm: str, refusal: Refusal) -> str:
    """What helm says of values that it must not render."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(refusal.values, file)
        file.flush()
        words = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--values", file.name]
        done = _run(helm, refusal.release, *words)
    if done.returncode == 0:
        raise SystemExit(f"nothing is wrong with {refusal.values}")
    # Before it: which links helm followed, by their paths on this machine.
    return done.stderr[done.stderr.index("Error:") :].strip().partition("\n\nUse --debug")[0]


def _without_dashboards(text: str) -> Iterator[str]:
    """They are copies of files beside the chart: one name each is enough here."""
    in_dashboard = False
    for line in text.splitlines(keepends=True):
        if in_dashboard and line.startswith("    "):
            continue
        in_dashboard = line.startswith("  ") and line.rstrip().endswith(".json: |-")
        yield line
        if in_dashboard:
            yield "    the file of this name in charts/magnetar/dashboards\n"


def main() -> None:
    helm = sys.argv[1] if len(sys.argv) > 1 else "helm"
    RENDERINGS.mkdir(exist_ok=True)
    for path in RENDERINGS.glob("*.yaml"):
        path.unlink()
    for rendering in VALUES:
        rendering.write(helm_template(helm, rendering))
        print(f"{rendering.path.relative_to(ROOT)}: {len(rendering.objects())} objects")
    messages = [_message_of(helm, refusal) for refusal in REFUSALS]
    text = yaml.safe_dump(messages, width=1000)
    head = (
        f"# Made by `make chart-renderings`; chart and refusals: {refusals_digest()}\n"
        f"# and what follows: {digest_of(text)}\n"
    )
    _REFUSED_PATH.write_text(head + text, "utf-8")
    print(f"{_REFUSED_PATH.relative_to(ROOT)}: {len(messages)} messages")


if __name__ == "__main__":
    main()
