"""What a user is told about Secrets can be run by tests that need no cluster to find it."""

from tests.charts.live.secrets import commands_of


def test_commands_of_the_page_are_found() -> None:
    sections = ("TLS", "Tokens", "TLS and tokens in a running cluster")
    assert [len(commands_of(section)) for section in sections] == [2, 1, 1]
