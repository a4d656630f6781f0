"""What is changed in the engine so that it serves, and speculates, on a CPU.

Every process of the server calls `register_cpu_hooks()` from the plugin. The argument parser runs in the launcher
before any model exists, so there it must have been called, and the hooks applied, before `prepare_server_args`;
`sglang.srt.plugins.load_plugins()` does both.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Literal

from sglang_dspark.engine.cpu import layers, linear, patches, tree_verify
from sglang_dspark.errors import ContractError

CpuChoice = Literal["fast", "stock"]

_GATES = ("_handle_dspark", "_handle_dflash")
_HOOK = "sglang.srt.arg_groups.speculative_hook"

RELIES_ON: tuple[str, ...] = (
    f"{_HOOK}.resolving_view",
    *(f"{_HOOK}.{gate}" for gate in _GATES),
    "sglang.srt.arg_groups.choices.DRAFT_ATTENTION_BACKEND_CHOICES",
    "sglang.srt.arg_groups.choices.add_draft_attention_backend_choices",
    "sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS",
    "sglang.srt.plugins.hook_registry.HookRegistry.register",
    "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend",
    "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
    "sglang.kernels.ops.attention.table_qk_norm_rope.table_qk_norm_rope_",
    "sglang.srt.models.dspark.DSparkDraftMixin._build_fused_kv_write_bundle",
    # attention_backend.py
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.init_forward_metadata",
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_decode",
    "sglang.srt.layers.radix_attention.AttentionType.ENCODER_ONLY",
    "sglang.srt.mem_cache.memory_pool.KVWriteLoc",
    *layers.RELIES_ON,
    *linear.RELIES_ON,
    *tree_verify.RELIES_ON,
)


def register_cpu_hooks(attention: CpuChoice = "fast", layer_code: CpuChoice = "fast") -> None:
    """Register everything a CPU engine needs. Idempotent; call it in each process, before hooks are applied.

    Args:
        attention: "fast" serves `--attention-backend torch_native` with this package's backend; "stock" leaves the
            engine's own in place, for comparison: it cannot verify, so only plain serving works with it.
        layer_code: "fast" uses packed weights and compiled norms, activations and rotary embeddings; "stock" leaves the
            engine's torch code in place.

    Raises:
        ContractError: names the engine attribute that is missing.
    """
    check_attributes(RELIES_ON)
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.plugins.hook_registry import HookType

    if "torch_native" not in choices.DRAFT_ATTENTION_BACKEND_CHOICES:
        choices.add_draft_attention_backend_choices(["torch_native"])
    if attention == "fast":
        ATTENTION_BACKENDS["torch_native"] = _create_backend
    _allow_record_stream()
    for gate in _GATES:
        _hook(f"{_HOOK}.{gate}", _open_gate, HookType.AROUND)
    _hook("sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend", _draft_backend, HookType.AROUND)
    _hook(
        "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
        patches.chain_speculative_sampling,
        HookType.REPLACE,
    )
    _hook(
        "sglang.kernels.ops.attention.table_qk_norm_rope.table_qk_norm_rope_",
        patches.table_qk_norm_rope,
        HookType.REPLACE,
    )
    _hook("sglang.srt.speculative.eagle_utils.eagle_sample", tree_verify.eagle_sample, HookType.AROUND)
    _hook("sglang.srt.speculative.eagle_utils.verify_tree_greedy_func", tree_verify.walk_tree, HookType.AROUND)
    # None makes a bf16 draft write its context KV with the engine's torch path instead of one Triton kernel.
    _hook("sglang.srt.models.dspark.DSparkDraftMixin._build_fused_kv_write_bundle", _no_bundle, HookType.REPLACE)
    if layer_code == "fast":
        for target, hook in _layer_hooks().items():
            _hook(target, hook, HookType.AROUND)


def _layer_hooks() -> dict[str, Callable[..., Any]]:
    return {
        "sglang.srt.layers.layernorm.RMSNorm.forward_cpu": layers.rms_norm_forward,
        "sglang.srt.layers.activation.SiluAndMul.forward_cpu": layers.silu_and_mul_forward,
        "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_cpu": layers.rotary_forward,
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply": linear.linear_apply,
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head": linear.compute_lm_head,
        "sglang.srt.models.dspark.project_through_lm_head": linear.project_through_lm_head,
        **dict.fromkeys(linear.WEIGHT_UPDATES, linear.after_weight_update),
    }


def check_attributes(names: tuple[str, ...]) -> None:
    """Raises ContractError for the first dotted name that the installed engine does not have."""
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            version = getattr(importlib.import_module("sglang"), "__version__", "unknown")
            raise ContractError(
                f"SGLang {version} has no {name} ({error}), which the CPU engine of sglang_dspark relies on; install "
                "sglang==0.5.23"
            ) from error


_registered: set[str] = set()


def _hook(target: str, hook: Callable[..., Any], kind: Any) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    if target not in _registered:
        HookRegistry.register(target, hook, kind)
        _registered.add(target)


def _create_backend(runner: Any) -> Any:
    from sglang_dspark.engine.cpu.attention_backend import CpuAttentionBackend

    return CpuAttentionBackend(runner)


def _draft_backend(
    original: Callable[..., Any],
    factory: Any,
    backend_name: str,
    backend_map: dict[str, Any],
    error_template: str,
    stamps_children: bool = False,
) -> Any:
    """Adds `torch_native` to the draft backends of EAGLE and STANDALONE; `stamps_children` marks the multi-step one."""
    from sglang_dspark.engine.cpu.attention_backend import CpuAttentionBackend, CpuMultiStepDraftBackend

    runner = factory.draft_model_runner

    def create() -> tuple[str, Any]:
        if stamps_children:
            return "torch_native", CpuMultiStepDraftBackend(runner, factory.topk, factory.speculative_num_steps)
        return "torch_native", CpuAttentionBackend(runner)

    return original(factory, backend_name, backend_map | {"torch_native": create}, error_template, stamps_children)


class _CudaNamed:
    """A view of the server arguments whose `device` reads "cuda"."""

    def __init__(self, view: Any) -> None:
        self._view = view

    device = "cuda"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def _open_gate(original: Callable[[Any], None], server_args: Any) -> None:
    """Runs an argument handler that refuses CPUs. It reads the device only to refuse, through a module global."""
    module: Any = importlib.import_module(_HOOK)
    view = module.resolving_view

    def named(args: Any) -> Any:
        actual = view(args)
        return _CudaNamed(actual) if actual.device == "cpu" else actual

    module.resolving_view = named
    try:
        original(server_args)
    finally:
        module.resolving_view = view


def _no_bundle(draft_model: Any, pool: Any) -> None:
    return None


def _allow_record_stream() -> None:
    """The engine calls `Tensor.record_stream` on the batch; torch rejects CPU tensors, which have no streams."""
    import torch

    original = torch.Tensor.record_stream
    if getattr(original, "accepts_cpu", False):
        return

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "cpu":
            original(self, stream)

    record_stream.accepts_cpu = True  # type: ignore[attr-defined]
    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign, assignment]
