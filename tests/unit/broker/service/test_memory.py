from magnetar.broker.service.memory import CollectionPlan, TrimPlan, trim

MIB = 1024 * 1024


def test_trims_when_the_cache_has_emptied_and_a_few_times_behind_it() -> None:
    plan = TrimPlan()
    sizes = [0, 100 * MIB, 200 * MIB, 150 * MIB, 90 * MIB, 80 * MIB, 0, 0, 0]
    decisions = [plan.on_sweep(3_000 * n, size, 0) for n, size in enumerate(sizes)]
    assert decisions == [False] * 4 + [True, False, True, False, False]
    later = [now_ms for now_ms in range(27_000, 600_000, 3_000) if plan.on_sweep(now_ms, 0, 0)]
    assert later == [33_000, 48_000, 63_000, 78_000], "and then never again"


def test_nobody_waits_for_a_trim() -> None:
    plan = TrimPlan()
    plan.on_sweep(0, 100 * MIB, 0)
    busy = [(now_ms, now_ms // 10) for now_ms in range(3_000, 60_000, 3_000)]  # a tenth of a core
    assert not any(plan.on_sweep(now_ms, 0, cpu_ms) for now_ms, cpu_ms in busy)
    assert plan.on_sweep(60_000, 0, 5_700 + 60)


def test_small_caches_are_not_worth_it() -> None:
    plan = TrimPlan()
    assert not any(plan.on_sweep(n, size, 0) for n, size in enumerate([MIB, 0, 10 * MIB, 0]))


def test_trim_is_harmless() -> None:
    trim()


def test_collects_when_enough_have_gone() -> None:
    plan = CollectionPlan()
    assert not plan.on_sweep(1_999, 10, is_quiet=True)
    assert plan.on_sweep(2_000, 10, is_quiet=True)
    assert not plan.on_sweep(3_999, 10, is_quiet=True)
    assert not plan.on_sweep(11_999, 100_000, is_quiet=True)
    assert plan.on_sweep(27_000, 100_000, is_quiet=True)


def test_a_busy_process_waits_for_ten_times_as_many() -> None:
    plan = CollectionPlan()
    assert not plan.on_sweep(19_999, 10, is_quiet=False)
    assert plan.on_sweep(20_000, 10, is_quiet=False)
    assert not plan.on_sweep(21_999, 10, is_quiet=True)
    assert plan.on_sweep(22_000, 10, is_quiet=True)


def test_what_stays_is_told_once() -> None:
    plan = CollectionPlan()
    plan.keep()
    assert [plan.is_growth(0), plan.is_growth(0)] == [True, False]


def test_many_new_topics_are_growth() -> None:
    plan = CollectionPlan()
    assert [plan.is_growth(made) for made in (49, 98, 148, 148)] == [False, False, True, False]
