"""Accept or reject drafted tokens over ragged rows, with the coupled cut (algorithm, step 6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_dspark.ops import cuda
from sglang_dspark.ops.accept_torch import accept_torch
from sglang_dspark.ops.checks import (
    check_devices,
    check_noise,
    check_temperatures,
    contiguous_noise,
    rows_contiguous,
)
from sglang_dspark.ops.draft_block import DraftBlock
from sglang_dspark.ops.draft_q import DenseQ, SparseQ
from sglang_dspark.ops.extension import extension, warn_missing, warn_torch
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows

_LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Accepted:
    """Outcome of a round.

    Attributes:
        tokens: `[B, γ + 1]` int64, the emitted tokens left-aligned; entries past `counts` are undefined.
        counts: `[B]` int64 in 1..ℓ+1, emitted tokens: accepted drafts and the token that ends the round.
        last: `[B]` int64, the token that ended the round, the next anchor.
    """

    tokens: Tensor
    counts: Tensor
    last: Tensor


def accept(
    target_logits: Tensor,
    block: DraftBlock,
    rows: RaggedRows,
    temperatures: Tensor | None,
    noise: Noise | None = None,
    p: Tensor | None = None,
    *,
    isa: str | None = None,
) -> Accepted:
    """Test each request's drafted tokens against the target, in order, and end the round with one more token.

    Position k is accepted with probability `min(1, p_k(x_k) / q_k(x_k))`; at the first rejection the token is redrawn
    from `(p_k - q_k)^+`. The cut is coupled: when all ℓ < γ verified tokens are accepted, the already drawn `x_{ℓ+1}`
    is tested in the same way. At ℓ = γ, and where the draft gave nothing usable, the last token is a fresh draw of p.

    A coupled request (`noise.coupled`) accepts what equals the target's own pick, `argmax(log p + g)` with the noise of
    its seed; that pick ends the round. q is not used (algorithm, section 8).

    Args:
        target_logits: `[M, V]`, after the request's own processing; row `rows.start[r] + k` is `p_{k+1}` of request r.
        block: the draft; `block.q` are the numbers its tokens were drawn from.
        rows: lengths ℓ and offsets of the ragged rows, M = Σ(1 + ℓ_r).
        temperatures: `[B]` float32, 0 for a request decoded by argmax; None when every one is. The same as
            the draft's; in p only where `p` is not given.
        noise: the round's, as given to the draft; may be None only when `temperatures` is.
        p: `[M, V]` float32, what plain decoding would sample from, where filters make it something else than
            `softmax(target_logits / T)`. Rows of argmax requests are not read.
        isa: as in `draft_block`, which also says what is checked on a GPU.

    Raises:
        ValueError: names the argument, what it is and what was expected, before anything runs.
    """
    _check(target_logits, block, rows, temperatures, noise, p)
    batch_size, gamma = block.tokens.shape
    if noise is None:
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=target_logits.device)
        noise = Noise(0, zeros, zeros)
    if target_logits.device.type == cuda.device_type():
        reason = noise.not_on_cuda or cuda.accept_not_covered(target_logits, block.q, batch_size)
        if not reason:
            return _on_cuda(target_logits, block, rows, temperatures, noise, p)
        warn_torch("accept", reason)
    native = extension()
    if native is None or target_logits.device.type != "cpu" or target_logits.dtype not in _LOGIT_DTYPES:
        if native is None and target_logits.device.type == "cpu":
            warn_missing("accept")
        if isinstance(block.q, DenseQ):
            raise ValueError(
                f"block.q: a dense draft needs target_logits of {_LOGIT_DTYPES} and the kernels that drew it, got "
                f"{target_logits.dtype} on {target_logits.device}"
            )
        return Accepted(*accept_torch(target_logits, p, block.tokens, block.q, block.usable, rows, temperatures, noise))
    tokens = torch.empty((batch_size, gamma + 1), dtype=torch.int64)
    counts, last = torch.empty((2, batch_size), dtype=torch.int64).unbind()
    q = block.q
    native.accept(
        rows_contiguous(target_logits), None if p is None else rows_contiguous(p), rows.start, rows.lengths,
        block.tokens.contiguous(), block.usable, None if temperatures is None else temperatures.contiguous(),
        noise.seed & 0xFFFF_FFFF_FFFF_FFFF, noise.streams.contiguous(), noise.rounds.contiguous(),
        noise.coupled, None if q is None else q.native(), tokens, counts, last,
        isa or (q.isa if isinstance(q, DenseQ) else ""), torch.get_num_threads(),
    )  # fmt: skip
    return Accepted(tokens, counts, last)


def _on_cuda(
    target_logits: Tensor,
    block: DraftBlock,
    rows: RaggedRows,
    temperatures: Tensor | None,
    noise: Noise,
    p: Tensor | None,
) -> Accepted:
    q = SparseQ(*block.q.native()) if isinstance(block.q, SparseQ) else block.q
    return Accepted(
        *cuda.accept(
            rows_contiguous(target_logits), None if p is None else rows_contiguous(p), block.tokens.contiguous(),
            block.usable.contiguous(), q, rows.start, rows.lengths,
            None if temperatures is None else temperatures.contiguous(),
            contiguous_noise(noise),
        )
    )  # fmt: skip


def _check(
    target_logits: Tensor,
    block: DraftBlock,
    rows: RaggedRows,
    temperatures: Tensor | None,
    noise: Noise | None,
    p: Tensor | None,
) -> None:
    batch_size, gamma = block.tokens.shape
    if target_logits.ndim != 2 or target_logits.shape[0] != rows.total or target_logits.shape[1] < 1:
        raise ValueError(f"target_logits: expected [{rows.total}, V], got {tuple(target_logits.shape)}")
    if p is not None and (p.shape != target_logits.shape or p.dtype != torch.float32):
        expected = tuple(target_logits.shape)
        raise ValueError(f"p: expected float32 {expected}, got {p.dtype} {tuple(p.shape)}")
    if tuple(rows.lengths.shape) != (batch_size,) or tuple(block.usable.shape) != (batch_size,):
        raise ValueError(
            f"rows, block.usable: expected {batch_size} requests, got {len(rows.lengths)}, {tuple(block.usable.shape)}"
        )
    if rows.longest > gamma:
        raise ValueError(f"rows: lengths above gamma = {gamma}, got {rows.lengths.tolist()}")
    if temperatures is not None:
        check_temperatures(temperatures, batch_size)
        if noise is None:
            raise ValueError("noise: expected one, since temperatures are given; got None")
    if noise is not None:
        check_noise(noise, batch_size)
    check_devices(target_logits.device, tokens=block.tokens, usable=block.usable, temperatures=temperatures, p=p)
    if isinstance(block.q, DenseQ) and (block.q.isa == "cuda") != (target_logits.device.type == cuda.device_type()):
        kernels = "CUDA" if block.q.isa == "cuda" else "CPU"
        raise ValueError(f"block.q: drawn by the {kernels} kernels, which target_logits on {target_logits.device} lack")
    if isinstance(block.q, SparseQ) and (
        tuple(block.q.ids.shape[:2]) != (batch_size, gamma) or block.q.ids.shape != block.q.probs.shape
    ):
        raise ValueError(
            f"block.q: expected ids and probs ({batch_size}, {gamma}, C), got {tuple(block.q.ids.shape)}, "
            f"{tuple(block.q.probs.shape)}"
        )
