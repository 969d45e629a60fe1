"""Collects what a broker knows of itself and of the topics that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import psutil

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.config import key_of, without_effect
from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.broker.dispatch.refusal import RefusedClient
from magnetar.broker.doctor.broker_checks import (
    OPEN_FILES,
    UNLOADS_S,
    BrokerFacts,
    CredentialFacts,
)
from magnetar.broker.doctor.credentials import (
    certificate_facts,
    client_facts,
    zookeeper_settings,
)
from magnetar.broker.doctor.topic_checks import (
    RefusalFacts,
    SubscriptionFacts,
    TopicsFacts,
    is_held_up,
    is_suspect,
    over_limits,
    subscription_facts,
)
from magnetar.broker.doctor.transaction_checks import (
    LATE_MS,
    TransactionFacts,
    TransactionsFacts,
)
from magnetar.broker.listener.file_limit import file_limit
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.metadata.loop_turns import Steps, in_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.subscription.subscription import Subscription
    from magnetar.broker.topic.topic import Topic
    from magnetar.broker.transaction.async_coordinator import AsyncCoordinator
    from magnetar.broker.transaction.coordinator import TransactionDescription
    from magnetar.metadata.loop_turns import LoopTurns

_CERTIFICATES: Final = ("tls_certificate_file_path", "bookkeeper_tls_certificate_file_path")
_AUTHORITIES: Final = (
    *("tls_trust_certs_file_path", "bookkeeper_tls_trust_certs_file_path"),
    "broker_client_trust_certs_file_path",
)
NOTED_MAX: Final = 200
"""Topics, or subscriptions, with one kind of fault that are looked at more closely."""
_ENDS_MAX: Final = 2_000
"""Ends of a coordinator's transactions that are looked at in one turn."""
_MASKED: Final = "******"
_PUBLISHING_WAITS: Final = (Reason.STORING, Reason.PUBLISH_RATE_LIMITED)


async def collect_broker(service: BrokerService) -> BrokerFacts:
    trouble = await service.readiness.trouble()
    host = service.host_usage.sample()
    usage = {
        name: host[name]["usage"] / host[name]["limit"]
        for name in ("cpu", "memory")
        if host[name]["limit"] > 0
    }
    return BrokerFacts(
        service.broker_id,
        service.wall_clock(),
        not_ready="" if trouble is None else trouble.reason,
        lacks_store=trouble is not None and trouble.lacks_store,
        usage=usage | {OPEN_FILES: await asyncio.to_thread(_open_files)},
        settings=settings_of(service),
        credentials=await asyncio.to_thread(_credentials, service),
        without_effect=without_effect(service.config),
        unloading_s=service.bundles.unloading_s(),
        unloads=service.bundles.unloads(UNLOADS_S),
    )


def _open_files() -> float:
    """Part of the process's descriptors that are in use."""
    return psutil.Process().num_fds() / file_limit()


def settings_of(service: BrokerService) -> dict[str, str]:
    """All settings in force, without secrets."""
    return {key: text for key, text in service.config.as_keys().items() if text != _MASKED}


def _credentials(service: BrokerService) -> list[CredentialFacts]:
    """The files and tokens that the broker is set to use."""
    config, found = service.config, list[CredentialFacts]()
    for attribute in (*_CERTIFICATES, *_AUTHORITIES):
        if path := getattr(config, attribute):
            name = f"{service.broker_id}, {key_of(attribute)}"
            found.append(certificate_facts(name, path, latest=attribute in _AUTHORITIES))
    if (store := zookeeper_settings(config)) is not None and store.tls is not None:
        name = f"{service.broker_id}, {key_of('metadata_store_config_path')}"
        for path, latest in ((store.tls.certificate, False), (store.tls.trusted, True)):
            if path is not None:
                found.append(certificate_facts(f"{name}: {path.name}", str(path), latest=latest))
    for kind in ("broker_client", "bookkeeper_client"):
        plugin, parameters = f"{kind}_authentication_plugin", f"{kind}_authentication_parameters"
        access = ClientAuth(getattr(config, plugin), getattr(config, parameters))
        found += client_facts(f"{service.broker_id}, {key_of(parameters)}", access)
    return found


