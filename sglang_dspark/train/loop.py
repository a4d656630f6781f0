"""The training loop: deterministic for a number of steps, resumable, with averaged weights for export."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sglang_dspark.errors import ConfigError
from sglang_dspark.model.draft import DraftShape, DSparkDraft
from sglang_dspark.train.blocks import Batch, build_batch, sample_anchors
from sglang_dspark.train.data import Row, epoch_batches
from sglang_dspark.train.evaluate import draft_outputs, evaluate, mean_over_domains
from sglang_dspark.train.loss import confidence_loss, position_weights, vocabulary_loss, vocabulary_sample
from sglang_dspark.train.settings import TrainSettings
from sglang_dspark.train.target import FeatureCache, Target

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.jsonl"
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
    ) -> None:
        if not rows:
            raise ConfigError("--data: no answer to train on (each needs a prompt and two or more response tokens)")
        self.draft, self.target, self.rows, self.settings, self.folder = draft, target, rows, settings, folder
        self.validation = _spread(validation, settings.validation_rows)
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
        """Share of the run that is done, by steps or by time, whichever is further."""
        s = self.settings
        by_steps = self.step / s.steps if s.steps > 0 else 0.0
        by_time = self.seconds / (60 * s.minutes) if s.minutes > 0 else 0.0
        return min(1.0, max(by_steps, by_time))

    def rate(self) -> float:
        """The learning rate as a share of its peak: linear rise, then half a cosine."""
        s = self.settings
        floor = s.final_learning_rate
        fall = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * self.progress()))
        return fall * min(1.0, (self.step + 1) / max(1, s.warmup_steps))

    def batch(self) -> Batch:
        """The batch of the current step: a function of the seed and the step alone."""
        s, shape = self.settings, self.draft.shape
        per_epoch = math.ceil(len(self.rows) / s.rows_per_step)
        epoch, place = divmod(self.step, per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, epoch_batches(self.lengths, s.rows_per_step, s.seed, epoch))
        indices = self._epoch[1][place]
        generator = torch.Generator().manual_seed(s.seed * 1_000_003 + self.step)
        rows = [self.rows[i] for i in indices]
        anchors = [sample_anchors(row, self.anchors_of[row.d], generator) for row in rows]
        batch = build_batch(rows, self.cache.get(self.rows, indices), anchors, shape.block_size, shape.mask_token_id)
        if s.feature_dropout > 0:
            keep = torch.rand(batch.features.shape[:2], generator=generator) >= s.feature_dropout
            batch.features = batch.features * keep.unsqueeze(-1).to(batch.features.dtype)
        return batch

    def train_step(self) -> dict[str, Any]:
        """One optimiser step; returns the numbers of the learning curve."""
        s, draft = self.settings, self.draft
        batch = self.batch()
        batch.features = batch.features / self.feature_scale.to(batch.features.dtype)
        low = self.target.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            states, latents = draft_outputs(draft, self.target, batch)
        weights = position_weights(batch.slot, s.position_decay)
        top_ids, labels = batch.top_ids, batch.labels
        if self.vocabulary is not None:
            top_ids, labels = self.vocabulary.index[top_ids], self.vocabulary.index[labels]
        logged = (self.step + 1) % _LOG_EVERY == 0
        sample = None
        if s.vocabulary_extra > 0:
            generator = torch.Generator().manual_seed(s.seed * 1_000_003 + self.step + 2**40)
            sample = vocabulary_sample(top_ids, labels, len(self.lm_head), s.vocabulary_extra, generator)
        loss, l1, hit = vocabulary_loss(
            states, latents, draft.markov_head.w2, self.lm_head, top_ids, batch.top_probs, labels, weights, s.loss,
            want_hits=logged, sample=sample,
        )  # fmt: skip
        logits = draft.confidence_head(states, draft.markov_head.embed(batch.previous))
        confidence = confidence_loss(logits, l1, weights)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + s.loss_confidence * confidence).backward()
        norm = nn.utils.clip_grad_norm_(draft.parameters(), s.gradient_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"step {self.step}: the gradient is not finite; lower --learning-rate")
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * self.rate()
        self.optimizer.step()
        self.step += 1
        self._average()
        return _numbers(loss, confidence, l1, hit, batch.slot, draft.shape.block_size)

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

    def run(self, on_save: Callable[[], None] = lambda: None, progress: bool = True) -> None:
        """Train to the end, writing `curve.jsonl` and `checkpoint.pt` to the run's folder."""
        s = self.settings
        self.folder.mkdir(parents=True, exist_ok=True)
        with tqdm(total=s.steps or None, initial=self.step, unit="step", disable=not progress, mininterval=2.0) as bar:
            while self.progress() < 1:
                begun = time.monotonic()
                numbers = self.train_step()
                self.seconds += min(time.monotonic() - begun, _LONGEST_STEP)
                bar.update()
                shown = {name: f"{numbers[name]:.3f}" for name in ("loss", "tau")}
                bar.set_postfix(**shown, done=f"{self.progress():.1%}")
                if self.step % _TRIM_EVERY == 0:
                    release_free_memory()
                if self.step % _LOG_EVERY == 0:
                    self._log({**numbers, "rate": self.rate()})
                if s.validate_every and self.step % s.validate_every == 0:
                    self._log(self.validate())
                if s.save_every and self.step % s.save_every == 0:
                    self.save()
                    on_save()
        if s.validate_every:
            self._log(self.validate())
        self.save()
        on_save()

    def validate(self) -> dict[str, Any]:
        """Accept length of the exported weights on the held-out answers."""
        model = DSparkDraft(self.draft.shape)
        model.load_state_dict(self.weights())
        groups = evaluate(model.eval().requires_grad_(False), self.target, self.validation)
        by_group = {f"{domain}@{t:g}": round(length.mean, 4) for (domain, t), length in sorted(groups.items())}
        return {"validation": by_group, "mean": {f"{t:g}": round(v, 4) for t, v in mean_over_domains(groups).items()}}

    def _log(self, numbers: dict[str, Any]) -> None:
        line = {"step": self.step, "minutes": round(self.seconds / 60, 2), **numbers}
        with (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def save(self) -> None:
        """Write the whole state; the file is replaced atomically."""
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
        partial = self.folder / (CHECKPOINT + ".partial")
        torch.save(state, partial)
        os.replace(partial, self.folder / CHECKPOINT)

    def load(self) -> None:
        """Continue from `checkpoint.pt`. The data order is a function of the step and needs no state.

        Raises:
            ConfigError: the checkpoint is of a draft of another shape.
        """
        path = self.folder / CHECKPOINT
        state = torch.load(path, weights_only=True)
        if shape_of(state) != self.draft.shape:
            raise ConfigError(f"{path} holds a draft of another shape; choose another --out or the same shape flags")
        if self.vocabulary is not None and not torch.equal(state["draft"]["d2t"], self.vocabulary.offsets):
            raise ConfigError(
                f"{path}: its draft proposes other tokens than this --data's most frequent; choose another --out, or "
                "the --data the run began with"
            )
        self.draft.load_state_dict(state["draft"])
        self.ema, self.feature_scale = state["ema"], state["feature_scale"]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, fresh in zip(self.optimizer.param_groups, self._groups(), strict=True):
            group["peak"], group["weight_decay"] = fresh["peak"], fresh["weight_decay"]
        self.step, self.seconds = state["step"], state["seconds"]


def exported(weights: dict[str, Tensor], feature_scale: Tensor) -> dict[str, Tensor]:
    """Weights of a run for features as the target gives them: `fc` was trained on features over `feature_scale`."""
    return {name: w.detach() / feature_scale if name == "fc.weight" else w.detach() for name, w in weights.items()}


def shape_of(state: dict[str, Any]) -> DraftShape:
    """The shape that a run's `checkpoint.pt` was trained with."""
    return DraftShape(**{**state["shape"], "target_layer_ids": tuple(state["shape"]["target_layer_ids"])})


def _numbers(loss: Tensor, confidence: Tensor, l1: Tensor, hit: Tensor, slot: Tensor, gamma: int) -> dict[str, Any]:
    """Loss, per-position hit rate (argmax) and acceptance (1 - ½‖p - q‖₁), and the accept length these imply."""
    hits = [float(hit[slot == k].float().mean()) for k in range(gamma)] if len(hit) else []
    alphas = [float((1 - 0.5 * l1[slot == k]).mean()) for k in range(gamma)]
    tau, survival = 1.0, 1.0
    for alpha in alphas:
        survival *= alpha
        tau += survival
    rounded = {"hit": [round(h, 4) for h in hits], "alpha": [round(a, 4) for a in alphas]}
    return {"loss": loss.item(), "confidence_loss": confidence.item(), "tau": tau, **rounded}


def release_free_memory() -> None:
    """Give freed heap pages back to the system; glibc keeps them, and a step's temporaries differ in size each time
    (9 GiB instead of 4 were measured after an hour)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def anchors_by_domain(rows: list[Row], anchors: int, balance: float) -> dict[str, int]:
    """Blocks per answer by domain: `anchors` on average, more for domains with few answers as `balance` rises to 1."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.d] = counts.get(row.d, 0) + 1
    share = {domain: (len(rows) / (len(counts) * n)) ** balance for domain, n in counts.items()}
    mean = sum(share[domain] * n for domain, n in counts.items()) / len(rows)
    return {domain: max(1, round(anchors * s / mean)) for domain, s in share.items()}


def _spread(rows: list[Row], count: int) -> list[Row]:
    """At most `count` rows, the same number from each (domain, temperature) as far as there are."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.d, row.T), []).append(row)
    share = max(1, count // max(1, len(groups)))
    return [row for _, group in sorted(groups.items()) for row in group[:share]]
