"""The live engine draws from the target's exact distribution, in every pair of sampling features, policies and loads.

The tokens of a tiny committed pair are compared one by one with their distributions in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from live import report as live_report
from live.check import Judged, judge
from live.experiment import PREFIX, Run, draw_all
from live.settings import FACTORS, Setting, covering_array, every_level

pytestmark = pytest.mark.engine

SETTINGS = covering_array()
SHORT_SETTINGS = every_level(SETTINGS)
# Tokens drawn by rounds, by batch size: what a core draws in about the same time.
SHORT = {16: 8_000, 3: 2_500, 1: 1_200}
LONG = {16: 100_000, 3: 50_400, 1: 50_400}
# Chance that a correct engine fails somewhere in the table.
ALPHA_SHORT, ALPHA_LONG = 0.001, 0.01
TIME_LIMIT = 2400.0  # of one engine, on cores that others use too

Lines = dict[str, Judged]


def setting_with(**levels: str) -> Setting:
    """First level of every factor but those named."""
    return Setting(tuple(levels.get(factor, next(iter(entries))) for factor, entries in FACTORS.items()))


HONEST = [Run(setting, SHORT[setting.batch]) for setting in SHORT_SETTINGS]
PLANTED = {
    "peeking schedule": Run(setting_with(), 24_000, "peeking schedule"),
    # Cold, because a penalty is then worth more than at T = 1.
    "stale penalties": Run(setting_with(penalty="presence+frequency", temperature="T=0.3"), 8_000, "stale penalties"),
}
# An engine that drafts nothing is lossless, which shows nothing about speculation.
UNDRAFTED = Run(setting_with(), 2_000, server={"policy": "fixed", "verify_length": 0})


@pytest.fixture(scope="module")
def short() -> Lines:
    """Everything of the short form side by side; what is planted is judged alone."""
    runs = [*HONEST, *PLANTED.values(), UNDRAFTED]
    results = dict(zip(map(str, runs), draw_all(runs, TIME_LIMIT), strict=True))
    honest = {str(run): results[str(run)] for run in HONEST}
    judged = judge(honest, ALPHA_SHORT, with_power=False)
    for run in (*PLANTED.values(), UNDRAFTED):
        judged += judge({str(run): results[str(run)]}, ALPHA_SHORT, with_power=False)
    return {line.setting: line for line in judged}


@pytest.fixture(scope="module")
def long(record_live: Callable[[list[dict[str, Any]], float], None]) -> Lines:
    start = time.monotonic()
    runs = [Run(setting, LONG[setting.batch]) for setting in SETTINGS]
    results = dict(zip(map(str, runs), draw_all(runs, TIME_LIMIT), strict=True))
    judged = judge(results, ALPHA_LONG)
    record_live(live_report.rows(judged), time.monotonic() - start)
    return {line.setting: line for line in judged}


def check(setting: Setting, line: Judged, tokens: dict[int, int]) -> None:
    assert line.verdict == "pass", line
    assert line.tokens >= 0.98 * tokens[setting.batch]  # few contexts are within rounding of a filter's threshold
    assert line.rounds < line.tokens
    if setting.shared_prefix:
        assert line.cached >= 0.9 * PREFIX * line.requests


@pytest.mark.parametrize("setting", SHORT_SETTINGS, ids=str)
def test_short(setting: Setting, short: Lines) -> None:
    check(setting, short[str(setting)], SHORT)


@pytest.mark.exact
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_long(setting: Setting, long: Lines) -> None:
    check(setting, long[str(setting)], LONG)
    assert long[str(setting)].power >= 0.5


@pytest.mark.exact
def test_a_bias_of_a_hundredth_is_found(long: Lines) -> None:
    """By simulation at the contexts and sample sizes of the table, at the level of its strictest comparison."""
    powers = [line.power for line in long.values()]
    assert sum(powers) / len(powers) >= 0.9


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_error_is_found(planted: str, short: Lines) -> None:
    line = short[str(PLANTED[planted])]
    assert line.verdict == "fail", line


@pytest.mark.known_case(23)
def test_no_draft_no_verdict(short: Lines) -> None:
    line = short[str(UNDRAFTED)]
    assert line.accepted == 0
    assert line.verdict == "inconclusive"
