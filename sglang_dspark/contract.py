"""Every engine internal this package relies on, checked when the plugin loads and printed by `doctor`.

These are internals without a promise. One release is supported; a function whose place we take is pinned by a hash of
its source, so that a patched engine is noticed as well as another release.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import pkgutil
from dataclasses import dataclass

from sglang_dspark.errors import ContractError

ENGINE_VERSION = "0.5.23"

_DSPARK = "sglang.srt.speculative.dspark_components."
_PENALTY = "sglang.srt.sampling.penaltylib."
WORKER = _DSPARK + "dspark_worker_v2.DSparkWorkerV2"

# Called or subclassed as they are.
ATTRIBUTES: tuple[str, ...] = (
    WORKER,
    WORKER + ".__init__",
    WORKER + ".init_cuda_graphs",
    WORKER + "._draft_context",
    _DSPARK + "dspark_draft.DraftBlockProposer._run_forward",
    _DSPARK + "dspark_draft.DraftBlockProposer._base_logits_context",
    _DSPARK + "dspark_draft.make_next_draft_input",
    _DSPARK + "dspark_kv_inject.TargetHiddenKvInjector.inject_target_hidden",
    _DSPARK + "dspark_kv_inject.TargetHiddenKvInjector.ids_for",
    _DSPARK + "dspark_planner.alloc_verify_window",
    _DSPARK + "dspark_planner.verify_layout_grid",
    _DSPARK + "dspark_planner.verify_layout_graph_num_tokens_floor",
    _DSPARK + "dspark_planner.ragged_layout_exceeds_captured_grid",
    _DSPARK + "dspark_verify.TargetVerifyExecutor._run_ragged",
    "sglang.kernels.ops.speculative.dspark.dspark_verify_window.BuildRaggedVerifyWindow.execute",
    "sglang.srt.speculative.ragged_verify.RaggedVerifyLayout.from_verify_lens",
    "sglang.srt.speculative.ragged_verify.RaggedVerifyMode.COMPACT",
    "sglang.srt.speculative.spec_tp_sync.SpecTpSync.sync",
    "sglang.srt.speculative.spec_tp_sync.SpecTpSyncSite.DSPARK_DRAFT",
    "sglang.srt.speculative.spec_tp_sync.SpecTpSyncSite.DSPARK_PLAN",
    "sglang.srt.speculative.spec_tp_sync.SpecTpSyncSite.DSPARK_ACCEPT_SAMPLE",
    "sglang.srt.speculative.spec_utils.GrammarTree.from_linear_chain",
    "sglang.srt.speculative.spec_utils.build_grammar_vocab_mask",
    "sglang.srt.layers.logprob_processor.compute_spec_logprobs",
    "sglang.srt.constrained.base_grammar_backend.GrammarMask",
    "sglang.srt.lora.layers.unwrap_lora_layer",
    "sglang.srt.models.dspark.DSparkDraftMixin.load_weights",
    "sglang.srt.models.dspark.project_through_lm_head",
    "sglang.srt.models.dspark.VanillaMarkov",
    "sglang.srt.models.dspark.GatedMarkovHead",
    "sglang.srt.models.dspark.RNNHead",
    "sglang.srt.models.dspark.DSparkConfidenceHead",
    "sglang.srt.entrypoints.engine.Engine._launch_subprocesses",
    "sglang.srt.entrypoints.http_server.app",
    "sglang.srt.plugins.hook_registry.HookRegistry.register",
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
)

# Replaced or mirrored: a change of their source means our counterpart must be read again.
PINNED: dict[str, str] = {
    WORKER + "._forward_decode": "ec8afef40bb075bb",
    WORKER + "._maybe_build_draft_sampler": "d009ec8c7b26188d",
    WORKER + ".get_confidence_budget_prepare": "f40fe5123dc02282",
    _DSPARK + "dspark_draft.draft_markov_block": "d333b1be95c605b4",
    _DSPARK + "dspark_verify.accept_draft_tokens": "b09044292ba27b3c",
    _DSPARK + "dspark_verify.TargetVerifyExecutor._run_ragged": "bcf4c8eb348a5207",
    _DSPARK + "dspark_draft.DraftBlockProposer._run_forward": "e56e2d2b49917e21",
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.apply_logits_bias": "1e39687d59461a97",
    "sglang.srt.layers.sampler.Sampler._sample_from_probs": "c90023f0fa9c16c7",
    "sglang.srt.layers.sampler.multinomial_with_seed": "5802a0ad7e5f4eb8",
    "sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch": "4c8e67c1ecebd6b7",
    _PENALTY + "repetition_penalty.BatchedRepetitionPenalizer": "de1b44de639a26b2",
    _PENALTY + "frequency_penalty.BatchedFrequencyPenalizer": "13839176ad8e5384",
    _PENALTY + "presence_penalty.BatchedPresencePenalizer": "4fdf236a59d17592",
    _PENALTY + "min_new_tokens.BatchedMinNewTokensPenalizer": "9da9a6ff27d9958e",
    _DSPARK + "dspark_kv_inject.TargetHiddenKvInjector.inject_target_hidden": "d6892bc07da55498",
    "sglang.srt.models.dspark.DSparkDraftMixin.compute_base_logits": "3d42a0b18821d686",
}


@dataclass(frozen=True)
class Finding:
    """One checked internal. `problem` is None when it is as expected."""

    name: str
    problem: str | None


def engine_version() -> str | None:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def source_hash(name: str) -> str:
    """First 16 hex digits of the SHA-256 of the source of the object called `name`."""
    return hashlib.sha256(inspect.getsource(pkgutil.resolve_name(name)).encode()).hexdigest()[:16]


def examine(extra: tuple[str, ...] = ()) -> list[Finding]:
    """Look up every internal relied on. `extra`: names from layers in use, such as the CPU layer's."""
    findings = []
    version = engine_version()
    wrong = None if version == ENGINE_VERSION else f"found {version}; install sglang=={ENGINE_VERSION}"
    findings.append(Finding("sglang version", wrong))
    for name in dict.fromkeys((*ATTRIBUTES, *extra)):
        try:
            pkgutil.resolve_name(name)
            findings.append(Finding(name, None))
        except (ImportError, AttributeError, ValueError) as error:
            findings.append(Finding(name, f"missing: {error}"))
    for name, expected in PINNED.items():
        try:
            found = source_hash(name)
            findings.append(Finding(name, None if found == expected else f"source is {found}, expected {expected}"))
        except (ImportError, AttributeError, OSError) as error:
            findings.append(Finding(name, f"source not readable: {error}"))
    return findings


def check(extra: tuple[str, ...] = ()) -> None:
    """Raise `ContractError` naming every internal that is not as expected."""
    broken = [f for f in examine(extra) if f.problem]
    if broken:
        lines = "\n".join(f"  {f.name}: {f.problem}" for f in broken)
        raise ContractError(
            f"sglang_dspark is written against SGLang {ENGINE_VERSION}; this installation differs:\n{lines}\n"
            f"Install sglang=={ENGINE_VERSION}, or serve with --dspark-plugin off."
        )
