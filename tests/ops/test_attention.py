"""Paged attention against the float64 reference: every instruction set of this CPU, and the torch version."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_dspark.ops import attention as attention_module
from sglang_dspark.ops import extension
from sglang_dspark.ops.attention import AttentionBatch, batch_attention, paged_attention
from sglang_dspark.ops.reference import paged_attention_reference

ISAS = extension.describe().isas
needs_extension = pytest.mark.skipif(not ISAS, reason=f"sglang_dspark._C is {extension.describe().reason}")
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    q: Tensor
    k: Tensor
    v: Tensor
    req_to_token: Tensor
    rows: Tensor
    query_start: Tensor
    kv_lens: Tensor
    causal: bool = True
    window: int = -1
    logit_cap: float = 0.0
    mask: Tensor | None = None

    def arguments(self) -> tuple[Tensor, ...]:
        return self.q, self.k, self.v, self.req_to_token, self.rows, self.query_start, self.kv_lens

    def options(self) -> dict[str, object]:
        return {
            "causal": self.causal,
            "window": self.window,
            "logit_cap": self.logit_cap,
            "mask": self.mask,
            "scale": self.q.shape[2] ** -0.5,
        }


def make_case(
    counts: list[int],
    prefixes: list[int],
    *,
    group: int = 3,
    kv_heads: int = 2,
    dim: int = 64,
    v_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    q_dtype: torch.dtype | None = None,
    padding: int = 0,
    seed: int = 0,
) -> Case:
    """Pages of 4 slots in random order, every slot that belongs to no position poisoned, q with a wide row stride."""
    torch.manual_seed(seed)
    v_dim = dim if v_dim is None else v_dim
    lengths = [prefix + count for prefix, count in zip(prefixes, counts, strict=True)]
    width = max(lengths, default=0) + 3
    pages = sum(-(-length // 4) for length in lengths) + 2
    free = torch.randperm(pages).tolist()
    table = torch.full((len(counts) + 3, width), -7, dtype=torch.int32)
    k = torch.full((pages * 4, kv_heads, dim), float("nan"), dtype=dtype)
    v = torch.full((pages * 4, kv_heads, v_dim), float("nan"), dtype=dtype)
    rows = torch.randperm(len(counts) + 3)[: len(counts)]
    for row, length in zip(rows.tolist(), lengths, strict=True):
        own = [page * 4 + i for page in [free.pop() for _ in range(-(-length // 4))] for i in range(4)][:length]
        table[row, :length] = torch.tensor(own, dtype=torch.int32)
        k[own] = torch.randn(length, kv_heads, dim).to(dtype)
        v[own] = torch.randn(length, kv_heads, v_dim).to(dtype)
    total = sum(counts) + padding
    wide = torch.randn(total, kv_heads * group + 5, dim).to(q_dtype or dtype)
    starts = torch.tensor([0, *counts]).cumsum(0)
    return Case(wide[:, 2:-3], k, v, table, rows, starts, torch.tensor(lengths, dtype=torch.int64))


def check(case: Case, isas: tuple[str, ...] = ISAS) -> None:
    expected = paged_attention_reference(*case.arguments(), **case.options())  # type: ignore[arg-type]
    assert torch.isfinite(expected).all()
    allowed = TOLERANCE[torch.bfloat16 if torch.bfloat16 in (case.q.dtype, case.k.dtype) else torch.float32]
    allowed *= max(1.0, float(case.v.nan_to_num().abs().max()) / 4)
    for isa in isas:
        got = paged_attention(*case.arguments(), **case.options(), isa=isa)  # type: ignore[arg-type]
        assert got.shape == expected.shape
        assert got.dtype == case.q.dtype
        torch.testing.assert_close(got, expected, rtol=allowed, atol=allowed, msg=lambda m, isa=isa: f"{isa}: {m}")


@needs_extension
@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 150)), max_size=6),
    group=st.sampled_from([1, 3, 4]),
    dim=st.sampled_from([32, 64, 80, 128, 20]),
    dtypes=st.sampled_from([(a, b) for a in TOLERANCE for b in TOLERANCE]),
    causal=st.booleans(),
    window=st.sampled_from([-1, 0, 5, 70]),
    logit_cap=st.sampled_from([0.0, 3.0]),
    padding=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_matches_reference(
    requests: list[tuple[int, int]],
    group: int,
    dim: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    causal: bool,
    window: int,
    logit_cap: float,
    padding: int,
    seed: int,
) -> None:
    counts, prefixes = [n for n, _ in requests], [p for _, p in requests]
    case = make_case(
        counts, prefixes, group=group, dim=dim, dtype=dtypes[0], q_dtype=dtypes[1], padding=padding, seed=seed
    )
    check(replace(case, causal=causal, window=window, logit_cap=logit_cap))


@needs_extension
@pytest.mark.parametrize("counts", [[2, 5, 1], [2, 2, 5], [1], [1] * 32, [40, 1, 130]])
@pytest.mark.parametrize("causal", [True, False])
def test_shapes_a_server_sends(counts: list[int], causal: bool) -> None:
    prefixes = [(7 * i * i) % 90 for i in range(len(counts))]  # the first request has no prefix
    check(replace(make_case(counts, prefixes, padding=2), causal=causal))


@needs_extension
@pytest.mark.parametrize("count", [1, 6, 100])
def test_long_context_and_outliers(count: int) -> None:
    case = make_case([count, 3], [2000 - count, 1999], kv_heads=1)
    used = case.req_to_token[case.rows[0], :2000].long()
    case.k[used[1234]] *= 60.0  # one key that takes nearly all the weight
    case.v[used[50]] = 3e4
    check(case)


@needs_extension
def test_many_heads_share_one_kv_head() -> None:
    check(make_case([1, 3], [30, 20], group=71, kv_heads=1))


@needs_extension
def test_value_width_differs() -> None:
    check(make_case([2, 20], [9, 0], dim=48, v_dim=24))


@needs_extension
@pytest.mark.parametrize("nodes", [1, 5, 9])
def test_tree_mask(nodes: int) -> None:
    case = make_case([nodes] * 3, [0, 17, 64])
    mask = torch.rand(3, nodes, nodes) < 0.4
    mask |= torch.eye(nodes, dtype=torch.bool)
    mask[0, 0] = False  # nothing to see at all: the row is zero
    check(replace(case, mask=mask))
    assert not paged_attention(*case.arguments(), causal=True, mask=mask)[0].any()


@needs_extension
def test_empty_batch_and_padding_rows() -> None:
    case = make_case([], [], padding=3)
    for isa in ISAS:
        assert not paged_attention(*case.arguments(), causal=True, isa=isa).any()


@needs_extension
@pytest.mark.parametrize("count", [1, 30])
def test_nan_in_one_query_stays_there(count: int) -> None:
    case = make_case([count, count], [70, 5])
    case.q[0, 1] = float("nan")
    for isa in ISAS:
        bad = ~torch.isfinite(paged_attention(*case.arguments(), causal=True, isa=isa)).all(-1)
        assert bad.nonzero().tolist() == [[0, 1]]


@needs_extension
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_result(threads: int) -> None:
    case = make_case([1] * 20 + [90], [300] * 20 + [700])
    expected = paged_attention(*case.arguments(), causal=True)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(paged_attention(*case.arguments(), causal=True), expected)
    finally:
        torch.set_num_threads(before)


def test_torch_version_is_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "extension", lambda: None)
    case = make_case([2, 5, 1], [0, 17, 40], padding=1)
    expected = paged_attention_reference(*case.arguments(), causal=True, scale=0.125)
    torch.testing.assert_close(paged_attention(*case.arguments(), causal=True), expected, rtol=1e-5, atol=1e-5)


@needs_extension
def test_bad_slot_is_refused() -> None:
    case = make_case([1, 4], [8, 9])
    case.req_to_token[case.rows[1], 3] = 9999
    for isa in ISAS:
        with pytest.raises(IndexError, match="slot 9999 at position 3 of request 1"):
            paged_attention(*case.arguments(), causal=True, isa=isa)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"req_to_token": torch.zeros(4, 20)}, "req_to_token: expected int32"),
        ({"rows": torch.tensor([0, 99])}, "req_pool_indices: outside"),
        ({"rows": torch.tensor([0])}, "query_start: expected integers"),
        ({"query_start": torch.tensor([0, 3, 1])}, "query_start: expected to ascend"),
        ({"query_start": torch.tensor([0, 1, 50])}, "kv_lens: outside"),
        ({"kv_lens": torch.tensor([9, 400])}, "kv_lens: outside"),
        ({"kv_lens": torch.tensor([9.0, 13.0])}, "kv_lens: expected integers"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, "mask: expected bool or uint8 with at least 17"),
        ({"mask": torch.ones(17)}, "mask: expected bool"),
        ({"q": torch.zeros(5, 6, 32)}, "q: .* does not go with k_buffer"),
        ({"q": torch.zeros(5, 5, 64)}, "q: .* does not go with k_buffer"),
        ({"q": torch.zeros(2, 6, 64)}, "query_start: ends at 5"),
        ({"q": torch.zeros(5, 64)}, "q: expected a CPU tensor"),
        ({"v": torch.zeros(3, 2, 64)}, "v_buffer: .* does not go with k_buffer"),
        ({"k": torch.zeros(3, 2, 128)[:, :, ::2]}, "k_buffer: expected a CPU tensor"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Tensor], message: str) -> None:
    case = replace(make_case([1, 4], [8, 9]), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        paged_attention(*case.arguments(), causal=True, mask=case.mask)


@needs_extension
def test_unknown_isa_is_refused() -> None:
    case = make_case([1], [3])
    with pytest.raises(ValueError, match='isa: "sse9" is not usable here'):
        paged_attention(*case.arguments(), causal=True, isa="sse9")


@needs_extension
def test_a_checked_batch_serves_many_layers() -> None:
    case = make_case([2, 5], [3, 30])
    batch = AttentionBatch.build(case.req_to_token, case.rows, case.query_start, case.kv_lens)
    for causal in (True, False):
        expected = paged_attention(*case.arguments(), causal=causal)
        assert torch.equal(batch_attention(case.q, case.k, case.v, batch, causal=causal), expected)
