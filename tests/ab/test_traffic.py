from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_dspark.ab.dataset import FOLLOW_UPS, load_dataset
from sglang_dspark.ab.traffic import Scenario, Shape, arrival_times, make_requests, read_arrivals
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.load import Result
from sglang_dspark.evaluate.prompts import PromptError


class Letters:
    """A tokenizer that shows in its ids what the chat template wrote."""

    chat_template, name_or_path = "a template", "letters"

    def apply_chat_template(self, turns: list[dict[str, str]], **_options: bool) -> str:
        return "".join(f"<{turn['role']}>{turn['content']}" for turn in turns) + "<assistant>"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]


def text_of(ids: object) -> str:
    return "".join(chr(i) for i in ids)  # type: ignore[attr-defined]


def test_shipped_prompts_become_requests_of_equal_length() -> None:
    data = load_dataset("shipped", seed=1)
    assert len(data.dialogues) == 96
    assert data.fit_for_acceptance
    requests = make_requests(Scenario("closed", 4, 0.7), data.dialogues, Shape(max_new_tokens=9), Letters(), 5)
    assert [r.id for r in requests] == [d.id for d in data.dialogues[:5]]
    assert requests[0].sampling == {"temperature": 0.7, "max_new_tokens": 9, "ignore_eos": True}
    assert text_of(requests[0].input_ids) == f"<user>{data.dialogues[0].turns[0]}<assistant>"
    assert all(r.then is None for r in requests)
    assert load_dataset("shipped", seed=1) == data != load_dataset("shipped", seed=2)


def test_more_requests_than_prompts_get_ids_of_their_own() -> None:
    data = load_dataset("shipped", domains=["math"])
    requests = make_requests(Scenario("closed", 1, 0), data.dialogues, Shape(), Letters(), 33)
    assert requests[32].id == f"{requests[0].id}#1"
    assert len({r.id for r in requests}) == 33


def test_several_turns_follow_from_the_answers() -> None:
    data = load_dataset("shipped")
    (first,) = make_requests(Scenario("multi-turn", 1, 0), data.dialogues, Shape(turns=3), Letters(), 1)
    assert first.then is not None
    second = first.then(Result(first.id, "math", 0.0, text="ANSWER"))
    assert second is not None
    assert second.id == f"{first.id}/2"
    asked = text_of(first.input_ids)
    assert text_of(second.input_ids) == f"{asked}ANSWER<user>{FOLLOW_UPS[0]}<assistant>"
    assert second.then is not None
    third = second.then(Result(second.id, "math", 0.0, text="MORE"))
    assert third is not None
    assert third.then is None


def test_a_shared_prefix_is_the_same_for_all_and_about_as_long_as_asked() -> None:
    data = load_dataset("shipped")
    one, two = make_requests(Scenario("shared-prefix", 2, 0), data.dialogues, Shape(shared_prefix=500), Letters(), 2)
    start = text_of(one.input_ids).index("<user>")
    assert one.input_ids[:start] == two.input_ids[:start]
    assert 500 <= start <= 900


def test_jsonl_with_turns(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"id": "a", "domain": "d", "prompt": "first", "turns": ["then"]}\n'
        '{"id": "b", "domain": "d", "prompt": "only"}\n'
    )
    data = load_dataset(str(path))
    assert [d.turns for d in data.dialogues] == [("first", "then"), ("only",)]
    path.write_text('{"id": "a", "domain": "d", "prompt": "first", "turns": "then"}\n')
    with pytest.raises(PromptError, match="line 1: field 'turns'"):
        load_dataset(str(path))
    with pytest.raises(PromptError, match=r"none\.jsonl"):
        load_dataset(str(tmp_path / "none.jsonl"))


def test_sharegpt(tmp_path: Path) -> None:
    path = tmp_path / "sg.json"
    human, model = {"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}
    records = [
        {"id": "x", "conversations": [human, model, {"from": "human", "value": "more"}]},
        {"id": "y", "conversations": [model, human]},  # begins with the model
        {"id": "z", "conversations": [human]},  # nobody answered
        {"conversation": [{"from": "user", "value": "hello"}, model]},
        "not a conversation",
    ]
    path.write_text(json.dumps(records))
    data = load_dataset(f"sharegpt:{path}")
    assert sorted(d.turns for d in data.dialogues) == [("hello",), ("hello", "more")]
    path.write_text("{}")
    with pytest.raises(PromptError, match="list of conversations"):
        load_dataset(f"sharegpt:{path}")


def test_random_lengths_are_marked_as_unfit_for_acceptance() -> None:
    data = load_dataset("random:40,20", seed=3, size=50)
    assert not data.fit_for_acceptance
    assert all(20 <= len(d.input_ids) <= 40 and 10 <= (d.output_tokens or 0) <= 20 for d in data.dialogues)
    (request,) = make_requests(Scenario("closed", 1, 0), data.dialogues, Shape(), Letters(), 1)
    assert request.sampling["max_new_tokens"] == data.dialogues[0].output_tokens
    for wrong in ("random:40", "random:a,b", "random:1,1"):
        with pytest.raises(PromptError, match="input and output tokens"):
            load_dataset(wrong)


def test_recorded_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "at.jsonl"
    path.write_text('10.5\n{"at": 10}\n{"timestamp": 12}\n')
    times = read_arrivals(path)
    assert times == (0.0, 0.5, 2.0)
    twice = arrival_times(Scenario("recorded", 2, 0), Shape(arrivals=times), 5)
    assert twice[:3] == [0.0, 0.25, 1.0]
    assert twice == sorted(twice)
    for text, message in (
        ("x", "line 1"),
        ("1\n", "at least two"),
        ("1\n1\n", "all times are the same"),
        ("{}\n", "line 1"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_arrivals(path)


def test_poisson_arrivals_have_their_rate_and_repeat() -> None:
    scenario = Scenario("poisson", 5, 0)
    times = arrival_times(scenario, Shape(seed=1), 2000)
    assert times[-1] == pytest.approx(400, rel=0.1)
    assert times == arrival_times(scenario, Shape(seed=1), 2000) != arrival_times(scenario, Shape(seed=2), 2000)
