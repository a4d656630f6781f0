"""The CPU half of `sgl_kernel`, in torch and numpy: no CPU build of that package is published.

Imported under the name `sgl_kernel` (see `bootstrap.py`) and only when no real one is installed. It holds what
SGLang 0.5.23 imports when `SGLANG_USE_CPU_ENGINE=1`. `torch.ops.sgl_kernel` stays empty, so SGLang takes its plain
torch paths and reports no AMX support.
"""

from .cache_locations import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from .tree import (
    build_tree_kernel_efficient_cpu,
    reconstruct_indices_from_tree_mask,
    verify_tree_greedy_cpu,
)
from .unsupported import build_draft_decode_metadata_cpu, rotate_input_ids_cpu

IS_STAND_IN = True
__version__ = "0.0.0+sglang.dspark.cpu"

__all__ = [
    "IS_STAND_IN",
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "reconstruct_indices_from_tree_mask",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
