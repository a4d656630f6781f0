"""What plain decoding samples from, in float64 and written apart from the code under test.

Source of the order: SGLang 0.5.23, `SamplingBatchInfo.apply_logits_bias` and
`top_k_top_p_min_p_sampling_from_probs_torch`: additive penalties, repetition penalty, grammar mask, logit bias,
temperature, softmax, then top-k, top-p and min-p on the row sorted once.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import regex
import torch

from sglang_dspark.train.target import import_transformers

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FIRST_LETTER = 3
LETTERS = "abcdefghijklm"
# A float32 engine may decide differently where a filter's threshold is this near, as a share of the number compared.
MARGIN = 1e-5
TINY = 1e-300


class Reference:
    """The target in float64."""

    def __init__(self, folder: Path) -> None:
        transformers = import_transformers()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    @torch.no_grad()
    def logits(self, sequences: Ints) -> Array:
        """`[S, L, V]` raw logits after each token of `[S, L]` sequences."""
        parts = [
            self._model(torch.from_numpy(part)).logits for part in np.array_split(sequences, len(sequences) // 256 + 1)
        ]
        return torch.cat(parts).numpy()

    def distributions(
        self, prompts: Ints, outputs: Ints, sampling: dict[str, Any]
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Distribution of every output token given the tokens before it.

        Args:
            prompts: `[S, P]`.
            outputs: `[S, L]`.
            sampling: the request's parameters.

        Returns:
            `[S, L, V]`, and `[S, L]`: False where a filter's decision is within rounding.
        """
        length = outputs.shape[1]
        raw = self.logits(np.concatenate([prompts, outputs], axis=1))[:, prompts.shape[1] - 1 : -1]
        seen = np.zeros((len(outputs), raw.shape[2]))
        rows, sharp = np.empty_like(raw), np.empty(outputs.shape, dtype=np.bool_)
        for k in range(length):
            logits = penalised(raw[:, k], seen, sampling)
            if "regex" in sampling:
                logits = np.where(legal_tokens(outputs[:, :k], sampling["regex"]), logits, -np.inf)
            for token, bias in sampling.get("logit_bias", {}).items():
                logits[:, int(token)] += bias
            rows[:, k], sharp[:, k] = filtered(softmax(logits / sampling["temperature"]), sampling)
            seen[np.arange(len(outputs)), outputs[:, k]] += 1
        return rows, sharp


def penalised(logits: Array, seen: Array, sampling: dict[str, Any]) -> Array:
    """`[S, V]` logits given how often each token was emitted, `[S, V]`."""
    out = logits - sampling.get("frequency_penalty", 0.0) * seen
    out = out - sampling.get("presence_penalty", 0.0) * (seen > 0)
    scale = np.where(seen > 0, sampling.get("repetition_penalty", 1.0), 1.0)
    return np.where(out < 0, out * scale, out / scale)


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def filtered(p: Array, sampling: dict[str, Any]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """`[S, V]` after top-k, top-p and min-p; and `[S]`, False where a decision is within `MARGIN`."""
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    keep = np.ones_like(ordered, dtype=np.bool_)
    distance = np.full(len(p), np.inf)
    if "top_k" in sampling:
        k = sampling["top_k"]
        keep[:, k:] = False
        # Two tokens that tie at the edge, unless both are impossible.
        distance = np.minimum(distance, 1 - ordered[:, k] / np.maximum(ordered[:, k - 1], TINY))
    if "top_p" in sampling:
        before = np.cumsum(ordered, axis=1) - ordered
        keep &= before <= sampling["top_p"]
        distance = np.minimum(distance, np.abs(before - sampling["top_p"]).min(axis=1))
    if "min_p" in sampling:
        edge = ordered[:, :1] * sampling["min_p"]
        keep &= ordered >= edge
        distance = np.minimum(distance, np.abs(ordered / edge - 1).min(axis=1))
    kept = np.where(keep, ordered, 0.0)
    out = np.zeros_like(p)
    np.put_along_axis(out, order, kept / kept.sum(axis=1, keepdims=True), axis=1)
    return out, distance > MARGIN


def legal_tokens(outputs: Ints, pattern: str) -> npt.NDArray[np.bool_]:
    """`[S, V]`: letters that keep the text a beginning of a match; special tokens are never legal."""
    return np.stack([np.array(_legal(pattern, text_of(row))) for row in outputs])


@lru_cache(maxsize=1 << 20)
def _legal(pattern: str, text: str) -> tuple[bool, ...]:
    legal = tuple(regex.fullmatch(pattern, text + letter, partial=True) is not None for letter in LETTERS)
    # Behind an illegal token, which is a failure by itself, anything goes.
    return (False,) * FIRST_LETTER + (legal if any(legal) else (True,) * len(LETTERS))


def text_of(tokens: Ints) -> str:
    return "".join(LETTERS[t - FIRST_LETTER] if t >= FIRST_LETTER else "?" for t in tokens.tolist())
