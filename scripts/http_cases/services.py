"""Services that this broker doesn't have: functions, connectors, packages."""

from http_cases import Case


def requests(tenant: str) -> list[Case]:
    v2, v3, ns = "/admin/v2", "/admin/v3", f"{tenant}/ns"
    cases: list[Case] = []
    for kind in ("functions", "sources", "sinks"):
        cases += [
            ("GET", f"{v3}/{kind}/{ns}", None, ""),
            ("GET", f"{v3}/{kind}/{ns}/f", None, ""),
            ("DELETE", f"{v3}/{kind}/{ns}/f", None, ""),
            ("GET", f"{v3}/{kind}/{ns}/f/status", None, ""),
            ("POST", f"{v3}/{kind}/{ns}/f/stop", None, ""),
        ]
    cases += [
        *(("GET", f"{v3}/{kind}/builtin{kind}", None, "") for kind in ("sources", "sinks")),
        ("GET", f"{v3}/packages/function/{ns}", None, ""),
        ("GET", f"{v3}/packages/function/{ns}/f", None, ""),
        ("GET", f"{v3}/packages/function/{ns}/f/v1/metadata", None, ""),
        ("DELETE", f"{v3}/packages/function/{ns}/f/v1", None, ""),
        *(("GET", f"{v2}/worker/{name}", None, "") for name in ("cluster", "cluster/leader")),
        *(("GET", f"{v2}/worker/{name}", None, "") for name in ("assignments", "connectors")),
        ("PUT", f"{v2}/worker/rebalance", None, ""),
        ("PUT", f"{v2}/worker/leader/drain", None, ""),
        ("GET", f"{v2}/worker/leader/drain", None, ""),
        ("GET", f"{v2}/worker-stats/metrics", None, ""),
        ("GET", f"{v2}/worker-stats/functionsmetrics", None, ""),
    ]
    return cases
