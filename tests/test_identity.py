"""Identity of a server: what changes it, what does not, and how a difference is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.identity import Identity, content_hash, device_name


def checkpoint(folder: Path, weights: bytes = b"w" * 3_000_000) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def identity(folder: Path, **changes: object) -> Identity:
    settings = {
        "dtype": "torch.float32",
        "gamma": 5,
        "page_size": 1,
        "attention_backend": "x",
        "device": "cpu",
    } | changes
    return Identity.of(folder, folder, **settings)  # type: ignore[arg-type]


def test_the_hash_follows_the_contents(tmp_path: Path) -> None:
    weights = b"w" * 3_000_000
    same = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    assert content_hash(same[0]) == content_hash(same[1])
    (same[1] / "README.md").write_text("words")
    assert content_hash(same[0]) == content_hash(same[1])
    others = [
        checkpoint(tmp_path / "first", b"x" + weights[1:]),
        checkpoint(tmp_path / "last", weights[:-1] + b"x"),
        checkpoint(tmp_path / "longer", weights + b"w"),
        checkpoint(tmp_path / "small", b"w"),
    ]
    (same[1] / "config.json").write_text('{"a": 1}')
    hashes = {content_hash(path) for path in (*same, *others)} | {content_hash("hub/name"), content_hash("hub/other")}
    assert len(hashes) == 8


def test_every_difference_is_named(tmp_path: Path) -> None:
    mine = identity(checkpoint(tmp_path / "a"))
    assert mine.dtype == "float32"
    assert mine.differences(mine) == []
    other = identity(tmp_path / "a", gamma=7, device="H200")
    assert mine.differences(other) == ["device: cpu here, H200 there", "gamma: 5 here, 7 there"]


def test_of_an_engine_s_arguments(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    arguments = {
        "model_path": str(folder),
        "dtype": "float32",
        "attention_backend": "x",
        "device": "cpu",
        "page_size": None,
    }
    mine = Identity.of_server(arguments, gamma=5)
    assert mine == identity(folder, device=device_name("cpu"))
    assert Identity.of_server(arguments | {"tp_size": 2}, gamma=5, support=64).differences(mine) == [
        "tp: 2 here, 1 there",
        "support: 64 here, 0 there",
    ]


def test_round_trip_and_damage(tmp_path: Path) -> None:
    mine = identity(checkpoint(tmp_path / "a"))
    assert Identity.from_dict(mine.as_dict()) == mine
    with pytest.raises(ConfigError, match=r"file: expected the fields.*gamma"):
        Identity.from_dict({"target": "x"}, "file")
    with pytest.raises(ConfigError, match=r"file\.gamma: expected int"):
        Identity.from_dict(mine.as_dict() | {"gamma": "5"}, "file")


def test_the_processor_is_named_with_its_cores() -> None:
    assert device_name("cpu").endswith("cores")
    assert dataclasses.fields(Identity)[2].name == "device"
