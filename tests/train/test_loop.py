"""Training a tiny draft: the loss falls, a killed run resumes to the bit, export and load give the same model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from sglang_dspark.errors import ConfigError
from sglang_dspark.model.checkpoint import Family
from sglang_dspark.model.draft import DraftShape
from sglang_dspark.model.draft_check import check_draft
from sglang_dspark.model.draft_vocabulary import DraftVocabulary, most_frequent
from sglang_dspark.train.data import Row, anchors_by_domain
from sglang_dspark.train.evaluate import acceptance, evaluate
from sglang_dspark.train.export import export, load_draft, with_zero_head
from sglang_dspark.train.initialise import from_target
from sglang_dspark.train.loop import Trainer
from sglang_dspark.train.report import CURVE
from sglang_dspark.train.settings import TrainSettings
from sglang_dspark.train.target import FeatureCache, Target

SETTINGS = TrainSettings(
    minutes=0, steps=60, rows_per_step=4, anchors=6, learning_rate=3e-3, markov_learning_rate=1e-2, warmup_steps=5,
    ema_decay=0.9, target_top=16, vocabulary_extra=8, validate_every=0, save_every=0, feature_dropout=0.1,
)  # fmt: skip


def trainer(
    shape: DraftShape, target: Target, rows: list[Row], folder: Path, settings: TrainSettings = SETTINGS
) -> Trainer:
    usable = [r for r in rows if len(r.r) > 1]
    vocabulary = None
    if shape.draft_vocab_size:
        vocabulary, _ = most_frequent((r.r for r in usable), shape.draft_vocab_size, shape.vocab_size)
    draft = from_target(shape, target, settings.seed, vocabulary)
    return Trainer(draft, target, usable, usable[:4], settings, folder)


VARIANTS = {
    "vanilla": {},
    "gated, silu": {"markov_head_type": "gated", "markov_activation": "silu"},
    "rnn": {"markov_head_type": "rnn"},
    "dflash": {"markov_rank": 0},
    "one layer, block of 1": {"num_hidden_layers": 1, "block_size": 1},
    "three layers, block of 6": {"num_hidden_layers": 3, "block_size": 6},
    "reduced": {"draft_vocab_size": 24},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_falls(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path, variant: str) -> None:
    shape = dataclasses.replace(shape, **VARIANTS[variant])
    run = trainer(shape, target, rows, tmp_path)
    before = evaluate(run.draft, target, run.rows)
    run.run(show=False)
    curve = [json.loads(line) for line in (tmp_path / CURVE).read_text().splitlines()]
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    assert len(curve[-1]["hit"]) == shape.block_size
    run.draft.load_state_dict(run.weights())
    after = evaluate(run.draft, target, run.rows)
    assert after["math", 0.0].mean > before["math", 0.0].mean
    assert after["math", 0.0].mean > 1.3


def test_resume_is_exact(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path) -> None:
    """A run stopped in the middle and one that never was have the same losses and the same weights."""
    whole = trainer(shape, target, rows, tmp_path / "whole")
    losses = [whole.train_step()["loss"] for _ in range(30)]
    first = trainer(shape, target, rows, tmp_path / "cut")
    (tmp_path / "cut").mkdir()
    assert [first.train_step()["loss"] for _ in range(17)] == losses[:17]
    first.save()
    for _ in range(3):  # steps after the checkpoint are lost with the process
        first.train_step()
    del first
    second = trainer(shape, target, rows, tmp_path / "cut")
    second.load()
    assert second.step == 17
    assert [second.train_step()["loss"] for _ in range(13)] == losses[17:]
    for name, weight in whole.weights().items():
        assert torch.equal(weight, second.weights()[name]), name


def test_load_refuses_another_shape(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path) -> None:
    trainer(shape, target, rows, tmp_path).save()
    other = trainer(dataclasses.replace(shape, markov_rank=4), target, rows, tmp_path)
    with pytest.raises(ConfigError, match="another shape"):
        other.load()


def test_export_and_load(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path) -> None:
    run = trainer(shape, target, rows, tmp_path)
    run.train_step()
    export(run.weights(), shape, target.config, tmp_path / "draft", torch.float32)
    loaded = load_draft(tmp_path / "draft")
    assert loaded.shape == shape
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, run.weights()[name])
    assert check_draft(tmp_path / "draft", target.config).config.gamma == shape.block_size
    export(run.weights(), shape, target.config, tmp_path / "draft")
    rounded = load_draft(tmp_path / "draft")
    assert torch.equal(rounded.fc.weight, loaded.fc.weight.bfloat16().float())


def test_tied_embeddings_stay_the_targets(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path) -> None:
    """Embedding and lm_head are one tensor here: it is shared, frozen, and not part of the checkpoint."""
    assert target.embedding is target.lm_head
    before = target.embedding.clone()
    run = trainer(shape, target, rows, tmp_path)
    run.train_step()
    assert torch.equal(target.embedding, before)
    assert not any("embed" in name or "lm_head" in name for name in run.weights())


def test_export_of_a_reduced_vocabulary(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path) -> None:
    shape = dataclasses.replace(shape, draft_vocab_size=24)
    run = trainer(shape, target, rows, tmp_path)
    run.train_step()
    export(run.weights(), shape, target.config, tmp_path / "draft", torch.float32)
    loaded = load_draft(tmp_path / "draft")
    assert loaded.shape == shape
    assert loaded.vocabulary is not None
    assert run.vocabulary is not None
    assert loaded.vocabulary.ids.tolist() == run.vocabulary.ids.tolist()
    assert check_draft(tmp_path / "draft", target.config).notes == ("proposes 24 of the target's 48 tokens",)
    with safe_open(str(tmp_path / "draft" / "model.safetensors"), "pt") as file:
        offsets, member = file.get_tensor("d2t"), file.get_tensor("t2d")
        assert tuple(file.get_slice("markov_head.markov_w2.weight").get_shape()) == (24, shape.markov_rank)
    assert (offsets + torch.arange(24)).tolist() == member.nonzero().squeeze(1).tolist()


def test_resume_refuses_other_draft_tokens(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path) -> None:
    shape = dataclasses.replace(shape, draft_vocab_size=24)
    trainer(shape, target, rows, tmp_path).save()
    usable = [r for r in rows if len(r.r) > 1]
    other = from_target(shape, target, 0, DraftVocabulary(torch.arange(24), shape.vocab_size))
    with pytest.raises(ConfigError, match="other tokens than this --data's"):
        Trainer(other, target, usable, [], SETTINGS, tmp_path).load()


def test_a_dflash_draft_with_a_zero_head_drafts_the_same(
    shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path
) -> None:
    shape = dataclasses.replace(shape, markov_rank=0)
    run = trainer(shape, target, rows, tmp_path)
    run.train_step()
    export(run.weights(), shape, target.config, tmp_path / "plain", torch.float32)
    export(*with_zero_head(run.weights(), shape), target.config, tmp_path / "headed", torch.float32)
    assert check_draft(tmp_path / "plain", target.config).config.family is Family.DEEPSPEC_DFLASH
    assert check_draft(tmp_path / "headed", target.config).config.family is Family.DEEPSPEC_DSPARK
    plain, headed = (load_draft(tmp_path / name) for name in ("plain", "headed"))
    for row in run.rows[:4]:
        assert torch.equal(acceptance(plain, target, row), acceptance(headed, target, row))
    with pytest.raises(ConfigError, match="--zero-head"):
        with_zero_head(run.weights(), headed.shape)


def test_feature_cache_budget_changes_nothing(target: Target, rows: list[Row]) -> None:
    large, none = FeatureCache(target, (0, 2), 4, 1 << 30), FeatureCache(target, (0, 2), 4, 0)
    for _ in range(2):
        for a, b in zip(large.get(rows, [3, 1]), none.get(rows, [3, 1]), strict=True):
            torch.testing.assert_close(a.hidden, b.hidden)
            assert torch.equal(a.top_ids, b.top_ids)
    assert len(large.kept) == 2
    assert not none.kept


def test_features_do_not_depend_on_padding(target: Target, rows: list[Row]) -> None:
    short, long = sorted(rows, key=lambda r: len(r.tokens))[:: len(rows) - 1]
    alone, padded = target.features([short], (0, 2), 4)[0], target.features([short, long], (0, 2), 4)[0]
    torch.testing.assert_close(alone.hidden.float(), padded.hidden.float(), rtol=0.01, atol=0.01)


def test_anchors_by_domain(rows: list[Row]) -> None:
    assert set(anchors_by_domain(rows, 10, 0.0).values()) == {10}
    even = anchors_by_domain(rows, 10, 1.0)
    assert even["chat"] == 2 * even["math"] - (2 * even["math"] - even["chat"])
    assert even["chat"] > 10 > even["math"]


def test_settings_that_cannot_work(shape: DraftShape, target: Target, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all 0"):
        TrainSettings(minutes=0, steps=0)
    with pytest.raises(ConfigError, match="--anchors 0"):
        TrainSettings(anchors=0)
    with pytest.raises(ConfigError, match="no answer to train on"):
        trainer(shape, target, [], tmp_path)
