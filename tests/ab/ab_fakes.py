"""Cells as an experiment would have measured them, from a model of servers whose true speeds are known."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sglang_dspark.ab.catalogue import Chosen
from sglang_dspark.ab.compare import THROUGHPUT, USER_SPEED
from sglang_dspark.ab.results import Question, collect
from sglang_dspark.ab.store import Cell, Store
from sglang_dspark.ab.traffic import Scenario
from sglang_dspark.evaluate.arms import Arm
from sglang_dspark.evaluate.load import LoadRun, Result
from sglang_dspark.evaluate.summary import summarise

SIMULATOR = (sys.executable, "-m", "sglang_dspark.ab.simulator")
LOADS = (1, 4, 16)


def scenarios(loads: Sequence[float] = LOADS, temperatures: Sequence[float] = (0.0,)) -> list[Scenario]:
    return [Scenario("closed", load, temperature) for temperature in temperatures for load in loads]


def chosen(name: str, *flags: str, not_run: str | None = None) -> Chosen:
    arm = None if not_run else Arm(name, flags, SIMULATOR)
    return Chosen(name, f"{name}, simulated", arm, not_run)


def run_at(speed: float, users: int, tokens: int = 32, sampled: int = 0, accept: int = 1) -> LoadRun:
    """One run in which each of `users` requests is decoded at `speed` tokens a second."""
    results = []
    for user in range(users):
        seconds = tokens / speed
        meta: dict[str, Any] = {"completion_tokens": tokens, "prompt_tokens": 10}
        if accept > 1:
            rounds = (tokens - 1) // accept
            meta |= {
                "spec_verify_ct": rounds,
                "spec_num_proposed_drafts": 4 * rounds,
                "spec_num_correct_drafts": tokens - 1 - rounds,
            }
        arrivals = [(seconds * (i + 1) / tokens, i + 1) for i in range(tokens)]
        ids = [user * 1000 + i + sampled for i in range(tokens)]
        domain = ("math", "code", "chat")[user % 3]
        results.append(Result(f"r{user}", domain, 0.0, ids, "text", arrivals, "length", seconds=seconds, meta=meta))
    return LoadRun(results, tokens / speed)


def answers(run: LoadRun) -> list[dict[str, Any]]:
    from sglang_dspark.ab.store import answers_of

    return answers_of(run)


def cells(
    speeds: Mapping[str, float],
    *,
    loads: Sequence[float] = LOADS,
    temperatures: Sequence[float] = (0.0,),
    repetitions: int = 5,
    noise: float = 0.02,
    drift: float = 0.1,
    seed: int = 0,
    accept: Mapping[str, int] | None = None,
    samples: Mapping[str, bool] | None = None,
    short: bool = False,
) -> list[Cell]:
    """All cells of an experiment.

    Args:
        speeds: true tokens a second of one user of each arm.
        noise: of every cell; at 16 users half as much, since more is averaged.
        drift: of every repetition, the same for all arms.
        short: leave the answers out, and all figures but those that are compared.
    """
    draw = np.random.default_rng(seed)
    found = []
    for repetition in range(repetitions):
        shared = draw.lognormal(0.0, drift)
        for scenario in scenarios(loads, temperatures):
            for arm, speed in speeds.items():
                own = draw.lognormal(0.0, noise / (2 if scenario.load >= 16 else 1))
                users = int(scenario.load)
                actual = speed * shared * own / (1 + 0.05 * users)
                if short:
                    figures = {"failed": 0, THROUGHPUT: actual * users, USER_SPEED: actual}
                    found.append(Cell(arm, scenario.key, repetition, 0.0, figures, []))
                    continue
                sampled = 0
                if scenario.temperature > 0 and (samples or {}).get(arm, True):
                    sampled = int(draw.integers(1, 900)) + 100_000 * (repetition + 1)
                run = run_at(actual, users, sampled=sampled, accept=(accept or {}).get(arm, 1))
                found.append(Cell(arm, scenario.key, repetition, 0.0, summarise(run).as_json(), answers(run)))
    return found


def results(
    measured: Sequence[Cell],
    folder: Path,
    arms: Sequence[Chosen],
    *,
    loads: Sequence[float] = LOADS,
    temperatures: Sequence[float] = (0.0,),
    question: Question | None = None,
    notes: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `collect` makes of the cells."""
    store = Store(folder / "cells.jsonl", {})
    store.cells = list(measured)
    for key, value in (notes or {}).items():
        store.notes[key] = value
    names = [one.name for one in arms]
    machine = {"cpu": "a <test> processor", "cores": 2, "accelerators": [], "versions": {"sglang": "0.5.23"}}
    return collect(
        store,
        arms,
        scenarios(loads, temperatures),
        question or Question(names[-1], names[0]),
        {
            "command": "python -m sglang_dspark ab --arms 'a </script> b'",
            "started": "2026-01-01T00:00:00+00:00",
            "finished": "2026-01-01T00:20:00+00:00",
            "machine": machine,
            "dataset": "shipped prompts",
            "fit_for_acceptance": True,
            "serve_flags": "--max-total-tokens 8192",
            "settings": {"seed": 0},
            **(about or {}),
        },
    )
