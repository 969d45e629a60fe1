"""Nothing that changes belongs to the process: embedded brokers are threads of one, and share it.

What a module or a class of these packages keeps is either of an immutable kind, or a table: a
container that is filled where it is made and that no code changes by its name. What else there is
stands in ``ALLOWED`` with its reason. Changes by another name can't be read from source.
"""

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("broker", "managed_ledger", "bookkeeper", "metadata", "bundles", "loadbalance")

ALLOWED = {
    "broker/http/server/app.py:_WEBSOCKETS": "routes of Starlette, which keep nothing of a request",
    "bookkeeper/auth/token_signatures.py:_JWS": "of PyJWT; its algorithms are complete",
    "broker/local_cluster/probes.py:_OPENER": "of the supervisor; requests leave nothing in it",
    "broker/cpu_scheduling.py:_C": "the C library",
    "broker/policies/offload.py:OFFLOAD_EXAMPLE": "of the documentation",
    "broker/auth/client_oauth2.py:_tokens": "of the CLI and of Spark's driver; no broker uses it",
    "broker/cli/top/dialogs.py:ChoiceScreen.BINDINGS": "keys, as Textual wants them; of the CLI",
    "broker/cli/top/dialogs.py:MessagesScreen.BINDINGS": "keys, as Textual wants them; of the CLI",
    "broker/cli/top/dialogs.py:QuestionScreen.BINDINGS": "keys, as Textual wants them; of the CLI",
    "broker/cli/top/dialogs.py:TextScreen.BINDINGS": "keys, as Textual wants them; of the CLI",
    "broker/cli/top/screen.py:TopApp.BINDINGS": "keys, as Textual wants them; of the CLI",
    "broker/http/messaging/internal_consumer.py:_NOTHING": "a deque(maxlen=0): always empty",
    "metadata/loop_turns.py:_QUEUES": "by event loop, so each thread has its own",
    "bookkeeper/storage/os_file_system.py:_reclaimer": "of a disk's free space; has its own lock",
}
# By the last part of the name that is called.
IMMUTABLE_CALLS = {
    *("Struct", "bytes", "cast", "compile", "date", "datetime", "float", "frozenset", "getLogger"),
    *("int", "len", "max", "maketrans", "min", "object", "pack", "range", "str", "sum", "tuple"),
    *("MappingProxyType", "Path", "TypeVar", "fromhex", "attrgetter", "from_bytes", "toordinal"),
    "ContextVar",  # each thread, so each loop, has values of its own
    *("field", "Field", "ConfigDict", "AfterValidator"),  # of dataclasses and pydantic: copied
    *("create_time", "decode", "fields", "getattr", "index", "sysconf", "Value"),  # int, str, tuple
    "Routes",  # filled by decorators while its module is imported; applications copy its routes
}
TABLE_CALLS = {"dict", "fromkeys", "get_type_hints", "list", "set"}
CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop"),
    *("popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "update"),
}
IMMUTABLE_TYPES = {
    *("bool", "bytes", "float", "frozenset", "int", "None", "Pattern", "str", "tuple", "Literal"),
    *("Callable", "Mapping", "Sequence"),  # mypy refuses to change what is annotated so
}
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def _last(node: ast.expr) -> str:
    """``c`` of ``a.b.c``, of ``c[...]`` and of ``c(...)``."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class Source:
    """One module; ``path`` from the project's root."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.name = (
            f"magnetar/{path}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )
        self.tree = ast.parse(text)
        self.imported: dict[str, tuple[str, str]] = {}  # name here -> module, name there
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = node.module or "", alias.name

    def bindings(self) -> Iterator[tuple[str, ast.expr, int]]:
        """Names of the module and of its classes, with their values; a class's as ``C.name``."""
        yield from _bindings(self.tree.body, "")

    def changed(self) -> set[str]:
        """Names that code here changes, or sets anew from within a function."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Global):
                found.update(node.names)
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found.add(_last(node.value))
            elif isinstance(node, ast.AugAssign):
                found.add(_last(node.target))
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and (node.attr in CHANGES or not isinstance(node.ctx, ast.Load))
            ):
                found.add(node.value.id)
        return found


def _bindings(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.expr, int]]:
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from ((prefix + _last(name), node.value, node.lineno) for name in names)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield prefix + _last(node.target), node.value, node.lineno
        elif isinstance(node, ast.ClassDef):
            if not {_last(base) for base in node.bases} & {"Enum", "IntEnum", "Flag", "IntFlag"}:
                yield from _bindings(node.body, f"{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.For | ast.With):
            yield from _bindings(node.body, prefix)
            yield from _bindings(getattr(node, "orelse", ()), prefix)


@functools.cache
def _sources() -> dict[str, Source]:
    return {
        source.name: source
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
        for source in [Source(path.relative_to(ROOT).as_posix(), path.read_text())]
    }


def _definition(source: Source, name: str) -> tuple[Source, ast.ClassDef | ast.FunctionDef] | None:
    """Where the project defines a class or function that is called ``name`` in a module."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return source, node
    module, there = source.imported.get(name, ("", ""))
    return _definition(found, there) if (found := _sources().get(module)) else None


def _is_immutable_class(source: Source, node: ast.ClassDef) -> bool:
    bases = {_last(base) for base in node.bases}
    if bases & {"NamedTuple", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "Protocol"}:
        return True
    decorators = [ast.unparse(each) for each in node.decorator_list]
    if any("dataclass" in each for each in decorators):
        return any("frozen=True" in each for each in decorators)
    made = {"__init__", "__init_subclass__"}  # they run before the object or the class is used
    methods = [each for each in node.body if getattr(each, "name", "__init__") not in made]
    return not any(map(_changes_attributes, methods)) and all(
        base in ("Generic", "Exception")
        or (
            (found := _definition(source, base)) is not None
            and isinstance(found[1], ast.ClassDef)
            and _is_immutable_class(found[0], found[1])
        )
        for base in bases
    )


