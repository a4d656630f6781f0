"""How long a cell takes and how often, so that an experiment keeps its time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sglang_dspark.ab.traffic import ANSWERS, CLOSED_LOOP, Scenario, Shape, arrival_times

# Fewer pairs than this give intervals too wide to say anything (Student's quantile is 4.3 for three and 2.8 for five).
FEWEST, MOST, USUAL = 3, 10, 5
SHORTEST_SECONDS, LONGEST_SECONDS = 3.0, 30.0
# Of a cell's time, what flushing the cache, waiting for the end and keeping records take.
_OVERHEAD_SECONDS = 0.7


@dataclass(frozen=True)
class Speed:
    """What the warm-up saw of a server under a number of users.

    Attributes:
        rate: output tokens a second.
        first_token: seconds until every user had one.
    """

    rate: float
    first_token: float


@dataclass(frozen=True)
class Plan:
    """Attributes:
    requests: dialogues of a cell that is a list, by scenario key; the same for every arm and repetition.
    cell_seconds: for which the users of a closed-loop cell are kept busy.
    repetitions: that fit.
    seconds: of one repetition, estimated.
    """

    requests: dict[str, int]
    cell_seconds: float
    repetitions: int
    seconds: float


def make_plan(
    scenarios: Sequence[Scenario],
    speeds: Mapping[str, Sequence[Speed]],
    shape: Shape,
    *,
    seconds: float,
    repetitions: int | None,
    dialogues: int,
    cell_seconds: float | None = None,
    start_seconds: float = 0.0,
) -> Plan:
    """Share the time out evenly over cells: five repetitions; fewer where cells would be too short, more where long.

    Args:
        scenarios: all of them.
        speeds: of every arm, by scenario key.
        shape: of the requests.
        seconds: that are left for measuring.
        repetitions: fixed by the user, None: as many as fit, `FEWEST` to `MOST`.
        dialogues: in the dataset; a list sends none twice.
        cell_seconds: fixed by the user, None: as fits.
        start_seconds: that starting servers takes in each repetition.
    """
    once = [s for s in scenarios if s.kind == ANSWERS]
    sizes = {s.key: min(dialogues, shape.answers) for s in once}
    seconds -= sum(_list_seconds(s, speed, shape, sizes[s.key]) for s in once for speed in speeds[s.key])
    scenarios = [s for s in scenarios if s.kind != ANSWERS]
    cells = sum(len(speeds[s.key]) for s in scenarios)
    before = start_seconds + sum(_before(s, speed) for s in scenarios for speed in speeds[s.key])

    def share(count: int) -> float:
        return (seconds / count - before) / cells

    count = repetitions or USUAL
    if cell_seconds is not None:
        count = repetitions or max(FEWEST, min(MOST, int(seconds / (cells * cell_seconds + before))))
    elif repetitions is None:
        while count > FEWEST and share(count) < SHORTEST_SECONDS:
            count -= 1
        while count < MOST and share(count + 1) > LONGEST_SECONDS:
            count += 1
    each = cell_seconds or max(SHORTEST_SECONDS, min(LONGEST_SECONDS, share(count)))
    sizes |= {s.key: _size(s, speeds[s.key], shape, each, dialogues) for s in scenarios if s.kind != "closed"}
    lists = sum(
        _list_seconds(s, speed, shape, sizes[s.key]) for s in scenarios if s.key in sizes for speed in speeds[s.key]
    )
    steady = sum(len(speeds[s.key]) for s in scenarios if s.key not in sizes) * each
    return Plan(sizes, each, count, before + lists + steady)


def _before(scenario: Scenario, speed: Speed) -> float:
    """Seconds of a cell in which nothing is counted yet."""
    return _OVERHEAD_SECONDS + (speed.first_token if scenario.kind == "closed" else 0.0)


def _size(scenario: Scenario, speeds: Sequence[Speed], shape: Shape, share: float, dialogues: int) -> int:
    if scenario.kind == "recorded":
        return min(len(shape.arrivals), dialogues)
    if scenario.kind == "poisson":
        return max(4, min(dialogues, int(share * scenario.load)))
    users, turns = scenario.users, shape.turns if scenario.kind == "multi-turn" else 1
    rate = len(speeds) / sum(1 / speed.rate for speed in speeds)
    rounds = max(1, int(share * rate / shape.max_new_tokens / turns / users))
    return max(3, min(rounds, dialogues // users) * users)


def _list_seconds(scenario: Scenario, speed: Speed, shape: Shape, size: int) -> float:
    turns = shape.turns if scenario.kind == "multi-turn" else 1
    serving = size * turns * shape.max_new_tokens / speed.rate
    return serving if scenario.kind in CLOSED_LOOP else max(serving, arrival_times(scenario, shape, size)[-1])


def order(
    arms: Sequence[str], scenarios: Sequence[Scenario], repetition: int, side_by_side: bool, seed: int = 0
) -> Iterator[tuple[str, Scenario]]:
    """The cells of one repetition; what is compared runs as close in time as the layout allows.

    Complete answers are asked for in the first one only.

    Side by side, each scenario goes through all arms, in an order drawn anew each time. One at a time, each arm goes
    through all scenarios.
    """
    draw = random.Random(f"{seed}-{repetition}")
    scenarios = [scenario for scenario in scenarios if repetition == 0 or scenario.kind != ANSWERS]
    if side_by_side:
        for scenario in scenarios:
            for arm in draw.sample(list(arms), len(arms)):
                yield arm, scenario
    else:
        for arm in draw.sample(list(arms), len(arms)):
            for scenario in scenarios:
                yield arm, scenario
