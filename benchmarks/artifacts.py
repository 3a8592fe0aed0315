"""The kernel artifacts that runs computed with: `{"sha256": …, "executed": […]}`, as docs/artifacts.md defines it."""

import re
from collections.abc import Iterable

PLAN = re.compile(r'^oxide_infer_plan_info\{.*\bartifacts="(\w+)"', re.MULTILINE)
EXECUTIONS = re.compile(
    r'^oxide_infer_operator_executions_total\{.*\bartifact="([^"]+)".*\} ([0-9.e+]+)$', re.MULTILINE
)


def of_metrics(text: str) -> dict | None:
    """What a server's `/metrics` say; None of one that computes without artifacts."""
    plan = PLAN.search(text)
    if plan is None:
        return None
    executed = {name for name, count in EXECUTIONS.findall(text) if float(count) > 0}
    return {"sha256": plan[1], "executed": sorted(executed)}


def merged(reports: Iterable[dict | None]) -> dict | None:
    """What several runs say together, which must be of the same artifacts; None if none of them has any."""
    found = [report for report in reports if report]
    hashes = {report["sha256"] for report in found}
    if len(hashes) > 1:
        raise SystemExit(f"the runs are of several builds: their artifacts hash to {', '.join(sorted(hashes))}")
    executed = {name for report in found for name in report["executed"]}
    return {"sha256": hashes.pop(), "executed": sorted(executed)} if found else None
