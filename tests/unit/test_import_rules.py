"""Imports point downwards, and cores import nothing that waits, looks at a clock or throws dice."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# package -> the project's packages it may import; a dotted name stands
# for that module or package alone
ALLOWED: dict[str, set[str]] = {
    "metadata": set(),
    "bookkeeper": {"metadata"},
    "managed_ledger": {"bookkeeper", "metadata"},
    "bundles": {"metadata"},
    "loadbalance": {"metadata"},
    "broker": {"managed_ledger", "bookkeeper", "metadata", "bundles", "loadbalance"},
    # Spark's workers read ledgers, not brokers: of those only the wire formats, those of schemas'
    # values, what the CLI has for callers that wait, an HTTP client and an event loop, and the
    # client with transactions.
    "pipeline": {
        *("bookkeeper", "metadata", "managed_ledger.position", "managed_ledger.offload"),
        *("broker.protocol", "broker.schema.avro_values", "broker.schema.primitive_values"),
        *("broker.auth.client_auth", "broker.auth.client_auth_error"),
        *("broker.compaction.compacted_entry", "broker.errors", "broker.client"),
        "broker.transaction.transaction_id",
        *(f"broker.cli.{name}" for name in ("admin_client", "errors", "loop_thread")),
    },
    "magnetar": {
        *("broker", "bookkeeper.auth.keys", "bookkeeper.storage"),
        *(f"managed_ledger.{name}" for name in ("entry_batch", "errors", "position")),
    },
}

# Modules of the project that are cores; a folder stands for all modules in it.
CORES = [
    "bookkeeper/packet.py",
    "bookkeeper/wrapped_packet.py",
    "bookkeeper/codes.py",
    "bookkeeper/ledger_metadata.py",
    "bookkeeper/service_info.py",
    *(
        f"bookkeeper/bookie_protocol/{name}.py"
        for name in (
            *("frames_v2", "frame_pieces", "digests", "adds_in_flight", "heads"),
            *("result_codes", "availability", "requests_v2"),
        )
    ),
    "bookkeeper/layout/ledger_metadata_format.py",
    "bookkeeper/client/health.py",
    "bookkeeper/client/placement",
    "bookkeeper/client/ledger_writer.py",
    "bookkeeper/client/ledger_recovery.py",
    "bookkeeper/client/quorum.py",
    "bookkeeper/client/pending_adds.py",
    *(f"bookkeeper/client/{name}.py" for name in ("read_order", "striped_runs", "force_rounds")),
    "bookkeeper/client/config.py",
    *(
        f"bookkeeper/bookie/{name}.py"
        for name in ("gc/compaction", "storage/disk_space", "storage/flush", "gc/garbage_scan")
    ),
    *(
        f"bookkeeper/bookie/{name}.py"
        for name in ("journal/journal", "storage/ledger_storage", "gc/over_replicated")
    ),
    *(
        f"bookkeeper/bookie/{name}.py"
        for name in ("storage/location_runs", "storage/storage_startup", "storage/write_cache")
    ),
    *(f"bookkeeper/replication/{name}.py" for name in ("zones", "auditor_core", "fragments")),
    "managed_ledger/cursor/ack_state.py",
    *(
        f"managed_ledger/cursor/{name}.py"
        for name in ("cursor_format", "acked_sections", "column_codec")
    ),
    "managed_ledger/cursor/packed_sections.py",
    "managed_ledger/managed_ledger_info.py",
    "managed_ledger/sizes.py",
    "managed_ledger/append_core.py",
    "managed_ledger/append_core.py",
    *(f"managed_ledger/offload/{name}.py" for name in ("context", "policy", "copy_format")),
    *(f"managed_ledger/offload/{name}.py" for name in ("config",)),
    "bundles/namespace_bundles.py",
    "bundles/splitting.py",
    "bundles/lookup.py",
    *(f"loadbalance/{name}.py" for name in ("model", "documents", "config", "errors")),
    *(
        f"loadbalance/{name}.py"
        for name in ("policies", "cluster_state", "broker_selector", "plan")
    ),
    *(f"loadbalance/{name}.py" for name in ("auto_split", "balancer", "unload_cooldowns")),
    "loadbalance/shedders.py",
    "metadata/paths.py",
    "metadata/node_tree.py",
    "metadata/zookeeper/session.py",
    "metadata/zookeeper/unknown_outcome.py",
    "broker/auth/authorization.py",
    *(f"broker/auth/{name}.py" for name in ("provider", "provider_chain", "openid")),
    *(f"bookkeeper/auth/{name}.py" for name in ("keys", "tokens", "certificates", "errors")),
    "broker/auth/password_queue.py",
    "broker/auth/basic.py",
    *(f"broker/local_cluster/{name}.py" for name in ("plan", "member_process", "status_table")),
    "broker/policies",
    "broker/protocol",
    *(f"pipeline/{name}.py" for name in ("batch_messages", "chunks", "row_columns", "decode")),
    *(f"pipeline/{name}.py" for name in ("errors", "filters", "options", "read_plan", "offsets")),
    *(f"pipeline/{name}.py" for name in ("record_types", "rows", "topic_snapshot")),
    *(f"pipeline/{name}.py" for name in ("entry_plan", "sink_options", "commit_log")),
    *(f"pipeline/jobs/{name}.py" for name in ("manifest", "skew")),
    "broker/dispatch/explanation.py",
    "broker/dispatch/pending_ages.py",
    "broker/dispatch/turn_queue.py",
    "broker/dispatch/unsent_budget.py",
    *(f"broker/doctor/{name}.py" for name in ("findings", "cluster_checks", "storage_checks")),
    *(f"broker/doctor/{name}.py" for name in ("broker_checks", "topic_checks")),
    "broker/dispatch/shared.py",
    "broker/dispatch/active_consumer.py",
    "broker/dispatch/key_selector.py",
    "broker/dispatch/single_active.py",
    "broker/topic/backlog_quota.py",
    *(f"broker/transaction/{name}.py" for name in ("coordinator", "coordinator_records")),
    "broker/transaction/transaction_deadlines.py",
    *(
        f"broker/index/{name}.py"
        for name in ("figure_table", "topic_figures", "page_answer", "history")
    ),
    "broker/rate_limits/token_bucket.py",
    "broker/transaction/pending_acks.py",
    "broker/verify",
    "broker/schema/definition.py",
    "broker/schema/avro_definition.py",
    "broker/schema/key_value.py",
    "broker/schema/protobuf_native.py",
    "broker/schema/compatibility.py",
    "broker/schema/history.py",
    "broker/schema/values.py",
    "broker/schema/primitive_values.py",
    "broker/schema/avro_values.py",
    "broker/schema/protobuf_values.py",
]
FORBIDDEN_IN_CORES = {
    *("asyncio", "grpc", "kazoo", "logging", "os", "random", "socket", "threading", "time"),
    *("uvloop", "secrets", "subprocess"),
}


def _modules(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (p for p in sorted(path.rglob("*.py")) if not p.name.endswith("_pb2.py"))


def _of_ours(name: str) -> str:
    """As in ``ALLOWED``: ``magnetar.broker.x`` is ``broker.x``, by the folder that it is in."""
    short = name.removeprefix("magnetar.")
    return short if short.split(".")[0] in ALLOWED else name


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, _of_ours(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, _of_ours(node.module or "")


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_downwards(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _modules(ROOT / package)
        for line, name in _imports(path)
        if (top := name.split(".")[0]) in ALLOWED and top != package
        if not any(f"{name}.".startswith(f"{allowed}.") for allowed in ALLOWED[package])
    ]
    assert wrong == []


@pytest.mark.parametrize("core", CORES)
def test_cores_are_pure(core: str) -> None:
    path = ROOT / core
    assert path.exists(), f"{core} is listed as a core but does not exist"
    wrong = [
        f"{module.relative_to(ROOT)}:{line} imports {name}"
        for module in _modules(path)
        for line, name in _imports(module)
        if name.split(".")[0] in FORBIDDEN_IN_CORES
    ]
    assert wrong == []


@pytest.mark.parametrize("package", sorted(set(ALLOWED) - {"magnetar"}))
def test_each_folder_is_linked(package: str) -> None:
    link = ROOT / "magnetar" / package
    assert link.is_symlink(), "git config core.symlinks true, then check magnetar/ out again"
    assert link.resolve() == ROOT / package


@pytest.mark.parametrize("package", sorted(set(ALLOWED) - {"magnetar"}))
def test_a_second_copy_is_refused(package: str) -> None:
    with pytest.raises(ImportError, match=f"import magnetar.{package}"):
        importlib.import_module(package)


def test_the_product_never_imports_its_tests() -> None:
    plugin = ROOT / "magnetar" / "pytest_plugin.py"  # only pytest itself imports it
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in ALLOWED
        for path in _modules(ROOT / package)
        if path != plugin
        for line, name in _imports(path)
        if name.split(".")[0] in {"tests", "pytest", "hypothesis"}
    ]
    assert wrong == []


def test_a_declared_package_is_imported() -> None:
    """A user installs it: docs/decisions/0045."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    modules: dict[str, set[str]] = defaultdict(set)
    for module, packages in packages_distributions().items():
        for package in packages:
            modules[_normalized(package)].add(module)
    text = "\n".join(path.read_text() for package in ALLOWED for path in _modules(ROOT / package))
    # The last: files of a package, which are read as data.
    found = set(re.findall(r"^ *(?:from|import) (\w+)|\"(\w+)\.resources\"", text, re.M))
    used = {name for pair in found for name in pair}
    wrong = [
        requirement
        for requirement in declared
        if not modules[_normalized(re.split(r"[^\w.-]", requirement)[0])] & used
    ]
    assert wrong == []


