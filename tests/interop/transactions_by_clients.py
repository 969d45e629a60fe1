"""Random histories of transactions that the official Go client makes, judged from outside.

``make interop-transactions [SEEDS=10]``: transactions over several topics, some partitioned. They
send (single messages, batches, chunks) and acknowledge (messages, parts of batches), are committed
or aborted, or time out. Beside them there are cumulative acknowledgements, unloads and, here, a
broker that is killed, also while a commit is under way. What a new consumer gets is compared with a
model's word: no message of a transaction that is open or aborted, each of a committed one once, in
the log's order; what is acknowledged stays so, and what an aborted transaction acknowledged comes
again. The model is right about Apache Pulsar, too (``--service-url``).

A program (``go/transactions``) is started with the service URL, and answers each line by one,
``ok ...`` or ``error ...``. A message is KEY=VALUE=ID, an id in hexadecimal digits:

    begin NAME MS                           the two numbers of its id
    send TOPIC NAME|- KIND KEY=VALUE ...    ids; KIND: single, batch, chunks
    look SUBSCRIPTION TOPIC TYPE COUNT MS   what a new consumer gets, instead of the last one: so
                                            many messages, and those of a time behind them
    ack SUBSCRIPTION NAME|- VALUE           of a message that this consumer has got
    upto SUBSCRIPTION VALUE                 cumulative
    commit NAME, abort NAME
    end                                     of a history: producers and consumers are closed
"""

import argparse
import copy
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.interop.compacted_by_clients import Program, RefusedError
from tests.interop.conftest import Admin
from tests.interop.moving_cluster import build
from tests.standalone_process import StandaloneProcess
from tests.transaction_histories import Message, Model, Place, Subscription
from tests.waiting import wait_until

_STEPS: Final = 60
_LONG_MS: Final = 120_000
_SHORT_MS: Final = 2_000
_BEHIND_MS: Final = 150
"""How long nothing may come behind what was expected."""
_TYPES: Final = ("Exclusive", "Failover", "Shared", "Key_Shared")

Seen = tuple[str, str, Place]


class Asked(Protocol):
    def ask(self, action: str, *words: str) -> list[str]:
        """Raises: RefusedError: it has failed."""

    def tell(self, action: str, *words: str) -> None:
        """`answer` is to follow."""

    def answer(self) -> list[str]:
        """Raises: RefusedError: it has failed."""


class Server(Protocol):
    """One that may be killed, and is there again."""

    def kill(self) -> None: ...

    def start(self, *, same_ports: bool = False) -> None: ...


def place(message_id: str) -> Place:
    data = pb.MessageIdData.FromString(bytes.fromhex(message_id))
    return max(data.partition, 0), data.ledgerId, data.entryId, max(data.batch_index, 0)


def by_partition(seen: Iterable[Seen]) -> dict[int, list[Seen]]:
    found: dict[int, list[Seen]] = {}
    for each in seen:
        found.setdefault(each[2][0], []).append(each)
    return found


def seen_of(messages: Iterable[Message]) -> dict[int, list[Seen]]:
    return by_partition((each.key, each.value, each.place) for each in messages)


