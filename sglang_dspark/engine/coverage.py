"""What this project's round does not cover yet: such deployments and batches run the engine's own, said aloud."""

from __future__ import annotations

from typing import Any

from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_exec, get_parallel, get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.ragged_verify import RaggedVerifyMode, read_ragged_verify_mode

from sglang_dspark.engine import draft_vocabulary


def deployment_reasons(worker: Any) -> list[str]:
    """Why this server's rounds are the engine's own; empty when ours runs. Known at worker construction."""
    checks = (
        (read_ragged_verify_mode() is not RaggedVerifyMode.COMPACT, "SGLANG_RAGGED_VERIFY_MODE is not compact"),
        (worker._draft_is_moe, "mixture-of-experts draft (DeepSeek-V4)"),
        (get_parallel().attn_dp_enabled, "data-parallel attention"),
        (get_parallel().pp_size > 1, "pipeline parallelism"),
        (mambaish_config(worker.model_runner.model_config) is not None, "hybrid-state target"),
        (envs.SGLANG_SIMULATE_ACC_LEN.get() > 0, "simulated acceptance (SGLANG_SIMULATE_ACC_LEN)"),
        (envs.SGLANG_DSPARK_USE_GREEDY_DRAFT.get(), "SGLANG_DSPARK_USE_GREEDY_DRAFT"),
        (get_spec().speculative_use_block_verification, "--speculative-use-block-verification"),
        (get_exec().deterministic.enable_deterministic_inference, "--enable-deterministic-inference"),
        (getattr(worker.draft_model.markov_head, "vocab_shard", None) is not None, "vocabulary-sharded Markov head"),
    )
    found = [reason for failed, reason in checks if failed]
    reduced = draft_vocabulary.not_covered(worker.draft_model)
    return [*found, reduced] if reduced else found


def batch_reasons(batch: Any, coordination_plan: Any) -> list[str]:
    """Why this round is the engine's own although the deployment is covered."""
    if batch.forward_mode.is_idle():
        return ["idle rank"]
    info = batch.sampling_info
    checks = (
        (not isinstance(batch.spec_info, DFlashDraftInputV2), "no draft state on the batch"),
        (coordination_plan is not None, "coordinated prefill across data-parallel ranks"),
        (info is None, "batch without sampling parameters"),
        (info is not None and info.sampling_mask_batch_indices is not None, "return_sampling_mask"),
        (info is not None and info.has_watermark_candidates, "watermarking"),
    )
    return [reason for failed, reason in checks if failed]
