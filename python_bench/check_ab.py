"""Does the A/B find what is known? Whole experiments over real HTTP on simulated servers.

python python_bench/check_ab.py                    # 20 A/A experiments and 20 with a known difference of 7 %
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from timing import RESULTS, write_results
from tqdm import tqdm

from sglang_dspark.ab.compare import ALL, THROUGHPUT
from sglang_dspark.ab.main import main as ab
from sglang_dspark.evaluate.statistics import Interval

TRUE = 1.07
_ROUND_MS, _REQUEST_MS, _NOISE = 6.0, 0.3, 0.02


def main() -> int:
    """Run, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="experiments of each kind")
    parser.add_argument("--repetitions", type=int, default=4, help="of each experiment")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--name", default="check_ab")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    same = [experiment(seed, 1.0, options) for seed in tqdm(range(options.runs), desc="A/A", disable=None)]
    known = [experiment(seed, TRUE, options) for seed in tqdm(range(options.runs), desc="7 %", disable=None)]
    payload = {
        "settings": {"noise": _NOISE, "repetitions": options.repetitions, "concurrency": options.concurrency},
        "aa": {"runs": len(same), "called_different": sum(run["different"] > 0 for run in same), "experiments": same},
        "known": {
            "true_ratio": TRUE,
            "runs": len(known),
            "found": sum(run["ratio"]["low"] > 1 for run in known),
            "covered": sum(TRUE in Interval(**run["ratio"]) for run in known),
            "experiments": known,
        },
    }
    path = write_results(options.name, payload, options.results)
    print(f"A/A: {payload['aa']['called_different']} of {len(same)} experiments call equal arms different")
    print(f"7 %: found in {payload['known']['found']} and covered in {payload['known']['covered']} of {len(known)}")
    print(f"written: {path}")
    return 0


def experiment(seed: int, ratio: float, options: argparse.Namespace) -> dict[str, Any]:
    """One experiment of two simulated servers; the second is faster by `ratio`."""
    with tempfile.TemporaryDirectory() as folder:
        arms = [arm("slower", 1.0, 2 * seed), arm("faster", 1 / ratio, 2 * seed + 1)]
        file = Path(folder) / "arms.yaml"
        file.write_text(yaml.safe_dump({"arms": arms}), encoding="utf-8")
        flags = [
            "--arms-file", str(file), "--output", f"{folder}/out", "--temperature", "0", "--max-new-tokens", "32",
            "--concurrency", *map(str, options.concurrency), "--repetitions", str(options.repetitions),
            "--cell-seconds", "0.5", "--warm-seconds", "0.2", "--answers", "3", "--seed", str(seed),
        ]  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            status = ab(flags)
        if status:
            raise SystemExit(f"ab {shlex.join(flags)} ended with {status}")
        found = json.loads((Path(folder) / "out" / "results.json").read_text(encoding="utf-8"))
    rows = found["comparisons"]
    overall = next(row for row in rows if row["scenario"].startswith(ALL) and row["metric"] == THROUGHPUT)
    return {"different": sum(row["call"] in ("higher", "lower") for row in rows), "ratio": overall["ratio"]}


def arm(name: str, factor: float, seed: int) -> dict[str, str]:
    """An entry of an arms file."""
    command = f"{shlex.quote(sys.executable)} -m sglang_dspark.ab.simulator"
    flags = f"--round-ms {_ROUND_MS * factor} --request-ms {_REQUEST_MS * factor} --noise {_NOISE} --seed {seed}"
    return {"name": name, "command": command, "flags": flags}


if __name__ == "__main__":
    sys.exit(main())
