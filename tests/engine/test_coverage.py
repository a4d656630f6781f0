"""What runs the engine's own round is known by name, idle ranks of data-parallel attention among it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_dspark.engine import coverage


def batch(idle: bool, **sampling: Any) -> SimpleNamespace:
    info = SimpleNamespace(**{"sampling_mask_batch_indices": None, "has_watermark_candidates": False, **sampling})
    state = object.__new__(coverage.DFlashDraftInputV2)
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_idle=lambda: idle), spec_info=state, sampling_info=None if idle else info
    )


@pytest.mark.known_case(7)
def test_a_rank_without_requests_takes_part_in_the_engine_s_own_round() -> None:
    assert coverage.batch_reasons(batch(idle=True), None) == ["idle rank"]
    assert coverage.batch_reasons(batch(idle=False), object()) == ["coordinated prefill across data-parallel ranks"]
    assert coverage.batch_reasons(batch(idle=False), None) == []


def test_what_cannot_be_served_is_named() -> None:
    assert coverage.batch_reasons(batch(idle=False, has_watermark_candidates=True), None) == ["watermarking"]
    assert coverage.batch_reasons(batch(idle=False, sampling_mask_batch_indices=[0]), None) == ["return_sampling_mask"]


@pytest.mark.known_case(6, 7)
def test_data_parallel_attention_is_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, ranks hold different requests and would have to agree on a round. Tensor-parallel ones hold the same."""
    settings = {
        "get_parallel": SimpleNamespace(attn_dp_enabled=True, pp_size=1),
        "get_spec": SimpleNamespace(speculative_use_block_verification=False),
        "get_exec": SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False)),
        "mambaish_config": None,
    }
    for name, value in settings.items():
        monkeypatch.setattr(coverage, name, lambda *_, value=value: value)
    monkeypatch.setattr(coverage, "read_ragged_verify_mode", lambda: coverage.RaggedVerifyMode.COMPACT)
    worker = SimpleNamespace(
        _draft_is_moe=False,
        model_runner=SimpleNamespace(model_config=None),
        draft_model=SimpleNamespace(markov_head=SimpleNamespace(vocab_shard=None)),
    )
    assert coverage.deployment_reasons(worker) == ["data-parallel attention"]
