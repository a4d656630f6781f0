"""Write the live tests' table into the README, between its markers.

python tests/exactness/live/readme.py    # after `make exact`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from live.report import table

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "python_bench" / "results" / "exactness.json"
BEGIN, END = "<!-- live exactness: begin -->", "<!-- live exactness: end -->"


def with_table(readme: str, results: str) -> str:
    """The README with the table of these results.

    Raises:
        ValueError: a marker is missing.
    """
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(json.loads(results)['live']['settings'])}\n{END}{after}"


def main() -> None:
    readme = ROOT / "README.md"
    changed = with_table(readme.read_text(encoding="utf-8"), RESULTS.read_text(encoding="utf-8"))
    readme.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    main()
