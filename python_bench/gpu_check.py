"""Checks the CUDA operations on a GPU, then times them: one file, at most 5 minutes, one table at the end.

    python python_bench/gpu_check.py [--minutes 5] [--vocab 151936] [--rank 256] [--support 256] [--gamma 7]

First `gpu_dispatch.py`: the functions of the round on the GPU equal those on the CPU. Then each operation is validated
on the very inputs it is timed on; nothing is timed that was not validated. Times are medians of CUDA-graph replays
between events, over rotating inputs larger than the L2. The floor is the bytes that must move over the read bandwidth
measured in the same run. Says where SGLang's own operations or the extension are missing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_dispatch import check_dispatch
from torch import Tensor

from sglang_dspark.ops import cuda
from sglang_dspark.ops.draft_torch import draft_block_torch
from sglang_dspark.ops.markov import MarkovHead
from sglang_dspark.ops.noise import Noise
from sglang_dspark.schedule import prefix

BATCHES = (1, 16, 64, 256)
L2_BYTES = 128 << 20


@dataclass(frozen=True)
class Sizes:
    vocab: int
    rank: int
    support: int
    gamma: int


@dataclass(frozen=True)
class Line:
    """One line of the table; times in microseconds, None where there is nothing to compare with."""

    operation: str
    batch: int
    temperature: float | None
    measured: float
    floor: float
    torch: float | None = None
    sglang: float | None = None

    def format(self) -> str:
        def cell(value: float | None) -> str:
            return f"{value:10.1f}" if value is not None else "         -"

        temperature = "-" if self.temperature is None else f"{self.temperature:g}"
        share = 100 * self.floor / self.measured
        return (
            f"{self.operation:<16}{self.batch:>6}{temperature:>5}{cell(self.measured)}{cell(self.floor)}{share:>8.0f} %"
            f"{cell(self.torch)}{cell(self.sglang)}"
        )


HEADER = f"{'operation':<16}{'B':>6}{'T':>5}{'us':>10}{'floor us':>10}{'of floor':>10}{'torch us':>10}{'SGLang us':>10}"


class Batch:
    """Inputs of one batch size; base logits rotate through copies larger than the L2 together."""

    def __init__(self, sizes: Sizes, batch: int, temperature: float, head: MarkovHead) -> None:
        g = torch.Generator("cuda").manual_seed(batch)
        device, self.sizes, self.head, self.batch = "cuda", sizes, head, batch
        row = batch * sizes.gamma * sizes.vocab
        copies = max(1, min(8, L2_BYTES // (row * 2) + 1))
        self.base = [
            (torch.randn(batch, sizes.gamma, sizes.vocab, generator=g, device=device) * 3).bfloat16()
            for _ in range(copies)
        ]
        self.anchors = torch.randint(0, sizes.vocab, (batch,), generator=g, device=device)
        self.hidden = torch.zeros(batch, sizes.gamma, 8, device=device, dtype=torch.bfloat16)
        self.temperatures = torch.full((batch,), temperature, device=device)
        self.noise = Noise(7, torch.arange(batch, device=device), torch.zeros(batch, dtype=torch.int64, device=device))

    def arguments(self, i: int = 0) -> tuple[Any, ...]:
        return self.base[i], self.anchors, self.hidden, self.head, None, self.temperatures, self.noise


def median_us(run: Callable[[int], Any], copies: int, repetitions: int = 20) -> float:
    """Median over replays of a graph that runs once per copy, in microseconds a run."""
    for i in range(copies):
        run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            run(i)
    return _replay(graph.replay, copies, repetitions)


def eager_us(run: Callable[[int], Any], copies: int, repetitions: int = 5) -> float:
    """The same without a graph, for what cannot be captured."""

    def once() -> None:
        for i in range(copies):
            run(i)

    once()
    return _replay(once, copies, repetitions)


def _replay(run: Callable[[], Any], copies: int, repetitions: int) -> float:
    times = []
    for _ in range(3):
        run()
    for _ in range(repetitions):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / copies)
    return statistics.median(times)


def bandwidth() -> float:
    """Bytes a second that a reduction over 4 GB reads."""
    x = torch.ones(1 << 30, device="cuda")
    return x.nbytes / (eager_us(lambda _: x.sum(), 1, 10) * 1e-6)


def require(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"FAILED: {what}")


def same_choices(ours: Tensor, theirs: Tensor, what: str) -> None:
    """All tokens up to the first difference of a request count; near-ties may differ, a wrong kernel differs widely."""
    differing = (ours != theirs).any(dim=1).double().mean().item()
    require(differing <= 0.02, f"{what}: {100 * differing:.1f} % of the requests differ from torch")


def check_draft(data: Batch) -> None:
    support = data.sizes.support
    ids, values, bad = cuda.select_candidates(data.base[0], support)
    rows = data.base[0][: min(4, data.batch)].float()
    order = torch.sort(rows, dim=-1, descending=True, stable=True).indices[..., :support].sort().values
    require(torch.equal(ids[: len(rows)].long(), order), "select_candidates differs from a stable sort")
    require(torch.equal(values[: len(rows)], rows.gather(2, order)), "select_candidates: values")
    require(not bad.any().item(), "select_candidates: marks finite rows")
    out = cuda.draft_sparse(*data.arguments(), support)
    tokens, q, _, usable = draft_block_torch(*data.arguments(), support)
    require(torch.equal(out.usable, usable), "draft_sparse: usable")
    same_choices(out.tokens, tokens, "draft_sparse")
    alike = (out.tokens == tokens).all(dim=1)
    if q is not None and data.temperatures[0] > 0:
        torch.testing.assert_close(out.q.probs[alike], q.probs[alike], rtol=2e-3, atol=1e-6)
    if data.batch <= 16:  # torch's dense form takes many gigabytes beyond
        same_choices(cuda.draft_dense(*data.arguments()).tokens, draft_block_torch(*data.arguments(), None)[0], "dense")


def time_draft(data: Batch, bytes_per_us: float, torch_too: bool) -> list[Line]:
    s, copies, t = data.sizes, len(data.base), float(data.temperatures[0])
    logits = data.base[0].nbytes
    gathered = data.batch * s.gamma * s.support * s.rank * 2
    select = median_us(lambda i: cuda.select_candidates(data.base[i], s.support, data.head), copies)
    sparse = median_us(lambda i: cuda.draft_sparse(*data.arguments(i), s.support), copies)
    dense = median_us(lambda i: cuda.draft_dense(*data.arguments(i)), copies, 5)
    weights = s.gamma * s.vocab * s.rank * 2 * ((data.batch + 63) // 64)
    theirs = eager_us(lambda i: draft_block_torch(*data.arguments(i), s.support), copies) if torch_too else None
    builtin = time_sglang_loop(data)
    return [
        Line("select", data.batch, t, select, logits / bytes_per_us),
        Line("draft_sparse", data.batch, t, sparse, (logits + gathered) / bytes_per_us, theirs, builtin),
        Line("draft_dense", data.batch, t, dense, (2 * logits + weights) / bytes_per_us, None, builtin),
    ]


def time_sglang_loop(data: Batch) -> float | None:
    """SGLang's own step: embedding, bias GEMM, fused add and sample; the step logits kept, as its accept needs them."""
    try:
        from sglang.kernels.ops.speculative.dspark.markov_sample import MarkovSampleStep
    except ImportError:
        return None
    offset = torch.zeros(1, dtype=torch.int64, device="cuda")
    kept = torch.empty_like(data.base[0]) if data.temperatures[0] > 0 else None

    def run(i: int) -> None:
        previous = data.anchors
        for k in range(data.sizes.gamma):
            bias = data.head.w1[previous] @ data.head.w2.t()
            previous = MarkovSampleStep.execute(
                base_logits=data.base[i][:, k], bias=bias, temperatures=data.temperatures, key=1, offset=offset,
                step=k, step_dtype=torch.bfloat16, logits_out=None if kept is None else kept[:, k],
                has_sampled_rows=None if kept is not None else False,
            )  # fmt: skip

    try:
        return eager_us(run, len(data.base))
    except (TypeError, RuntimeError, AssertionError) as error:
        print(f"SGLang's loop was not timed: {error}")
        return None


