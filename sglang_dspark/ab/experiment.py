"""The offline experiment: every arm under every load, interleaved and repeated, within its time."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from tqdm import tqdm

from sglang_dspark.ab.bench_format import bench_record
from sglang_dspark.ab.catalogue import Chosen
from sglang_dspark.ab.dataset import Dataset
from sglang_dspark.ab.health import given_up
from sglang_dspark.ab.measure import measure, not_sent
from sglang_dspark.ab.plan import Plan, Speed, make_plan, order
from sglang_dspark.ab.store import Cell, Store, answers_of
from sglang_dspark.ab.traffic import Scenario, Shape, make_requests
from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.arms import Arm, ArmServers, Layout
from sglang_dspark.evaluate.endpoints import EndpointError, flush_cache, server_info, wait_idle
from sglang_dspark.evaluate.load import Request
from sglang_dspark.evaluate.prompts import load_tokenizer
from sglang_dspark.evaluate.server import ServerProcess, ServerStartError
from sglang_dspark.evaluate.steady import steady_load

logger = logging.getLogger(__name__)

# Of the warm-up: the limit of an answer, and the tokens a second that a server which gives none is planned with.
_WARM_LIMIT, _SICK_RATE = 60.0, 1.0
# Prompts by which repetitions are apart; shares no factor with the three domains that take turns.
_SKIP = 17
_ABOUT = (
    "version", "device", "dtype", "attention_backend", "speculative_algorithm", "speculative_num_steps",
    "speculative_eagle_topk", "speculative_num_draft_tokens", "max_total_num_tokens", "mem_fraction_static", "tp_size",
    "dp_size", "model_path",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Everything about how the experiment is run.

    Attributes:
        arms, scenarios, shape, dataset: what is compared, under which loads, on what.
        serve_flags: of every arm.
        seconds: for everything from the first start to the last answer.
        repetitions, cell_seconds: None: as the time allows.
        layout: of the servers.
        warm_seconds: for which each server is kept busy at each load before anything is measured.
        fresh: a new server for every cell.
        ready_seconds: limit for a start.
        output: folder of the results.
    """

    arms: Sequence[Chosen]
    scenarios: Sequence[Scenario]
    shape: Shape
    dataset: Dataset
    serve_flags: Sequence[str]
    seconds: float
    repetitions: int | None
    cell_seconds: float | None
    layout: Layout
    warm_seconds: float
    fresh: bool
    ready_seconds: float
    output: Path


