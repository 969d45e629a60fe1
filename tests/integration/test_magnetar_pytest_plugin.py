"""The pytest plugin as other projects have it: found by its entry point, in runs of their own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import magnetar.broker.http.server.app
import magnetar.broker.server.standalone  # noqa: F401 (see run_here)

pytest_plugins = ["pytester"]

_ASYNCIO = "asyncio_default_fixture_loop_scope = function"  # else pytest-asyncio warns
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Runs pytest on a module's text, in a process of its own."""

    def run(text: str, *options: str, ini: str = "") -> pytest.RunResult:
        pytester.makeini(f"[pytest]\nfilterwarnings = error\n{_ASYNCIO}\n{ini}")
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    return run


@pytest.fixture
def run_here(pytester: pytest.Pytester) -> Run:
    """As `run`, in this process, which has imported all that a broker in a thread needs."""

    def run(text: str, *options: str, ini: str = "") -> pytest.RunResult:
        pytester.makeini(f"[pytest]\n{_ASYNCIO}\n{ini}")
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


NOTE = """
    import json, os, pathlib, psutil, pulsar, pytest, sys, time

    def note(**values):
        with open("notes", "a") as file:
            print(json.dumps(values), file=file)
"""


def notes(pytester: pytest.Pytester) -> list[dict[str, object]]:
    return [json.loads(line) for line in (pytester.path / "notes").read_text().splitlines()]


def test_each_test_has_a_namespace_of_its_own_on_one_broker(
    run: Run, pytester: pytest.Pytester
) -> None:
    result = run(
        NOTE
        + """
    @pytest.mark.parametrize("number", range(3))
    def test_messages(magnetar, number):
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(magnetar.service_url, logger=logger)
        topic = magnetar.topic("same name", partitions=number)
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"%d" % number)
        assert consumer.receive(30_000).data() == b"%d" % number
        client.close()
        assert magnetar.topic() != magnetar.topic()
        assert len(magnetar.admin("GET", f"/admin/v2/namespaces/{magnetar.tenant}")) == 1
        magnetar.advance("1h")
        assert magnetar.broker.pid != os.getpid()
        note(url=magnetar.service_url, tenant=magnetar.tenant, pid=magnetar.broker.pid,
             path=str(magnetar.broker.path), config=magnetar.broker.config.max_message_size)

    def test_what_others_made_is_gone(magnetar):
        tenants = magnetar.admin("GET", "/admin/v2/tenants")
        assert sorted(tenants) == sorted(["public", "pulsar", magnetar.tenant])

    def test_a_refusal_is_an_error(magnetar):
        with pytest.raises(RuntimeError, match="404.*Tenant"):
            magnetar.admin("GET", "/admin/v2/tenants/none")
    """,
        ini="magnetar_settings =\n    maxMessageSize = 100000\n    defaultNumPartitions=2\n",
    )
    result.assert_outcomes(passed=5)
    noted = notes(pytester)
    assert len({note["url"] for note in noted}) == 1
    assert len({note["tenant"] for note in noted}) == 3
    assert {note["config"] for note in noted} == {100_000}
    assert not Path(str(noted[0]["path"])).exists()
    assert not Path(f"/proc/{noted[0]['pid']}").exists()


@pytest.mark.parametrize(
    ("options", "ini"),
    [
        ((), "magnetar_mode = thread"),
        (("--magnetar-mode", "thread"), "magnetar_mode = process"),
    ],
)
def test_the_mode_is_chosen(run_here: Run, options: tuple[str, ...], ini: str) -> None:
    text = """
    import os

    async def test_mode(magnetar):
        assert magnetar.broker.pid == os.getpid()
    """
    run_here(text, "--asyncio-mode=auto", *options, ini=ini).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("ini", "said"),
    [
        ("magnetar_mode = fiber", "magnetar_mode=fiber"),
        ("magnetar_settings = maxMessageSize", "key=value is expected"),
        ("magnetar_settings = maxMesageSize=1", "maxMesageSize: no such setting"),
        ("magnetar_start_timeout = soon", "not seconds"),
        ("magnetar_start_timeout = 0", "not ready within 0 s"),
    ],
)
def test_a_wrong_option_is_told(run_here: Run, ini: str, said: str) -> None:
    result = run_here("def test_it(magnetar): pass\n", ini=ini)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{said}*"])


def test_a_broker_that_died_is_told_by_the_next_test(run: Run) -> None:
    result = run(
        NOTE
        + """
    def test_kill(magnetar_broker):
        psutil.Process(magnetar_broker.pid).kill()
        deadline = time.monotonic() + 30
        while magnetar_broker.error is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def test_next(magnetar):
        pass
    """
    )
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 1
    assert outcomes["errors"] >= 1
    result.stdout.fnmatch_lines(["*exit code -9*"])


def test_a_suite_without_the_fixture_pays_nothing(run: Run) -> None:
    result = run(
        """
    import sys

    def test_nothing_was_imported():
        assert "magnetar.pytest_plugin" in sys.modules
        assert "magnetar.embedding" not in sys.modules
        assert "magnetar.broker" not in sys.modules
    """
    )
    result.assert_outcomes(passed=1)


def test_our_asserts_are_not_rewritten(run: Run, pytester: pytest.Pytester) -> None:
    # What pytest does by itself where the package isn't installed in editable form.
    pytester.makeconftest(
        "import pytest\npytest.register_assert_rewrite('magnetar.broker', 'other')\n"
    )
    pytester.makepyfile(other="", pipeline="")
    run(
        """
    import magnetar.broker.config, other, pipeline, pathlib

    def test_loaders():
        assert type(magnetar.broker.config.__loader__).__name__ == "SourceFileLoader"
        assert type(other.__loader__).__name__ == "AssertionRewritingHook"
        assert pathlib.Path(pipeline.__file__).parent == pathlib.Path(__file__).parent
    """
    ).assert_outcomes(passed=1)


def test_workers_of_xdist_have_a_broker_each(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        NOTE
        + """
    @pytest.mark.parametrize("number", range(4))
    def test_it(magnetar, number, worker_id):
        note(worker=worker_id, url=magnetar.service_url)
    """,
        *("-n", "2", "--dist", "loadscope"),
    )
    result.assert_outcomes(passed=4)
    noted = notes(pytester)
    assert len({note["url"] for note in noted}) == len({note["worker"] for note in noted})
