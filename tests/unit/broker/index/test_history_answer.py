"""History of several brokers, or partitions, as one answer."""

from typing import Any

from magnetar.broker.index.history_answer import merged_brokers, merged_partitions
from magnetar.metadata.loop_turns import run_at_once


def answer(times: list[int], values: list[float | None], **others: Any) -> dict[str, Any]:
    series = {"msgRateIn": values, "publishLatencyP99Ms": values}
    return {"since": times[0] if times else None, "times": times, "series": series, **others}


def test_brokers_are_added_up_at_the_times_of_the_longest() -> None:
    minutes = [90, 190, 290, 390]
    long, short = ([60_000 * each for each in some] for some in (minutes, [200, 300]))
    found = merged_brokers(
        [
            answer(short, [10.0, 20.0], brokers={"a": {"since": short[0]}}),
            answer(long, [1.0, None, 3.0, 4.0], brokers={"b": {"since": long[0]}}),
            answer([], [], brokers={"c": {"since": None}}),
        ]
    )
    assert found == {
        "since": long[0],
        "times": long,
        "series": {
            "msgRateIn": [1.0, None, 13.0, 24.0],
            "publishLatencyP99Ms": [1.0, None, 10.0, 20.0],
        },
        "brokers": {"a": {"since": short[0]}, "b": {"since": long[0]}, "c": {"since": None}},
    }


def test_points_before_all_that_began_together_are_left_out() -> None:
    """Sums of the first broker alone looked as if rates rose when the cluster started."""
    found = merged_brokers(
        [
            answer([10_000, 70_000, 130_000], [1.0, 2.0, 3.0], brokers={"a": {}}),
            answer([50_000, 110_000], [10.0, 20.0], brokers={"b": {}}),
        ]
    )
    assert (found["since"], found["times"]) == (70_000, [70_000, 130_000])
    assert found["series"]["msgRateIn"] == [12.0, 23.0]


def test_a_subscription_is_the_sum_of_its_partitions_that_have_it() -> None:
    def backlog(values: list[float]) -> dict[str, Any]:
        return {"since": 1, "times": [1, 2], "series": {"msgBacklog": values}}

    found = run_at_once(
        merged_partitions(
            [
                answer([1, 2], [1.0, 2.0], subscriptions={"s": backlog([5.0, 6.0])}),
                answer(
                    [1, 2],
                    [1.0, 2.0],
                    subscriptions={"s": backlog([7.0, 8.0]), "t": backlog([1, 1])},
                ),
            ]
        )
    )
    assert found["series"]["msgRateIn"] == [2.0, 4.0]
    assert found["subscriptions"]["s"]["series"] == {"msgBacklog": [12, 14]}
    assert found["subscriptions"]["t"]["series"] == {"msgBacklog": [1, 1]}
    assert run_at_once(merged_partitions([answer([], [], subscriptions={})]))["since"] is None
