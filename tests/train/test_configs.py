"""Configuration files are typed: what is misspelt or of the wrong kind is named, and flags win."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.train.configs import read_config, shipped
from sglang_dspark.train.settings import DraftSettings, TrainSettings, add_flags, given


@pytest.mark.parametrize("name", shipped())
def test_the_packages_own_are_complete(name: str) -> None:
    draft, training = read_config(name)
    DraftSettings(**draft)
    TrainSettings(**training)


def test_published_settings() -> None:
    assert {"qwen3-4b", "qwen3-8b", "qwen3-14b", "gemma4-12b"} <= set(shipped())
    draft, training = read_config("qwen3-14b")
    assert draft["target_layer_ids"] == (1, 10, 19, 28, 37)
    assert (draft["block_size"], draft["layers"], draft["markov_rank"]) == (7, 5, 256)
    assert TrainSettings(**training).loss.position_decay == 4.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[draft]\nblock = 3", r"\[draft\]: block is no setting; known are layers, block_size"),
        ("[train]\nsteps = 1.5", r"\[train\]: steps is 1.5, expected int"),
        ("[train]\nsteps = true", r"steps is True, expected int"),
        ("[draft]\ntarget_layer_ids = [1, 2.0]", "expected a list of whole numbers"),
        ('[draft]\nmarkov_head = "lstm"', "--markov-head 'lstm': choose one of vanilla, gated, rnn, none"),
        ("[model]\nlayers = 1", r"section model is unknown; use \[draft\] and \[train\]"),
        ("[draft", "not TOML"),
    ],
)
def test_errors_name_file_and_setting(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        DraftSettings(**read_config(str(path))[0])


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--config nothing: no such file.*qwen3-4b"):
        read_config("nothing")


def test_flags_win_over_the_file() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, DraftSettings)
    add_flags(parser, TrainSettings)
    arguments = parser.parse_args(["--block-size", "4", "--target-layer-ids", "1", "2", "--minutes", "2"])
    assert given(arguments, DraftSettings) == {"block_size": 4, "target_layer_ids": (1, 2)}
    merged = read_config("qwen3-4b")[0] | given(arguments, DraftSettings)
    assert (merged["block_size"], merged["layers"]) == (4, 5)
    assert given(arguments, TrainSettings) == {"minutes": 2.0}
