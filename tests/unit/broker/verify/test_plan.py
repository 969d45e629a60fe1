"""What is sent: the same for the same seed, in order, and recognised when it comes back."""

import random

from magnetar.broker.verify.plan import content_of, draw_groups, message_in


def test_groups_follow_from_the_seed_and_number_all_messages() -> None:
    groups = list(draw_groups(1000, random.Random(3)))
    assert groups == list(draw_groups(1000, random.Random(3)))
    assert groups != list(draw_groups(1000, random.Random(4)))
    assert [n for each in groups for n in range(each.first, each.end)] == list(range(1000))


def test_all_kinds_of_groups_are_drawn() -> None:
    groups = list(draw_groups(1000, random.Random(3)))
    assert {each.batched for each in groups} == {True, False}
    assert any(each.end - each.first > 1 for each in groups)
    delayed = [each for each in groups if each.delay_ms]
    assert delayed
    assert not any(each.batched or each.end - each.first > 1 for each in delayed)
    assert {each.compression for each in groups} == set(range(5))
    assert len({each.key for each in groups}) > 3


def test_chunks_are_drawn_where_they_are_asked_for() -> None:
    assert {each.chunks for each in draw_groups(1000, random.Random(3))} == {1}
    groups = list(draw_groups(1000, random.Random(3), chunked=True))
    assert {each.chunks for each in groups} == {1, 2, 3, 4, 5}
    alone = [each for each in groups if each.chunks > 1]
    assert not any(each.batched or each.delay_ms or each.end - each.first > 1 for each in alone)


def test_contents_are_recognised_unless_a_byte_changed() -> None:
    for number in range(200):
        content = content_of(("producer-1", number))
        assert message_in(content) == ("producer-1", number)
        broken = bytearray(content)
        broken[number % len(content)] ^= 1
        assert message_in(bytes(broken)) != ("producer-1", number)
        assert message_in(content[:-1]) is None
    assert message_in(b"") is None
    assert message_in(b"\xff x") is None
