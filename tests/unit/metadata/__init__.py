import pytest

pytest.register_assert_rewrite("tests.unit.metadata.conformance", "tests.unit.metadata.event_log")