@dataclass
class History:
    """Attributes:
    server: None: it can't be killed.
    ids: of each transaction, the path of its id.
    """

    admin: Admin
    program: Asked
    model: Model
    seed: int
    namespace: str
    server: Server | None = None
    ids: dict[str, str] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    partitions: dict[str, int] = field(default_factory=dict)
    count: int = 0
    logs_seen: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.name = f"{self.seed}-{uuid.uuid4().hex[:8]}"

    def run(self) -> None:
        """Raises: AssertionError: something isn't as it has to be; says what was done."""
        try:
            self._run()
        except BaseException:
            print(*self.told, f"seed {self.seed} failed", sep="\n", flush=True)
            raise

    def _run(self) -> None:
        for number in range(self.rng.choice((2, 3))):
            topic = f"persistent://{self.namespace}/transactions-{self.name}-{number}"
            self.partitions[topic] = self.rng.choice((0, 0, 2, 3))
            if self.partitions[topic]:
                self.admin.create_partitioned(topic, self.partitions[topic])
            for kind in self.rng.sample(_TYPES, self.rng.choice((1, 2))):
                one = Subscription(f"{kind}-{number}", topic, kind)
                self.model.subscriptions.append(one)
                self._look(one)
        for _ in range(_STEPS):
            self._step(self.rng.randrange(100))
        for each in list(self.opened):
            self._end(each)
        self._look_at_all()
        self.program.ask("end")
        for topic, partitions in self.partitions.items():
            end = "/partitions" if partitions else ""
            self.admin.call("DELETE", f"{self.admin.topic_path(topic)}{end}?force=true")

    def _step(self, what: int) -> None:
        """Draws the same at each server."""
        within = self.rng.choice(self.opened) if self.opened and self.rng.random() < 0.75 else None
        if what < 12 and len(self.opened) < 4:
            self._begin()
        elif what < 38:
            self._send(within)
        elif what < 58:
            self._acknowledge(within)
        elif what < 62:
            self._acknowledge_up_to()
        elif what < 74 and self.opened:
            self._end(self.rng.choice(self.opened))
        elif what < 82:
            self._transform()
        elif what < 92:
            self._look(self.rng.choice(self.model.subscriptions))
        elif what < 94:
            self._time_out()
        elif what < 97:
            self._unload(self.rng.choice(list(self.partitions)))
        elif what == 97:
            self._kill()
        else:
            self._kill_beside_a_commit(self.rng.choice(self.opened) if self.opened else None)

    def _ask(self, action: str, *words: str) -> list[str]:
        self.told.append(" ".join((action, *words)))
        try:
            found = self.program.ask(action, *words)
        except RefusedError as error:
            self.told.append(f"  {error}")
            raise
        self.told.append(f"  {' '.join(found)}")
        return found

    # --- transactions

    def _begin(self, millis: int = _LONG_MS) -> str:
        self.count += 1
        name = f"{self.name}-x{self.count}"
        self.ids[name] = "/".join(self._ask("begin", name, str(millis)))
        self.opened.append(name)
        return name

    def _end(self, name: str) -> None:
        self.opened.remove(name)
        commits = self.rng.random() < 0.6
        self._ask("commit" if commits else "abort", name)
        self.model.end(name, commits=commits)

    def _is_known(self, name: str) -> bool:
        path = f"/admin/v3/transactions/transactionMetadata/{self.ids[name]}"
        return self.admin.call("GET", path)[0] == 200

    def _forget(self, name: str) -> None:
        wait_until(lambda: not self._is_known(name), f"{name} isn't forgotten")

    def _time_out(self) -> None:
        """One that has sent and acknowledged."""
        name = self._begin(_SHORT_MS)
        self._send(name)
        self._acknowledge(name)
        self._forget(name)
        if name in self.opened:
            self.opened.remove(name)
            self._refused("commit", name)
            self.model.end(name, commits=False)
        self.told.append(f"{name} has timed out")

    def _refused(self, action: str, *words: str) -> None:
        try:
            self._ask(action, *words)
        except RefusedError:
            return
        raise AssertionError(f"{action} {words} is taken")

    def _transform(self) -> None:
        """A message is acknowledged, and its follower sent, in a transaction that ends at once."""
        name = self._begin()
        if self._acknowledge(name) and name in self.opened:
            self._send(name)
        if name in self.opened:
            self._end(name)

    # --- messages

    def _send(self, within: str | None) -> None:
        topic = self.rng.choice(list(self.partitions))
        kind = self.rng.choice(("single", "single", "batch", "batch", "chunks"))
        pairs = []
        for _ in range(self.rng.randint(1, 5) if kind == "batch" else 1):
            self.count += 1
            pairs.append((f"k{self.rng.randrange(4)}", f"m{self.count}"))
        padding = "-" * 250 if kind == "chunks" else ""  # which the program leaves out
        words = [f"{key}={value}{padding}" for key, value in pairs]
        ids = self._ask("send", topic, within or "-", kind, *words)
        self.model.send(
            topic,
            [
                Message(key, value, place(each), within)
                for (key, value), each in zip(pairs, ids, strict=True)
            ],
        )

    def _acknowledge(self, within: str | None) -> bool:
        clashes = [
            (one, each)
            for one in self.model.subscriptions
            for each in one.shown
            if within
            and each.value in one.pending_values - one.pending.get(within, set())
            and not (self.model.as_pulsar and self.model.in_batches(one.topic, {each.value}))
        ]
        if within and clashes and self.rng.random() < 0.2:
            self._clash(within, *self.rng.choice(clashes))
            return True
        one = self.rng.choice(self.model.subscriptions)
        mine = one.pending.get(within or "", set())
        entries = one.spent | {
            each.entry
            for each in self.model.topics[one.topic]
            if each.value in one.pending_values - mine
        }
        found = [
            each
            for each in one.shown
            if not self.model.is_aborted(each)
            and each.value not in one.acknowledged | mine
            and each.entry not in entries
        ]
        if found:
            message = self.rng.choice(found)
            self._ask("ack", one.name, within or "-", message.value)
            self.model.acknowledge(one, message, within)
        return bool(found)

    def _clash(self, within: str, one: Subscription, message: Message) -> None:
        """What another transaction has acknowledged is refused."""
        self._refused("ack", one.name, within, message.value)
        # The client does nothing more in it.
        self.opened.remove(within)
        path = f"/admin/v3/transactions/abortTransaction/{self.ids[within]}"
        status, answer = self.admin.call("POST", path)
        assert status in (200, 204), (path, status, answer)
        self.model.end(within, commits=False)
        one.shown = []  # its consumer believes to have acknowledged it

    def _acknowledge_up_to(self) -> None:
        ones = [it for it in self.model.subscriptions if it.kind in ("Exclusive", "Failover")]
        found = [
            (one, each)
            for one in ones
            for each in one.shown
            if each.value not in one.acknowledged and not self.model.is_aborted(each)
        ]
        if found:
            one, message = self.rng.choice(found)
            self._ask("upto", one.name, message.value)
            self.model.acknowledge_up_to(one, message)
            one.shown = []

    # --- what is seen

    def _seen(self, one: Subscription, count: int, millis: int) -> list[Seen]:
        words = self._ask("look", one.name, one.topic, one.kind, str(count), str(millis))
        seen = []
        for word in words:
            key, value, message_id = word.split("=")
            seen.append((key, value, place(message_id)))
        return seen

    def _look(self, one: Subscription) -> None:
        sure = [it for it in self.model.left(one) if it.value not in one.uncertain]
        seen = self._seen(one, len(sure), 1_000 if one.uncertain else _BEHIND_MS)
        self._compare(one, seen)
        self.model.look(one)

    def _compare(self, one: Subscription, seen: Sequence[Seen]) -> None:
        found = by_partition(each for each in seen if each[1] not in one.uncertain)
        expected = seen_of(it for it in self.model.left(one) if it.value not in one.uncertain)
        assert found == expected, f"{one.name} of {one.topic}: {found}, not {expected}"

    def _look_at_all(self) -> None:
        """At what is left, and at all that was ever sent."""
        for each in self.model.subscriptions:
            self._look(each)
        for topic in self.partitions:
            self._look(self._whole(topic))

    def _whole(self, topic: str) -> Subscription:
        self.logs_seen += 1
        return Subscription(f"log-{self.logs_seen}", topic, "Exclusive")

    # --- what happens beside

    def _unload(self, topic: str) -> None:
        if self.model.as_pulsar and self.model.open_in(topic):
            return
        self.told.append(f"unload {topic}")
        status, answer = self.admin.call("PUT", f"{self.admin.topic_path(topic)}/unload")
        assert status == 204, (status, answer)
        self._anew()

    def _anew(self) -> None:
        """Consumers get all anew: what is acknowledged next is chosen when they have looked."""
        for each in self.model.subscriptions:
            each.shown = []

    def _kill(self) -> None:
        if self.server is not None:
            self.told.append("kill")
            self.server.kill()
            self.server.start(same_ports=True)
            self._anew()
            used = {name for topic in self.partitions for name in self.model.open_in(topic)}
            used.update(name for one in self.model.subscriptions for name in one.pending)
            # One in which nothing was done may be forgotten: decision 0081.
            self.opened = [name for name in self.opened if name in used]

    def _kill_beside_a_commit(self, name: str | None) -> None:
        pause_s = self.rng.random() * 0.03
        if self.server is None or name is None:
            return
        self.opened.remove(name)
        self.told.append(f"kill {pause_s} s behind commit {name}")
        self.program.tell("commit", name)
        time.sleep(pause_s)
        self._kill()
        try:
            self.program.answer()
        except RefusedError as error:
            self.told.append(f"  {error}")
            self._decide(name)
        else:
            self.told.append("  ok")
            self.model.end(name, commits=True)

    def _decide(self, name: str) -> None:
        """Nobody knows whether it is committed: it is so everywhere, or nowhere."""
        self.admin.call("POST", f"/admin/v3/transactions/abortTransaction/{self.ids[name]}")
        self._forget(name)
        ones = [*self.model.subscriptions, *map(self._whole, self.partitions)]
        seen = [(one, self._seen(one, 0, 2_000)) for one in ones]
        before = copy.deepcopy(self.model)
        failures = []
        for commits in (True, False):
            self.model.end(name, commits=commits)
            try:
                for one, found in seen:
                    self._compare(one, found)
            except AssertionError as error:
                failures.append(f"if {commits}: {error}")
                self.model = copy.deepcopy(before)
            else:
                self._anew()
                return
        raise AssertionError(f"{name} is neither committed nor aborted: {failures}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service-url", help="of a server that runs already")
    parser.add_argument("--admin-url")
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    build(["go"])
    with ExitStack() as stack:
        server = None
        urls = options.service_url, options.admin_url
        if options.service_url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = StandaloneProcess(
                folder / "data", "--set", "transactionCoordinatorEnabled=true"
            )
            stack.enter_context(server)
            urls = server.service_url, server.admin_url
        program = Program("go", "transactions", urls[0])
        stack.callback(program.close)
        admin = Admin(urls[1])
        namespace = f"public/transactions-{uuid.uuid4().hex[:8]}"
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        for method, path, body in (("PUT", "", {}), ("POST", "/retention", keep)):
            status, answer = admin.call(method, f"/admin/v2/namespaces/{namespace}{path}", body)
            assert status == 204, (path, answer)
        version = admin.call("GET", "/admin/v2/brokers/version")[1]
        for seed in range(options.first, options.first + options.seeds):
            model = Model(as_pulsar=not version.startswith("0."))
            History(admin, program, model, seed, namespace, server).run()
            print(f"seed {seed}: as expected", flush=True)
        admin.call("DELETE", f"/admin/v2/namespaces/{namespace}?force=true")
    return 0


if __name__ == "__main__":
    sys.exit(main())