class _TopicWalk:
    """What is noted of each topic; bounded, so that checks don't hold up the loop."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.waiting: list[SubscriptionFacts] = []
        self.largest_idle: SubscriptionFacts | None = None
        self.idle = self.unlisted = 0
        self.fenced: dict[str, str] = {}
        self.held: dict[str, Explanation] = {}
        self.publishing: dict[str, Explanation] = {}
        self.refusals: list[RefusalFacts] = []
        self.offloads: dict[str, int] = {}
        self._idle_partitions: list[tuple[str, SubscriptionFacts]] = []  # by topic
        self._consumed: set[tuple[str, str]] = set()  # topics with partitions, subscriptions
        self._explained: tuple[Topic, Explanation | None] | None = None  # the last one asked

    def look(self, topic: Topic) -> Steps[None]:
        """Note what is wrong with a topic, some subscriptions at a step."""
        name, now_ms = topic.full_name, self._service.clock()
        if topic.fenced and not topic.closing and self._has_room(self.fenced):
            self.fenced[name] = "its storage failed"
        if isinstance(topic, PersistentTopic):
            offloads = topic.ledger.offloads
            failed_ms = offloads.last_failure_ms
            if failed_ms > offloads.last_success_ms and self._has_room(self.offloads):
                self.offloads[name] = failed_ms
        publishing = None
        if _may_hold_up(topic):
            publishing = yield from self._publishing_of(topic)
        is_held = publishing is not None and publishing.reason is Reason.QUOTA_HELD
        if publishing is not None and is_held and self._has_room(self.held):
            self.held[name] = publishing
        is_waiting = publishing is not None and publishing.reason in _PUBLISHING_WAITS
        if publishing is not None and is_waiting and self._has_room(self.publishing):
            self.publishing[name] = publishing
        if topic.refused_producer is not None:
            served = bool(topic.producers)
            self._note_refusal(name, name, topic.refused_producer, is_served=served)
        if (refused := topic.refused_subscription) is not None:
            label = f"{name}, subscription {refused[0]}"
            self._note_refusal(name, label, refused[1], is_served=False)
        for each in list(topic.subscriptions.values()):
            # Statistics cost fifty times as much as the look at a topic without a backlog.
            if each.backlog > 0:
                stats = yield from each.stats_steps(now_ms)
                found = subscription_facts(name, each.name, stats)
                if found is not None:
                    yield from self._note(each, found)
            if each.refused is not None:
                label = f"{name}, subscription {each.name}"
                self._note_refusal(name, label, each.refused, is_served=bool(each.consumers))
            if each.consumers and topic.name.is_partition:
                self._consumed.add((str(topic.name.base), each.name))
            yield

    def _publishing_of(self, topic: Topic) -> Steps[Explanation | None]:
        """Asked once for all subscriptions of a topic: with a quota it looks at all of them."""
        if self._explained is None or self._explained[0] is not topic:
            self._explained = topic, (yield from topic.explain_publishing())
        return self._explained[1]

    def _note_refusal(
        self, topic: str, subject: str, refusal: RefusedClient, *, is_served: bool
    ) -> None:
        now_ms = self._service.clock()
        if refusal.is_recent(now_ms) and self._has_room(self.refusals):
            sentence = refusal.sentence(now_ms)
            self.refusals.append(RefusalFacts(topic, subject, sentence, refusal.at_ms, is_served))

    def idle_partitions(self) -> list[SubscriptionFacts]:
        """Those whose subscription has consumers at other partitions, of those that are here."""
        return [each for base, each in self._idle_partitions if (base, each.name) in self._consumed]

    def _note(self, subscription: Subscription, found: SubscriptionFacts) -> Steps[None]:
        if found.connected_ms is None:
            self.idle += 1
            name = subscription.topic.name
            if name.is_partition and len(self._idle_partitions) < NOTED_MAX:
                self._idle_partitions.append((str(name.base), found))
            if self.largest_idle is None or found.backlog > self.largest_idle.backlog:
                self.largest_idle = found
            return
        now_ms = self._service.clock()
        is_quiet = is_suspect(found, now_ms)
        if (is_quiet or is_held_up(found, now_ms)) and self._has_room(self.waiting):
            if is_quiet:
                publishing = yield from self._publishing_of(subscription.topic)
                why = subscription.explain(publishing)
            else:
                why = subscription.explain_oldest()
            self.waiting.append(replace(found, explanation=why))

    def _has_room(self, noted: Sized) -> bool:
        has_room = len(noted) < NOTED_MAX
        self.unlisted += not has_room
        return has_room


def _may_hold_up(topic: Topic) -> bool:
    """Whether producers may wait; without any of them most topics need no closer look."""
    if topic.producers or topic.registry.waiting:
        return True
    if not isinstance(topic, PersistentTopic):
        return False
    return bool(topic.ledger.pending_bytes) or topic.backlog.is_limited


async def collect_topics(service: BrokerService, turns: LoopTurns) -> TopicsFacts:
    """A walk over all loaded topics, in turns, so that others have theirs on the loop."""
    walk = _TopicWalk(service)
    bundles = await service.loads.walk(walk.look, turns)
    settings = service.config.as_keys()
    largest = [] if walk.largest_idle is None else [walk.largest_idle]
    return TopicsFacts(
        service.clock(),
        [*walk.waiting, *largest],
        idle=walk.idle - len(largest),
        unlisted=walk.unlisted,
        fenced=walk.fenced,
        held=walk.held,
        publishing=walk.publishing,
        refusals=walk.refusals,
        partitions=walk.idle_partitions(),
        offloads=walk.offloads,
        bundles={
            name: stats
            async for name, stats in in_turns(bundles.items())
            if any(over_limits(stats, settings))
        },
        settings=settings,
    )


async def collect_transactions(service: BrokerService) -> TransactionsFacts:
    """Those of the coordinators here that are open for longer than a minute, or can't be ended."""
    coordinators, now_ms = service.transactions, service.clock()
    if coordinators is None:
        return TransactionsFacts(now_ms)
    found, unlisted = list[TransactionFacts](), 0
    for coordinator in coordinators.opened().values():
        stuck = [*islice(_stuck(coordinator), NOTED_MAX)]
        unlisted += max(0, coordinator.core.metrics.stuck - len(stuck))
        names = {each.name for each in stuck}
        oldest = await coordinator.begun_before(now_ms - LATE_MS, NOTED_MAX)
        some = (_transaction_facts(each, coordinator) for each in oldest)
        found += stuck + [each for each in some if each.name not in names]
    closed = {
        number: f"this broker can't open it: {why}"
        for number, why in coordinators.failures.items()
        if service.bundles.owns_nowait(str(coordinators.partition(number)))
    }
    return TransactionsFacts(now_ms, found, unlisted, closed)


def _stuck(coordinator: AsyncCoordinator) -> Iterator[TransactionFacts]:
    for sequence, end in islice(coordinator.ends.items(), _ENDS_MAX):
        if end.errors and (found := coordinator.core.describe(sequence)) is not None:
            yield _transaction_facts(found, coordinator)


def _transaction_facts(
    found: TransactionDescription, coordinator: AsyncCoordinator
) -> TransactionFacts:
    end = coordinator.ends.get(found.transaction.least)
    return TransactionFacts(
        (found.transaction.most, found.transaction.least),
        found.status,
        found.start_ms,
        found.timeout_ms,
        [*((each,) for each in found.partitions), *found.subscriptions],
        None if end is None else end.since_ms,
        {} if end is None else dict(end.errors),
    )
