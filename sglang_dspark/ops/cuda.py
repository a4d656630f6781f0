"""The CUDA kernels (`csrc/cuda/`) as plain functions of torch tensors: check, fill a struct, enqueue.

Every function enqueues on the current stream and never waits, so all of them may be captured into a CUDA graph.
Workspaces are kept per device and shape; call once with the captured shapes before capturing.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.draft_q import DenseQ, SparseQ
from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead
from sglang_dspark.ops.noise import Noise

_NAME = "sglang_dspark._CUDA"
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_HEADS = {"vanilla": 0, "gated": 1, "rnn": 2}
_ACTIVATIONS = {"none": 0, "silu": 1}
_FLOATS = tuple(_DTYPES)
_MAX_CANDIDATES = 2048
_MAX_ROWS = 16384
_MAX_SCHEDULED = 16384
# Candidates of all positions, which a block of the sparse loop keeps in shared memory (163 KB from sm_80 on).
_MAX_KEPT = 12000

_workspaces: dict[tuple[str, torch.device], list[Tensor]] = {}


@cache
def _load() -> ModuleType | None:
    try:
        return importlib.import_module(_NAME)
    except ImportError:
        return None


def available() -> bool:
    """Whether the CUDA extension was built and loads here."""
    return _load() is not None


def _native() -> ModuleType:
    module = _load()
    if module is None:
        raise RuntimeError(f"{_NAME} is not built; reinstall the package where nvcc is found")
    return module


def _stream(tensor: Tensor) -> int:
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _workspace(name: str, size: int, device: torch.device) -> Tensor:
    """Zeroed bytes, the same ones for the same use. Outgrown ones stay alive: a captured graph may hold them."""
    kept = _workspaces.setdefault((name, device), [])
    if not kept or kept[-1].numel() < size:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{name}: run it once with these shapes before capturing it into a graph")
        kept.append(torch.zeros(max(size, 16), dtype=torch.uint8, device=device))
    return kept[-1]


def _check(
    name: str, tensor: Tensor, shape: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...], like: Tensor
) -> int:
    """Raises ValueError unless shape (None: any), dtype, device and contiguous rows fit; returns the address."""
    fits = tensor.ndim == len(shape) and all(s is None or s == t for s, t in zip(shape, tensor.shape, strict=True))
    if not fits or tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected {shape} of {dtypes}, got {tuple(tensor.shape)} {tensor.dtype}")
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected a tensor on {like.device}, got {tensor.device}")
    if tensor.ndim and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: expected contiguous rows, got strides {tensor.stride()}")
    return tensor.data_ptr()


def _vector(name: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> int:
    """As `_check`, for a contiguous tensor or None (address 0)."""
    if tensor is None:
        return 0
    address = _check(name, tensor, shape, (dtype,), like)
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()}")
    return address


def _noise(noise: Noise, batch: int, like: Tensor) -> dict[str, int]:
    return {
        "seed": noise.seed,
        "streams": _vector("noise.streams", noise.streams, (batch,), torch.int64, like),
        "rounds": _vector("noise.rounds", noise.rounds, (batch,), torch.int64, like),
    }


@dataclass(frozen=True)
class CudaDraft:
    """Attributes: `tokens` `[B, γ]` int64, `usable` `[B]` int64, `confidence` `[B, γ]` float32 or None, and `q`."""

    tokens: Tensor
    q: SparseQ | DenseQ
    confidence: Tensor | None
    usable: Tensor


class _Heads:
    """The struct of weights, and what has to stay alive while it is used."""

    def __init__(self, head: MarkovHead, confidence: ConfidenceHead | None, hidden: Tensor, like: Tensor) -> None:
        batch, gamma, vocab = like.shape
        _check("hidden", hidden, (batch, gamma, None), _FLOATS, like)
        size, rank = hidden.shape[2], head.w1.shape[1]
        head.check(vocab, size)
        fields: dict[str, Any] = {
            "rank": rank, "hidden_size": size, "head": _HEADS[head.kind], "activation": _ACTIVATIONS[head.activation],
            "first_position": head.first_position,
            "w1": _check("head.w1", head.w1, (None, rank), _FLOATS, like),
            "w2": _check("head.w2", head.w2, (vocab, rank), _FLOATS, like),
            "w1_dtype": _DTYPES[head.w1.dtype], "w2_dtype": _DTYPES[head.w2.dtype],
            "w1_stride": head.w1.stride(0), "w2_stride": head.w2.stride(0),
        }  # fmt: skip
        self.kept: list[Tensor] = []
        if head.joint is not None and head.kind != "vanilla":
            first = 0 if head.kind == "gated" else 2 * rank
            part = _matmul(hidden, head.joint[:, first : first + size])
            self.kept.append(part if head.joint_bias is None else part + head.joint_bias.float())
            fields |= {
                "joint": _check("head.joint", head.joint, (None, None), _FLOATS, like),
                "joint_dtype": _DTYPES[head.joint.dtype], "joint_stride": head.joint.stride(0),
                "hidden_joint": self.kept[-1].data_ptr(),
            }  # fmt: skip
        self.confidence: Tensor | None = None
        if confidence is not None:
            confidence.check(size, rank)
            self.confidence = torch.empty((batch, gamma), dtype=torch.float32, device=like.device)
            fields |= {
                "confidence": _check("confidence_head.weight", confidence.weight, (1, None), _FLOATS, like),
                "confidence_dtype": _DTYPES[confidence.weight.dtype],
                "confidence_bias": _scalar(confidence.bias), "confidence_with_markov": confidence.with_markov,
                "hidden": hidden.data_ptr(), "hidden_dtype": _DTYPES[hidden.dtype],
                "hidden_batch_stride": hidden.stride(0), "hidden_position_stride": hidden.stride(1),
            }  # fmt: skip
        self.struct = fields

    def confidence_address(self) -> int:
        return 0 if self.confidence is None else self.confidence.data_ptr()


_scalars: dict[int, tuple[Tensor, float]] = {}


def _scalar(bias: Tensor | None) -> float:
    """The value of a weight, read from the device once: reading it at every call would wait for the stream."""
    if bias is None:
        return 0.0
    if id(bias) not in _scalars:
        _scalars[id(bias)] = (bias, float(bias))
    return _scalars[id(bias)][1]


def _matmul(hidden: Tensor, weight: Tensor) -> Tensor:
    """`hidden @ weight.T`, `[B, γ, N]` float32, accumulated in float32."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    if hidden.is_cuda and hidden.dtype == weight.dtype != torch.float32:
        out = torch.mm(rows, weight.t(), out_dtype=torch.float32)
    else:
        out = rows.float() @ weight.float().t()
    return out.view(*hidden.shape[:2], weight.shape[0])


