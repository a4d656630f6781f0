"""Registration: a missing engine attribute is named, the device gate opens for CPUs only."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_dspark.engine.cpu import hooks
from sglang_dspark.errors import ContractError

pytest.importorskip("sglang")


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(ContractError, match=r"has no sglang\.srt\.nowhere\.thing .*install sglang==0\.5\.23"):
        hooks.check_attributes(("sglang.srt.nowhere.thing",))


@pytest.mark.parametrize(("device", "seen"), [("cpu", "cuda"), ("cuda:1", "cuda:1"), ("xpu", "xpu")])
def test_the_gate_renames_a_cpu_for_the_length_of_the_call(
    monkeypatch: pytest.MonkeyPatch, device: str, seen: str
) -> None:
    module = SimpleNamespace(resolving_view=lambda args: args)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    view = module.resolving_view
    observed: list[Any] = []

    def handler(args: Any) -> None:
        inside = module.resolving_view(args)
        observed.extend([inside.device, inside.page_size])

    hooks._open_gate(handler, SimpleNamespace(device=device, page_size=16))
    assert observed == [seen, 16]
    assert module.resolving_view is view


def test_the_gate_closes_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(resolving_view=lambda args: args)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    view = module.resolving_view

    def handler(args: Any) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        hooks._open_gate(handler, SimpleNamespace(device="cpu"))
    assert module.resolving_view is view
