"""The sequential loop, the accept and the scheduler: this project, plain torch, and the ops inside the SGLang wheel.

    python python_bench/bench_ops.py [--only draft,accept,schedule] [--batches 1,16,64]

Everything runs on the same inputs in the same run, interleaved, after a check that the results agree. Weights and
logits rotate through several copies, so that no call finds its own in a cache. Floors are the bytes that must be read,
divided by the bandwidth measured in between. The scheduler's own figures leave the binding out (one call, many times).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

import numpy as np
import torch
import torch.nn.functional as F
from timing import interleave, summary, write_results

from sglang_dspark.engine.cpu.bootstrap import install

install()

from sglang.kernels.ops.speculative.dspark.dspark_accept import SoftmaxTemp  # noqa: E402
from sglang.kernels.ops.speculative.dspark.dspark_schedule import ScheduleVerifyLensTopk  # noqa: E402
from sglang.kernels.ops.speculative.dspark.markov_sample import MarkovSampleStep  # noqa: E402
from sglang.srt.speculative.dspark_components.dspark_planner import (  # noqa: E402
    DSparkScheduleConfig,
    compute_verify_token_budget,
)
from sglang.srt.speculative.dspark_components.dspark_sps import SpsCostTable  # noqa: E402

from sglang_dspark.ops.accept import accept  # noqa: E402
from sglang_dspark.ops.accept_torch import accept_torch  # noqa: E402
from sglang_dspark.ops.draft_block import DraftBlock, MarkovHead, draft_block  # noqa: E402
from sglang_dspark.ops.draft_torch import draft_block_torch  # noqa: E402
from sglang_dspark.ops.extension import extension  # noqa: E402
from sglang_dspark.ops.noise import Noise  # noqa: E402
from sglang_dspark.ops.ragged import RaggedRows  # noqa: E402
from sglang_dspark.schedule import prefix  # noqa: E402

V, RANK, GAMMA, SUPPORT = 151_936, 256, 7, 256
COLD_BYTES = 300 << 20  # copies of an input add up to at least this


def main() -> None:
    """Run the chosen parts, print a table of each, write JSON."""
    options = parse_options()
    torch.manual_seed(0)
    parts = {"draft": bench_draft, "accept": bench_accept, "schedule": bench_schedule}
    payload: dict[str, Any] = {"settings": {k: v for k, v in vars(options).items() if k not in ("name", "results")}}
    for name in options.only.split(","):
        payload[name] = parts[name](options)
        print_table(name, payload[name])
    path = write_results(options.name, payload, options.results)
    print(f"Written: {path}")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", default="draft,accept,schedule")
    add("--batches", default="1,16,64")
    add("--requests", default="64,256,1024", help="sizes of the scheduler")
    add("--logits", choices=["float32", "bfloat16"], default="bfloat16", help="type of the draft's base logits")
    add("--repetitions", type=int, default=7)
    add("--name", default="ops")
    add("--results", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def bench_draft(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The loop at every batch size, T = 0 and 1."""
    weights = [
        ((torch.randn(V, RANK) / 4).bfloat16(), (torch.randn(V, RANK) / 4).bfloat16())
        for _ in range(1 + COLD_BYTES // (V * RANK * 2))
    ]
    bandwidth_of = torch.randn(64 << 20)
    rows = []
    for batch in numbers(options.batches):
        logits_bytes = batch * GAMMA * V * (4 if options.logits == "float32" else 2)
        bases = [
            (torch.randn(batch, GAMMA, V) * 3).to(getattr(torch, options.logits))
            for _ in range(max(1, min(8, COLD_BYTES // logits_bytes)))
        ]
        for temperature in (0.0, 1.0):
            functions = draft_functions(weights, bases, batch, temperature)
            functions["read"] = lambda: bandwidth_of.sum()
            seconds = interleave(functions, options.repetitions if batch < 64 else max(3, options.repetitions // 2), 1)
            bandwidth = bandwidth_of.numel() * 4 / summary(seconds.pop("read")).median
            w2_bytes, gathered = GAMMA * V * RANK * 2, batch * GAMMA * SUPPORT * RANK * 2
            floors = {"dense": (w2_bytes + logits_bytes) / bandwidth, "sparse": (gathered + logits_bytes) / bandwidth}
            rows.append(record({"batch": batch, "temperature": temperature}, seconds, bandwidth, floors))
    return rows


def draft_functions(
    weights: list[tuple[torch.Tensor, torch.Tensor]], bases: list[torch.Tensor], batch: int, temperature: float
) -> dict[str, Callable[[], Any]]:
    """The same draft four ways, checked to agree where they are defined to."""
    anchors, hidden = torch.randint(0, V, (batch,)), torch.zeros(batch, GAMMA, 8)
    temperatures = torch.full((batch,), temperature)
    noise = Noise(1, torch.arange(batch), torch.zeros(batch, dtype=torch.int64))
    heads = [MarkovHead("vanilla", *pair) for pair in weights]
    inputs = {name: cycle(zip(heads * len(bases), bases * len(heads), strict=True)) for name in ("a", "b", "c", "d")}

    def ours(key: str, support: int | None) -> DraftBlock:
        head, base = next(inputs[key])
        sampled = temperatures if temperature else None
        return draft_block(base, anchors, hidden, head, None, sampled, noise, support=support)

    def check(support: int | None) -> None:
        some = slice(0, 2)
        part = Noise(1, noise.streams[some], noise.rounds[some])
        arguments = (bases[0][some], anchors[some], hidden[some], heads[0], None, temperatures[some], part)
        got, expected = draft_block(*arguments, support=support), draft_block_torch(*arguments, support)
        if not torch.equal(got.tokens, expected[0]):
            raise SystemExit(f"the extension and torch disagree: {got.tokens.tolist()}, {expected[0].tolist()}")

    check(None)
    check(SUPPORT)
    return {
        "sparse": lambda: ours("a", SUPPORT),
        "dense": lambda: ours("b", None),
        "sglang": lambda: sglang_loop(*next(inputs["c"]), anchors, temperatures),
        "torch": lambda: torch_loop(*next(inputs["d"]), anchors, temperature),
    }


def sglang_loop(
    head: MarkovHead, base: torch.Tensor, anchors: torch.Tensor, temperatures: torch.Tensor
) -> torch.Tensor:
    """`draft_markov_block` of the wheel: the bias GEMM, then its sampling step; sampled drafts keep their logits."""
    sampled = bool((temperatures > 0).any())
    kept = torch.empty_like(base) if sampled else None
    tokens, previous = [], anchors
    for step in range(GAMMA):
        previous = MarkovSampleStep.execute(
            base_logits=base[:, step],
            bias=F.linear(F.embedding(previous, head.w1), head.w2),
            temperatures=temperatures,
            key=7,
            offset=torch.zeros(1, dtype=torch.int64),
            step=step,
            step_dtype=base.dtype,
            logits_out=None if kept is None else kept[:, step],
            has_sampled_rows=None if sampled else False,
        ).long()
        tokens.append(previous)
    return torch.stack(tokens, dim=1)


def torch_loop(head: MarkovHead, base: torch.Tensor, anchors: torch.Tensor, temperature: float) -> torch.Tensor:
    """The shortest loop in torch that keeps q."""
    tokens, previous = [], anchors
    q = torch.empty(base.shape, dtype=torch.float32) if temperature else None
    for step in range(GAMMA):
        logits = base[:, step].float() + F.linear(F.embedding(previous, head.w1), head.w2)
        if q is None:
            previous = logits.argmax(dim=-1)
        else:
            q[:, step] = torch.softmax(logits / temperature, dim=-1)
            previous = torch.multinomial(q[:, step], 1).squeeze(1)
        tokens.append(previous)
    return torch.stack(tokens, dim=1)


def bench_accept(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Sampled, verify lengths averaging 3, T = 1, q from the sparse and the dense form."""
    head = MarkovHead("vanilla", (torch.randn(V, RANK) / 4).bfloat16(), (torch.randn(V, RANK) / 4).bfloat16())
    return [accept_row(head, batch, options.repetitions) for batch in numbers(options.batches)]


def accept_row(head: MarkovHead, batch: int, repetitions: int) -> dict[str, Any]:
    """One batch size."""
    rows = RaggedRows.of([3 + (r % 3 - 1 if batch > 2 else 0) for r in range(batch)], "cpu")
    base, anchors, hidden = torch.randn(batch, GAMMA, V) * 3, torch.zeros(batch).long(), torch.zeros(batch, GAMMA, 8)
    temperatures = torch.ones(batch)
    noise = Noise(1, torch.arange(batch), torch.zeros(batch, dtype=torch.int64))
    arguments = (base, anchors, hidden, head, None, temperatures, noise)
    sparse, dense = draft_block(*arguments, support=SUPPORT), draft_block(*arguments)
    target = base[rows.request, rows.offset] + torch.randn(rows.total, V) * 0.5
    # Favoured by as much as leaves about two of three tokens accepted.
    target[torch.arange(rows.total), sparse.tokens[rows.request, rows.offset]] += 1.0
    got = accept(target, sparse, rows, temperatures, noise)
    expected = accept_torch(target, None, sparse.tokens, sparse.q, sparse.usable, rows, temperatures, noise)
    if not torch.equal(got.tokens, expected[0]):
        raise SystemExit("the extension and torch disagree about the accepted tokens")
    bandwidth_of = torch.randn(64 << 20)
    seconds = interleave(
        {
            "sparse": lambda: accept(target, sparse, rows, temperatures, noise),
            "dense": lambda: accept(target, dense, rows, temperatures, noise),
            "sglang": lambda: sglang_accept(target, base, sparse.tokens, rows, temperatures),
            "read": lambda: bandwidth_of.sum(),
        },
        repetitions if batch < 64 else max(3, repetitions // 2),
        1,
    )
    bandwidth = bandwidth_of.numel() * 4 / summary(seconds.pop("read")).median
    reached = int(got.counts.sum())
    floors = {"sparse": reached * V * 4 / bandwidth, "dense": (reached * V * 4 + V * RANK * 2) / bandwidth}
    return record({"batch": batch, "rows": rows.total, "emitted": reached}, seconds, bandwidth, floors)


def sglang_accept(
    target: torch.Tensor, step_logits: torch.Tensor, tokens: torch.Tensor, rows: RaggedRows, temperatures: torch.Tensor
) -> torch.Tensor:
    """What the wheel's sampled accept does, its Triton kernel written in torch: scatter to full width, both softmaxes,
    then test, residual and draw on `[B, γ + 1, V]`."""
    batch = len(temperatures)
    strided = target.new_zeros((batch * (GAMMA + 1), V))
    strided[rows.request * (GAMMA + 1) + rows.offset] = target
    p = SoftmaxTemp.execute(logits=strided, temperatures=temperatures.unsqueeze(1), rows_per_request=GAMMA + 1)
    q = SoftmaxTemp.execute(
        logits=step_logits.view(batch * GAMMA, V), temperatures=temperatures.unsqueeze(1), rows_per_request=GAMMA
    )
    p, q = p.view(batch, GAMMA + 1, V), q.view(batch, GAMMA, V)
    index = tokens.unsqueeze(-1)
    passed = torch.rand(batch, GAMMA) * q.gather(2, index).squeeze(-1) < p[:, :GAMMA].gather(2, index).squeeze(-1)
    correct = torch.minimum(passed.cumprod(dim=1).sum(dim=1), rows.lengths)
    everyone = torch.arange(batch)
    left = p[everyone, correct] - q[everyone, correct.clamp(max=GAMMA - 1)]
    cumulative = left.clamp_min(0).cumsum(dim=-1)
    return torch.searchsorted(cumulative, torch.rand(batch, 1) * cumulative[:, -1:])


def bench_schedule(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Budget and lengths: a lagged round (budget, then top-K), and the causal scan."""
    native = extension()
    if native is None:
        raise SystemExit("the extension is not built")
    rows, repeat = [], 50
    for requests in numbers(options.requests):
        rng = np.random.default_rng(requests)
        confidence = rng.uniform(0.5, 1.0, (requests, GAMMA)).astype(np.float32)
        limits = np.full(requests, GAMMA)
        for share in (0.25, 1.0):
            budget = int(requests * GAMMA * share)
            totals = np.arange(requests * (1 + GAMMA) + 1)
            # Flat up to the budget and steep past it: the best K is the budget, and the scan gets there.
            seconds = 1.0 + np.maximum(totals - requests - budget, 0.0) * 10.0
            table = SpsCostTable(totals[1:].tolist(), (1 / seconds[1:]).tolist(), int(totals[-1]))
            cfg = DSparkScheduleConfig(gamma=GAMMA, max_verify_len=GAMMA, min_verify_len=0)
            tensor = torch.from_numpy(confidence)
            survivals = torch.cumprod(tensor, dim=1)

            def sglang(tensor=tensor, survivals=survivals, table=table, cfg=cfg) -> torch.Tensor:
                decision = compute_verify_token_budget(history_survival_probs=survivals, sps_table=table, cfg=cfg)
                return ScheduleVerifyLensTopk.execute(confidence=tensor, budget=decision.budget, cfg=cfg)

            expected = prefix.lagged_topk(confidence, budget, limits)
            for lengths in (
                native.top_candidates(confidence, native.best_budget(confidence, seconds, limits), limits),
                native.causal_scan(confidence, seconds, limits),
                np.minimum(sglang().numpy(), expected),  # it admits one position for everybody
            ):
                if not np.array_equal(lengths, expected):
                    raise SystemExit(f"schedulers disagree at R = {requests}, budget {budget}")
            c, s, m = confidence, seconds, limits
            functions: dict[str, Callable[[], Any]] = {
                "causal": lambda c=c, s=s, m=m: native.causal_scan(c, s, m, repeat),
                "budget": lambda c=c, s=s, m=m: native.best_budget(c, s, m, repeat),
                "lagged": lambda c=c, b=budget, m=m: native.top_candidates(c, b, m, repeat),
                "sglang": sglang,
            }
            timed = interleave(functions, 10 * options.repetitions)
            inside = {name: [t / (1 if name == "sglang" else repeat) for t in times] for name, times in timed.items()}
            rows.append(record({"requests": requests, "admitted": budget}, inside, None, {}))
    return rows


def record(
    about: dict[str, Any], seconds: dict[str, list[float]], bandwidth: float | None, floors: dict[str, float]
) -> dict[str, Any]:
    """One row: medians with spread, how many times faster than the wheel, share of the floor."""
    medians = {name: summary(times) for name, times in seconds.items()}
    return about | {
        "seconds": {name: vars(value) for name, value in medians.items()},
        "times_sglang": {name: medians["sglang"].median / value.median for name, value in medians.items()},
        "bytes_per_second": bandwidth,
        "floor_seconds": floors,
        "of_floor": {name: floor / medians[name].median for name, floor in floors.items()},
    }


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """One line per row and implementation."""
    print(f"\n{title}")
    for row in rows:
        about = ", ".join(f"{k} {v}" for k, v in row.items() if isinstance(v, int | float) and "second" not in k)
        print(f"  {about}")
        for name, value in row["seconds"].items():
            spread = f"{value['lower_quartile'] * 1e6:.1f}, {value['upper_quartile'] * 1e6:.1f}"
            floor = row["of_floor"].get(name)
            print(
                f"    {name:8} {value['median'] * 1e6:12.1f} us [{spread}]  {row['times_sglang'][name]:8.2f} x"
                + ("" if floor is None else f"  {floor:.0%} of the floor's speed")
            )
    sys.stdout.flush()


def numbers(text: str) -> list[int]:
    """`1,16` -> [1, 16]."""
    return [int(x) for x in text.split(",")]


if __name__ == "__main__":
    main()