def _logits(name: str, logits: Tensor, prefix: str = "") -> dict[str, int]:
    _check(name, logits, (None, None, None), _FLOATS, logits)
    return {
        f"{prefix}logits": logits.data_ptr(), f"{prefix}logits_dtype": _DTYPES[logits.dtype],
        "batch_stride": logits.stride(0), "position_stride": logits.stride(1),
    }  # fmt: skip


def select_candidates(
    base_logits: Tensor, support: int, head: MarkovHead | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The `support` largest base logits of every position, the lower token of equal ones.

    Args:
        base_logits: `[B, γ, V]`, float32, bfloat16 or float16.
        support: C, 1 to min(V, 2048).
        head: its rows for the candidates are moved to L2 where all of them fit.

    Returns:
        ids `[B, γ, C]` int32 ascending, values `[B, γ, C]` float32, bad `[B, γ]` uint8 (1: cannot be drawn from).
    """
    fields: dict[str, Any] = _logits("base_logits", base_logits)
    batch, gamma, vocab = base_logits.shape
    if batch * gamma > _MAX_ROWS:
        raise ValueError(f"base_logits: expected at most {_MAX_ROWS} rows, got {tuple(base_logits.shape)}")
    if not 1 <= support <= min(vocab, _MAX_CANDIDATES):
        raise ValueError(f"support: expected 1 to {min(vocab, _MAX_CANDIDATES)}, got {support}")
    native, device = _native(), base_logits.device
    slices = native.select_candidates_slices(batch * gamma, vocab, _multiprocessors(device))
    workspace = _workspace("select", native.select_candidates_workspace(batch * gamma, slices, support), device)
    ids = torch.empty((batch, gamma, support), dtype=torch.int32, device=device)
    values = torch.empty((batch, gamma, support), dtype=torch.float32, device=device)
    bad = torch.empty((batch, gamma), dtype=torch.uint8, device=device)
    if head is not None and head.w1.is_contiguous() and head.w2.is_contiguous() and head.w1.dtype == head.w2.dtype:
        row = head.w1.shape[1] * head.w1.element_size()
        if ids.numel() * row <= 16 << 20:  # half of what two such matrices leave of an L2 of 50 to 60 MB
            fields |= {"prefetch_w1": head.w1.data_ptr(), "prefetch_w2": head.w2.data_ptr(), "prefetch_row_bytes": row}
    native.select_candidates(
        _stream(ids),
        **fields, batch=batch, gamma=gamma, vocab=vocab, candidates=support, slices=slices,
        workspace=workspace.data_ptr(), ids=ids.data_ptr(), values=values.data_ptr(), bad=bad.data_ptr(),
    )  # fmt: skip
    return ids, values, bad


def draft_sparse(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
    support: int,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    mask: Tensor | None = None,
) -> CudaDraft:
    """γ tokens per request, each from its position's `support` best base logits. Two launches.

    Args:
        base_logits: `[B, γ, V]`; hidden: `[B, γ, H]`; anchors: `[B]` int64.
        temperatures: `[B]` float32, 0 for argmax; None when every row is.
        top_k: `[B]` int64; top_p: `[B]` float32; mask: `[B, γ, ceil(V / 32)]` int32 bits of allowed tokens.

    Raises:
        ValueError: names the argument, its shape and what was expected.
    """
    batch, gamma, vocab = base_logits.shape
    if gamma * support > _MAX_KEPT:
        raise ValueError(f"support: expected at most {_MAX_KEPT // gamma} with {gamma} positions, got {support}")
    ids, values, bad = select_candidates(base_logits, support, head)
    heads = _Heads(head, confidence_head, hidden, base_logits)
    tokens = torch.empty((batch, gamma), dtype=torch.int64, device=ids.device)
    usable = torch.empty(batch, dtype=torch.int64, device=ids.device)
    probs = torch.empty((batch, gamma, support), dtype=torch.float32, device=ids.device)
    fields: dict[str, Any] = {}
    if mask is not None:
        address = _check("mask", mask, (batch, gamma, (vocab + 31) // 32), (torch.int32,), base_logits)
        fields = {"mask": address, "mask_batch_stride": mask.stride(0), "mask_position_stride": mask.stride(1)}
    _native().sparse_loop(
        _stream(ids),
        **fields, **_noise(noise, batch, base_logits), heads=heads.struct, batch=batch, gamma=gamma, candidates=support,
        ids=ids.data_ptr(), values=values.data_ptr(), bad=bad.data_ptr(),
        anchors=_vector("anchors", anchors, (batch,), torch.int64, base_logits),
        temperatures=_vector("temperatures", temperatures, (batch,), torch.float32, base_logits),
        top_k=_vector("top_k", top_k, (batch,), torch.int64, base_logits),
        top_p=_vector("top_p", top_p, (batch,), torch.float32, base_logits),
        tokens=tokens.data_ptr(), usable=usable.data_ptr(), probs=probs.data_ptr(),
        confidences=heads.confidence_address(),
    )  # fmt: skip
    return CudaDraft(tokens, SparseQ(ids, probs), heads.confidence, usable)


def draft_dense(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
) -> CudaDraft:
    """γ tokens per request over the whole vocabulary. Arguments and errors as `draft_sparse`; 2 γ + 2 launches."""
    logits = _logits("base_logits", base_logits)
    batch, gamma, vocab = base_logits.shape
    native, device = _native(), base_logits.device
    heads = _Heads(head, confidence_head, hidden, base_logits)
    rank = head.w1.shape[1]
    if rank > 1024 // head.w2.element_size():
        raise ValueError(f"head.w2: expected rank at most {1024 // head.w2.element_size()}, got {rank}")
    tokens = torch.empty((batch, gamma), dtype=torch.int64, device=device)
    usable = torch.empty(batch, dtype=torch.int64, device=device)
    latents = torch.empty((batch, gamma, (rank + 3) // 4 * 4), dtype=torch.float32, device=device)
    shifts, log_sums, token_probs = torch.empty((3, batch, gamma), dtype=torch.float32, device=device).unbind()
    q = DenseQ(base_logits, head.w2, head.first_position, latents, shifts, log_sums, token_probs, "cuda")
    blocks = native.dense_loop_blocks(vocab, _multiprocessors(device))
    workspace = _workspace("dense", native.dense_loop_workspace(batch, gamma, rank, blocks), device)
    native.dense_loop(
        _stream(tokens),
        **_noise(noise, batch, base_logits), heads=heads.struct, batch=batch, gamma=gamma, vocab=vocab,
        rows=_dense_rows(q, logits), blocks=blocks, workspace=workspace.data_ptr(),
        anchors=_vector("anchors", anchors, (batch,), torch.int64, base_logits),
        temperatures=_vector("temperatures", temperatures, (batch,), torch.float32, base_logits),
        tokens=tokens.data_ptr(), usable=usable.data_ptr(), confidences=heads.confidence_address(),
    )  # fmt: skip
    return CudaDraft(tokens, q, heads.confidence, usable)


def _dense_rows(q: DenseQ, logits: dict[str, int]) -> dict[str, Any]:
    return dict(
        **logits, w2=q.w2.data_ptr(), w2_dtype=_DTYPES[q.w2.dtype], w2_stride=q.w2.stride(0), rank=q.w2.shape[1],
        first_position=q.first_position, latents=q.latents.data_ptr(), shifts=q.shifts.data_ptr(),
        log_sums=q.log_sums.data_ptr(), token_probs=q.token_probs.data_ptr(),
    )  # fmt: skip


def schedule(
    confidence: Tensor,
    seconds: Tensor,
    limits: Tensor,
    lagged: Tensor | None = None,
    lagged_limits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Verify lengths without a host round trip: the causal scan, or with `lagged` the lagged budget and its best.

    Args:
        confidence: `[R, γ]` float32, this round's, R γ <= 16384.
        seconds: `[>= R (1 + γ) + 1]` float64, positive; a round's time for every total of verified tokens.
        limits: `[R]` int64, the most each request may verify.
        lagged: `[R, γ]` float32, an earlier round's confidences, with limits of their own (default: `limits`).

    Returns:
        lengths `[R]` int64, their sum `[1]` int64.
    """
    requests, gamma = confidence.shape
    if requests * gamma > _MAX_SCHEDULED:
        raise ValueError(f"confidence: expected at most {_MAX_SCHEDULED} candidates, got {tuple(confidence.shape)}")
    if seconds.numel() < requests * (1 + gamma) + 1:
        raise ValueError(f"seconds: expected at least {requests * (1 + gamma) + 1} entries, got {tuple(seconds.shape)}")
    lengths = torch.empty(requests, dtype=torch.int64, device=confidence.device)
    admitted = torch.zeros(1, dtype=torch.int64, device=confidence.device)
    fields: dict[str, Any] = {}
    if lagged is not None:
        own = limits if lagged_limits is None else lagged_limits
        fields = {
            "lagged": _check("lagged", lagged, (requests, gamma), (torch.float32,), confidence),
            "lagged_stride": lagged.stride(0),
            "lagged_limits": _vector("lagged_limits", own, (requests,), torch.int64, confidence),
        }
    _native().schedule(
        _stream(lengths),
        **fields, requests=requests, gamma=gamma, confidence_stride=confidence.stride(0),
        confidence=_check("confidence", confidence, (requests, gamma), (torch.float32,), confidence),
        limits=_vector("limits", limits, (requests,), torch.int64, confidence),
        seconds=_vector("seconds", seconds, (seconds.numel(),), torch.float64, confidence),
        lengths=lengths.data_ptr(), admitted=admitted.data_ptr(),
    )  # fmt: skip
    return lengths, admitted


def accept(
    target_logits: Tensor,
    probabilities: Tensor | None,
    tokens: Tensor,
    usable: Tensor,
    q: SparseQ | DenseQ | None,
    start: Tensor,
    lengths: Tensor,
    temperatures: Tensor | None,
    noise: Noise,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept over ragged rows with the coupled cut; one launch, three for a dense q.

    Args:
        target_logits: `[M, V]`; row `start[r] + k` is the target's for position k + 1 of request r.
        probabilities: `[M, V]` float32, p of sampled rows (after top-k, top-p); None: softmax(logits / T).
        tokens: `[B, γ]` int64; usable: `[B]` int64; start, lengths: `[B]` int64, start ascending. All on the device:
            their values are not checked.
        q: as the draft left it, ids ascending; None when nothing was sampled.

    Returns:
        tokens `[B, γ + 1]` int64, zeros past the count; counts `[B]` int64 in 1..ℓ+1; last `[B]` int64.
    """
    (batch, gamma), (rows, vocab) = tokens.shape, target_logits.shape
    native, device = _native(), target_logits.device
    fields: dict[str, Any] = {}
    if probabilities is not None:
        address = _check("probabilities", probabilities, (rows, vocab), (torch.float32,), target_logits)
        fields = {"probabilities": address, "probabilities_stride": probabilities.stride(0)}
    if isinstance(q, SparseQ):
        fields |= {
            "form": 1, "candidates": q.ids.shape[2],
            "ids": _vector("q.ids", q.ids, (batch, gamma, q.ids.shape[2]), torch.int32, target_logits),
            "probs": _vector("q.probs", q.probs, tuple(q.ids.shape), torch.float32, target_logits),
        }  # fmt: skip
    elif isinstance(q, DenseQ):
        fields |= {"form": 2, "dense": _dense_rows(q, _logits("q.base_logits", q.base_logits))}
    slices = native.accept_slices(rows, vocab, _multiprocessors(device))
    size = native.accept_workspace(batch, gamma, rows, vocab, isinstance(q, DenseQ))
    out = torch.empty((batch, gamma + 1), dtype=torch.int64, device=device)
    counts = torch.empty(batch, dtype=torch.int64, device=device)
    last = torch.empty(batch, dtype=torch.int64, device=device)
    native.accept(
        _stream(out),
        **fields, **_noise(noise, batch, target_logits), batch=batch, gamma=gamma, vocab=vocab, rows=rows,
        slices=slices,
        logits=_check("target_logits", target_logits, (None, None), _FLOATS, target_logits),
        logits_dtype=_DTYPES[target_logits.dtype], logits_stride=target_logits.stride(0),
        start=_vector("start", start, (batch,), torch.int64, target_logits),
        lengths=_vector("lengths", lengths, (batch,), torch.int64, target_logits),
        drafted=_vector("tokens", tokens, (batch, gamma), torch.int64, target_logits),
        usable=_vector("usable", usable, (batch,), torch.int64, target_logits),
        temperatures=_vector("temperatures", temperatures, (batch,), torch.float32, target_logits),
        workspace=_workspace("accept", size, device).data_ptr(),
        tokens=out.data_ptr(), counts=counts.data_ptr(), last=last.data_ptr(),
    )  # fmt: skip
    return out, counts, last
