"""Packed products: the same numbers, renewed when weights change, given up when memory is short."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sglang_dspark.engine.cpu import linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [4, 9, 130])
@pytest.mark.parametrize("with_bias", [False, True])
def test_same_product(dtype: torch.dtype, rows: int, with_bias: bool) -> None:
    module = nn.Linear(96, 70, bias=with_bias, dtype=dtype).requires_grad_(False)
    x = torch.randn(2, rows, 96, dtype=dtype)[:, :, :]
    out = linear.packed_linear(module, x, module.weight, module.bias)
    assert out is not None
    close = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out, module(x), rtol=close, atol=close)
    wide = torch.randn(rows, 120, dtype=dtype)[:, 10:106]
    out = linear.packed_linear(module, wide, module.weight, module.bias)
    assert out is not None
    torch.testing.assert_close(out, module(wide), rtol=close, atol=close)


def test_few_float32_rows_and_odd_inputs_use_the_plain_product() -> None:
    module = nn.Linear(96, 70, bias=False).requires_grad_(False)
    assert linear.packed_linear(module, torch.randn(1, 96), module.weight) is None
    assert linear.packed_linear(module, torch.randn(0, 96), module.weight) is None
    assert linear.packed_linear(module, torch.randn(9, 96).bfloat16(), module.weight) is None
    assert linear.packed_linear(module, torch.randn(9, 48), module.weight[:, ::2]) is None


def test_an_update_of_the_weights_renews_the_copy() -> None:
    module = nn.Linear(96, 70, bias=False).requires_grad_(False)
    x = torch.randn(8, 96)
    linear.packed_linear(module, x, module.weight)

    def update() -> str:
        module.weight.data.copy_(torch.randn(70, 96))
        return "done"

    assert linear.after_weight_update(update) == "done"
    out = linear.packed_linear(module, x, module.weight)
    assert out is not None
    torch.testing.assert_close(out, module(x))


def test_no_room_means_the_plain_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_MEMORY_SHARE", 0.0)
    weights = linear.PackedWeights()
    module = nn.Linear(96, 70).requires_grad_(False)
    assert weights.of(module, module.weight) is None
