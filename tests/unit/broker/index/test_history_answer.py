"""History of several brokers, or partitions, as one answer."""

from typing import Any

from magnetar.broker.index.history_answer import merged_brokers, merged_partitions


def answer(times: list[int], values: list[float | None], **others: Any) -> dict[str, Any]:
    series = {"msgRateIn": values, "publishLatencyP99Ms": values}
    return {"since": times[0] if times else None, "times": times, "series": series, **others}


def test_brokers_are_added_up_at_the_times_of_the_longest() -> None:
    found = merged_brokers(
        [
            answer([200, 300], [10.0, 20.0], brokers={"a": {"since": 200}}),
            answer([90, 190, 290, 390], [1.0, None, 3.0, 4.0], brokers={"b": {"since": 90}}),
            answer([], [], brokers={"c": {"since": None}}),
        ]
    )
    assert found == {
        "since": 90,
        "times": [90, 190, 290, 390],
        "series": {
            "msgRateIn": [1.0, None, 13.0, 24.0],
            "publishLatencyP99Ms": [1.0, None, 10.0, 20.0],
        },
        "brokers": {"a": {"since": 200}, "b": {"since": 90}, "c": {"since": None}},
    }


def test_a_subscription_is_the_sum_of_its_partitions_that_have_it() -> None:
    def backlog(values: list[float]) -> dict[str, Any]:
        return {"since": 1, "times": [1, 2], "series": {"msgBacklog": values}}

    found = merged_partitions(
        [
            answer([1, 2], [1.0, 2.0], subscriptions={"s": backlog([5.0, 6.0])}),
            answer(
                [1, 2], [1.0, 2.0], subscriptions={"s": backlog([7.0, 8.0]), "t": backlog([1, 1])}
            ),
        ]
    )
    assert found["series"]["msgRateIn"] == [2.0, 4.0]
    assert found["subscriptions"]["s"]["series"] == {"msgBacklog": [12, 14]}
    assert found["subscriptions"]["t"]["series"] == {"msgBacklog": [1, 1]}
    assert merged_partitions([answer([], [], subscriptions={})])["since"] is None