def _normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _runtime_imports(path: Path, *, in_functions: bool = True) -> Iterator[tuple[int, str]]:
    """Modules and packages of ours, by the folder they are in; types alone don't count."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = _of_ours(node.module or "")
                    inner = ROOT.joinpath(*name.split("."), alias.name)
                    is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                    yield node.lineno, f"{name}.{alias.name}" if is_module else name
            elif isinstance(node, ast.Import):
                yield from ((node.lineno, _of_ours(alias.name)) for alias in node.names)
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            elif in_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                todo.append(node)


# Packages whose folders import each other still: each counts as one.
UNSORTED = {"bookkeeper", "managed_ledger"}


def _package_of(module: str) -> str:
    if (top := module.split(".")[0]) in UNSORTED:
        return top
    return module if ROOT.joinpath(*module.split(".")).is_dir() else module.rpartition(".")[0]


def test_no_import_circle_crosses_the_border_of_a_package() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for path in (path for package in ALLOWED for path in _modules(ROOT / package)):
        package = _package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for _, name in _runtime_imports(path, in_functions=False):
            if name.split(".")[0] in ALLOWED and (other := _package_of(name)) != package:
                graph[package].add(other)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names one circle


def _pages_with_imports() -> list[str]:
    return [
        str(page.parent.relative_to(ROOT))
        for package in ALLOWED
        for page in sorted((ROOT / package).rglob("README.md"))
        if "\nMay import: " in page.read_text()
    ]


@pytest.mark.parametrize("package", _pages_with_imports())
def test_a_package_imports_what_its_page_says(package: str) -> None:
    _, _, said = (ROOT / package / "README.md").read_text().partition("\nMay import: ")
    named = re.findall(r"`([\w.]+)`", said.partition("\n\n")[0])
    allowed = [package.replace("/", "."), *map(_of_ours, named)]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _modules(ROOT / package)
        for line, name in _runtime_imports(path)
        if name.split(".")[0] in ALLOWED
        if not any(f"{name}.".startswith(f"{each}.") for each in allowed)
    ]
    assert wrong == []