def check_schedule(requests: int, gamma: int) -> tuple[Tensor, ...]:
    rng = np.random.default_rng(requests)
    confidence = rng.uniform(0.3, 1.0, (requests, gamma)).astype(np.float32)
    earlier = rng.uniform(0.3, 1.0, (requests, gamma)).astype(np.float32)
    limits = rng.integers(0, gamma + 1, requests)
    seconds = 1e-3 * (1 + 1e-4 * np.arange(requests * (1 + gamma) + 1) ** 1.3)
    tensors = tuple(torch.from_numpy(x).cuda() for x in (confidence, seconds, limits, earlier))
    causal = cuda.schedule(*tensors[:3])[0].cpu().numpy()
    require((causal == prefix.causal_scan(confidence, seconds, limits)).all(), f"causal scan, R = {requests}")
    budget = prefix.best_budget(earlier, seconds, limits)
    lagged = cuda.schedule(*tensors)[0].cpu().numpy()
    require((lagged == prefix.lagged_topk(confidence, budget, limits)).all(), f"lagged budget, R = {requests}")
    return tensors


def time_schedule(requests: int, gamma: int) -> list[Line]:
    tensors = check_schedule(requests, gamma)
    # Nothing here is bound by bytes: the floor is one empty launch.
    empty = torch.zeros(1, device="cuda")
    launch = median_us(lambda _: empty.zero_(), 1)
    causal = median_us(lambda _: cuda.schedule(*tensors[:3]), 1)
    lagged = median_us(lambda _: cuda.schedule(*tensors), 1)
    return [
        Line("causal scan", requests, None, causal, launch),
        Line("lagged top-K", requests, None, lagged, launch),
    ]


