"""A training run on disk: `checkpoint.pt` with everything a resumed run needs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.errors import ConfigError
from sglang_dspark.model.draft import DraftShape

CHECKPOINT = "checkpoint.pt"


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the run's checkpoint atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (CHECKPOINT + ".partial")
    torch.save(state, partial)
    os.replace(partial, folder / CHECKPOINT)


def read_state(folder: Path) -> dict[str, Any]:
    """The run's checkpoint.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise ConfigError(f"--run {folder}: no {CHECKPOINT} there")
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise ConfigError(f"{path}: damaged ({error}); remove it to begin anew") from error
    return state


def shape_of(state: dict[str, Any]) -> DraftShape:
    """The shape of the draft that is trained."""
    return DraftShape(**{**state["shape"], "target_layer_ids": tuple(state["shape"]["target_layer_ids"])})


def weights_of(state: dict[str, Any]) -> dict[str, Tensor]:
    """What is exported of the run so far: the averaged weights where there are any."""
    averaged = state["ema"] if state["settings"]["ema_decay"] > 0 else {}
    return exported({**state["draft"], **averaged}, state["feature_scale"])


def exported(weights: dict[str, Tensor], feature_scale: Tensor) -> dict[str, Tensor]:
    """Weights for features as the target gives them: `fc` was trained on features over `feature_scale`."""
    return {name: w.detach() / feature_scale if name == "fc.weight" else w.detach() for name, w in weights.items()}
