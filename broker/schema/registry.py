"""The schema registry: histories of schema versions in the metadata store.

A schema belongs to a topic's base name (``tenant/namespace/topic``): all partitions share it, and
so do a persistent and a non-persistent topic of one name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from magnetar.broker.errors import BrokerMetadataError, IncompatibleSchemaError, InvalidTopicError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.compatibility import (
    Strategy,
    check_consumer,
    check_evolution,
    same_definition,
    validate,
)
from magnetar.broker.schema.definition import SchemaDefinition, StoredSchema
from magnetar.broker.schema.history import SchemaHistory, is_large
from magnetar.broker.schema.metrics import SchemaMetrics
from magnetar.metadata.errors import BadVersionError, MetadataError, OutcomeUnknownError
from magnetar.metadata.loop_turns import in_turns
from magnetar.metadata.paths import check_path, decode_name, encode_name
from magnetar.metadata.recipes import CachedValues
from magnetar.metadata.sorted_names import sort_in_turns
from magnetar.metadata.store import CREATE_ONLY, MetadataStore, Versioned

T = TypeVar("T")

SCHEMAS: Final = "/schemas"
_ROUNDS_MAX: Final = 1000
_CACHED_MAX: Final = 1_000
_CHECKS_AT_ONCE: Final = 2
"""Parsing takes the interpreter from the loop: more threads would only make that worse."""


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """What a namespace's policies say about schemas."""

    strategy: Strategy = Strategy.FULL
    auto_update: bool = True
    """Whether producers and consumers may add versions (and the first one)."""
    validation_enforced: bool = False
    """Whether producers without a schema are refused on topics with one."""


