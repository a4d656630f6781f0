"""`sgl_kernel.speculative`, the name under which SGLang imports the NGRAM tree helper."""

from .tree import build_tree_kernel_efficient_cpu, reconstruct_indices_from_tree_mask, verify_tree_greedy_cpu

__all__ = ["build_tree_kernel_efficient_cpu", "reconstruct_indices_from_tree_mask", "verify_tree_greedy_cpu"]
