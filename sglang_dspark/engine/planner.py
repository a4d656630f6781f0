"""Apply the configured policy to a drafted block: verify lengths for every request of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sglang_dspark.config import DSparkConfig
from sglang_dspark.errors import ConfigError
from sglang_dspark.ops.draft_block import DraftBlock
from sglang_dspark.schedule import policies


class Planner:
    """Holds the policy; stateless between rounds.

    Raises:
        ConfigError: the policy reads confidences and the checkpoint has no confidence head.
    """

    def __init__(self, config: DSparkConfig, gamma: int, has_confidence: bool) -> None:
        if config.policy == "threshold" and not has_confidence:
            raise ConfigError(
                "--dspark-policy threshold reads the draft's confidence head, and this checkpoint has none; "
                "use --dspark-policy fixed"
            )
        self._config = config
        self._gamma = gamma
        self._length = gamma if config.verify_length is None else config.verify_length

    @property
    def needs_draft(self) -> bool:
        """False when no request will verify anything, so that the draft forward need not run."""
        return self._config.policy != "fixed" or self._length > 0

    def lengths(self, block: DraftBlock, reqs: list[Any]) -> list[int]:
        """Verify lengths ℓ_r in 0..γ, never past what a request may still emit or what its draft left usable."""
        # ℓ + 1 tokens can be emitted, hence the - 1. Under overlapped scheduling the count of tokens already emitted is
        # a round old, which makes the limit larger, never too small.
        usable, confidence = self._on_host(block)
        remaining = np.array([0 if r.finished() else _remaining_output(r) - 1 for r in reqs], dtype=np.int64)
        limits = np.minimum(np.clip(remaining, 0, self._gamma), usable)
        if self._config.policy == "threshold":
            assert confidence is not None
            return policies.threshold(confidence, self._config.survival_threshold, limits).tolist()
        return policies.fixed(self._length, limits).tolist()

    def _on_host(self, block: DraftBlock) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
        """What the policy reads, in one copy. On a GPU it waits for the draft; lengths are decided on the host."""
        if self._config.policy != "threshold" or block.confidence is None:
            return block.usable.cpu().numpy(), None
        # Up to 255, so that float32 holds it.
        packed = torch.cat([block.usable.unsqueeze(1).to(torch.float32), block.confidence], dim=1).cpu().numpy()
        return packed[:, 0].astype(np.int64), packed[:, 1:]


def _remaining_output(req: Any) -> int:
    limit = req.sampling_params.max_new_tokens
    return 1 << 30 if limit is None else limit - len(req.output_ids)
