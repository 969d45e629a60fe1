"""The command line of the jobs, as far as it goes without a cluster."""

import argparse
import subprocess
import sys

import pytest

from magnetar.broker.cli.main import build_parser, main
from magnetar.pipeline.command import where_options
from magnetar.pipeline.errors import OptionsError


def parsed(*words: str) -> argparse.Namespace:
    arguments = ["pipeline", *words]
    return build_parser(arguments).parse_args(arguments)


def test_words_of_an_export() -> None:
    options = parsed("export", "a", "b", "--to", "s3a://x/y", "--run-bytes", "512M")
    assert (options.topics, options.to, options.run_bytes) == (["a", "b"], "s3a://x/y", 512 << 20)
    assert options.admin_url is None
    assert parsed("export", "a", "--to", "x", "--admin-url", "u").admin_url == "u"
    assert parsed("--admin-url", "u", "export", "a", "--to", "x").admin_url == "u"


@pytest.mark.parametrize(
    "words",
    [
        ("export", "a"),
        ("export", "a", "--to", "x", "--run-bytes", "0"),
        ("export", "a", "--to", "x", "--run-bytes", "many"),
        ("replay", "x"),
        ("load", "--top", "0"),
        ("backlog", "--sort", "x"),
        ("export", "a", "--to", "x", "--progress", "--no-progress"),
        (),
    ],
)
def test_words_that_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*words)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("export", "--to", "x"), "topics to export, or --pattern"),
        (("export", "a", "--pattern", "b", "--to", "x"), "and not both"),
        (("export", "a", "--to", "x", "--option", "minPartitions"), "KEY=VALUE"),
        (("export", "a", "--to", "x", "--from", "2026-13-01"), "not a time"),
        (("backlog", "--plot", "x.gif"), "a plot is one of .svg"),
        (("backlog", "--plot", "/nowhere/x.svg"), "there is no folder /nowhere"),
        (("load", "--admin-url", "http://127.0.0.1:1"), "no broker answers"),
    ],
)
def test_what_users_are_told(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *words]) == 1
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.startswith("magnetar: ")
    assert said.out == ""


def test_where() -> None:
    assert where_options("starting", None) == {}
    assert where_options("ending", "latest") == {"endingOffsets": "latest"}
    assert where_options("starting", "5:0") == {"startingOffsets": "5:0"}
    offsets = '{"a": [1, 2]}'
    assert where_options("starting", offsets) == {"startingOffsets": offsets}
    utc = {"startingTimestamp": "1795420800500"}
    assert where_options("starting", "2026-11-23T08:00:00.5Z") == utc
    assert where_options("starting", "2026-11-23T09:00:00.5+01:00") == utc
    assert where_options("starting", "2026-11-23T08:00:00.5") == utc
    with pytest.raises(OptionsError, match="not a time"):
        where_options("starting", "2026-11-23T25:00:00Z")


def test_help_needs_no_package_of_the_extra() -> None:
    script = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'matplotlib', 'py4j'): sys.modules[name] = None\n"
        "from magnetar.broker.cli.main import main\n"
        "try: main(['pipeline', *sys.argv[1:]])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('magnetar.pipeline')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "export", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "--run-bytes SIZE" in done.stdout
    assert "'magnetar.pipeline.command_options'" in done.stdout
    assert "'magnetar.pipeline.command'" not in done.stdout


@pytest.mark.parametrize(
    "words", [("export", "a", "--to", "x"), ("replay", "x", "--to", "a"), ("load", "--keys", "a")]
)
def test_without_the_extra(words: tuple[str, ...]) -> None:
    """As in an installation without it: an import finds nothing."""
    script = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "hidden = ('pyspark', 'pyarrow', 'matplotlib', 'py4j')\n"
        "importlib.util.find_spec = lambda n, *a: None if n in hidden else find(n, *a)\n"
        "class Hide:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in hidden:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "from magnetar.broker.cli.main import main\n"
        "sys.exit(main(['pipeline', *sys.argv[1:]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "pip install '.[pipeline]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
