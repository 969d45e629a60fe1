"""The comparison of transactions_by_clients.py finds what a server does wrong.

The server is one in memory. The official client isn't needed.
"""

from typing import Any

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.interop.compacted_by_clients import RefusedError
from tests.interop.conftest import Admin
from tests.interop.transactions_by_clients import History
from tests.transaction_histories import Message, Model, Subscription


class RememberedServer(Admin):
    """A program and the administration of a server that is right, but for one ``bug``."""

    def __init__(self, bug: str = "") -> None:
        super().__init__("")
        self.model = Model()
        self.bug = bug
        self.open: dict[str, int] = {}
        self.names: dict[str, str] = {}
        self.partitions: dict[str, int] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.seen: dict[str, dict[str, Message]] = {}
        self.entries = 0

    # --- administration

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        name = self.names.get("/".join(path.split("/")[-2:]), "")
        if "transactionMetadata" in path:
            if self.open.get(name, 0) == 2_000:
                self._end(name, commits=False)
            return (200 if name in self.open else 404), {}
        if "abortTransaction" in path:
            self._end(name, commits=False)
        return 204, ""

    def create_partitioned(self, topic: str, partitions: int) -> None:
        self.partitions[topic] = partitions

    # --- the client

    def ask(self, action: str, *words: str) -> list[str]:
        found: list[str] | None = None
        if action != "end":
            found = getattr(self, f"_{action}")(*words)
        return found or []

    def _begin(self, name: str, millis: str) -> list[str]:
        self.open[name] = int(millis)
        number = len(self.names)
        self.names[f"0/{number}"] = name
        return ["0", str(number)]

    def _send(self, topic: str, name: str, kind: str, *pairs: str) -> list[str]:
        partition = self.entries % (self.partitions.get(topic) or 1)
        self.entries += 1
        messages = []
        for index, pair in enumerate(pairs):
            key, value = pair.split("=")
            place = partition, 7, self.entries, index if kind == "batch" else 0
            within = None if name == "-" else name
            messages.append(Message(key, value.rstrip("-"), place, within))
        self.model.send(topic, messages)
        return [told(each) for each in messages]

    def _look(self, name: str, topic: str, kind: str, _count: str, _millis: str) -> list[str]:
        one = self.subscriptions.get(name)
        if one is None:
            one = self.subscriptions[name] = Subscription(name, topic, kind)
            self.model.subscriptions.append(one)
        self.model.look(one)
        found = [each for each in self.model.topics[topic] if each in self._shown(one)]
        if self.bug == "order":
            found = found[::-1]
        elif self.bug == "twice":
            found += found[:1]
        self.seen[name] = {each.value: each for each in self.model.topics[topic]}
        return [f"{each.key}={each.value}={told(each)}" for each in found]

    def _shown(self, one: Subscription) -> list[Message]:
        if self.bug not in ("aborted", "open"):
            return one.shown
        hidden = one.acknowledged | one.pending_values
        is_open = self.bug == "open"
        return one.shown + [
            each
            for each in self.model.topics[one.topic]
            if each.value not in hidden
            and (each.transaction in self.open if is_open else self.model.is_aborted(each))
        ]

    def _ack(self, name: str, within: str, value: str) -> None:
        one = self.subscriptions[name]
        others = [found for each, found in one.pending.items() if each != within]
        if within != "-" and self.bug != "conflict" and value in set().union(*others):
            raise RefusedError("a conflict")
        transaction = None if within == "-" else within
        self.model.acknowledge(one, self.seen[name][value], transaction)

    def _upto(self, name: str, value: str) -> None:
        self.model.acknowledge_up_to(self.subscriptions[name], self.seen[name][value])

    def _commit(self, name: str) -> None:
        if name not in self.open:
            raise RefusedError("unknown")
        self._end(name, commits=True)

    def _abort(self, name: str) -> None:
        self._end(name, commits=False)

    def _end(self, name: str, *, commits: bool) -> None:
        del self.open[name]
        acknowledged = {each.name: set(each.acknowledged) for each in self.model.subscriptions}
        pending = {each.name: each.pending.get(name, set()) for each in self.model.subscriptions}
        self.model.end(name, commits=commits)
        for each in self.model.subscriptions:
            if commits and self.bug == "lost acknowledgement":
                each.acknowledged = acknowledged[each.name]
            elif not commits and self.bug == "kept acknowledgement":
                each.acknowledged |= pending[each.name]
        if commits and self.bug == "lost commit":
            self.model.ends[name] = False

    def tell(self, action: str, *words: str) -> None:
        raise NotImplementedError

    def answer(self) -> list[str]:
        raise NotImplementedError


def told(message: Message) -> str:
    partition, ledger, entry, index = message.place
    data = pb.MessageIdData(ledgerId=ledger, entryId=entry, partition=partition, batch_index=index)
    return data.SerializeToString().hex()


def run(seed: int, bug: str = "") -> None:
    server = RememberedServer(bug)
    History(server, server, Model(), seed, "public/default").run()


@pytest.mark.parametrize("seed", range(20))
def test_a_right_server_is_as_expected(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize(
    "bug",
    [
        *("aborted", "open", "order", "twice", "conflict"),
        *("lost commit", "lost acknowledgement", "kept acknowledgement"),
    ],
)
def test_a_wrong_server_is_found(bug: str) -> None:
    found = 0
    for seed in range(20):
        try:
            run(seed, bug)
        except AssertionError:
            found += 1
    assert found >= 2, found
