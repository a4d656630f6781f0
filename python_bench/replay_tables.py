"""Cost tables of machines that are not at hand, and tables that are wrong in known ways. None was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sglang_dspark.schedule.cost import CostModel, Curve, GraphSizes, Surface

_COUNTS = np.unique(np.geomspace(1, 4096, 200).round().astype(int))


@dataclass(frozen=True)
class Gpu:
    """A roofline: a round reads all weights once and computes for every token, whichever takes longer.

    Attributes:
        bandwidth: of its memory, bytes a second, as reached in practice (85 % of the data sheet).
        flops: a second, as reached in practice (60 % of the data sheet).
    """

    bandwidth: float
    flops: float


H100 = Gpu(0.85 * 3.35e12, 0.6 * 989e12)
H200 = Gpu(0.85 * 4.8e12, 0.6 * 989e12)


@dataclass(frozen=True)
class Model:
    """What a round has to read and compute.

    Attributes:
        weights: bytes read whatever is verified.
        expert_weights: bytes of all routed experts; a token uses `experts_per_token` of `experts`, and a batch reads
            those that at least one of its tokens uses.
        parameters: active per token.
        kv: bytes of cache per token.
        draft: share of the target's weights and compute that a draft forward takes.
        overhead: seconds of a round on the host and between kernels.
    """

    weights: float
    parameters: float
    kv: float
    expert_weights: float = 0.0
    experts: int = 1
    experts_per_token: int = 1
    draft: float = 0.08
    overhead: float = 0.0015


DENSE_8B = Model(weights=16e9, parameters=8e9, kv=131e3)
# Eight-bit weights, a share of one of eight GPUs that hold the model together.
MOE_LARGE = Model(
    weights=3e9, parameters=4.6e9, kv=9e3, expert_weights=80e9, experts=256, experts_per_token=8, draft=0.04
)


def gpu_table(gpu: Gpu, model: Model, gamma: int, captured: int = 512) -> CostModel:
    """A cost model shaped like a GPU's: flat while memory-bound, then rising; in steps where graphs are captured.

    Args:
        gpu, model: the two.
        gamma: draft tokens a request.
        captured: largest number of requests with a captured graph; 0 for none.
    """
    sizes = [size for size in (1, 2, 4, *range(8, 129, 8), *range(144, 513, 16)) if size <= captured]
    graphs = GraphSizes(tuple(sizes), tuple(size * (1 + gamma) for size in sizes))
    # Exact on the steps: every count that a graph can have is a probe.
    tokens = np.unique([*_COUNTS, *graphs.tokens])

    def verify(count: np.ndarray) -> np.ndarray:
        used = 1.0 - (1.0 - model.experts_per_token / model.experts) ** count
        memory = (model.weights + model.expert_weights * used) / gpu.bandwidth
        compute = 2.0 * model.parameters * count / gpu.flops
        # Smooth maximum: the two overlap, but not perfectly near the corner.
        return (memory**4 + compute**4) ** 0.25

    draft_read = model.draft * (model.weights + 0.2 * model.expert_weights) / gpu.bandwidth
    draft = 2.0 * model.draft * model.parameters * gamma / gpu.flops
    theta = np.maximum.accumulate(verify(tokens.astype(float)))
    requests = np.unique([*_COUNTS, *sizes])
    drafted = Surface(
        bias_seconds=model.overhead + draft_read,
        requests=Curve(tuple(requests.tolist()), tuple((draft * requests).tolist())),
        tokens=Curve(tuple(tokens.tolist()), tuple(theta.tolist())),
        context_seconds=model.kv / gpu.bandwidth,
    )
    plain = verify(requests.astype(float))
    undrafted = Surface(
        bias_seconds=0.8 * model.overhead,
        requests=Curve(tuple(requests.tolist()), tuple(np.maximum.accumulate(plain).tolist())),
        tokens=Curve((1,), (0.0,)),
        context_seconds=model.kv / gpu.bandwidth,
    )
    return CostModel(drafted, undrafted, graphs)


def synthetic(shape: Callable[[np.ndarray], np.ndarray], draft: float = 0.08) -> CostModel:
    """A table from a round's time by tokens alone, `shape`; a draft costs `draft` of the round of one token."""
    counts = np.unique([*_COUNTS, 16, 17, 32, 33, 64, 65])
    seconds = np.maximum.accumulate(shape(counts.astype(float)))
    curve = Curve(tuple(counts.tolist()), tuple(seconds.tolist()))
    flat = Curve((1,), (0.0,))
    return CostModel(Surface(draft * float(seconds[0]), flat, curve), Surface(0.0, curve, flat))


def knee(counts: np.ndarray) -> np.ndarray:
    """Memory-bound up to about 64 tokens, compute-bound after."""
    return 0.02 * (1.0 + (counts / 64.0) ** 4) ** 0.25


def stepped(counts: np.ndarray) -> np.ndarray:
    """Tiles of 32 tokens."""
    return 0.012 + 0.004 * np.ceil(counts / 32.0)


def cliff(counts: np.ndarray) -> np.ndarray:
    """Twice as slow from 33 tokens on."""
    return np.where(counts > 32, 0.04, 0.02) + 0.0001 * counts


def flat(counts: np.ndarray) -> np.ndarray:
    """Verifying is free."""
    return np.full_like(counts, 0.02)


def noisy(counts: np.ndarray) -> np.ndarray:
    """`knee`, every probe off by 15 %."""
    return knee(counts) * np.random.default_rng(5).lognormal(0.0, 0.15, len(counts))


def linear(counts: np.ndarray) -> np.ndarray:
    """Compute-bound from the first token on, like a small CPU."""
    return 0.015 + 0.002 * counts


def scaled(model: CostModel, factor: float) -> CostModel:
    """The same machine, with the cost of verified tokens wrong by `factor`; what a round costs anyway stays right."""
    tokens = model.drafted.tokens
    base = tokens.seconds[0]
    wrong = Curve(tokens.probes, tuple(base + factor * (s - base) for s in tokens.seconds))
    return CostModel(dataclasses.replace(model.drafted, tokens=wrong), model.undrafted, model.graphs)
