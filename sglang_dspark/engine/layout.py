"""From verify lengths to the engine's ragged layout, on captured graph sizes where graphs exist."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.dspark_components.dspark_planner import (
    ragged_layout_exceeds_captured_grid,
    verify_layout_graph_num_tokens_floor,
    verify_layout_grid,
)
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout, RaggedVerifyMode


def ragged_layout(lengths: list[int], width: int, model_runner: Any, device: Any) -> RaggedVerifyLayout:
    """The engine's layout of Σ(1 + ℓ_r) rows.

    Args:
        lengths: draft tokens verified per request.
        width: γ + 1, the most rows a request can have.
    """
    verify_lens = [1 + length for length in lengths]
    total = sum(verify_lens)
    if ragged_layout_exceeds_captured_grid(
        num_reqs=len(verify_lens),
        verify_num_draft_tokens=width,
        model_runner=model_runner,
        tier_tokens_hint=total,
    ):
        # Larger than any captured graph: run eagerly on exactly the tokens scheduled, not on the full block.
        return RaggedVerifyLayout.from_verify_lens(verify_lens_cpu=verify_lens, device=device, grid=[total])
    floor = verify_layout_graph_num_tokens_floor(
        num_reqs=len(verify_lens),
        ragged_verify_mode=RaggedVerifyMode.COMPACT,
        verify_num_draft_tokens=width,
        model_runner=model_runner,
        tier_num_tokens=total,
    )
    grid = verify_layout_grid(
        verify_lens_cpu=verify_lens, ragged_verify_mode=RaggedVerifyMode.COMPACT, model_runner=model_runner
    )
    return RaggedVerifyLayout.from_verify_lens(
        verify_lens_cpu=verify_lens, device=device, grid=grid, graph_num_tokens_floor=floor
    )
