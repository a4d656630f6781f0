from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_dspark.ab.catalogue import CATALOGUE, DEFAULT_ARMS, choose, read_arms
from sglang_dspark.errors import ConfigError


def test_every_arm_of_the_issue_is_there() -> None:
    assert list(CATALOGUE) == [
        "plain", "mtp-1", "mtp-best", "eagle3", "dflash", "standalone", "tree", "ngram", "dspark-fixed", "dspark-stock",
        "dspark",
    ]  # fmt: skip


def test_an_arm_without_its_draft_is_listed_as_not_run() -> None:
    one, two, three = choose(["plain", "eagle3", "dspark"])
    assert (one.not_run, three.not_run) == (None, None)
    assert two.arm is None
    assert "--draft eagle3=PATH" in (two.not_run or "")
    with pytest.raises(ConfigError, match="none can run here: eagle3"):
        choose(["eagle3"])


def test_a_draft_makes_the_arm_run_and_depths_are_searched() -> None:
    eagle, best = choose(["tree", "mtp-best"], drafts={"eagle3": "/d/e3", "mtp": "/d/mtp"}, model_path="/m")
    assert eagle.arm is not None
    assert eagle.arm.flags[-2:] == ("--speculative-draft-model-path", "/d/e3")
    assert "4" in eagle.arm.flags
    assert [arm.name for arm in best.search] == [f"mtp-best-depth-{depth}" for depth in (1, 2, 3, 4)]
    third = best.search[2].flags
    assert third[third.index("--speculative-num-steps") + 1] == "3"
    assert third[third.index("--speculative-num-draft-tokens") + 1] == "4"


def test_a_target_that_brings_an_mtp_layer_needs_no_draft(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_nextn_predict_layers": 1}))
    (one,) = choose(["mtp-1"], model_path=str(tmp_path))
    assert one.arm is not None
    assert "--speculative-draft-model-path" not in one.arm.flags


def test_the_same_arm_twice_is_asked_for_by_name() -> None:
    one, again = choose(["dspark", "aa:dspark"])
    assert again.name == "dspark-again"
    assert one.arm is not None
    assert again.arm is not None
    assert again.arm.flags == one.arm.flags
    with pytest.raises(ConfigError, match="aa:dspark"):
        choose(["dspark", "dspark"])


def test_names_and_drafts_are_checked() -> None:
    with pytest.raises(ConfigError, match="no such arm"):
        choose(["dsprak"])
    with pytest.raises(ConfigError, match="the kinds are mtp"):
        choose(["plain"], drafts={"mpt": "x"})
    (own,) = choose(["two=--dspark-verify-length 2"])
    assert own.arm is not None
    assert own.arm.flags == ("--dspark-verify-length", "2")


def test_the_default_arms_exist() -> None:
    assert set(DEFAULT_ARMS) <= set(CATALOGUE)
    assert len(choose([])) == len(DEFAULT_ARMS)


def test_arms_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text(
        """
arms:
  - name: short
    like: dspark-fixed
    flags: --dspark-verify-length 2
    description: two draft tokens
  - name: other
    command: [python, -m, other.server]
    flags: [--port-of, "a b"]
"""
    )
    short, other = read_arms(file).values()
    assert short.arm is not None
    assert short.arm.flags == ("--dspark-policy", "fixed", "--dspark-verify-length", "2")
    assert short.description == "two draft tokens"
    assert other.arm is not None
    assert other.arm.command == ("python", "-m", "other.server")
    assert other.arm.flags == ("--port-of", "a b")
    assert [one.name for one in choose([], file=file)] == ["short", "other"]
    assert [one.name for one in choose(["plain", "short"], file=file)] == ["plain", "short"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms: 3", "needs a list under 'arms:'"),
        ("[", "arms.yaml"),
        ("arms: [{flags: x}]", "arm 1: needs a mapping with a 'name'"),
        ("arms: [{name: a, flag: x}]", "arm 1: unknown field 'flag'"),
        ("arms: [{name: a, like: b}]", "arm 1, like: 'b' is none of"),
        ("arms: [{name: a}, {name: a}]", "arm 2: the name 'a' was used before"),
        ("arms: [{name: a, flags: '--x \"'}]", "arm 1, flags: No closing quotation"),
        ("arms: [{name: a, flags: 3}]", "arm 1, flags: must be a text or a list"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        read_arms(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        read_arms(tmp_path / "none.yaml")
