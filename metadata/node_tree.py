"""The tree of an embedded store: committed nodes, and groups of operations that wait for a commit.

``NodeTree`` is what readers see. A ``CommitBatch`` evaluates operations, in order, on top of the
tree and of its own earlier operations, and collects what has to be written; the tree stays as it is
until ``NodeTree.apply(group)``, which the shell calls when the group is durable. A group that
couldn't be written is dropped, and no reader has seen it. One group at a time: a second one that
starts before the first is applied would be evaluated on a tree that is about to change.

Ephemeral nodes are part of the tree and of no row: they live as long as this process, so a restart
finds none by construction and they cost no sync. Parents made for them are persistent.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from magnetar.metadata.errors import (
    BadVersionError,
    EphemeralParentError,
    NotEmptyError,
    NotFoundError,
)
from magnetar.metadata.paths import ROOT, join, name_of, parent_of, sequential_path
from magnetar.metadata.rows import CommitRows, Row
from magnetar.metadata.store import CREATE_ONLY, EventType, MetadataEvent

_CREATED, _MODIFIED = EventType.CREATED, EventType.MODIFIED
_DELETED, _CHILDREN_CHANGED = EventType.DELETED, EventType.CHILDREN_CHANGED


class Node:
    """One immutable state of a node; ``owner`` is the session of an ephemeral node."""

    __slots__ = ("created_ms", "modified_ms", "owner", "value", "version")

    def __init__(
        self, value: bytes, version: int, created_ms: int, modified_ms: int, owner: str | None
    ) -> None:
        self.value, self.version, self.owner = value, version, owner
        self.created_ms, self.modified_ms = created_ms, modified_ms


class NodeTree:
    """Invariant: a node's parent is a node, and is listed in ``_children`` with its name."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {ROOT: Node(b"", 0, 0, 0, None)}
        self.counters: dict[str, int] = {}  # parent -> next sequence number; outlives the parent
        # Sorted, no empty lists. To sort 100,000 names for a reader would take 40 ms, to insert one
        # into as many takes 20 µs.
        self._children: dict[str, list[str]] = {}
        self._owned: dict[str, set[str]] = {}  # session -> its ephemeral paths; no empty sets

    def load(self, rows: Iterable[Row]) -> None:
        """Fills an empty tree from (path, value, version, created_ms, modified_ms).

        Raises:
            ValueError: a node without its parent.
        """
        for path, value, version, created_ms, modified_ms in rows:
            # One object for both times halves their memory: most nodes never change.
            modified = created_ms if modified_ms == created_ms else modified_ms
            self.nodes[path] = Node(value, version, created_ms, modified, None)
            self._children.setdefault(parent_of(path), []).append(name_of(path))
        for path, names in self._children.items():
            if path not in self.nodes:
                raise ValueError(f"{path} has children but is missing")
            names.sort()

    def children(self, path: str) -> Sequence[str]:
        """Sorted names; the caller must not change them."""
        return self._children.get(path, ())

    def owned_by(self, session: str) -> set[str]:
        return self._owned.get(session) or set()

    def apply(self, group: "CommitBatch") -> None:
        """The group is durable: show it."""
        for path, node in group.changed.items():
            old = self.nodes.get(path)
            if node is not None:
                self.nodes[path] = node
            elif old is not None:
                del self.nodes[path]
            if (old is None) is not (node is None):
                self._relink(path, node is not None)
            before = None if old is None else old.owner
            after = None if node is None else node.owner
            if before != after:
                self._move(path, before, after)
        self.counters.update(group.counters)

    def _relink(self, path: str, present: bool) -> None:
        parent, name = parent_of(path), name_of(path)
        if present:
            insort(self._children.setdefault(parent, []), name)
        else:
            names = self._children[parent]
            del names[bisect_left(names, name)]
            if not names:
                del self._children[parent]

    def _move(self, path: str, before: str | None, after: str | None) -> None:
        if before is not None:
            owned = self._owned[before]
            owned.discard(path)
            if not owned:
                del self._owned[before]
        if after is not None:
            self._owned.setdefault(after, set()).add(path)


