"""Every implementation of an operation, forced: each instruction set of the extension, and plain torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sglang_dspark.ops.extension import describe

# Helpers of this folder are imported by their bare names.
sys.path.insert(0, str(Path(__file__).parent))

ISAS = ("avx512", "avx2", "scalar")


@pytest.fixture(params=[*ISAS, "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What to pass as `isa`; with "torch" the extension is hidden."""
    if request.param == "torch":
        for module in ("draft_block", "draft_candidates", "accept"):
            monkeypatch.setattr(f"sglang_dspark.ops.{module}.extension", lambda: None)
        return None
    require(request.param)
    return request.param


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return request.param


def require(isa: str) -> None:
    if isa not in describe().isas:
        pytest.skip(f"{isa} is not available here")
