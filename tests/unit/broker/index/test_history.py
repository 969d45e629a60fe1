"""Recent history keeps an hour of points, and no two of the same ten seconds."""

from magnetar.broker.index.history import POINT_MS, POINTS_MAX, History


def test_points_come_every_ten_seconds_and_the_oldest_goes() -> None:
    history = History(("a", "b"))
    assert history.to_json() == {"since": None, "times": [], "series": {"a": [], "b": []}}
    for number in range(POINTS_MAX + 5):
        history.add(number * POINT_MS, (number, 0.5))
        history.add(number * POINT_MS + POINT_MS - 1, (-1, -1))  # too early
    told = history.to_json()
    assert told["since"] == 5 * POINT_MS
    assert told["times"] == [each * POINT_MS for each in range(5, POINTS_MAX + 5)]
    assert told["series"]["a"] == list(range(5, POINTS_MAX + 5))
    assert told["series"]["b"] == [0.5] * POINTS_MAX
