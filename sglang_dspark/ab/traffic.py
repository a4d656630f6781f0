"""How users ask: the scenarios of an experiment, and the requests each one sends, the same ones to every arm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglang_dspark.ab.dataset import FOLLOW_UPS, Dialogue
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.load import Request, Result
from sglang_dspark.evaluate.open_loop import poisson_arrivals
from sglang_dspark.evaluate.prompts import apply_chat_turns

Kind = Literal["closed", "poisson", "recorded", "shared-prefix", "multi-turn", "answers"]
CLOSED_LOOP: tuple[Kind, ...] = ("closed", "shared-prefix", "multi-turn", "answers")
# Asked once an arm, to the end of every answer: what answers and acceptance are judged by.
ANSWERS = "answers"

# Repeated to the length that is asked for: what assistants are told before every conversation.
_SYSTEM = (
    "You are a careful assistant. Answer in complete sentences, say what you are sure of and what you are not, and "
    "show how you came to a result. When a question leaves something open, name the most likely reading and answer it. "
)


@dataclass(frozen=True)
class Scenario:
    """One load at one temperature.

    Attributes:
        kind: how requests arrive and what they share.
        load: users at a time in closed loop; requests a second of `poisson`; the speed-up of `recorded`.
        temperature: of sampling.
    """

    kind: Kind
    load: float
    temperature: float

    @property
    def key(self) -> str:
        """Unique within an experiment."""
        return f"{self.kind}:{self.load:g}:T{self.temperature:g}"

    @property
    def label(self) -> str:
        what = {
            "closed": f"{self.load:g} users",
            "poisson": f"Poisson, {self.load:g} requests/s",
            "recorded": f"recorded arrivals x{self.load:g}",
            "shared-prefix": f"{self.load:g} users, shared prefix",
            "multi-turn": f"{self.load:g} users, several turns",
            "answers": f"{self.load:g} users, complete answers",
        }[self.kind]
        return f"{what}, T = {self.temperature:g}"

    @property
    def users(self) -> int:
        """Requests at a time in closed loop; 1 where arrivals decide."""
        return int(self.load) if self.kind in CLOSED_LOOP else 1


@dataclass(frozen=True)
class Shape:
    """What all requests have in common.

    Attributes:
        max_new_tokens: of an answer, unless the dialogue says otherwise.
        ignore_eos: answers have exactly that length, so that arms do equal work at T > 0.
        shared_prefix: tokens of the system text that `shared-prefix` puts before every prompt, about.
        turns: of `multi-turn`.
        answers: prompts of `answers`.
        request_seconds: limit for an answer.
        arrivals: seconds, of `recorded`.
        seed: of Poisson arrivals.
    """

    max_new_tokens: int = 128
    ignore_eos: bool = True
    shared_prefix: int = 256
    turns: int = 3
    answers: int = 24
    request_seconds: float = 300.0
    arrivals: tuple[float, ...] = ()
    seed: int = 0


def make_requests(
    scenario: Scenario, dialogues: Sequence[Dialogue], shape: Shape, tokenizer: Any, count: int
) -> list[Request]:
    """The first `count` dialogues as requests; a longer list repeats them under new ids.

    Args:
        scenario, shape: how they are asked.
        dialogues: what is asked.
        tokenizer: the target's, with a chat template.
        count: of dialogues; with several turns each makes several requests.
    """
    system = ""
    if scenario.kind == "shared-prefix":
        system = _SYSTEM * -(-shape.shared_prefix // max(1, len(tokenizer.encode(_SYSTEM, add_special_tokens=False))))
    requests = []
    for i in range(count):
        lap, place = divmod(i, len(dialogues))
        dialogue = dialogues[place]
        name = dialogue.id if lap == 0 else f"{dialogue.id}#{lap}"
        requests.append(_first(name, dialogue, scenario, shape, tokenizer, system))
    return requests


def _first(name: str, dialogue: Dialogue, scenario: Scenario, shape: Shape, tokenizer: Any, system: str) -> Request:
    sampling = {
        "temperature": scenario.temperature,
        "max_new_tokens": dialogue.output_tokens or shape.max_new_tokens,
        "ignore_eos": shape.ignore_eos,
    }
    if not dialogue.turns:
        return Request(name, dialogue.domain, dialogue.input_ids, sampling)
    turns = dialogue.turns[:1]
    if scenario.kind == "multi-turn":
        turns = (*dialogue.turns, *FOLLOW_UPS * shape.turns)[: shape.turns]
    messages = [{"role": "system", "content": system.strip()}] if system else []
    return _turn(name, dialogue.domain, messages, turns, 0, sampling, tokenizer)


def _turn(
    name: str,
    domain: str,
    history: Sequence[Mapping[str, str]],
    turns: Sequence[str],
    place: int,
    sampling: Mapping[str, Any],
    tokenizer: Any,
) -> Request:
    """Turn `place` of a dialogue; its `then` makes the next from the answer that came."""
    messages = [*history, {"role": "user", "content": turns[place]}]

    def follow(result: Result) -> Request:
        answered = [*messages, {"role": "assistant", "content": result.text}]
        return _turn(name, domain, answered, turns, place + 1, sampling, tokenizer)

    then: Callable[[Result], Request | None] | None = follow if place + 1 < len(turns) else None
    label = name if place == 0 else f"{name}/{place + 1}"
    return Request(label, domain, apply_chat_turns(tokenizer, messages), sampling, then=then)


def arrival_times(scenario: Scenario, shape: Shape, count: int) -> list[float]:
    """When each of `count` requests is sent, in seconds; recorded arrivals begin anew when they have run out."""
    if scenario.kind == "poisson":
        return poisson_arrivals(count, scenario.load, shape.seed)
    times = shape.arrivals
    period = times[-1] + times[-1] / len(times)
    return [(times[i % len(times)] + period * (i // len(times))) / scenario.load for i in range(count)]


def read_arrivals(path: Path) -> tuple[float, ...]:
    """Arrival times in seconds, from JSONL: a number a line, or an object with `at` or `timestamp` (also in seconds).

    They are shifted so that the first is 0.

    Raises:
        ConfigError: a line without a time, or fewer than two times.
    """
    times = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"--arrivals {path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            times.append(
                float(record["at"] if "at" in record else record["timestamp"])
                if isinstance(record, dict)
                else float(record)
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"--arrivals {path}, line {number}: no time in seconds ({error})") from error
    if len(times) < 2:
        raise ConfigError(f"--arrivals {path}: needs at least two times")
    times.sort()
    if times[-1] == times[0]:
        raise ConfigError(f"--arrivals {path}: all times are the same")
    return tuple(at - times[0] for at in times)
