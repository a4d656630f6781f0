"""Accept or reject drafted tokens over ragged rows, with the coupled cut (algorithm, step 6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_dspark.ops.categorical import draw
from sglang_dspark.ops.draft_block import DraftBlock
from sglang_dspark.ops.ragged import RaggedRows


@dataclass(frozen=True)
class Accepted:
    """Outcome of a round.

    Attributes:
        tokens: `[B, γ + 1]` int64, the emitted tokens left-aligned; entries past `counts` are undefined.
        counts: `[B]` int64 in 1..ℓ+1, emitted tokens: accepted drafts and the token that ends the round.
        last: `[B]` int64, the token that ended the round, the next anchor.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    last: torch.Tensor


def accept(
    target_logits: torch.Tensor,
    p: torch.Tensor | None,
    block: DraftBlock,
    rows: RaggedRows,
    greedy: torch.Tensor,
    generator: torch.Generator | None = None,
) -> Accepted:
    """Test each request's drafted tokens against the target, in order, and end the round with one more token.

    Position k is accepted with probability `min(1, p_k(x_k) / q_k(x_k))`; at the first rejection the token is redrawn
    from `(p_k - q_k)^+`. The cut is coupled: when all ℓ < γ verified tokens are accepted, the already drawn `x_{ℓ+1}`
    is tested in the same way. At ℓ = γ, and where the draft gave nothing usable, the last token is a fresh draw of p.

    Args:
        target_logits: `[M, V]`, after the request's own processing; row `rows.start[r] + k` is `p_{k+1}` of request r.
        p: `[M, V]` float32, what plain decoding would sample from; None when every request is greedy.
        block: the draft; `block.q` are the numbers its tokens were drawn from.
        rows: lengths ℓ and offsets of the ragged rows, M = Σ(1 + ℓ_r).
        greedy: `[B]` bool, requests decoded by argmax.

    Raises:
        ValueError: row counts that do not agree.
    """
    if target_logits.shape[0] != rows.total or (p is not None and p.shape != target_logits.shape):
        raise ValueError(
            f"target_logits, p: expected {rows.total} rows, got {tuple(target_logits.shape)}, "
            f"{None if p is None else tuple(p.shape)}"
        )
    gamma = block.tokens.shape[1]
    request, offset = rows.request, rows.offset
    proposed = offset < torch.minimum(block.usable, torch.full_like(block.usable, gamma))[request]
    drafted = block.tokens[request, offset.clamp(max=gamma - 1)]
    best = target_logits.argmax(dim=-1)
    passed = proposed & (best == drafted)
    if p is not None and block.q is not None:
        p_x = p.gather(1, drafted.unsqueeze(1)).squeeze(1)
        q_x = block.q[request, offset.clamp(max=gamma - 1), drafted]
        uniform = torch.rand(p_x.shape, dtype=p_x.dtype, device=p_x.device, generator=generator)
        passed = torch.where(greedy[request], passed, proposed & (uniform * q_x < p_x))
    elif p is not None:
        passed = passed & greedy[request]

    # The first verified position that fails, or ℓ when none does, is where the round ends.
    failed_at = torch.where(passed | (offset >= rows.lengths[request]), gamma + 1, offset)
    end = torch.full_like(rows.lengths, gamma + 1)
    end = end.scatter_reduce(0, request, failed_at, "amin", include_self=True)
    end = torch.minimum(end, rows.lengths)
    final_row = rows.start + end

    last = best[final_row]
    if p is not None:
        last = torch.where(greedy, last, _redraw(p[final_row], block, end, proposed[final_row], generator))
    last = torch.where(passed[final_row], drafted[final_row], last)

    tokens = torch.cat([block.tokens, torch.zeros_like(last).unsqueeze(1)], dim=1)
    tokens = tokens.scatter(1, end.unsqueeze(1), last.unsqueeze(1))
    return Accepted(tokens, end + 1, last)


def _redraw(
    p: torch.Tensor, block: DraftBlock, end: torch.Tensor, tested: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    """`[B]` int64 from the residual `(p - q)^+` where a drafted token was tested, else from `p` (`[B, V]`) itself."""
    weights = p
    if block.q is not None:
        gamma = block.tokens.shape[1]
        q = block.q[torch.arange(len(end), device=end.device), end.clamp(max=gamma - 1)]
        residual = (p - q).clamp_min(0)
        # Equal p and q reject with probability 0; rounding can still bring us here, and then p is what is left.
        use = tested & (residual.sum(dim=-1) > 0)
        weights = torch.where(use.unsqueeze(1), residual, p)
    # Rows of greedy requests are drawn and then not used: keep them valid.
    return draw(weights, generator)
