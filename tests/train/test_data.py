"""Rows, splits and order."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.train.data import (
    Row,
    epoch_batches,
    fit_rows,
    limit_per_domain,
    read_prompts,
    read_rows,
    split_rows,
    write_rows,
)


def row(index: int, response: int = 3, domain: str = "math", temperature: float = 0.0) -> Row:
    return Row(domain, f"id{index}", temperature, (1, 2), tuple(range(response)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_round_trip_and_append(tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name, [row(0)])
    write_rows(tmp_path / name, [row(1)], append=True)
    assert read_rows([tmp_path / name]) == [row(0), row(1)]


@pytest.mark.parametrize(("line", "message"), [("{", "line 2: not JSON"), ('{"d": "x"}', "line 2: not a row")])
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    write_rows(path, [row(0)])
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match=message):
        read_rows([path])


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--data .*no such file"):
        read_rows([tmp_path / "none"])
    with pytest.raises(ConfigError, match=r"--prompts .*no such file"):
        read_prompts(tmp_path / "none")


@pytest.mark.parametrize("damage", ["cut", "bytes", "not gzip"])
def test_a_corrupted_shard_is_named(tmp_path: Path, damage: str) -> None:
    whole, bad = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    for path in (whole, bad):
        write_rows(path, [row(i, response=50 + i) for i in range(300)])
    content = bytearray(bad.read_bytes())
    if damage == "bytes":
        content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    bad.write_bytes({"cut": content[: len(content) // 2], "bytes": content, "not gzip": b"{}\n"}[damage])
    with pytest.raises(ConfigError, match=r"b\.jsonl\.gz.*(damaged after line|not JSON)"):
        read_rows([whole, bad])


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"d": "\xff"}\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl: damaged after line 0"):
        read_rows([tmp_path / "a.jsonl"])


def test_empty_answers_and_long_prompts_are_left_out_by_name() -> None:
    empty, single, long = row(0, 0), row(1, 1), row(2, 30)
    crowded = Row("math", "crowded", 0.0, tuple(range(9)), (1, 2, 3))
    headless = Row("math", "headless", 0.0, (), (1, 2, 3))
    kept, said = fit_rows([empty, single, long, crowded, headless, row(3)], limit=10, vocab_size=50)
    assert [(r.id, len(r.tokens)) for r in kept] == [("id2", 10), ("id3", 5)]
    assert said == (
        "answers: 3 without two tokens left out, 1 left out, their prompts fill the limit of 10 tokens, "
        "1 cut to 10 tokens"
    )
    assert fit_rows([row(3)], 10, 50)[1] == ""


@pytest.mark.parametrize("token", [-1, 50])
def test_tokens_of_another_target_are_refused(token: int) -> None:
    with pytest.raises(ConfigError, match="'a': a token is outside the target's 50"):
        fit_rows([Row("x", "a", 0.0, (1,), (2, token))], 10, 50)


def test_split_keeps_prompts_apart() -> None:
    rows = [row(i, temperature=t) for i in range(400) for t in (0.0, 1.0)]
    train, held = split_rows(rows, 0.1, seed=3)
    assert not {r.id for r in train} & {r.id for r in held}
    assert len(train) + len(held) == 800
    assert 20 <= len(held) / 2 <= 60
    assert split_rows(rows[:10], 0.0, seed=3)[1] == []


def test_batches_cover_each_row_once_and_repeat_exactly() -> None:
    lengths = [(i * 37) % 50 for i in range(130)]
    batches = epoch_batches(lengths, 8, seed=1, epoch=0)
    assert sorted(i for b in batches for i in b) == list(range(130))
    assert batches == epoch_batches(lengths, 8, seed=1, epoch=0)
    assert batches != epoch_batches(lengths, 8, seed=1, epoch=1)


def test_limit_per_domain() -> None:
    rows = [row(i, domain="math") for i in range(20)] + [row(i, domain="chat") for i in range(5)]
    kept = limit_per_domain(rows, 8, seed=0)
    assert [r.d for r in kept] == ["math"] * 8 + ["chat"] * 5
    assert limit_per_domain(rows, 0, seed=0) == rows