def time_accept(data: Batch, bytes_per_us: float) -> list[Line]:
    """Lengths of 3 on average; fp32 logits near the draft's own, so that some tokens pass."""
    s = data.sizes
    lengths = torch.arange(data.batch, device="cuda") % 7
    lengths = lengths.clamp_max(s.gamma)
    start = (lengths + 1).cumsum(0) - lengths - 1
    out = cuda.draft_sparse(*data.arguments(), s.support)
    rows = int((lengths + 1).sum())
    request = torch.repeat_interleave(torch.arange(data.batch, device="cuda"), lengths + 1)
    offset = torch.arange(rows, device="cuda") - start[request]
    logits = data.base[0][request, offset.clamp_max(s.gamma - 1)].float()

    def run(_: int) -> Any:
        return cuda.accept(
            logits, None, out.tokens, out.usable, out.q, start, lengths, data.temperatures, data.noise
        )  # fmt: skip

    tokens, counts, last = run(0)
    check_accept(data, logits, out, start, lengths, tokens, counts)
    require(torch.equal(last, tokens.gather(1, counts.unsqueeze(1) - 1).squeeze(1)), "accept: last")
    measured = median_us(run, 1)
    pieces = eager_us(lambda _: torch.softmax(logits, dim=-1).gather(1, out.tokens[request][:, :1]), 1)
    return [Line("accept", data.batch, float(data.temperatures[0]), measured, logits.nbytes / bytes_per_us, pieces)]


def check_accept(
    data: Batch, logits: Tensor, out: cuda.CudaDraft, start: Tensor, lengths: Tensor, tokens: Tensor, counts: Tensor
) -> None:
    """The first requests against the float64 reference; decisions within rounding are left out."""
    from sglang_dspark.ops.reference_accept import reference_accept

    for r in range(min(4, data.batch)):
        rows = slice(int(start[r]), int(start[r] + lengths[r]) + 1)
        q = out.q.rows(torch.full((data.sizes.gamma,), r), torch.arange(data.sizes.gamma), data.sizes.vocab)
        noise = data.noise.seed, int(data.noise.streams[r]), int(data.noise.rounds[r])
        temperature = float(data.temperatures[r])
        q_rows = q.double().cpu().numpy() if temperature else None
        emitted, margin = reference_accept(
            logits[rows].double().cpu().numpy(), out.tokens[r].tolist(), q_rows,
            int(out.usable[r]), temperature, noise,
        )  # fmt: skip
        require(margin < 1e-6 or tokens[r, : counts[r]].tolist() == emitted, f"accept: request {r}")


def head_of(sizes: Sizes) -> MarkovHead:
    g = torch.Generator("cuda").manual_seed(0)
    w1, w2 = (torch.randn(sizes.vocab, sizes.rank, generator=g, device="cuda").bfloat16() for _ in range(2))
    return MarkovHead("vanilla", w1, (w2.float() * 0.1).bfloat16())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="start no further measurement after this long")
    for name, default in (("vocab", 151936), ("rank", 256), ("support", 256), ("gamma", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check needs a CUDA device, and torch sees none here", file=sys.stderr)
        return 2
    if not cuda.available():
        print("gpu_check needs sglang_dspark._CUDA: reinstall the package where nvcc is found", file=sys.stderr)
        return 2
    began = time.monotonic()
    sizes = Sizes(args.vocab, args.rank, args.support, args.gamma)
    head = head_of(sizes)
    bytes_per_us = bandwidth() * 1e-6
    check_dispatch(require)
    lines: list[Line] = []
    for requests in BATCHES:
        lines += time_schedule(requests, sizes.gamma)
    for batch in BATCHES:
        for temperature in (0.0, 1.0):
            if time.monotonic() - began > 60 * args.minutes * 0.8:
                print(f"out of time before B = {batch}, T = {temperature:g}")
                continue
            data = Batch(sizes, batch, temperature, head)
            check_draft(data)
            lines += time_draft(data, bytes_per_us, torch_too=batch <= 64)
            lines += time_accept(data, bytes_per_us)
    try:
        import sglang

        print(f"SGLang {sglang.__version__}")
    except ImportError:
        print("SGLang is not installed: its column is empty")
    print(f"{torch.cuda.get_device_name()}, {bytes_per_us * 1e-6:.2f} TB/s read, torch {torch.__version__}, {sizes}")
    print(HEADER)
    for line in lines:
        print(line.format())
    return 0


if __name__ == "__main__":
    sys.exit(main())
