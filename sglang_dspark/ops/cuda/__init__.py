"""The CUDA kernels (`csrc/cuda/`) as plain functions of torch tensors: check, fill a struct, enqueue.

Every function enqueues on the current stream and never waits, so all of them may be captured into a CUDA graph; call
once with the captured shapes before capturing, so that the workspaces are there.
"""

from sglang_dspark.ops.cuda.accept import accept, accept_not_covered
from sglang_dspark.ops.cuda.candidates import select_candidates, select_not_covered
from sglang_dspark.ops.cuda.draft import CudaDraft, draft_candidates, draft_dense, draft_not_covered, draft_sparse
from sglang_dspark.ops.cuda.launch import available, device_type
from sglang_dspark.ops.cuda.schedule import schedule

__all__ = [
    "CudaDraft", "accept", "accept_not_covered", "available", "device_type", "draft_candidates", "draft_dense",
    "draft_not_covered", "draft_sparse", "schedule", "select_candidates", "select_not_covered",
]  # fmt: skip
