"""`GET /dspark/state`: what every rank's scheduler last said of itself, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def add_route(app: Any, folder: Path) -> None:
    """Add the route to the engine's FastAPI application.

    Args:
        folder: where each rank writes its state (`engine/watch.py`).
    """
    app.add_api_route("/dspark/state", lambda: read_states(folder), methods=["GET"])


def read_states(folder: Path) -> dict[str, Any]:
    """The state of each rank by name; empty before the first round."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.state"))}
