"""`doctor`: what this machine and this installation can do, in words or as JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from sglang_dspark import __version__, contract
from sglang_dspark.errors import DSparkError

_UNCOVERED = (
    "mixture-of-experts draft (DeepSeek-V4)",
    "data-parallel attention",
    "pipeline parallelism",
    "hybrid-state target",
    "draft without a confidence head (SGLANG_RAGGED_VERIFY_MODE=static)",
    "vocabulary-sharded Markov head",
    "simulated acceptance",
    "block verification",
    "deterministic inference",
    "requests with return_sampling_mask or a watermark",
)


def main(argv: list[str]) -> int:
    """Print the findings; exit status 1 when something would keep `serve` from starting."""
    parser = argparse.ArgumentParser(prog="python -m sglang_dspark doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument("--draft", metavar="PATH", help="Draft checkpoint to read (default: the demo draft).")
    parser.add_argument("--model-path", metavar="PATH", help="Target whose config.json the draft is checked against.")
    arguments = parser.parse_args(argv)
    findings = examine(arguments.draft, arguments.model_path)
    print(json.dumps(findings, indent=2) if arguments.json else _in_words(findings))
    return 0 if findings["ok"] else 1


def examine(draft: str | None = None, model_path: str | None = None) -> dict[str, Any]:
    """Everything `doctor` reports, as plain data."""
    import torch

    from sglang_dspark.ops import extension

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    internals: list[contract.Finding] = []
    if importlib.util.find_spec("sglang") is not None:
        extra: tuple[str, ...] = ()
        if device == "cpu":
            from sglang_dspark.engine.cpu.hooks import RELIES_ON as extra
        internals = contract.examine(extra)
    plugin = any(point.name == "sglang_dspark" for point in entry_points(group="sglang.srt.plugins"))
    reading = _read_draft(draft, model_path)
    broken = [f for f in internals if f.problem]
    return {
        "ok": plugin and bool(internals) and not broken and "error" not in reading,
        "package": __version__,
        "engine": {"version": contract.engine_version(), "supported": contract.ENGINE_VERSION},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": {"kind": device, "name": torch.cuda.get_device_name() if device == "cuda" else platform.processor()},
        "extension": extension.describe().as_dict(),
        "plugin": "installed" if plugin else "not installed: pip install .",
        "internals": {f.name: f.problem or "ok" for f in internals},
        "draft": reading,
        "engine_round_for": list(_UNCOVERED),
    }


def _read_draft(draft: str | None, model_path: str | None) -> dict[str, Any]:
    import dataclasses

    from sglang_dspark.model.demo import demo_draft_path
    from sglang_dspark.model.draft_check import check_draft

    path = Path(draft) if draft else demo_draft_path()
    try:
        target = json.loads(Path(model_path, "config.json").read_text()) if model_path else {}
        reading = check_draft(path, target)
    except (DSparkError, OSError, ValueError) as error:
        return {"path": str(path), "error": str(error)}
    return {"path": str(path), **dataclasses.asdict(reading.config)}


def _in_words(findings: dict[str, Any]) -> str:
    broken = {name: state for name, state in findings["internals"].items() if state != "ok"}
    lines = [
        f"sglang_dspark  {findings['package']}",
        f"engine         sglang {findings['engine']['version']} (supported: {findings['engine']['supported']})",
        f"torch          {findings['torch']}, Python {findings['python']}",
        f"device         {findings['device']['kind']} {findings['device']['name']}",
        "extension      " + ", ".join(f"{k}: {v}" for k, v in findings["extension"].items()),
        f"plugin         {findings['plugin']}",
        f"internals      {len(findings['internals']) - len(broken)} of {len(findings['internals'])} as expected",
        *(f"  {name}: {state}" for name, state in broken.items()),
        "draft          " + ", ".join(f"{k}: {v}" for k, v in findings["draft"].items()),
        "engine's own round for: " + "; ".join(findings["engine_round_for"]),
        "ready to serve" if findings["ok"] else "NOT ready to serve",
    ]
    return "\n".join(lines)
