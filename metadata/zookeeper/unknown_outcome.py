"""Finds out whether the server applied a change whose answer was lost.

Asked after the same session was resumed and a sync went through: by then the change has happened or
never will (the server drops what is left of the old connection; a moved session's requests are
refused). zxids tell time: a node that was last changed at or below the zxid that this client knew
when it sent the change hasn't seen that change.

A value proves nothing. Two writers may write equal bytes with the same expected version (an id
generator's next block), so "my value is there" doesn't mean "I won": believing it would give both
the same ids. Where the server keeps no evidence the answer is unknown, and the caller decides.
"""

from dataclasses import dataclass
from enum import Enum


class WriteOutcome(Enum):
    NOT_APPLIED = "not_applied"  # and it never will be: send it again
    APPLIED = "applied"
    UNKNOWN = "unknown"


class ChangeKind(Enum):
    CREATE = "create"
    SET = "set"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class UnansweredChange:
    """
    Args:
        value: of a create or set.
        version: expected by a set; None: any.
        ephemeral: of a create.
    """

    action: ChangeKind
    value: bytes = b""
    version: int | None = None
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as read now; zxids of its creation and of the last change of its value."""

    value: bytes
    created_zxid: int
    modified_zxid: int
    version: int
    owner: int  # session id; 0: persistent


def resolve_outcome(
    change: UnansweredChange,
    sent_zxid: int,
    session_id: int,
    node: NodeState | None,
    children_zxid: int | None,
    alone: bool,
) -> WriteOutcome:
    """
    Args:
        sent_zxid: what the server was known to have done when the change was sent.
        session_id: in which it was sent, and which is alive.
        node: the node it is about, None if there is none.
        children_zxid: when, read after ``node``, a child of its parent was last created or deleted;
            None: the parent is missing.
        alone: no other create of the path was under way in this session.
    """
    if node is None:
        # No child was created or deleted here since: the node was missing then as it is now.
        untouched = children_zxid is not None and children_zxid <= sent_zxid
        return WriteOutcome.NOT_APPLIED if untouched else WriteOutcome.UNKNOWN
    match change.action:
        case ChangeKind.CREATE:
            return _create_outcome(change, sent_zxid, session_id, node, alone)
        case ChangeKind.SET:
            return _set_outcome(change, sent_zxid, node)
        case ChangeKind.DELETE:
            is_the_same = node.created_zxid <= sent_zxid
            return WriteOutcome.NOT_APPLIED if is_the_same else WriteOutcome.UNKNOWN


def is_own_creation(
    change: UnansweredChange, sent_zxid: int, session_id: int, node: NodeState
) -> bool:
    """Only this session can have created it, after the change was sent, and as the change says."""
    return (
        change.ephemeral
        and node.owner == session_id
        and node.created_zxid > sent_zxid
        and node.value == change.value
        and node.version == 0
    )


def _create_outcome(
    change: UnansweredChange, sent_zxid: int, session_id: int, node: NodeState, alone: bool
) -> WriteOutcome:
    if node.created_zxid <= sent_zxid:
        return WriteOutcome.NOT_APPLIED
    if alone and is_own_creation(change, sent_zxid, session_id, node):
        return WriteOutcome.APPLIED
    return WriteOutcome.UNKNOWN


def _set_outcome(change: UnansweredChange, sent_zxid: int, node: NodeState) -> WriteOutcome:
    if node.modified_zxid <= sent_zxid:
        return WriteOutcome.NOT_APPLIED
    if change.version is None:
        # An unconditional set has its effect if the value is there, by whichever client.
        return WriteOutcome.APPLIED if node.value == change.value else WriteOutcome.UNKNOWN
    if node.created_zxid > sent_zxid:
        return WriteOutcome.UNKNOWN
    # The same node all the time: its version tells how many changes it has seen.
    if node.version <= change.version:
        return WriteOutcome.NOT_APPLIED
    if node.version == change.version + 1 and node.value != change.value:
        return WriteOutcome.NOT_APPLIED
    return WriteOutcome.UNKNOWN
