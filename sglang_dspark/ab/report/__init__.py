"""The reports of an experiment: one page for the browser, Markdown for a pull request, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_dspark.ab.report.markdown import markdown
from sglang_dspark.ab.report.page import page


def write_reports(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `results.json`, `report.md` and `report.html` of `results.collect`'s result; their paths."""
    texts = {
        "results.json": json.dumps(found, indent=1) + "\n",
        "report.md": markdown(found),
        "report.html": page(found),
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
