"""Rounds of `magnetar verify`: topics are made, checked all at once, judged and removed."""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.broker.cli.binary_client import CommandClient, topic_name
from magnetar.broker.cli.errors import CliError, RefusedError
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.cli.verify.attempts import NoProgressError, retried
from magnetar.broker.cli.verify.cluster_admin import ClusterAdmin, MessagesRemovedError
from magnetar.broker.cli.verify.topic_check import Surroundings, TopicCheck
from magnetar.broker.cli.verify.transfer_check import (
    TRANSFER_TOPICS,
    TransferCheck,
    has_transactions,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.plan import PLAIN, TOPICS, TopicPlan
from magnetar.broker.verify.verdict import EARLY_MS_MAX, TopicVerdict, check_topic

PATIENCE_S: Final = 60.0
_SEEN_S: Final = 5.0
"""So long a topic that was made may be unknown to other brokers of its cluster."""
_NOT_FOUND: Final = 404
_KNOWN_FAULTS: Final = (
    "a seek where parts of batches were acknowledged, an unload while a subscription is made and "
    "of a topic of transfers, acknowledgements just before an unload: Apache Pulsar is known to "
    "fail there"
)


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """``seconds``: rounds begin until then, at least one does. ``messages``: of each topic."""

    namespace: str
    seed: int
    seconds: float
    messages: int
    request_timeout_s: float = 60.0
    patience_s: float = PATIENCE_S
    """How long nothing may come, before it is said never to come."""
    known_faults: bool = False
    """Also of Apache Pulsar: do what it is known to get wrong."""


@dataclass(slots=True)
class Outcome:
    """Of all rounds.

    Attributes:
        unjudged: why there is no verdict on the whole; "": there is one.
        unchecked: what was left out, and why.
        waits: for messages that came only when their consumers came again, or never.
    """

    settings: VerifySettings
    service_url: str
    started_s: float
    rounds: int = 0
    seconds: float = 0.0
    verdicts: list[TopicVerdict] = field(default_factory=list)
    disturbances: Counter[str] = field(default_factory=Counter)
    unchecked: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    unjudged: str = ""

    @property
    def violations(self) -> int:
        return sum(len(verdict.violations) for verdict in self.verdicts)


async def run_rounds(
    target: ClusterTarget, settings: VerifySettings, on_round: Callable[[Outcome], None]
) -> Outcome:
    """Raises CliError, BrokerError: the cluster can't be used at all."""
    outcome = Outcome(settings, target.service_url, time.time())
    begun_s = time.monotonic()
    admin = ClusterAdmin(target, settings.request_timeout_s)
    async with CommandClient(target) as client:  # it answers, and lets us in
        transfers = await has_transactions(client)
        await _check_one_cluster(client, admin, target, settings.namespace)
    early_ms_max = EARLY_MS_MAX
    try:
        await admin.check_namespace(settings.namespace)
        if ahead_s := await admin.clock_ahead_s():
            early_ms_max += int(ahead_s * 1000)
            outcome.unchecked.append(f"delays below {ahead_s:.1f} s: the broker's clock is ahead")
    except CliError as error:
        not_found = isinstance(error, RefusedError) and error.status == _NOT_FOUND
        if not_found or isinstance(error, MessagesRemovedError):
            raise
        outcome.unchecked.append(f"policies of {settings.namespace}: {error}")
    around = Surroundings(
        target,
        admin,
        settings.patience_s,
        early_ms_max,
        in_parts=await _in_parts(admin, outcome),
        known_faults=settings.known_faults or not await _leaves_out(admin, outcome),
    )
    while not outcome.rounds or time.monotonic() - begun_s < settings.seconds:
        round_ = _Round(around, settings, outcome, transfers=transfers)
        try:
            await round_.run()
        except NoProgressError as error:
            outcome.unjudged = str(error)
        around = round_.around
        outcome.rounds += 1
        outcome.seconds = time.monotonic() - begun_s
        on_round(outcome)
        if outcome.unjudged:
            break
    return outcome


async def _check_one_cluster(
    client: CommandClient, admin: ClusterAdmin, target: ClusterTarget, namespace: str
) -> None:
    """Raises CliError: clients of the service URL don't see what is made at the admin URL."""
    topic = topic_name(f"persistent://{namespace}/verify-{secrets.token_hex(4)}-cluster")
    plan = TopicPlan("cluster", partitions=1)

    async def see() -> None:
        if await client.parts(topic, create=False) != [topic.partition(0)]:
            raise CliError(f"{topic} has no partition")

    try:
        await admin.create(topic, plan, 0)
        await retried(
            f"{target.service_url} and {target.admin_url} are of different clusters", see, _SEEN_S
        )
    except NoProgressError:
        raise
    except CliError:
        pass  # without the rights to make topics nothing is done there
    finally:
        with contextlib.suppress(CliError):
            await admin.delete(topic, plan)


async def _in_parts(admin: ClusterAdmin, outcome: Outcome) -> bool:
    try:
        if await admin.acknowledges_parts():
            return True
        why = "brokers acknowledge whole batches (acknowledgmentAtBatchIndexLevelEnabled)"
    except CliError as error:
        why = str(error)
    outcome.unchecked.append(f"acknowledgements of parts of batches: {why}")
    return False


async def _leaves_out(admin: ClusterAdmin, outcome: Outcome) -> bool:
    """Whether what Apache Pulsar is known to get wrong is left out."""
    with contextlib.suppress(CliError):  # without rights, too, nothing of it is done
        if not await admin.is_apache_pulsar():
            return False
        outcome.unchecked.append(f"{_KNOWN_FAULTS} (--known-faults)")
    return True


class _Round:
    def __init__(
        self,
        around: Surroundings,
        settings: VerifySettings,
        outcome: Outcome,
        *,
        transfers: bool,
    ) -> None:
        """``transfers``: the cluster has transactions."""
        self.around, self._transfers = around, transfers
        self._settings, self._outcome = settings, outcome
        self._made: list[tuple[TopicName, TopicPlan]] = []

    async def run(self) -> None:
        try:
            await self._create()
            checks, work = list[TopicCheck](), list[Coroutine[Any, Any, None]]()
            for topic, plan in self._made:
                begun = self._checks(topic, plan)
                added = self._added(topic, plan)
                checks += begun + added
                work += [check.run() for check in begun]
                if added:
                    work.append(self._grow(topic, plan, begun, added))
            transfers = await self._begin_transfers()
            work += [each.run() for each in transfers]
            tasks = [asyncio.ensure_future(each) for each in work]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for check in checks:
                verdict = check_topic(
                    check.history,
                    self.around.early_ms_max,
                    durable_at_moves=self.around.known_faults,
                )
                self._outcome.verdicts.append(verdict)
                self._outcome.disturbances.update(check.disturbances)
                self._outcome.waits += check.waits
            for each in transfers:
                self._outcome.verdicts.append(each.verdict())
                self._outcome.disturbances.update(each.disturbances)
        finally:
            await self._remove()

    async def _create(self) -> None:
        """All of them; without rights only what clients' use of it creates."""
        prefix = f"{self._settings.namespace}/verify-{secrets.token_hex(4)}"
        for plan in TOPICS:
            domain = "persistent" if plan.is_stored else "non-persistent"
            topic = topic_name(f"{domain}://{prefix}-{plan.name}")
            if (admin := self.around.admin) is None:
                break
            self._made.append((topic, plan))
            try:
                await admin.create(topic, plan, self.around.patience_s)
            except NoProgressError:
                raise
            except CliError as error:
                self._made.pop()
                self._outcome.unchecked.append(f"{plan.name} topics, unloads: {error}")
                await self._remove()
                self.around = replace(self.around, admin=None)
        if self.around.admin is None:
            self._made = [(topic_name(f"persistent://{prefix}-{PLAIN.name}"), PLAIN)]

    async def _begin_transfers(self) -> list[TransferCheck]:
        """One, where there are transactions and we may make its topics."""
        if self.around.admin is None or not self._transfers:
            return []
        topics, prefix = list[TopicName](), f"{self._settings.namespace}/verify-"
        for number in range(TRANSFER_TOPICS):
            name = f"persistent://{prefix}{secrets.token_hex(4)}-transfers-{number}"
            topic = topic_name(name)
            self._made.append((topic, PLAIN))
            await self.around.admin.create(topic, PLAIN, self.around.patience_s)
            topics.append(topic)
        seed = f"{self._settings.seed}/{self._outcome.rounds}/transfers"
        count = self._settings.messages // TRANSFER_TOPICS
        return [TransferCheck(self.around, topics, seed, count)]

    def _checks(self, topic: TopicName, plan: TopicPlan) -> list[TopicCheck]:
        if not plan.partitions:
            return [self._check(topic, plan, 0)]
        return [self._check(topic.partition(n), plan, n) for n in range(plan.partitions)]

    def _added(self, topic: TopicName, plan: TopicPlan) -> list[TopicCheck]:
        numbers = range(plan.partitions, plan.partitions + plan.added)
        return [self._check(topic.partition(n), plan, n, is_added=True) for n in numbers]

    def _check(
        self, topic: TopicName, plan: TopicPlan, number: int, *, is_added: bool = False
    ) -> TopicCheck:
        seed = f"{self._settings.seed}/{self._outcome.rounds}/{plan.name}/{number}"
        messages = self._settings.messages // max(1, plan.partitions)
        return TopicCheck(self.around, topic, seed, messages, plan, is_added=is_added)

    async def _grow(
        self,
        topic: TopicName,
        plan: TopicPlan,
        begun: Sequence[TopicCheck],
        added: Sequence[TopicCheck],
    ) -> None:
        """Add partitions while the others are in use. Raises NoProgressError."""
        admin = self.around.admin
        assert admin is not None  # else there is no partitioned topic
        await asyncio.gather(*(each.subscribed() for each in begun))
        count = plan.partitions + plan.added
        await retried(
            f"{topic}: no more partitions",
            lambda: admin.set_partitions(topic, count),
            self.around.patience_s,
        )
        self._outcome.disturbances["partition added"] += plan.added
        await asyncio.gather(*(each.run() for each in added))

    async def _remove(self) -> None:
        made, self._made = self._made, []
        if (admin := self.around.admin) is not None:
            for topic, plan in made:
                with contextlib.suppress(CliError):
                    await admin.delete(topic, plan)