def _changes_attributes(method: ast.stmt) -> bool:
    return any(
        (isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load))
        or (
            isinstance(each, ast.Subscript)
            and not isinstance(each.ctx, ast.Load)
            and isinstance(each.value, ast.Attribute)
        )
        or (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr in CHANGES
            and isinstance(each.func.value, ast.Attribute)
        )
        for each in ast.walk(method)
    )


def _is_immutable_type(source: Source, node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_immutable_type(source, node.left) and _is_immutable_type(source, node.right)
    if isinstance(node, ast.Constant):
        return node.value is None
    if node is None or (name := _last(node)) in IMMUTABLE_TYPES:
        return node is not None
    found = _definition(source, name)
    return found is not None and (
        isinstance(found[1], ast.ClassDef) and _is_immutable_class(found[0], found[1])
    )


def _kind(source: Source, node: ast.expr) -> str:
    """``immutable``, ``table`` or why it is neither."""
    if isinstance(node, DISPLAYS):
        empty = not any(True for _ in ast.iter_child_nodes(node)) or (
            isinstance(node, ast.List) and not node.elts
        )
        return "an empty container" if empty else "table"
    if isinstance(node, ast.Tuple):
        return next(
            (kind for each in node.elts if (kind := _kind(source, each)) != "immutable"),
            "immutable",
        )
    if isinstance(node, ast.Starred):
        return "immutable"
    if isinstance(node, ast.IfExp):
        kinds = {_kind(source, node.body), _kind(source, node.orelse)} - {"immutable"}
        return kinds.pop() if kinds else "immutable"
    return _kind_of_call(source, node) if isinstance(node, ast.Call) else "immutable"


def _kind_of_call(source: Source, node: ast.Call) -> str:
    name = _last(node.func)
    if name in IMMUTABLE_CALLS:
        return "immutable"
    if name in TABLE_CALLS:
        return "table" if node.args or node.keywords else "an empty container"
    if name in ("lru_cache", "cache"):  # lru_cache(...)(what)
        kept = isinstance(node.func, ast.Call) and _is_immutable_type(source, node.args[0])
        return "immutable" if kept else "a cache of what can change"
    if (found := _definition(source, name)) is None:
        return f"made by {name}, which isn't known"
    where, what = found
    if isinstance(what, ast.ClassDef):
        return "immutable" if _is_immutable_class(where, what) else f"a {name} can change"
    if _is_immutable_type(where, what.returns):
        return "immutable"
    is_table = what.returns is not None and _last(what.returns) in ("Any", "dict", "list", "set")
    return "table" if is_table else f"made by {name}, which tells no immutable type"


def _faults(sources: Iterable[Source]) -> Iterator[str]:
    changed: dict[tuple[str, str], str] = {}  # module and name -> who changes it
    for source in sources:
        for name in source.changed():
            changed[source.imported.get(name, (source.name, name))] = source.path
    for source in sources:
        for name, value, line in source.bindings():
            key = f"{source.path}:{name}"
            if name.rpartition(".")[2] in ("__slots__", "__all__") or key in ALLOWED:
                continue
            kind = _kind(source, value)
            if kind == "table" and "." in name:
                kind = "a container of a class"
            elif by := changed.get((source.name, name)):
                kind = f"changed by {by}"
            if kind not in ("immutable", "table"):
                yield f"{source.path}:{line}: {name}: {kind}"


def test_modules_keep_nothing_that_changes() -> None:
    assert list(_faults(_sources().values())) == []


@pytest.mark.parametrize(
    "text",
    [
        "from magnetar.broker.protocol import pulsar_api_pb2 as pb\n_send = pb.CommandSend()",
        "from magnetar.broker.protocol.chunks import ByteBudget\nCHUNKS = ByteBudget(1)",
        "_TASKS: set[int] = set()",
        "_LAST = [0]\ndef take() -> None:\n    _LAST[0] += 1",
        "_KNOWN = {1: 2}\ndef learn() -> None:\n    _KNOWN.update({3: 4})",
        "from collections import deque\n_waiting = deque([1], maxlen=5)",
        "import itertools\n_ids = itertools.count()",
        "import random\n_rng = random.Random(7)",
        "import threading\n_local = threading.local()",
        "class Topic:\n    names: list[str] = ['']",
        "class Parser:\n    def take(self) -> None:\n        self.at = 1\n_parser = Parser()",
        "class Place:\n    pass\n_here = Place()\ndef go() -> None:\n    _here.at = 1",
        "from functools import lru_cache\n_lists = lru_cache(8)(list)",
    ],
)
def test_what_changes_is_seen(text: str) -> None:
    assert list(_faults([Source("broker/planted.py", text)])) != []


def test_no_function_sets_a_name_of_its_module() -> None:
    wrong = [
        f"{source.path}:{node.lineno}: global {', '.join(node.names)}"
        for source in _sources().values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Global)
    ]
    assert wrong == []


def test_caches_keep_only_what_cannot_change() -> None:
    wrong = [
        f"{source.path}:{node.lineno}: {node.name}"
        for source in _sources().values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef)
        if any(_last(each) in ("cache", "lru_cache") for each in node.decorator_list)
        if not _is_immutable_type(source, node.returns)
    ]
    assert wrong == []
