"""The sequential loop of one request in float64 NumPy, written from the definition (algorithm, steps 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead
from sglang_dspark.ops.reference_noise import draft_gumbel
from sglang_dspark.schedule.survival import FloatArray, IntArray


@dataclass
class ReferenceDraft:
    """One request, given the tokens that were drawn.

    Attributes:
        usable: leading positions that can be drawn from.
        ids: per usable position, the candidates, ascending.
        logits: the corrected logits of the candidates.
        probs: q over the candidates; at T = 0 the one-hot of the argmax.
        keys: whose argmax is the draw.
        confidence: per usable position.
    """

    usable: int
    ids: list[IntArray]
    logits: list[FloatArray]
    probs: list[FloatArray]
    keys: list[FloatArray]
    confidence: list[float]


def reference_draft(
    base: FloatArray,
    anchor: int,
    hidden: FloatArray,
    head: MarkovHead,
    tokens: list[int],
    temperature: float,
    noise: tuple[int, int, int],
    support: int | None = None,
    confidence_head: ConfidenceHead | None = None,
) -> ReferenceDraft:
    """Args: base `[γ, V]`, hidden `[γ, H]`, noise (seed, stream, round); tokens `[γ]` are fed back, not chosen here."""
    w1, w2 = _array(head.w1), _array(head.w2)
    joint, joint_bias = _array(head.joint), _array(head.joint_bias)
    out = ReferenceDraft(0, [], [], [], [], [])
    state = np.zeros(w1.shape[1])
    previous = anchor
    for k, row in enumerate(base):
        if np.isnan(row).any() or not np.isfinite(row.max()):
            break
        # Largest first, lowest id on ties; then ascending.
        ids = np.sort(np.lexsort((np.arange(len(row)), -row))[:support])
        embedded = w1[previous]
        bias = np.zeros(len(row))
        if k > 0 or head.first_position:
            activated = embedded * _sigmoid(embedded) if head.activation == "silu" else embedded
            if head.kind == "rnn":
                gate, candidate, output = np.split(joint @ np.concatenate([state, embedded, hidden[k]]) + joint_bias, 3)
                state = _sigmoid(gate) * state + (1 - _sigmoid(gate)) * np.tanh(candidate)
                latent = np.tanh(output)
            elif head.kind == "gated":
                latent = _sigmoid(joint @ np.concatenate([hidden[k], embedded]) + joint_bias) * activated
            else:
                latent = activated
            bias = w2 @ latent
        logits = (row + bias)[ids]
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            break
        scaled = (logits - logits.max()) / (temperature or 1.0)
        q = np.exp(scaled) / np.exp(scaled).sum() if temperature else (np.arange(len(ids)) == logits.argmax()) * 1.0
        seed, stream, round_ = noise
        gumbels = np.array([draft_gumbel(seed, stream, round_, k, int(i)) for i in ids], dtype=np.float64)
        out.keys.append(scaled + gumbels if temperature else logits)
        out.ids.append(ids)
        out.logits.append(logits)
        out.probs.append(q)
        if confidence_head is not None:
            features = np.concatenate([hidden[k], embedded]) if confidence_head.with_markov else hidden[k]
            offset = 0.0 if confidence_head.bias is None else float(confidence_head.bias)
            out.confidence.append(float(_sigmoid(_array(confidence_head.weight)[0] @ features + offset)))
        out.usable = k + 1
        previous = tokens[k]
    return out


def _array(tensor: torch.Tensor | None) -> FloatArray:
    return np.zeros(()) if tensor is None else tensor.double().numpy()


def _sigmoid(x: FloatArray) -> FloatArray:
    return 1 / (1 + np.exp(-x))
