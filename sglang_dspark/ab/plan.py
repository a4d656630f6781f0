"""How many requests a cell sends and how often, so that an experiment keeps its time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sglang_dspark.ab.traffic import CLOSED_LOOP, Scenario, Shape, arrival_times

# Fewer pairs than this give intervals too wide to say anything (Student's quantile is 4.3 for three and 2.8 for five).
FEWEST, MOST = 3, 10
# Of a cell's time, what flushing the cache, waiting and keeping records take.
_OVERHEAD_SECONDS = 0.7


@dataclass(frozen=True)
class Plan:
    """Attributes:
    requests: dialogues of a cell, by scenario key; the same for every arm and repetition.
    repetitions: that fit.
    seconds: of one repetition, estimated.
    """

    requests: dict[str, int]
    repetitions: int
    seconds: float


def make_plan(
    scenarios: Sequence[Scenario],
    rates: Mapping[str, Sequence[float]],
    shape: Shape,
    *,
    seconds: float,
    repetitions: int | None,
    dialogues: int,
    requests_per_user: int | None = None,
) -> Plan:
    """Share the time out evenly over scenarios; sizes first, repetitions then.

    Args:
        scenarios: all of them.
        rates: output tokens a second of every arm, by scenario key, as the warm-up saw them.
        shape: of the requests.
        seconds: that are left for measuring.
        repetitions: fixed by the user, None: as many as fit, `FEWEST` to `MOST`.
        dialogues: in the dataset; a cell sends none twice.
        requests_per_user: fixed by the user, None: as fits.
    """
    wanted = repetitions or 5
    cells = sum(len(rates[s.key]) for s in scenarios)
    share = max(1.0, seconds / wanted / cells - _OVERHEAD_SECONDS)
    sizes = {s.key: _size(s, rates[s.key], shape, share, dialogues, requests_per_user) for s in scenarios}
    one = sum(_seconds(s, rate, shape, sizes[s.key]) for s in scenarios for rate in rates[s.key])
    count = repetitions or max(FEWEST, min(MOST, int(seconds / one)))
    return Plan(sizes, count, one)


def _size(
    scenario: Scenario, rates: Sequence[float], shape: Shape, share: float, dialogues: int, per_user: int | None
) -> int:
    if scenario.kind == "recorded":
        return min(len(shape.arrivals), dialogues)
    if scenario.kind == "poisson":
        return max(4, min(dialogues, int(share * scenario.load)))
    users = scenario.users
    turns = shape.turns if scenario.kind == "multi-turn" else 1
    mean_rate = len(rates) / sum(1 / rate for rate in rates)
    fits = share * mean_rate / shape.max_new_tokens / turns
    rounds = per_user or max(1, int(fits / users))
    # One prompt of each domain at least; otherwise whole rounds, so that all users are busy to the end.
    return max(3, min(rounds, dialogues // users) * users)


def _seconds(scenario: Scenario, rate: float, shape: Shape, size: int) -> float:
    turns = shape.turns if scenario.kind == "multi-turn" else 1
    serving = size * turns * shape.max_new_tokens / rate
    if scenario.kind not in CLOSED_LOOP:
        serving = max(serving, arrival_times(scenario, shape, size)[-1])
    return serving + _OVERHEAD_SECONDS


def order(
    arms: Sequence[str], scenarios: Sequence[Scenario], repetition: int, side_by_side: bool, seed: int = 0
) -> Iterator[tuple[str, Scenario]]:
    """The cells of one repetition; what is compared runs as close in time as the layout allows.

    Side by side, each scenario goes through all arms, in an order drawn anew each time. One at a time, each arm goes
    through all scenarios.
    """
    draw = random.Random(f"{seed}-{repetition}")
    if side_by_side:
        for scenario in scenarios:
            for arm in draw.sample(list(arms), len(arms)):
                yield arm, scenario
    else:
        for arm in draw.sample(list(arms), len(arms)):
            for scenario in scenarios:
                yield arm, scenario
