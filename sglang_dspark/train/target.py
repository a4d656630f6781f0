"""The frozen target during training: its hidden states at chosen layers, its distributions, its embedding."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.errors import ConfigError
from sglang_dspark.train.data import Row

_SLAB_ROWS = 16384


@dataclass
class RowFeatures:
    """What the target says about one row of L tokens, P of them the prompt.

    Attributes:
        hidden: bf16 [L-1, K*H], outputs of the K feature layers, at positions 0..L-2.
        top_ids: int32 [R, C], the C most likely next tokens at positions P..L-2 (R = L-1-P of them).
        top_probs: bf16 [R, C], their probabilities at temperature 1.
    """

    hidden: Tensor
    top_ids: Tensor
    top_probs: Tensor

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.hidden, self.top_ids, self.top_probs))


def import_transformers() -> Any:
    """`transformers`, also beside a CPU torch where the PyPI build of torchvision cannot be imported unaided."""
    if torch.version.cuda is None and torch.version.hip is None:
        from sglang_dspark.engine.cpu import bootstrap

        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        bootstrap.install()
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


class Target:
    """A Hugging Face causal language model in evaluation mode.

    Raises:
        ConfigError: the folder holds no such model.
    """

    def __init__(self, path: Path, dtype: torch.dtype, device: str = "cpu") -> None:
        if not (path / "config.json").is_file():
            raise ConfigError(f"--target {path}: no config.json there; give the folder of a Hugging Face model")
        transformers = import_transformers()
        self.path, self.dtype, self.device = path, dtype, device
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
        self.model.requires_grad_(False)
        self.config: dict[str, Any] = self.model.config.to_dict()
        embedding = self.model.get_input_embeddings()
        # Gemma multiplies what it looks up, and bends its logits.
        scale = getattr(embedding, "embed_scale", None)
        self.embedding: Tensor = embedding.weight if scale is None else embedding.weight * scale
        self.softcap = float(self.config.get("final_logit_softcapping") or 0.0)
        self.lm_head: Tensor = self.model.get_output_embeddings().weight

    @torch.no_grad()
    def hidden_states(self, rows: list[Row], layer_ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Padded forward over the rows' tokens.

        Returns:
            Outputs of the layers, concatenated, [S, L, K*H], and the last hidden state (final norm applied), [S, L, H].
        """
        longest = max(len(row.tokens) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row.tokens)] = torch.tensor(row.tokens)
        # No mask: padding comes last, where causal attention cannot see it, and the masked kernel is slower.
        output = self.model.model(input_ids=ids.to(self.device), output_hidden_states=True, use_cache=False)
        # hidden_states[0] is the embedding, hidden_states[i + 1] the output of layer i.
        layers = [output.hidden_states[i + 1] for i in layer_ids]
        return torch.cat(layers, dim=-1), output.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H], the final norm applied -> [..., V] in the weights' dtype."""
        logits = torch.nn.functional.linear(hidden, self.lm_head)
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits

    @torch.no_grad()
    def features(self, rows: list[Row], layer_ids: tuple[int, ...], top: int) -> list[RowFeatures]:
        """`RowFeatures` of each row; `top` is C."""
        hidden, last = self.hidden_states(rows, layer_ids)
        result = []
        for index, row in enumerate(rows):
            end = len(row.tokens) - 1
            logits = self.logits(last[index, len(row.p) : end])
            probs, ids = logits.softmax(-1).topk(min(top, logits.shape[-1]), dim=-1)
            kept = hidden[index, :end].to(torch.bfloat16).clone()
            result.append(RowFeatures(kept, ids.to(torch.int32), probs.to(torch.bfloat16)))
        return result


class FeatureCache:
    """Features per row, computed when first asked for and kept in memory up to a budget.

    Rows that no longer fit are computed again each time, so any budget gives the same training.
    """

    def __init__(self, target: Target, layer_ids: tuple[int, ...], top: int, budget_bytes: int) -> None:
        self.target, self.layer_ids, self.top, self.budget = target, layer_ids, top, budget_bytes
        self.kept: dict[int, RowFeatures] = {}
        self.used = 0
        self._slabs: dict[str, tuple[Tensor, int]] = {}

    def get(self, rows: list[Row], indices: list[int]) -> list[RowFeatures]:
        """Features of `rows[i]` for i in `indices`."""
        found = {index: self.kept[index] for index in indices if index in self.kept}
        missing = [index for index in indices if index not in found]
        if missing:
            fresh = self.target.features([rows[i] for i in missing], self.layer_ids, self.top)
            for index, features in zip(missing, fresh, strict=True):
                found[index] = features
                if self.used + features.nbytes <= self.budget:
                    names = ("hidden", "top_ids", "top_probs")
                    self.kept[index] = RowFeatures(*(self._keep(n, getattr(features, n)) for n in names))
                    self.used += features.nbytes
        return [found[index] for index in indices]

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        """Copy into a large shared allocation: small tensors that stay, between large ones that go, fragment the heap
        (six times the memory was measured)."""
        slab, start = self._slabs.get(name, (tensor[:0], 0))
        if start + len(tensor) > len(slab):
            slab, start = tensor.new_empty(max(_SLAB_ROWS, len(tensor)), *tensor.shape[1:]), 0
        self._slabs[name] = (slab, start + len(tensor))
        place = slab[start : start + len(tensor)]
        place.copy_(tensor)
        return place
