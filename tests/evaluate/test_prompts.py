from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from evaluation_fakes import FakeTokenizer

from sglang_dspark.evaluate.prompts import PromptError, apply_chat, echo_prompts, load_prompts


def write(path: Path, *records: object) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def record(name: str, domain: str = "math", prompt: str = "1 + 1?") -> dict[str, str]:
    return {"id": name, "domain": domain, "prompt": prompt}


def test_shipped_prompts() -> None:
    prompts = load_prompts()
    assert Counter(prompt.domain for prompt in prompts) == {"math": 32, "code": 32, "chat": 32}
    assert len({prompt.prompt for prompt in prompts}) == 96
    assert all(20 <= len(prompt.prompt) <= 600 for prompt in prompts)


def test_a_limit_keeps_the_domains_balanced() -> None:
    prompts = load_prompts(limit=10)
    assert Counter(prompt.domain for prompt in prompts) == {"math": 4, "code": 3, "chat": 3}
    assert load_prompts(limit=10) == prompts
    assert load_prompts(limit=1000) == load_prompts()


def test_seeds_shuffle_within_domains() -> None:
    one, two = load_prompts(limit=12, seed=1), load_prompts(limit=12, seed=2)
    assert one == load_prompts(limit=12, seed=1) != two
    assert [prompt.domain for prompt in one] == [prompt.domain for prompt in two]
    assert sorted(p.id for p in load_prompts(seed=1)) == sorted(p.id for p in load_prompts())


def test_domains_are_kept_in_the_order_given(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", record("a"), record("b", "law"), record("c", "chat"), record("d", "law"))
    assert [prompt.id for prompt in load_prompts(path, ["law", "math"])] == ["b", "a", "d"]
    with pytest.raises(PromptError, match=r"p\.jsonl: no prompt of domain 'code'; it has math, law, chat"):
        load_prompts(path, ["code"])


def test_further_fields_blank_lines_and_odd_characters_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    raw = json.dumps({**record("a", prompt="one\u2028two"), "source": "x"}, ensure_ascii=False)
    path.write_text(raw + "\n\n", encoding="utf-8")
    assert [prompt.prompt for prompt in load_prompts(path)] == ["one\u2028two"]


def test_echo_prompts_are_distinct_and_seeded() -> None:
    prompts = echo_prompts(200)
    assert len({prompt.prompt for prompt in prompts}) == len({prompt.id for prompt in prompts}) == 200
    assert echo_prompts(3, seed=1) == echo_prompts(3, seed=1) != echo_prompts(3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: must be an object"),
        ({"id": "b", "domain": "math"}, "line 2: field 'prompt'"),
        (record("b", domain=" "), "line 2: field 'domain'"),
        ({**record("b"), "id": 7}, "line 2: field 'id'"),
        (record("a"), "line 2: id 'a' was used before"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", record("a"), line)
    with pytest.raises(PromptError, match=message) as caught:
        load_prompts(path)
    assert str(path) in str(caught.value)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"none\.jsonl: No such file"):
        load_prompts(tmp_path / "none.jsonl")
    empty = write(tmp_path / "empty.jsonl", "")
    with pytest.raises(PromptError, match="holds no prompt"):
        load_prompts(empty)
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(PromptError, match="not UTF-8"):
        load_prompts(binary)


def test_apply_chat() -> None:
    assert apply_chat(FakeTokenizer(), "hi") == [ord(c) for c in "<user>hi<assistant>"]
    bare = FakeTokenizer()
    bare.chat_template = ""
    with pytest.raises(PromptError, match="some/model has no chat template"):
        apply_chat(bare, "hi")
