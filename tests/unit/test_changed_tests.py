"""`make test-quick` runs the unit tests of what has changed."""

from pathlib import Path

from changed_tests import affected

NEIGHBOUR = "broker/service/test_neighbour.py"
TESTS = {
    "test_topic.py": "from magnetar.broker.service.resources import Resources\n",
    "test_package.py": "from magnetar.broker.service import (\n    resources,\n)\n",
    "deeper/test_plain.py": "def test():\n    import magnetar.broker.service.resources\n",
    "test_other.py": "from magnetar.broker.topic.x import X\nfrom magnetar.broker import service\n",
    "helper.py": "from magnetar.broker.service.resources import Resources\n",
    NEIGHBOUR: "import magnetar.broker.config\n",
    "test_helped.py": "from tests.unit import helper\n",
}


def test_tests_that_import_a_changed_module_or_have_changed(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        path = tmp_path / "tests" / "unit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    prefix = "tests/unit/"
    assert affected({"broker/service/resources.py", "docs/topic.md"}, tmp_path) == [
        f"{prefix}{name}"
        for name in (
            *(NEIGHBOUR, "deeper/test_plain.py"),
            *("test_helped.py", "test_package.py", "test_topic.py"),
        )
    ]
    assert affected({f"{prefix}test_other.py"}, tmp_path) == [f"{prefix}test_other.py"]
    assert affected({"broker/service/__init__.py"}, tmp_path) == [
        f"{prefix}{name}" for name in (NEIGHBOUR, "test_other.py", "test_package.py")
    ]
    assert affected({"broker/topic/topic.py"}, tmp_path) == []
    assert affected(set(), tmp_path) == []


def test_rules_of_the_code_are_always_checked_and_names_are_those_of_the_tree() -> None:
    found = affected({"broker/config.py"})
    assert {"tests/unit/test_import_rules.py", "tests/unit/test_tidy.py"} <= {*found}
    assert "tests/unit/broker/test_pulsar_settings.py" in found
