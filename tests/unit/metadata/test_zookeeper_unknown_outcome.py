"""The judgement over lost answers, against a model that knows what happened."""

import random
from dataclasses import dataclass, field

import pytest

from magnetar.metadata.zookeeper.unknown_outcome import (
    ChangeKind,
    NodeState,
    UnansweredChange,
    WriteOutcome,
    resolve_outcome,
)

ME, OTHER = 1, 2
VALUES = (b"mine", b"theirs")


@dataclass
class Server:
    """One path of a ZooKeeper: the node and when its parent's children last changed."""

    zxid: int = 0
    children_zxid: int = 0
    node: NodeState | None = None
    applied: list[UnansweredChange] = field(default_factory=list)

    def do(self, change: UnansweredChange, session: int) -> bool:
        """Applies a change, or refuses it; both take a zxid."""
        self.zxid += 1
        old = self.node
        match change.action:
            case ChangeKind.CREATE:
                if old is not None:
                    return False
                owner = session if change.ephemeral else 0
                self.node = NodeState(change.value, self.zxid, self.zxid, 0, owner)
                self.children_zxid = self.zxid
            case ChangeKind.SET:
                if old is None or change.version not in (None, old.version):
                    return False
                self.node = NodeState(
                    change.value, old.created_zxid, self.zxid, old.version + 1, old.owner
                )
            case ChangeKind.DELETE:
                if old is None or change.version not in (None, old.version):
                    return False
                self.node, self.children_zxid = None, self.zxid
        self.applied.append(change)
        return True


def _random_change(rng: random.Random, session: int) -> UnansweredChange:
    action = rng.choice(list(ChangeKind))
    version = rng.choice([None, 0, 1, 2]) if action is not ChangeKind.CREATE else None
    ephemeral = action is ChangeKind.CREATE and rng.random() < 0.5
    value = rng.choice(VALUES) if session == OTHER else VALUES[0]
    return UnansweredChange(
        action, value if action is not ChangeKind.DELETE else b"", version, ephemeral
    )


def test_a_verdict_is_never_wrong() -> None:
    """40,000 histories: whoever is told "not applied" may repeat it, "applied" may rely on it."""
    rng = random.Random(7)
    verdicts = dict.fromkeys(WriteOutcome, 0)
    for _ in range(40_000):
        server = Server()
        for _ in range(rng.randrange(4)):
            server.do(_random_change(rng, OTHER), OTHER)
        sent_zxid = server.zxid
        change = _random_change(rng, ME)
        arrived = rng.random() < 0.5
        place = rng.randrange(4)
        applied = False
        for step in range(4):
            if step == place and arrived:
                applied = server.do(change, ME)
            elif rng.random() < 0.3:
                server.do(_random_change(rng, OTHER), OTHER)
        verdict = resolve_outcome(
            change, sent_zxid, ME, server.node, server.children_zxid, alone=True
        )
        verdicts[verdict] += 1
        told = f"{change}, arrived {arrived}, applied {applied}, now {server.node}"
        if verdict is WriteOutcome.NOT_APPLIED:
            assert not applied, told
        elif (
            verdict is WriteOutcome.APPLIED
            and change.version is None
            and change.action is ChangeKind.SET
        ):
            assert server.node is not None
            assert server.node.value == change.value  # what an upsert wants, whoever did it
        elif verdict is WriteOutcome.APPLIED:
            assert applied, told
    assert all(count > 1000 for count in verdicts.values()), verdicts


@pytest.mark.parametrize("version", [0, 3])
def test_an_equal_value_proves_nothing(version: int) -> None:
    """Two id generators write the same next block over the same version: one of them lost."""
    change = UnansweredChange(ChangeKind.SET, b"2000", version)
    node = NodeState(b"2000", 5, 11, version + 1, 0)
    assert resolve_outcome(change, 10, ME, node, 5, alone=True) is WriteOutcome.UNKNOWN


def test_two_equal_creates_of_one_session_cannot_be_told_apart() -> None:
    change = UnansweredChange(ChangeKind.CREATE, b"me", ephemeral=True)
    node = NodeState(b"me", 11, 11, 0, ME)
    assert resolve_outcome(change, 10, ME, node, 11, alone=True) is WriteOutcome.APPLIED
    assert resolve_outcome(change, 10, ME, node, 11, alone=False) is WriteOutcome.UNKNOWN


def test_a_missing_parent_tells_nothing() -> None:
    change = UnansweredChange(ChangeKind.CREATE, b"x")
    assert resolve_outcome(change, 10, ME, None, None, alone=True) is WriteOutcome.UNKNOWN
