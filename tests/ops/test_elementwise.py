"""The elementwise operations against float64 torch, on every instruction set of this CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_dspark.ops import elementwise, extension

ISAS = extension.describe().isas
CLOSE = {torch.float32: {"rtol": 2e-6, "atol": 2e-6}, torch.bfloat16: {"rtol": 8e-3, "atol": 8e-3}}

pytestmark = pytest.mark.skipif(not ISAS, reason=f"sglang_dspark._C is {extension.describe().reason}")

dtypes = st.sampled_from(sorted(CLOSE, key=str))
rows = st.integers(0, 40)
widths = st.sampled_from([1, 7, 8, 16, 33, 64, 576])


def wide(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random rows that are part of wider ones."""
    torch.manual_seed(seed)
    return (torch.randn(shape[0], shape[1] + 5) * 3).to(dtype)[:, 2:-3]


@settings(max_examples=40, deadline=None)
@given(rows, widths, dtypes, st.booleans(), st.integers(0, 99))
def test_rms_norm(count: int, width: int, dtype: torch.dtype, with_residual: bool, seed: int) -> None:
    x = wide((count, width), dtype, seed)
    residual = wide((count, width), dtype, seed + 1) if with_residual else None
    weight = torch.randn(width).to(dtype)
    expected = elementwise.rms_norm_reference(x, weight, 1e-5, residual, torch.float64)
    for isa in ISAS:
        got = elementwise.rms_norm(x, weight, 1e-5, residual, isa=isa)
        torch.testing.assert_close(got, expected, **CLOSE[dtype])


@settings(max_examples=40, deadline=None)
@given(rows, widths, dtypes, st.integers(0, 99))
def test_silu_and_mul(count: int, width: int, dtype: torch.dtype, seed: int) -> None:
    x = wide((count, 2 * width), dtype, seed)
    if count:
        x[0, 0] = -200.0  # exp(200) overflows; silu is 0
        x[-1, width - 1] = 200.0
    expected = elementwise.silu_and_mul_reference(x, torch.float64)
    for isa in ISAS:
        torch.testing.assert_close(elementwise.silu_and_mul(x, isa=isa), expected, **CLOSE[dtype])


@settings(max_examples=40, deadline=None)
@given(rows, st.integers(1, 5), st.sampled_from([(16, 16), (64, 64), (80, 80), (64, 32), (20, 6)]), dtypes,
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_rotary(count: int, heads: int, dims: tuple[int, int], dtype: torch.dtype, neox: bool, seed: int) -> None:
    head_dim, rotary_dim = dims
    x = wide((count, heads * head_dim), dtype, seed)
    angle = torch.rand(50, rotary_dim // 2) * 6
    table = torch.cat([angle.cos(), angle.sin()], dim=1)
    positions = torch.randint(0, 50, (count,))
    expected = elementwise.rotary_reference(positions, x, table, head_dim, neox=neox, dtype=torch.float64)
    for isa in ISAS:
        got = elementwise.rotary(positions, x, table, head_dim, neox=neox, isa=isa)
        torch.testing.assert_close(got, expected, **CLOSE[dtype])


def test_many_rows_use_threads() -> None:
    x = torch.randn(700, 1536)
    torch.testing.assert_close(elementwise.silu_and_mul(x), elementwise.silu_and_mul_reference(x))


def test_nan_stays_in_its_row() -> None:
    x = torch.randn(3, 64)
    x[1, 5] = float("nan")
    for isa in ISAS:
        normed, _ = elementwise.rms_norm(x, torch.ones(64), 1e-5, isa=isa)
        assert torch.isnan(normed).all(-1).tolist() == [False, True, False]
        assert torch.isnan(elementwise.silu_and_mul(x, isa=isa)).nonzero().tolist() == [[1, 5]]


def test_bad_arguments_are_named() -> None:
    x, table = torch.zeros(3, 64), torch.zeros(10, 16)
    with pytest.raises(ValueError, match="x: expected a CPU float32 or bfloat16"):
        elementwise.silu_and_mul(x.half())
    with pytest.raises(ValueError, match="x: expected an even"):
        elementwise.silu_and_mul(x[:, :63])
    with pytest.raises(ValueError, match="weight: "):
        elementwise.rms_norm(x, torch.ones(63), 1e-5)
    with pytest.raises(ValueError, match="residual: "):
        elementwise.rms_norm(x, torch.ones(64), 1e-5, torch.zeros(2, 64))
    with pytest.raises(ValueError, match="positions: expected int64"):
        elementwise.rotary(torch.zeros(2), x, table, 16, neox=True)
    with pytest.raises(ValueError, match="head_dim: 24"):
        elementwise.rotary(torch.zeros(3, dtype=torch.int64), x, table, 24, neox=True)
    with pytest.raises(IndexError, match="positions: 10 in row 2"):
        elementwise.rotary(torch.tensor([0, 9, 10]), x, table, 16, neox=True)
