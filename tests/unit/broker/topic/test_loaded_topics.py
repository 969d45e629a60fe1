"""Loaded topics by bundle: as if each of them was looked at."""

import random
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.broker.topic.loaded_topics import LoadedTopics
from magnetar.broker.topic.topic import Topic
from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.namespace_bundles import FULL_UPPER, HashRange, namespace_of, topic_hash
from tests.nightly import NIGHTLY

NAMESPACES = ("t/a", "t/b", "u/a")
TWINS = ("persistent://t/a/ejejehjodl", "persistent://t/a/kdgihclamc")  # of one CRC-32


def topic_of(name: str) -> Topic:
    return cast("Topic", SimpleNamespace(full_name=name))


def names_of(rng: random.Random) -> list[str]:
    edges = ["persistent://public/default/aac15gky", "persistent://public/default/agl5365o"]
    return [*edges, *TWINS] + [
        f"{rng.choice(('persistent', 'non-persistent'))}://{rng.choice(NAMESPACES)}/t{number}"
        for number in range(300)
    ]


def looked_at(names: set[str], bundle: str) -> set[str]:
    namespace, _, text = bundle.rpartition("/")
    found = HashRange.parse(text)
    return {name for name in names if namespace_of(name) == namespace and topic_hash(name) in found}


@pytest.mark.parametrize("seed", range(50 if NIGHTLY else 12))
def test_a_bundle_has_its_topics(seed: int) -> None:
    rng = random.Random(seed)
    index, loaded = LoadedTopics(), set[str]()
    names = names_of(rng)
    for _ in range(1_000):
        name = rng.choice(names)
        if name in loaded:
            del index[name]
            loaded.remove(name)
        else:
            index[name] = topic_of(name)
            loaded.add(name)
        at = topic_hash(rng.choice(names))  # the edges of ranges are where topics are
        lower, upper = sorted((min(at, FULL_UPPER - 1), rng.randint(0, FULL_UPPER)))
        if lower < upper:
            for namespace in (*NAMESPACES, "public/default"):
                bundle = f"{namespace}/{HashRange(lower, rng.choice((upper, FULL_UPPER)))}"
                found = index.within(bundle)
                assert set(found) == looked_at(loaded, bundle)
                assert len(found) == len(set(found))
    for name in loaded:
        del index[name]
    assert index.within("t/a/0x00000000_0xffffffff") == []


@pytest.mark.parametrize("seed", range(50 if NIGHTLY else 12))
@pytest.mark.parametrize("namespace", ["", "t/a"])
def test_a_walk_meets_each_topic_once_whatever_comes_and_goes(seed: int, namespace: str) -> None:
    rng = random.Random(seed)
    index = LoadedTopics()
    names = names_of(rng)
    staying = {*TWINS, *rng.sample(names, 200)}
    for name in names:
        index[name] = topic_of(name)
    met: list[Topic] = []
    for topic in index.of_namespace(namespace) if namespace else index.walk():
        assert index[topic.full_name] is topic
        met.append(topic)
        for name in rng.sample(names, 3):
            if name in index and name not in staying:
                del index[name]
            elif name not in index:
                index[name] = topic_of(name)
    expected = {name for name in staying if namespace_of(name).startswith(namespace)}
    assert expected <= {topic.full_name for topic in met}
    assert len(met) == len({*map(id, met)})
    assert {topic.full_name for topic in index.walk()} == set(index)


def test_a_topic_takes_the_place_of_its_name() -> None:
    index = LoadedTopics()
    first, second = topic_of(TWINS[0]), topic_of(TWINS[0])
    index[TWINS[0]] = first
    index[TWINS[0]] = second
    assert list(index.walk()) == [second]


def test_topics_of_one_hash_are_told_apart() -> None:
    assert topic_hash(TWINS[0]) == topic_hash(TWINS[1])
    for leaving, staying in (TWINS, reversed(TWINS)):
        index = LoadedTopics()
        for name in TWINS:
            index[name] = topic_of(name)
        del index[leaving]
        assert index.within("t/a/0x00000000_0xffffffff") == [staying]


def test_what_is_no_range_is_told() -> None:
    with pytest.raises(InvalidBundleError):
        LoadedTopics().within("t/a/LARGEST")