class Experiment:
    """Runs what its store does not have yet.

    Args:
        settings: what and how.
        store: cells and notes so far.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._tokenizer: Any = None
        self._deadline = time.monotonic() + settings.seconds
        self._starts: dict[str, list[float]] = store.notes.get("starts", {})
        self._stopped: dict[str, str] = store.notes.get("stopped", {})

    def run(self) -> None:
        """Measure until every cell is there or the time is over.

        Raises:
            DSparkError: no arm starts.
        """
        settings = self._settings
        arms = [self._searched(chosen, chosen.arm) for chosen in settings.arms if chosen.arm is not None]
        with self._servers(arms) as servers:
            self._store.note("failed_starts", servers.failed)
            names = [arm.name for arm in arms if arm.name not in servers.failed]
            if not names:
                raise DSparkError("no arm starts: " + "; ".join(servers.failed.values()))
            self._store.note("layout", "side-by-side" if servers.side_by_side else "one-at-a-time")
            plan = self._plan(servers, names)
            self._repeat(servers, names, plan)

    def _repeat(self, servers: ArmServers, names: Sequence[str], plan: Plan) -> None:
        done = self._store.done
        cells = [
            (arm, scenario, repetition)
            for repetition in range(plan.repetitions)
            for arm, scenario in order(names, self._settings.scenarios, repetition, servers.side_by_side)
        ]
        left = [cell for cell in cells if (cell[0], cell[1].key, cell[2]) not in done]
        started = began = time.monotonic()
        before: int | None = None
        with tqdm(total=len(left), unit="cell", disable=None) as bar:
            for number, (arm, scenario, repetition) in enumerate(left):
                now = time.monotonic()
                if before is not None and repetition != before:
                    if repetition >= 2 and now - began > self._deadline - now:
                        early = f"{repetition} of {plan.repetitions} repetitions fit into the time"
                        self._store.note("ended_early", early)
                        break
                    began = now
                before = repetition
                if arm not in self._stopped:
                    what = f"{arm}, {scenario.label}, repetition {repetition + 1}"
                    self._progress(bar, number, len(left), now - started, what)
                    self._cell(servers, arm, scenario, repetition, plan)
                bar.update()

    def _progress(self, bar: Any, number: int, total: int, spent: float, what: str) -> None:
        bar.set_description(what)
        if bar.disable:  # a log file: one line a cell
            left = f", about {spent / number * (total - number) / 60:.0f} min left" if number else ""
            logger.info("cell %d of %d%s: %s", number + 1, total, left, what)

    def _cell(self, servers: ArmServers, arm: str, scenario: Scenario, repetition: int, plan: Plan) -> None:
        started = time.time()
        try:
            server = self._server(servers, arm)
            # Each repetition asks other prompts, all arms the same: what holds must not hold for a few prompts only.
            count = plan.requests.get(scenario.key, len(self._settings.dataset.dialogues))
            requests = self._requests(scenario, count, server, skip=repetition * _SKIP)
            flush_cache(server.base_url)
            measured = measure(scenario, requests, self._settings.shape, server.base_url, plan.cell_seconds)
            wait_idle(server.base_url)
        except (ServerStartError, EndpointError, httpx.TransportError) as error:
            measured = not_sent(scenario.users, f"{type(error).__name__}: {str(error).splitlines()[0]}")
        self._store.add(Cell(arm, scenario.key, repetition, started, measured.figures, answers_of(measured.run)))
        with (self._settings.output / "bench_serving.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(bench_record(arm, scenario, measured, self._settings.dataset.name)) + "\n")
        if why := given_up([cell for cell in self._store.cells if cell.arm == arm]):
            self._stopped[arm] = why
            self._store.note("stopped", self._stopped)
            logger.warning("%s is measured no further: %s", arm, why)

    def _server(self, servers: ArmServers, arm: str) -> ServerProcess:
        """The arm's server, warm; a fresh one where that is asked for, or where the old one has ended."""
        up = servers.up(arm)
        if up is not None and up.alive and not self._settings.fresh:
            return up
        server = servers.restart(arm)
        self._describe(arm, server)
        self._warm_up(server, max(scenario.users for scenario in self._settings.scenarios))
        return server

    def _plan(self, servers: ArmServers, names: Sequence[str]) -> Plan:
        """Warm every server that is up, describe it, and size the cells by the speeds seen; once an experiment."""
        seen: dict[str, list[Speed]] = {scenario.key: [] for scenario in self._settings.scenarios}
        for name in names if servers.side_by_side else names[:1]:
            server = servers.get(name)
            speeds = {users: self._warm_up(server, users) for users in self._user_counts()}
            for scenario in self._settings.scenarios:
                seen[scenario.key].append(speeds[scenario.users])
            self._describe(name, server)
        if "plan" in self._store.notes:
            old = Plan(**self._store.notes["plan"])
            return replace(old, repetitions=self._settings.repetitions or old.repetitions)
        if not servers.side_by_side:
            seen = {key: values * len(names) for key, values in seen.items()}
        settings, restarts = self._settings, 0.0
        if not servers.side_by_side:
            restarts = len(names) * (median(self._starts[names[0]]) + settings.warm_seconds)
        plan = make_plan(
            settings.scenarios,
            seen,
            settings.shape,
            seconds=self._deadline - time.monotonic(),
            repetitions=settings.repetitions,
            dialogues=len(settings.dataset.dialogues),
            cell_seconds=settings.cell_seconds,
            start_seconds=restarts,
        )
        self._store.note("plan", vars(plan))
        logger.info(
            "%d repetitions of about %.0f s; users are kept busy for %.1f s a cell",
            plan.repetitions, plan.seconds, plan.cell_seconds,
        )  # fmt: skip
        return plan

    def _describe(self, arm: str, server: ServerProcess) -> None:
        about: dict[str, Any] = self._store.notes.get("about", {})
        if arm not in about:
            self._store.note("about", {**about, arm: _describe(server)})

    def _user_counts(self) -> list[int]:
        return sorted({scenario.users for scenario in self._settings.scenarios})

    def _requests(self, scenario: Scenario, count: int, server: ServerProcess, skip: int = 0) -> list[Request]:
        """`count` dialogues after the first `skip`, tokenised with the tokenizer of the model that is served."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(server_info(server.base_url)["tokenizer_path"])
        dialogues = self._settings.dataset.dialogues
        start = skip % len(dialogues)
        turned = (*dialogues[start:], *dialogues[:start])
        return make_requests(scenario, turned, self._settings.shape, self._tokenizer, count)

    def _warm_up(self, server: ServerProcess, users: int) -> Speed:
        """Keep so many users busy for a while: what is initialised on first use, and what adapts, has met the load."""
        settings = self._settings
        temperature = max(scenario.temperature for scenario in settings.scenarios)
        requests = self._requests(Scenario("closed", users, temperature), len(settings.dataset.dialogues), server)
        limit = min(_WARM_LIMIT, settings.shape.request_seconds)
        began = time.perf_counter()
        run = steady_load(server.base_url, requests, users, settings.warm_seconds, request_seconds=limit)
        with contextlib.suppress(EndpointError, httpx.TransportError):  # a sick arm's cells will say so
            wait_idle(server.base_url)
        if run.failed:
            return Speed(_SICK_RATE, limit)
        return Speed(max(run.tokens_per_second, _SICK_RATE), run.begin - began)

    @contextlib.contextmanager
    def _servers(self, arms: Sequence[Arm]) -> Iterator[ArmServers]:
        settings = self._settings
        servers = ArmServers(
            arms, settings.serve_flags, settings.layout, settings.ready_seconds, tolerant=True, on_start=self._started
        )
        with servers:
            yield servers

    def _started(self, arm: str, seconds: float) -> None:
        self._starts.setdefault(arm, []).append(round(seconds, 2))
        self._store.note("starts", self._starts)

    def _searched(self, chosen: Chosen, arm: Arm) -> Arm:
        """The arm itself, or of its variants the fastest at the middle load."""
        name, variants = chosen.name, chosen.search
        if not variants:
            return arm
        found: dict[str, list[str]] = self._store.notes.get("searched", {})
        if name not in found:
            speeds = {variant: self._speed(variant) for variant in variants}
            best = max(speeds, key=lambda variant: speeds[variant])
            found[name] = list(best.flags)
            self._store.note("searched", found)
            self._store.note("searched_speeds", {variant.name: speed for variant, speed in speeds.items()})
        return replace(arm, flags=tuple(found[name]))

    def _speed(self, arm: Arm) -> float:
        """Output tokens a second in closed loop at the middle number of users; 0 if it does not start."""
        users = self._user_counts()[len(self._user_counts()) // 2]
        try:
            with ArmServers([arm], self._settings.serve_flags, "side-by-side", self._settings.ready_seconds) as servers:
                self._warm_up(servers.get(arm.name), users)
                return self._warm_up(servers.get(arm.name), users).rate
        except ServerStartError:
            return 0.0


def _describe(server: ServerProcess) -> dict[str, Any]:
    """What the server made of its flags."""
    info = server_info(server.base_url)
    return {
        "speculates": bool(info.get("speculative_algorithm")),
        "memory_gib": round(server.memory_bytes() / 2**30, 2),
        "flags": shlex.join(server.flags),
        **{key: info[key] for key in _ABOUT if info.get(key) is not None},
    }
