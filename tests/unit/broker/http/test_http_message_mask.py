"""Values of masked fields are in no answer and in no comparison, whatever holds them."""

from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.http.messaging.message_mask import MASK, masked, names_of
from magnetar.broker.http.messaging.value_schemas import DecodedValue
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol.messages import Message
from tests.unit.broker.doubles import Broker

TOPIC = "persistent/public/default/payments"
SECRET = "4111-secret"
NAMES = frozenset({"card"})

holders = st.recursive(
    st.just({"card": SECRET}) | st.just({"card": {"number": [SECRET]}}),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "card", "value"]), inner, min_size=1, max_size=2)
    ),
    max_leaves=5,
)


def message(payload: bytes, **more: Any) -> Message:
    fields: dict[str, Any] = {"key": None, "properties": {}} | more
    return Message(
        -1,
        0,
        payload,
        publish_time_ms=1,
        event_time_ms=0,
        sequence_id=0,
        producer_name="p",
        **fields,
    )


def shown(stored: Message, decoded: DecodedValue | None = None) -> str:
    found = masked(stored, decoded, NAMES)
    return orjson.dumps([found.message.key, found.message.properties, found.decoded.value]).decode()


@given(holders)
def test_a_field_is_found_at_any_depth(value: Any) -> None:
    text = orjson.dumps(value)
    fragment = DecodedValue("AVRO", orjson.Fragment(text))
    for found in (
        shown(message(text)),
        shown(message(b"\x16raw", schema_version=b"1"), fragment),
        shown(message(text), DecodedValue("STRING", text.decode())),
        shown(message(b"[]", key=text.decode())),
    ):
        assert SECRET not in found
        assert MASK in found


@pytest.mark.parametrize(
    ("stored", "decoded"),
    [
        (message(SECRET.encode()), None),
        (message(b"\xff" + SECRET.encode()), None),
        (message(b"\n12345"), None),  # Avro: a text of five digits; to JSON a number
        (message(b'{"x":"%b"}' % SECRET.encode(), schema_version=b"12345678"), None),
        (message(b"[]", schema_version=b"1"), DecodedValue("AVRO", error=f"no {SECRET}")),
        (message(b"[" * 3000 + b"]" * 3000), None),
        (message(b"[" * 260 + b"]" * 260), None),  # can be read, but not written again
    ],
)
def test_what_has_no_fields_that_can_be_told_apart_is_withheld(
    stored: Message, decoded: DecodedValue | None
) -> None:
    found = masked(stored, decoded, NAMES)
    assert (found.decoded.value, found.decoded.error, found.is_masked) == (MASK, "", True)


def test_keys_that_are_bytes_and_properties() -> None:
    stored = message(b"{}", key="c2VjcmV0", key_is_base64=True, properties={"card": "1", "b": "2"})
    assert orjson.loads(shown(stored)) == [MASK, {"card": MASK, "b": "2"}, {}]
    assert orjson.loads(shown(message(b"{}", key="[" * 260 + "]" * 260))) == [MASK, {}, {}]


def test_the_rest_is_shown_as_it_is() -> None:
    stored = message(b'{"a":[1,{"b":null}]}', key="c-1", properties={"region": "eu"})
    found = masked(stored, None, NAMES)
    assert not found.is_masked
    assert orjson.loads(shown(stored)) == ["c-1", {"region": "eu"}, {"a": [1, {"b": None}]}]
    assert shown(message(b"7"), DecodedValue("INT32", 7)) == "[null,{},7]"
    assert names_of(" a, b,,") == {"a", "b"}


async def test_filters_tell_nothing_of_it_over_rest() -> None:
    """Two topics that differ in the masked values alone give the same answers to every filter."""
    broker = await Broker().start()
    transport = httpx.ASGITransport(create_app(broker.service))
    filters = (
        *('value ~ "4111"', "value.card = 4111", "value.card.0 ~ 4", "value.a.card = 4111"),
        *('value ~ "ab"', "value.b = ab", "property.card = 4111", "property.card ~ ^4"),
    )
    answers = []
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for topic, number in ((TOPIC, "4111"), (f"{TOPIC}-2", "9222")):
            values: list[Any] = [
                {"card": number, "b": "ab"},
                {"a": {"card": number}},
                {"card": [number]},
            ]
            messages: list[Any] = [
                {"payload": orjson.dumps(each).decode(), "properties": {"card": number}}
                for each in values
            ]
            large = {"payload": orjson.dumps({"card": number * 20_000}).decode()}
            messages += [large, {"payload": f"card={number}"}]
            body = {"producerName": "p", "messages": messages, "valueSchema": '{"type":"BYTES"}'}
            assert (await client.post(f"/topics/{topic}", json=body)).is_success
            texts = []
            for payload in ("cut", "long", "whole", "none"):
                for text in ("", *filters):
                    query = {"filter": text, "masked": "card", "payload": payload}
                    answer = await client.get(f"/admin/v2/{topic}/messages", params=query)
                    assert number not in answer.text
                    found = answer.json()["messages"]
                    keys = ("payload", "properties", "isMasked", "batchIndex")
                    texts.append([{key: each.get(key) for key in keys} for each in found])
            answers.append(texts)
    await broker.close()
    assert answers[0] == answers[1]
    assert [len(each) for each in answers[0][:9]] == [5, 0, 0, 0, 0, 1, 1, 0, 0]
    assert answers[0][0][0]["payload"] == {"card": MASK, "b": "ab"}
