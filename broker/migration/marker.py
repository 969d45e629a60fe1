"""Which kind of broker may serve a cluster that both kinds can.

`/migration` in our store says it to ours, which read it at their start. Brokers of Pulsar read
their leader's node at theirs: as long as it holds our text, they end with it in their log.
"""

from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

import orjson

from magnetar.broker.migration.errors import MigrationError
from magnetar.metadata.errors import BadVersionError, NotFoundError
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

PATH: Final = "/migration"
PULSAR_LEADERS: Final = ("/loadbalance/leader", "/loadbalance/extension/leader")
"""Nodes that a starting broker of Pulsar reads, by its load manager."""
BROKERS: Final = "/loadbalance/brokers"
"""Where live brokers of either kind are, each in its own tree."""
REFUSAL: Final = b"Magnetar's brokers serve this cluster: see magnetar migrate in-place --back"


class Serving(Enum):
    """Who may serve."""

    TO_MAGNETAR = "to-magnetar"
    MAGNETAR = "magnetar"
    TO_PULSAR = "to-pulsar"
    PULSAR = "pulsar"


class Marker(NamedTuple):
    """
    Attributes:
        done: namespaces up to this one, by name, are converted.
        since_ms: when our brokers could first serve, by the store's clock; 0: not yet.
    """

    serving: Serving
    done: str = ""
    since_ms: int = 0


async def read_marker(store: MetadataStore) -> Marker | None:
    """None: the cluster was never swapped.

    Raises:
        MigrationError: it can't be read.
    """
    found = await store.get(PATH)
    if found is None:
        return None
    try:
        fields = orjson.loads(found.value)
        since_ms = int(fields["sinceMs"]) or found.stat.modified_ms
        return Marker(Serving(fields["serving"]), str(fields["done"]), since_ms)
    except (ValueError, KeyError, TypeError) as error:
        raise MigrationError(f"{PATH} isn't a marker of a swap: {error!r}") from error


async def write_marker(store: MetadataStore, marker: Marker) -> None:
    value = {
        "serving": marker.serving.value,
        "done": marker.done,
        "sinceMs": marker.since_ms,
    }
    await store.put(PATH, orjson.dumps(value))


async def check_may_serve(store: MetadataStore) -> None:
    """For a broker of ours, before it takes its first topic.

    Raises:
        MigrationError: it may not serve.
    """
    marker = await read_marker(store)
    if marker is None or marker.serving is Serving.MAGNETAR:
        return
    if marker.serving is Serving.PULSAR:
        raise MigrationError(
            "Apache Pulsar's brokers serve this cluster; magnetar migrate in-place takes it over"
        )
    if marker.serving is Serving.TO_MAGNETAR:
        text = "give magnetar migrate in-place again, or with --back to give it up"
    else:
        text = "give magnetar migrate in-place --back again"
    raise MigrationError(f"this cluster is half converted; {text}")


async def refuse_pulsar(store: MetadataStore) -> None:
    """From now on no broker of Pulsar starts.

    Raises:
        MigrationError: one is the leader.
    """
    for path in PULSAR_LEADERS:
        try:
            await store.put(path, REFUSAL, CREATE_ONLY)
        except BadVersionError:
            found = await store.get(path)
            if found is not None and found.value != REFUSAL:
                raise MigrationError(
                    f"a broker of Pulsar is the leader ({path}); its session ends with it, "
                    "or half a minute after it was killed"
                ) from None


async def is_pulsar_refused(store: MetadataStore) -> bool:
    """Whether a node holds our text."""
    found = [await store.get(path) for path in PULSAR_LEADERS]
    return any(each is not None and each.value == REFUSAL for each in found)


async def admit_pulsar(store: MetadataStore) -> None:
    """Brokers of Pulsar may start."""
    for path in PULSAR_LEADERS:
        found = await store.get(path)
        if found is not None and found.value == REFUSAL:
            with suppress(NotFoundError):
                await store.delete(path)


async def check_none_live(store: MetadataStore, whose: str) -> None:
    """
    Raises:
        MigrationError: brokers are registered.
    """
    names = await store.children(BROKERS)
    if names:
        raise MigrationError(
            f"{whose} still registered: {', '.join(names)}; stop them, a killed one is gone "
            "half a minute later"
        )
