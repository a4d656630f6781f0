"""The training loop: deterministic for a number of steps, resumable, with averaged weights for export."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sglang_dspark.errors import ConfigError
from sglang_dspark.model.draft import DSparkDraft
from sglang_dspark.train.blocks import Batch, build_batch, sample_anchors
from sglang_dspark.train.data import Row, anchors_by_domain, epoch_batches, spread
from sglang_dspark.train.evaluate import draft_outputs, evaluate, mean_over_domains
from sglang_dspark.train.loss import confidence_loss, position_weights, vocabulary_loss, vocabulary_sample
from sglang_dspark.train.memory import release_free_memory
from sglang_dspark.train.ranks import Ranks
from sglang_dspark.train.report import RunLog
from sglang_dspark.train.settings import TrainSettings
from sglang_dspark.train.state import exported, read_state, shape_of, write_state
from sglang_dspark.train.sums import StepSums, label_weight
from sglang_dspark.train.target import FeatureCache, Target

_ALONE = Ranks()
_LOG_EVERY = 10
_TRIM_EVERY = 10
_LONGEST_STEP = 60.0  # seconds; a process that was paused (SIGSTOP, a sleeping laptop) was not training
_EMA_EVERY = 10  # averaging all weights each step would cost as much as the optimiser


class Trainer:
    """State of a run; `run` advances it to its end."""

    def __init__(
        self,
        draft: DSparkDraft,
        target: Target,
        rows: list[Row],
        validation: list[Row],
        settings: TrainSettings,
        folder: Path,
        ranks: Ranks = _ALONE,
    ) -> None:
        if not rows:
            raise ConfigError("--data: no answer to train on (each needs a prompt and two or more response tokens)")
        self.draft, self.target, self.rows, self.settings, self.folder = draft, target, rows, settings, folder
        self.ranks = ranks
        self.validation = spread(validation, settings.validation_rows)
        self.lengths = [len(row.tokens) for row in rows]
        self.anchors_of = anchors_by_domain(rows, settings.anchors, settings.domain_balance)
        budget = int(settings.feature_cache_gib * 2**30)
        self.lm_head = draft.lm_head(target.lm_head)
        self.vocabulary = draft.vocabulary
        self.cache = FeatureCache(target, draft.shape.target_layer_ids, settings.target_top, budget)
        self.optimizer = torch.optim.AdamW(
            self._groups(), lr=1.0, betas=(0.9, settings.beta2), weight_decay=0.0, fused=True
        )
        self.ema = {name: p.detach().clone() for name, p in draft.named_parameters()}
        self.step, self.seconds = 0, 0.0
        self.feature_scale = self._condition_features()
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def _groups(self) -> list[dict[str, Any]]:
        s = self.settings
        markov = [p for n, p in self.draft.named_parameters() if n.startswith("markov_head.") and p.ndim > 1]
        matrices = [p for n, p in self.draft.named_parameters() if not n.startswith("markov_head.") and p.ndim > 1]
        others = [p for p in self.draft.parameters() if p.ndim <= 1]
        return [
            {"params": matrices, "peak": s.learning_rate, "weight_decay": s.weight_decay},
            {"params": markov, "peak": s.markov_learning_rate, "weight_decay": s.weight_decay},
            {"params": others, "peak": s.learning_rate, "weight_decay": 0.0},
        ]

    @torch.no_grad()
    def _condition_features(self) -> Tensor:
        """Let `fc` be trained on features of unit size, and return what they are divided by, float32 [K*H].

        Single channels of a target's hidden states are a hundred times larger than the others, so that Adam's equal
        steps would be far too large there. `weights` folds the division back into `fc`.
        """
        indices = list(range(min(4, len(self.rows))))
        # Position 0 is an attention sink with values of its own.
        hidden = torch.cat([f.hidden[1:].float() for f in self.cache.get(self.rows, indices)])
        scale = hidden.square().mean(0).sqrt().clamp_min(1e-3)
        # `hidden_norm` follows, so the size of the output is free: weights near 1 suit the learning rate.
        self.draft.fc.weight.mul_(scale / scale.median())
        self.ema["fc.weight"].copy_(self.draft.fc.weight)
        return scale

    def progress(self) -> float:
        """Share of the run that is done, by steps, epochs or time, whichever is furthest."""
        s = self.settings
        ends = (
            self.step / s.steps if s.steps > 0 else 0.0,
            self.step / (s.epochs * self._steps_per_epoch) if s.epochs > 0 else 0.0,
            self.seconds / (60 * s.minutes) if s.minutes > 0 else 0.0,
        )
        return min(1.0, max(ends))

    @property
    def _steps_per_epoch(self) -> int:
        return math.ceil(len(self.rows) / self.settings.rows_per_step)

    def rate(self) -> float:
        """The learning rate as a share of its peak: linear rise, then half a cosine."""
        s = self.settings
        floor = s.final_learning_rate
        fall = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * self.progress()))
        if s.warmup_share > 0:
            return fall * min(1.0, (self.progress() + 1e-3) / s.warmup_share)
        return fall * min(1.0, (self.step + 1) / max(1, s.warmup_steps))

    def batches(self) -> tuple[list[Batch], float]:
        """This process's part of the current step, in parts of `micro_rows`, and the whole step's label weight.

        A function of the seed and the step alone.
        """
        s, shape = self.settings, self.draft.shape
        epoch, place = divmod(self.step, self._steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, epoch_batches(self.lengths, s.rows_per_step, s.seed, epoch))
        indices = self._epoch[1][place]
        generator = torch.Generator().manual_seed(s.seed * 1_000_003 + self.step)
        rows = [self.rows[i] for i in indices]
        anchors = [sample_anchors(row, self.anchors_of[row.d], generator) for row in rows]
        total = sum(label_weight(r, a, shape.block_size, s.position_decay) for r, a in zip(rows, anchors, strict=True))
        mine = list(range(len(indices)))[self.ranks.rank :: self.ranks.count]
        size = s.micro_rows or max(1, len(mine))
        parts = []
        for part in (mine[start : start + size] for start in range(0, len(mine), size)):
            features = self.cache.get(self.rows, [indices[i] for i in part])
            batch = build_batch(
                [rows[i] for i in part], features, [anchors[i] for i in part], shape.block_size, shape.mask_token_id
            )
            if s.feature_dropout > 0:
                keep = torch.rand(batch.features.shape[:2], generator=generator) >= s.feature_dropout
                batch.features = batch.features * keep.unsqueeze(-1).to(batch.features.dtype)
            parts.append(batch)
        return parts, total

    def train_step(self) -> dict[str, Any]:
        """One optimiser step; returns the numbers of the learning curve."""
        parts, total = self.batches()
        self.optimizer.zero_grad(set_to_none=True)
        outcome = StepSums(self.draft.shape.block_size)
        for number, batch in enumerate(parts):
            self._add_gradients(batch, total, number, outcome)
        self.ranks.add_gradients(self.draft.parameters())
        norm = nn.utils.clip_grad_norm_(self.draft.parameters(), self.settings.gradient_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"step {self.step}: the gradient is not finite; lower --learning-rate")
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * self.rate()
        self.optimizer.step()
        self.step += 1
        self._average()
        return outcome.numbers(self.ranks)

    def _add_gradients(self, batch: Batch, total: float, number: int, outcome: StepSums) -> None:
        """Forward and backward of one part of the step."""
        s, draft = self.settings, self.draft
        batch.features = batch.features / self.feature_scale.to(batch.features.dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.target.dtype == torch.bfloat16):
            states, latents = draft_outputs(draft, self.target, batch)
        weights = position_weights(batch.slot, s.position_decay) / total
        top_ids, labels = batch.top_ids, batch.labels
        if self.vocabulary is not None:
            top_ids, labels = self.vocabulary.index[top_ids], self.vocabulary.index[labels]
        sample = None
        if s.vocabulary_extra > 0:
            seed = s.seed * 1_000_003 + self.step + 2**40 + 2**41 * (number * self.ranks.count + self.ranks.rank)
            generator = torch.Generator().manual_seed(seed)
            sample = vocabulary_sample(top_ids, labels, len(self.lm_head), s.vocabulary_extra, generator)
        loss, l1, hit = vocabulary_loss(
            states, latents, draft.markov_head.w2, self.lm_head, top_ids, batch.top_probs, labels, weights, s.loss,
            want_hits=(self.step + 1) % _LOG_EVERY == 0, sample=sample,
        )  # fmt: skip
        logits = draft.confidence_head(states, draft.markov_head.embed(batch.previous))
        confidence = confidence_loss(logits, l1, weights)
        (loss + s.loss_confidence * confidence).backward()
        outcome.add(loss, confidence, l1, hit, batch.slot)

    @torch.no_grad()
    def _average(self) -> None:
        decay = self.settings.ema_decay
        if decay > 0 and self.step % _EMA_EVERY == 0:
            # A young average follows closely: it must forget the start.
            decay = min(decay, self.step / (self.step + 100.0)) ** _EMA_EVERY
            for name, parameter in self.draft.named_parameters():
                self.ema[name].lerp_(parameter, 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """What is exported: the averaged weights (the last ones where averaging is off), for features as they are."""
        named = {**self.draft.state_dict(), **(self.ema if self.settings.ema_decay > 0 else {})}
        return exported(named, self.feature_scale)

    def run(self, on_save: Callable[[], None] = lambda: None, show: bool = True) -> None:
        """Train to the end, writing `curve.jsonl`, `checkpoint.pt` and TensorBoard events to the run's folder."""
        s = self.settings
        if not self.ranks.first:
            while self.progress() < 1:
                self._timed_step()
            return
        with RunLog(self.folder, self.step, show) as log:
            while self.progress() < 1:
                numbers = self._timed_step()
                if self.step % _LOG_EVERY == 0:
                    self._log(log, {**numbers, "rate": self.rate()})
                log.show(self.progress())
                if s.validate_every and self.step % s.validate_every == 0:
                    self._log(log, self.validate())
                if s.save_every and self.step % s.save_every == 0:
                    self.save()
                    on_save()
            if s.validate_every:
                self._log(log, self.validate())
        self.save()
        on_save()

    def _timed_step(self) -> dict[str, Any]:
        begun = time.monotonic()
        numbers = self.train_step()
        self.seconds = self.ranks.of_first(self.seconds + min(time.monotonic() - begun, _LONGEST_STEP))
        if self.step % _TRIM_EVERY == 0:
            release_free_memory()
        return numbers

    def validate(self) -> dict[str, Any]:
        """Accept length of the exported weights on the held-out answers."""
        model = DSparkDraft(self.draft.shape)
        model.load_state_dict(self.weights())
        groups = evaluate(model.eval().requires_grad_(False), self.target, self.validation)
        by_group = {f"{domain}@{t:g}": round(length.mean, 4) for (domain, t), length in sorted(groups.items())}
        return {"validation": by_group, "mean": {f"{t:g}": round(v, 4) for t, v in mean_over_domains(groups).items()}}

    def _log(self, log: RunLog, numbers: dict[str, Any]) -> None:
        log.record({"step": self.step, "minutes": round(self.seconds / 60, 2), **numbers})

    def save(self) -> None:
        """Write the whole state."""
        state = {
            "draft": self.draft.state_dict(),
            "ema": self.ema,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "feature_scale": self.feature_scale,
            "shape": asdict(self.draft.shape),
            "settings": asdict(self.settings),
        }
        write_state(self.folder, state)

    def load(self) -> None:
        """Continue from `checkpoint.pt`. The data order is a function of the step and needs no state.

        Raises:
            ConfigError: the checkpoint is of a draft of another shape.
        """
        state = read_state(self.folder)
        if shape_of(state) != self.draft.shape:
            raise ConfigError(
                f"{self.folder} holds a draft of another shape; choose another --out or the same shape flags"
            )
        if self.vocabulary is not None and not torch.equal(state["draft"]["d2t"], self.vocabulary.offsets):
            raise ConfigError(
                f"{self.folder}: its draft proposes other tokens than this --data's most frequent; choose another "
                "--out, or the --data the run began with"
            )
        self.draft.load_state_dict(state["draft"])
        self.ema, self.feature_scale = state["ema"], state["feature_scale"]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, fresh in zip(self.optimizer.param_groups, self._groups(), strict=True):
            group["peak"], group["weight_decay"] = fresh["peak"], fresh["weight_decay"]
        self.step, self.seconds = state["step"], state["seconds"]