class CommitBatch:
    """Operations that become durable together, each with its own result or error.

    An operation that raises has changed nothing, so its neighbours don't notice it.
    """

    def __init__(self, tree: NodeTree, now_ms: int) -> None:
        self._tree, self._now_ms = tree, now_ms
        self.changed: dict[str, Node | None] = {}  # path -> its state after the group
        self.counters: dict[str, int] = {}
        self.events: list[MetadataEvent] = []  # in the order of the operations
        self._added: dict[str, set[str]] = {}  # parent -> names the tree doesn't list
        self._removed: dict[str, set[str]] = {}  # parent -> names the tree lists, gone by now

    def to_change(self, *, with_old: bool) -> CommitRows:
        """Collects the rows to write; ephemeral nodes have none.

        Args:
            with_old: also the rows that they replace.
        """
        nodes = self._tree.nodes
        puts, deletes, replaced = list[Row](), list[str](), list[Row]()
        for path, node in self.changed.items():
            old = nodes.get(path)
            if node is not None and node.owner is None:
                puts.append(_row(path, node))
            elif old is not None and old.owner is None:  # gone, or replaced by an ephemeral node
                deletes.append(path)
            if with_old and old is not None and old.owner is None:
                replaced.append(_row(path, old))
        old_counters = dict[str, int]()
        if with_old:
            known = self._tree.counters
            old_counters = {each: known[each] for each in self.counters if each in known}
        return CommitRows(puts, deletes, self.counters, replaced, old_counters)

    def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None,
        owner: str | None,
        sequential: bool,
    ) -> tuple[str, Node]:
        """Returns the final path and the node; see ``MetadataStore.put``."""
        if sequential:
            return self._put_sequential(path, value, owner)
        old = self._get(path)
        if old is None:
            if expected_version is not None and expected_version != CREATE_ONLY:
                raise BadVersionError(path, expected_version)
            self._create_parents(path)
            return path, self._create(path, value, owner)
        if expected_version is not None and expected_version != old.version:
            raise BadVersionError(path, expected_version, old.version)
        node = Node(value, old.version + 1, old.created_ms, self._now_ms, old.owner)
        self.changed[path] = node
        self.events.append(MetadataEvent(_MODIFIED, path))
        return path, node

    def delete(self, path: str, expected_version: int | None) -> None:
        old = self._get(path)
        if old is None:
            raise NotFoundError(path)
        if expected_version is not None and expected_version != old.version:
            raise BadVersionError(path, expected_version, old.version)
        if next(self._children_of(path), None) is not None:
            raise NotEmptyError(path)
        self._remove(path)

    def delete_recursive(self, path: str) -> None:
        if self._get(path) is None:
            return
        found = [path]  # grows while it is read: a breadth-first walk without recursion
        for parent in found:
            found += [join(parent, name) for name in self._children_of(parent)]
        for each in reversed(found):  # children before their parents
            self._remove(each)

    def end_session(self, owner: str) -> None:
        """Deletes the ephemeral nodes of a session, in the order of their paths."""
        created = {
            p for p, node in self.changed.items() if node is not None and node.owner == owner
        }
        for path in sorted(created | self._tree.owned_by(owner)):
            if (node := self._get(path)) is not None and node.owner == owner:
                self._remove(path)

    def _get(self, path: str) -> Node | None:
        return self.changed[path] if path in self.changed else self._tree.nodes.get(path)

    def _children_of(self, path: str) -> Iterator[str]:
        removed = self._removed.get(path, ())
        for name in self._tree.children(path):
            if name not in removed:
                yield name
        yield from self._added.get(path, ())

    def _put_sequential(self, path: str, value: bytes, owner: str | None) -> tuple[str, Node]:
        self._create_parents(path)
        parent = parent_of(path)
        number = self.counters.get(parent, self._tree.counters.get(parent, 0))
        # A node with such a name may have been created by hand: skip it, like any used number.
        while self._get(final := sequential_path(path, number)) is not None:
            number += 1
        self.counters[parent] = number + 1
        return final, self._create(final, value, owner)

    def _create_parents(self, path: str) -> None:
        missing = list[str]()
        parent = parent_of(path)
        while (node := self._get(parent)) is None:
            missing.append(parent)
            parent = parent_of(parent)
        if node.owner is not None:
            raise EphemeralParentError(path, parent)
        for each in reversed(missing):
            self._create(each, b"", None)

    def _create(self, path: str, value: bytes, owner: str | None) -> Node:
        node = self.changed[path] = Node(value, 0, self._now_ms, self._now_ms, owner)
        parent, name = parent_of(path), name_of(path)
        if path in self._tree.nodes:
            self._removed[parent].discard(name)
        else:
            self._added.setdefault(parent, set()).add(name)
        self._tell(_CREATED, path, parent)
        return node

    def _remove(self, path: str) -> None:
        self.changed[path] = None
        parent, name = parent_of(path), name_of(path)
        if path in self._tree.nodes:
            self._removed.setdefault(parent, set()).add(name)
        else:
            self._added[parent].discard(name)
        self._tell(_DELETED, path, parent)

    def _tell(self, event: EventType, path: str, parent: str) -> None:
        self.events.append(MetadataEvent(event, path))
        self.events.append(MetadataEvent(_CHILDREN_CHANGED, parent))


def _row(path: str, node: Node) -> Row:
    return path, node.value, node.version, node.created_ms, node.modified_ms
