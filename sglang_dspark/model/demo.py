"""The demo draft, shipped with the package."""

from __future__ import annotations

from pathlib import Path

import sglang_dspark


def demo_draft_path() -> Path:
    """Folder of the demo draft checkpoint (DeepSpec format, for the target of `ensure_demo_target`)."""
    return Path(sglang_dspark.__file__).parent / "demo" / "draft"
