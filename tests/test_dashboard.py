"""The dashboard asks only for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_metric_of_the_dashboard_is_exported() -> None:
    source = (ROOT / "sglang_dspark/engine/metrics.py").read_text()
    exported = {
        "dspark_" + name + ("_total" if kind == "_count" else "")
        for kind, name in re.findall(r'self\.(_count|_set)\(\s*"(\w+)"', source)
    }
    dashboard = json.loads((ROOT / "docker/grafana/dashboards/dspark.json").read_text())
    asked = set(re.findall(r"dspark_\w+", " ".join(t["expr"] for p in dashboard["panels"] for t in p["targets"])))
    assert asked <= exported, asked - exported
    documented = (ROOT / "docs/scheduling.md").read_text()
    assert len(exported) > 10
    assert all(name in documented for name in asked - {"dspark_round_seconds_predicted"})
