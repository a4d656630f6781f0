"""Heads, inputs and the comparison with the float64 reference, shared by the draft's tests."""

from __future__ import annotations

import numpy as np
import torch

from sglang_dspark.ops.draft_block import ConfidenceHead, DraftBlock, MarkovHead
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.reference_draft import reference_draft


def make_head(
    kind: str,
    vocab: int,
    rank: int,
    hidden: int,
    activation: str = "none",
    first: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> MarkovHead:
    g = torch.Generator().manual_seed(seed)
    rows, columns = {"vanilla": (0, 0), "gated": (rank, hidden + rank), "rnn": (3 * rank, hidden + 2 * rank)}[kind]
    return MarkovHead(
        kind,  # type: ignore[arg-type]
        torch.randn(vocab, rank, generator=g).to(dtype),
        torch.randn(vocab, rank, generator=g).to(dtype),
        torch.randn(rows, columns, generator=g).to(dtype) if rows else None,
        torch.randn(rows, generator=g).to(dtype) if rows else None,
        activation,  # type: ignore[arg-type]
        first,
    )


def make_noise(batch: int, seed: int = 7, round_: int = 0) -> Noise:
    return Noise(seed, torch.arange(batch) * 1_000_003 - 5, torch.full((batch,), round_))


def assert_matches_reference(
    block: DraftBlock,
    base: torch.Tensor,
    anchors: torch.Tensor,
    hidden: torch.Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: torch.Tensor | None,
    noise: Noise,
    support: int | None,
) -> None:
    """Candidates, usable prefix, confidences and q are the reference's; the keys of tokens are near the best."""
    for r in range(len(anchors)):
        tokens = block.tokens[r].tolist()
        temperature = 0.0 if temperatures is None else float(temperatures[r])
        reference = reference_draft(
            base[r].double().numpy(),
            int(anchors[r]),
            hidden[r].double().numpy(),
            head,
            tokens,
            temperature,
            (noise.seed, int(noise.streams[r]), int(noise.rounds[r])),
            support,
            confidence_head,
        )
        assert int(block.usable[r]) == reference.usable
        assert tokens[reference.usable :] == [0] * (len(tokens) - reference.usable)
        if confidence_head is not None:
            expected = reference.confidence + [0.0] * (len(tokens) - reference.usable)
            np.testing.assert_allclose(block.confidence[r].numpy(), expected, rtol=1e-4, atol=1e-5)
        for k in range(reference.usable):
            ids, keys, q = reference.ids[k], reference.keys[k], reference.probs[k]
            assert tokens[k] in ids
            chosen = int(np.searchsorted(ids, tokens[k]))
            # float32 sums of about this size, divided by T.
            finite = np.abs(reference.logits[k][np.isfinite(reference.logits[k])])
            size = min(float(finite.max()), 1e4) + 10.0
            rounding = 2e-6 * size / (temperature or 1.0) + 1e-5
            assert keys[chosen] >= keys.max() - rounding
            if temperature == 0:
                continue
            assert q[chosen] > 0
            near = max(rounding, 1e-5)
            np.testing.assert_allclose(
                float(block.q.of_tokens(block.tokens)[r, k]), q[chosen], rtol=4 * near, atol=1e-6
            )
            if isinstance(block.q, SparseQ):
                order = block.q.ids[r, k].argsort()
                assert block.q.ids[r, k][order].tolist() == ids.tolist()
                np.testing.assert_allclose(block.q.probs[r, k][order].numpy(), q, rtol=4 * near, atol=1e-6)
                assert abs(float(block.q.probs[r, k].double().sum()) - 1) < 1e-5
