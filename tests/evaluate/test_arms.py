from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate import arms
from sglang_dspark.evaluate.arms import Arm, ArmServers, parse_arm


def test_parse_arm() -> None:
    assert parse_arm("plain").flags == ("--dspark-draft", "none")
    assert parse_arm("dspark") == Arm("dspark")
    assert parse_arm("two=--dspark-verify-length 2 --model-path 'a b'") == Arm(
        "two", ("--dspark-verify-length", "2", "--model-path", "a b")
    )
    assert parse_arm("bare=") == Arm("bare")
    for wrong, message in (("mtp", "give one of plain"), ("=--x", "is empty"), ("a='", "No closing quotation")):
        with pytest.raises(ConfigError, match=message):
            parse_arm(wrong)


class FakeServer:
    log: ClassVar[list[str]] = []

    def __init__(self, flags: tuple[str, ...], name: str, ready_seconds: float) -> None:
        self.flags, self.name = flags, name

    def start(self) -> None:
        self.log.append(f"+{self.name}")

    def wait_ready(self) -> None:
        if "--fails" in self.flags:
            raise RuntimeError("does not start")

    def stop(self) -> None:
        self.log.append(f"-{self.name}")

    def memory_bytes(self) -> int:
        return 100


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeServer.log = []
    monkeypatch.setattr(arms, "ServerProcess", FakeServer)
    return FakeServer.log


def free_memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    class Memory:
        available = size

    monkeypatch.setattr(arms.psutil, "virtual_memory", Memory)


PAIR = [Arm("a", ("--x",)), Arm("b")]


def test_side_by_side_when_it_fits(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, 1000)
    with ArmServers(PAIR, ["--common"]) as servers:
        assert servers.side_by_side
        a: Any = servers.get("a")
        assert a.flags == ("--x", *arms.BENCH_FLAGS, "--common")
        assert servers.get("a") is a
        servers.get("b")
        assert log == ["+a", "+b"]
        assert servers.restart("a") is not a
    assert sorted(log) == sorted(["+a", "+b", "-a", "+a", "-a", "-b"])


def test_one_at_a_time_when_it_does_not(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, 50)
    with ArmServers(PAIR) as servers:
        assert not servers.side_by_side
        servers.get("b")
        servers.get("a")
    assert log == ["+a", "-a", "+b", "-b", "+a", "-a"]


def test_a_failing_arm_takes_the_others_down(log: list[str]) -> None:
    with (
        pytest.raises(RuntimeError, match="does not start"),
        ArmServers([Arm("a"), Arm("b", ("--fails",))], layout="side-by-side"),
    ):
        pytest.fail("it did start")
    assert sorted(log) == ["+a", "+b", "-a", "-b"]


def test_names_must_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name of its own"):
        ArmServers([Arm("a"), Arm("a", ("--x",))])
