"""Paged attention on the CPU: this project's kernel per instruction set, beside torch's loop over requests.

Every arm is compared with the float64 reference before it is timed. The loop is what the engine's own `torch_native`
backend does per layer: gather the pages of one request, then `scaled_dot_product_attention`.

    python python_bench/bench_attention.py [--dtype bfloat16] [--repetitions 30] [--write]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from timing import interleave, machine, summary, write_results
from torch import Tensor

from sglang_dspark.ops.attention import AttentionBatch, batch_attention
from sglang_dspark.ops.extension import describe
from sglang_dspark.ops.reference import paged_attention_reference


@dataclass(frozen=True)
class Shape:
    """One batch: `requests` requests of `rows` rows each behind `prefix` positions, and a model's heads."""

    name: str
    requests: int
    rows: int
    prefix: int
    heads: int = 9
    kv_heads: int = 3
    dim: int = 64


SHAPES = (
    Shape("decode, 1 request", 1, 1, 500),
    Shape("decode, 32 requests", 32, 1, 250),
    Shape("verify 5 + 1, 8 requests", 8, 6, 250),
    Shape("verify 5 + 1, 32 requests", 32, 6, 250),
    Shape("prefill 512", 1, 512, 0),
    Shape("decode 4096, 8 KV heads of 128", 4, 1, 4096, heads=32, kv_heads=8, dim=128),
)


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    batch: AttentionBatch
    causal: bool = True


def make_inputs(shape: Shape, dtype: torch.dtype) -> Inputs:
    """Random pages in random order; lengths differ by up to a quarter."""
    torch.manual_seed(0)
    prefixes = [shape.prefix - shape.prefix * i // (4 * shape.requests) for i in range(shape.requests)]
    lengths = [prefix + shape.rows for prefix in prefixes]
    slots = torch.randperm(sum(lengths)).to(torch.int32)
    table = torch.zeros(shape.requests, max(lengths), dtype=torch.int32)
    for row, (length, own) in enumerate(zip(lengths, slots.split(lengths), strict=True)):
        table[row, :length] = own
    q = torch.randn(shape.requests * shape.rows, shape.heads, shape.dim).to(dtype)
    k, v = (torch.randn(sum(lengths), shape.kv_heads, shape.dim).to(dtype) for _ in range(2))
    starts = torch.arange(shape.requests + 1) * shape.rows
    batch = AttentionBatch.build(table, torch.arange(shape.requests), starts, torch.tensor(lengths))
    return Inputs(q, k, v, batch)


def torch_loop(x: Inputs) -> Tensor:
    """Request by request, as the engine's own backend, without its redundant rows in prefill."""
    out = torch.empty_like(x.q)
    starts, lengths = x.batch.query_start.tolist(), x.batch.kv_lens.tolist()
    for i, length in enumerate(lengths):
        slots = x.batch.req_to_token[i, :length]
        count = starts[i + 1] - starts[i]
        visible = torch.ones(count, length, dtype=torch.bool).tril(length - count) if count > 1 else None
        q, k, v = (t.movedim(0, 1).unsqueeze(0) for t in (x.q[starts[i] : starts[i + 1]], x.k[slots], x.v[slots]))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
        out[starts[i] : starts[i + 1]] = attended.squeeze(0).movedim(1, 0)
    return out


def arms(x: Inputs) -> dict[str, Callable[[], Tensor]]:
    """By name; the first is the baseline."""
    own = {isa: partial(batch_attention, x.q, x.k, x.v, x.batch, causal=x.causal, isa=isa) for isa in describe().isas}
    return {"torch loop": partial(torch_loop, x), **own}


def check(x: Inputs, functions: dict[str, Callable[[], Tensor]]) -> None:
    """Raises AssertionError for an arm that is wrong."""
    b = x.batch
    expected = paged_attention_reference(
        x.q, x.k, x.v, b.req_to_token, b.req_pool_indices, b.query_start, b.kv_lens, causal=x.causal,
        scale=x.q.shape[2] ** -0.5,
    )  # fmt: skip
    allowed = 1e-5 if x.q.dtype == torch.float32 else 2e-2
    for name, function in functions.items():
        torch.testing.assert_close(function(), expected, rtol=allowed, atol=allowed, msg=lambda m, n=name: f"{n}: {m}")


def read_bytes(x: Inputs) -> int:
    """Keys and values that must be read at least once."""
    return int(x.batch.kv_lens.sum()) * x.k.shape[1] * (x.k.shape[2] + x.v.shape[2]) * x.k.element_size()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--write", action="store_true", help="also write python_bench/results/attention_<dtype>.json")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    print(f"{machine()['cpu']}, {torch.get_num_threads()} threads, {options.dtype}; extension: {describe()}")
    rows = []
    for shape in SHAPES:
        x = make_inputs(shape, dtype)
        functions = arms(x)
        check(x, functions)
        times = {name: summary(s) for name, s in interleave(functions, options.repetitions).items()}
        print(f"\n{shape.name}")
        for name, time in times.items():
            ratio = times["torch loop"].median / time.median
            rate = read_bytes(x) / time.median / 1e9
            print(f"  {name:10} {time.format('us'):>34}   {ratio:6.2f} x   {rate:6.1f} GB/s of keys and values")
            rows.append({"shape": shape.name, "arm": name, "seconds": time.median, "ratio": ratio, "gb_per_s": rate})
    if options.write:
        print(write_results(f"attention_{options.dtype}", {"rows": rows}))


if __name__ == "__main__":
    main()
