"""Pages of ``/metrics`` and the dashboards that ask for what is on them."""

import json
import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

DASHBOARDS = sorted((Path(__file__).parents[1] / "deploy" / "grafana").glob("*.json"))
_FUNCTIONS = {"sum", "min", "max", "topk", "rate", "by", "label_values"}
_BOOKKEEPERS = ("bookie_", "bookkeeper_", "auditor_", "replication_worker_")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(url: str) -> Samples:
    """The page by the official parser; every series once."""
    answer = httpx.get(f"{url}/metrics", timeout=30)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"twice: {key}"
            assert sample.labels.get("cluster"), sample
            found[key] = sample.value
    names = re.findall(r"^# TYPE (\S+)", answer.text, re.MULTILINE)
    assert len(names) == len(set(names)), "series of one metric stand together"
    return found


def check_dashboard(path: Path, samples: Samples) -> None:
    """Each of its queries asks for series and labels that there are."""
    labels: dict[str, set[str]] = {}
    for name, pairs in samples:
        # The parser adds what BookKeeper leaves out of its counters' names.
        plain = name.removesuffix("_total") if name.startswith(_BOOKKEEPERS) else name
        for written in (name, plain):
            labels.setdefault(written, {"instance"}).update(dict(pairs))
    for query in _queries(path):
        words = set(re.findall(r"[a-z_][A-Za-z0-9_]*(?=[({])", re.sub(r'"[^"]*"', "", query)))
        metrics = {word for word in words if word not in _FUNCTIONS}
        if "label_values" in query:
            metrics = set(re.findall(r"label_values\(([A-Za-z_]+)", query))
        assert metrics, query
        assert metrics <= labels.keys(), query
        asked = set(re.findall(r"([a-z]+)=~?\"", query))
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            asked.update(grouped.replace(" ", "").split(","))
        for metric in metrics:
            assert asked <= labels[metric], (query, asked - labels[metric])


def _queries(path: Path) -> list[str]:
    """Every query, those of its variables too."""
    dashboard = json.loads(path.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 20
    return [target["expr"] for panel in panels for target in panel["targets"]] + [
        variable["definition"]
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
