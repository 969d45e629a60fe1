"""Values that would hurt are refused by name; what helm said of each, when it was asked, is here.

Helm itself need not be there: its messages are committed (``renderings.py``).
"""

import pytest
import yaml

from tests.charts.renderings import REFUSALS, Refusal, digest_of, refusals_digest, refused

each_refusal = pytest.mark.parametrize(
    ("number", "refusal"), list(enumerate(REFUSALS)), ids=[each.says for each in REFUSALS]
)


def test_messages_are_of_this_chart() -> None:
    (of_input, of_text), text = refused()
    assert of_input == refusals_digest(), "the chart changed: make chart-renderings"
    assert of_text == digest_of(text), "edited by hand: make chart-renderings"


@each_refusal
def test_a_message_says_what_is_wrong(number: int, refusal: Refusal) -> None:
    messages: list[str] = yaml.safe_load(refused()[1])
    assert len(messages) == len(REFUSALS)
    message = messages[number]
    assert refusal.says in message
    # Our words, or the schema's with the place: not what a template stumbled upon.
    assert "execution error at (magnetar/" in message or "\n- at '" in message
    assert "nil pointer" not in message