class SchemaRegistry:
    """One per broker. Every method raises BrokerMetadataError when the store fails."""

    def __init__(self, store: MetadataStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._cache = CachedValues(store, SCHEMAS, _decode_small, _CACHED_MAX)
        self._checks = ThreadPoolExecutor(_CHECKS_AT_ONCE, "schemas")
        # Values of REST calls that take their time must not keep typed clients from connecting.
        self._values = ThreadPoolExecutor(_CHECKS_AT_ONCE, "values")
        self.metrics = SchemaMetrics()

    def close(self) -> None:
        self._cache.close()
        self._checks.shutdown(wait=False, cancel_futures=True)
        self._values.shutdown(wait=False, cancel_futures=True)

    # --- reading

    async def history(self, name: TopicName) -> SchemaHistory:
        """As the store has it now."""
        path = _path(name)
        try:
            found = await self._store.get(path)
        except MetadataError as error:
            raise BrokerMetadataError(f"Schema of {name}: {error}") from error
        return await self._decode(path, found)

    async def _decode(self, path: str, found: Versioned | None) -> SchemaHistory:
        if found is None:
            return SchemaHistory()
        value = found.value
        if is_large(value):
            return await self.in_thread(lambda: SchemaHistory.decode(path, value))
        return SchemaHistory.decode(path, value)

    async def _recent(self, name: TopicName) -> SchemaHistory:
        """From memory: it may trail another broker's change, so only what it has is certain."""
        try:
            found = await self._cache.get(_path(name))
        except MetadataError as error:
            raise BrokerMetadataError(f"Schema of {name}: {error}") from error
        if found is None:
            return SchemaHistory()
        return await self.history(name) if found.value is None else found.value

    async def get(self, name: TopicName, version: int) -> StoredSchema | None:
        """One version, None when there is none or it is deleted."""
        with self.metrics.operation("get", name.namespace):
            found = (await self._recent(name)).get(version)
            return (await self.history(name)).get(version) if found is None else found

    async def latest(self, name: TopicName) -> StoredSchema | None:
        """The newest version, None when there is none or it is deleted."""
        with self.metrics.operation("get", name.namespace):
            return (await self.history(name)).latest()

    async def latest_known(self, name: TopicName) -> StoredSchema | None:
        """As ``latest``, for lists: from memory where it is there, so it may be an older one."""
        return (await self._recent(name)).latest()

    async def names(self, namespace: str) -> list[str]:
        """Topics of a namespace that have a schema or had one, without the namespace, sorted."""
        try:
            children = await self._store.children(f"{SCHEMAS}/{namespace}")
        except MetadataError as error:
            raise BrokerMetadataError(f"Schemas of {namespace}: {error}") from error
        return await sort_in_turns([decode_name(each) async for each in in_turns(children)])

    async def find(self, name: TopicName, definition: SchemaDefinition) -> int | None:
        """The version of an equal definition, None when there is none."""
        history = await self.history(name)
        if (version := history.find_exact(definition)) is not None:
            return version
        return await self.in_thread(lambda: _find(history, definition))

    # --- checking

    async def check(
        self, name: TopicName, definition: SchemaDefinition, strategy: Strategy
    ) -> None:
        """Whether ``definition`` might become the next version.

        Raises:
            IncompatibleSchemaError: not under this strategy.
        """
        history = await self.history(name)
        with self._judging(name):
            await self.in_thread(lambda: _decide(history, definition, SchemaRules(strategy)))

    @contextmanager
    def _judging(self, name: TopicName) -> Iterator[None]:
        metrics = self.metrics.of(name.namespace)
        try:
            yield
        except IncompatibleSchemaError:
            metrics.incompatible += 1
            raise
        metrics.compatible += 1

    async def check_consumer(
        self, name: TopicName, definition: SchemaDefinition, strategy: Strategy
    ) -> None:
        """Raises IncompatibleSchemaError: a consumer with ``definition`` can't read the topic."""
        latest = (await self._recent(name)).latest()
        if latest is not None and latest.definition == definition:
            return  # what it was made for, under every strategy
        known = [each.definition for each in (await self.history(name)).live]

        def decide() -> None:
            validate(definition)
            check_consumer(strategy, known, definition)

        await self.in_thread(decide)

    # --- writing

    async def register(
        self, name: TopicName, definition: SchemaDefinition, rules: SchemaRules
    ) -> int:
        """Make ``definition`` a version of the topic's schema, unless it is one already.

        Returns:
            Its version.
        Raises:
            IncompatibleSchemaError: against the rules, or there is no room for another version.
            InvalidSchemaError: not a definition of its type.
        """
        if (known := (await self._recent(name)).find_exact(definition)) is not None:
            return known

        async def change(history: SchemaHistory) -> SchemaHistory | int:
            with self._judging(name):
                version = await self.in_thread(lambda: _decide(history, definition, rules))
            return history.appended(definition, self._clock()) if version is None else version

        with self.metrics.operation("put", name.namespace):
            return await self._update(name, change)

    async def delete(self, name: TopicName) -> int:
        """Hide all versions behind a deletion marker; later versions count on.

        Returns:
            The marker's version; -1 when there was nothing to delete.
        """

        async def change(history: SchemaHistory) -> SchemaHistory | int:
            if not history.live:
                return history.last_version
            return history.marked_deleted(self._clock())

        with self.metrics.operation("del", name.namespace):
            return await self._update(name, change)

    async def drop(self, name: TopicName) -> None:
        """Forget everything: the topic is gone, or its versions are to begin at 0 again."""
        try:
            await self._store.delete_recursive(_path(name))
            self._cache.invalidate(_path(name))
        except MetadataError as error:
            raise BrokerMetadataError(f"Schema of {name}: {error}") from error

    async def _update(
        self, name: TopicName, change: Callable[[SchemaHistory], Awaitable[SchemaHistory | int]]
    ) -> int:
        """Read, change, compare-and-set until no other was faster; the version that came of it.

        Not ``metadata.recipes.update``: ``change`` may run in a thread. A lost reply is harmless,
        the next round finds what was written.
        """
        path = _path(name)
        for _ in range(_ROUNDS_MAX):
            try:
                found = await self._store.get(path)
                changed = await change(await self._decode(path, found))
                if isinstance(changed, int):
                    return changed
                expected = CREATE_ONLY if found is None else found.stat.version
                value = await self.in_thread(changed.encode)
                await self._store.put(path, value, expected)
                self._cache.invalidate(path)
            except (BadVersionError, OutcomeUnknownError):
                continue
            except MetadataError as error:
                raise BrokerMetadataError(f"Schema of {name}: {error}") from error
            return changed.last_version
        raise BrokerMetadataError(f"Schema of {name}: lost against others {_ROUNDS_MAX} times")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Large definitions take longer than the loop may be held."""
        return await asyncio.get_running_loop().run_in_executor(self._checks, work)

    async def in_value_thread(self, work: Callable[[], T]) -> T:
        """For what a call's values need, from ``HEAVY_BYTES`` on."""
        return await asyncio.get_running_loop().run_in_executor(self._values, work)


def _path(name: TopicName) -> str:
    base = name.base
    path = f"{SCHEMAS}/{base.namespace}/{encode_name(base.local)}"
    try:
        check_path(path)
    except ValueError as error:  # a name that can't be a path, such as "."
        raise InvalidTopicError(f"Invalid topic name {name}: {error}") from error
    return path


def _decode_small(path: str, value: bytes) -> SchemaHistory | None:
    """What is kept in memory; None for a history that is too large for that."""
    return None if is_large(value) else SchemaHistory.decode(path, value)


def _find(history: SchemaHistory, definition: SchemaDefinition) -> int | None:
    return next(
        (each.version for each in history.live if same_definition(each.definition, definition)),
        None,
    )


def _decide(history: SchemaHistory, definition: SchemaDefinition, rules: SchemaRules) -> int | None:
    """The version of an equal definition, or None: it may be appended."""
    validate(definition)
    if (version := _find(history, definition)) is not None:
        return version
    if not rules.auto_update:
        raise IncompatibleSchemaError("Schema not found and schema auto updating is disabled.")
    check_evolution(rules.strategy, [each.definition for each in history.live], definition)
    return None
