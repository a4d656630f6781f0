"""The split of live traffic: its file, its test, its decisions, and HAProxy in front of simulated fleets."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import pytest
import yaml
from ab_fakes import SIMULATOR

from sglang_dspark.ab.live import telemetry
from sglang_dspark.ab.live.config import Fleet, Guardrails, SpeedTest, Split, Step, read_split
from sglang_dspark.ab.live.controller import Controller, Look
from sglang_dspark.ab.live.main import main, watch
from sglang_dspark.ab.live.proxy import Counters, OwnProxy, configuration
from sglang_dspark.ab.live.sequential import ConfidenceSequence
from sglang_dspark.ab.live.telemetry import Reading, mean_gap, parse, quantile
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.server import ServerProcess, free_port

ROOT = Path(__file__).parents[2]
MINIMAL = """
control: {name: mtp-1, workers: ["http://127.0.0.1:1"]}
candidate: {name: dspark, workers: ["http://127.0.0.1:2", "http://127.0.0.1:3"]}
"""


# --- the file


def test_the_file_of_a_split(tmp_path: Path) -> None:
    file = tmp_path / "split.yaml"
    file.write_text(
        MINIMAL
        + "ramp: [{percent: 2, minutes: 1}, {percent: 100, minutes: 0}]\nguardrails: {error_rate: 0.1}\n"
        + "test: {interval_seconds: 5}\naudit: a.jsonl\n"
    )
    split = read_split(file)
    assert split.candidate == Fleet("dspark", ("http://127.0.0.1:2", "http://127.0.0.1:3"))
    assert split.ramp == (Step(2, 1), Step(100, 0))
    assert (split.guardrails.error_rate, split.test.interval_seconds, split.audit) == (0.1, 5, Path("a.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("control: {workers: [http://a:1]}", "candidate is missing"),
        (MINIMAL + "ramps: 3", "unknown field 'ramps'"),
        (MINIMAL + "ramp: [{percent: 20, minutes: 1}, {percent: 5, minutes: 1}]", "percents must rise"),
        (MINIMAL + "ramp: [{percent: x, minutes: 1}]", "step 1, percent: must be a number"),
        (MINIMAL + "guardrails: {error_rates: 1}", "guardrails: unknown field 'error_rates'"),
        (MINIMAL + "listen: here", "listen: must be HOST:PORT"),
        (MINIMAL + "user_key: 'a b'", "user_key: 'a b' has letters"),
        (MINIMAL.replace("http://127.0.0.1:2", "https://x"), "is not http://HOST:PORT"),
        (MINIMAL.replace("dspark", "mtp-1"), "both called 'mtp-1'"),
        ("[", "split.yaml"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "split.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_split(file)


# --- the test that may be looked at all the time


def peeks(differences: Sequence[float]) -> bool:
    """Whether the sequence ever claims a difference, looking after every pair."""
    sequence = ConfidenceSequence()
    for difference in differences:
        sequence.add(math.exp(difference), 1.0)
        if sequence.verdict() != "open":
            return True
    return False


@pytest.mark.parametrize("law", ["normal", "heavy tails", "skewed"])
def test_peeking_all_the_time_finds_nothing_where_there_is_nothing(law: str) -> None:
    draw = np.random.default_rng(0)
    laws = {
        "normal": lambda: draw.normal(0, 0.1, 1000),
        "heavy tails": lambda: 0.1 * draw.standard_t(4, 1000),
        "skewed": lambda: 0.05 * (draw.gamma(4.0, 1.0, 1000) - 4.0),
    }
    assert sum(peeks(laws[law]()) for _ in range(200)) <= 10


def test_a_repeated_t_test_would_find_one() -> None:
    """Why the sequence is needed: what it is built to withstand does happen."""
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        values = draw.normal(0, 0.1, 1000)
        counts = np.arange(1, 1001)
        means = np.cumsum(values) / counts
        deviations = np.sqrt(np.maximum(np.cumsum(values**2) / counts - means**2, 1e-12))
        wrong += bool((np.abs(means) * np.sqrt(counts) / deviations)[30:].max() > 1.96)
    assert wrong > 25


def test_a_real_difference_is_found_and_covered() -> None:
    draw = np.random.default_rng(1)
    found = covered = 0
    for _ in range(100):
        sequence = ConfidenceSequence()
        for value in draw.normal(math.log(1.07), 0.1, 300):
            sequence.add(math.exp(value), 1.0)
        ratio = sequence.ratio()
        assert ratio is not None
        found += sequence.verdict() == "higher"
        covered += 1.07 in ratio
    assert found >= 93
    assert covered >= 95


# --- decisions


def counters(requests: int = 0, errors: int = 0, in_flight: int = 0, out: int = 0, up: bool = True) -> Counters:
    return Counters(requests, errors, in_flight, out, up)


class Splitter:
    """A controller with a clock, and what it did."""

    def __init__(self, **options: Any) -> None:
        fleets = {name: Fleet(name, ("http://127.0.0.1:1",)) for name in ("control", "candidate")}
        self.percents: list[float] = []
        self.audit: list[dict[str, Any]] = []
        ramp = (Step(10, 1), Step(50, 1))
        self.controller = Controller(
            Split(**{**fleets, "ramp": ramp, **options}), self.percents.append, self.audit.append
        )
        self.time = 0.0

    def look(
        self,
        candidate: Counters,
        control: Counters | None = None,
        seconds: float = 1.0,
        read: Mapping[str, Reading] | None = None,
    ) -> float:
        self.time += seconds
        found = {"control": Reading(), "candidate": Reading(), **(read or {})}
        self.controller.look(Look(self.time, {"control": control or counters(), "candidate": candidate}, found))
        return self.controller.percent


def test_the_ramp_goes_up_while_all_is_well() -> None:
    splitter = Splitter()
    seen = [splitter.look(counters(requests=10 * i), counters(requests=90 * i)) for i in range(130)]
    assert seen[0] == 10
    assert seen[58] == 10
    assert seen[61] == 50
    assert seen[-1] == 50
    assert splitter.percents == [10, 50]
    assert [record["why"] for record in splitter.audit] == ["start of the ramp", "held 10 % for 1.0 minutes"]
    assert "figures" in splitter.audit[1]


def test_nothing_starts_before_the_candidate_is_up() -> None:
    splitter = Splitter()
    assert splitter.look(counters(up=False)) == 0
    assert splitter.look(counters()) == 10


def rolled_back(splitter: Splitter) -> str:
    assert splitter.controller.percent == 0
    assert splitter.percents[-1] == 0
    assert splitter.audit[-1]["to_percent"] == 0
    why = splitter.controller.rolled_back
    assert why == splitter.audit[-1]["why"]
    splitter.look(counters(requests=10_000), seconds=1000)
    assert splitter.controller.percent == 0  # for good: a human looks first
    assert why is not None
    return why


def test_errors_beyond_the_controls_own_roll_back() -> None:
    splitter = Splitter()
    splitter.look(counters())
    splitter.look(counters(requests=100, errors=5), counters(requests=900, errors=45))
    assert splitter.controller.percent == 10  # the control fails as often
    splitter.look(counters(requests=200, errors=30), counters(requests=1800, errors=50))
    assert rolled_back(splitter).startswith("error rate 15.0%, 12.2% above")


def test_few_requests_say_nothing() -> None:
    splitter = Splitter()
    splitter.look(counters())
    assert splitter.look(counters(requests=10, errors=5)) == 10


def ttft(fast: int, slow: int) -> Reading:
    return Reading({0.1: fast, 1.0: fast, 10.0: fast + slow, math.inf: fast + slow})


def test_a_slow_first_token_rolls_back_unless_the_control_is_as_slow() -> None:
    for control, expected in ((ttft(100, 0), 0.0), (ttft(80, 20), 10.0)):
        splitter = Splitter()
        splitter.look(counters(), read={"candidate": ttft(0, 0), "control": ttft(0, 0)})
        splitter.look(
            counters(requests=100), counters(requests=100), read={"candidate": ttft(90, 10), "control": control}
        )
        assert splitter.controller.percent == expected
        if not expected:
            assert rolled_back(splitter) == "p99 time to the first token 10 s"


def test_an_accept_length_that_collapses_rolls_back() -> None:
    splitter = Splitter()
    splitter.look(counters())
    splitter.look(counters(requests=50), read={"candidate": Reading(accept_length=1.8)})
    assert splitter.controller.percent == 10
    splitter.look(counters(requests=100), read={"candidate": Reading(accept_length=1.01)})
    assert rolled_back(splitter) == "accept length 1.01, below 1.05"


def test_silence_with_requests_in_flight_rolls_back() -> None:
    splitter = Splitter()
    splitter.look(counters(in_flight=2, out=100))
    for _ in range(4):
        assert splitter.look(counters(in_flight=2, out=100)) == 10
    splitter.look(counters(in_flight=2, out=100))
    assert "no byte of an answer for 5 s" in rolled_back(splitter)
    busy = Splitter()
    for i in range(20):
        assert busy.look(counters(in_flight=2, out=100 * i)) == 10
    idle = Splitter()
    for _ in range(20):
        assert idle.look(counters(in_flight=0, out=100)) == 10


def test_a_fleet_that_is_down_rolls_back() -> None:
    splitter = Splitter()
    splitter.look(counters())
    splitter.look(counters(up=False))
    assert rolled_back(splitter) == "no worker of the candidate is up"


def test_speeds_are_compared_in_pairs_of_the_same_time() -> None:
    splitter = Splitter(test=SpeedTest(interval_seconds=10, min_pairs=5))
    draw = np.random.default_rng(0)
    gaps = {"control": [0, 0.0], "candidate": [0, 0.0]}
    for i in range(400):
        shared = draw.lognormal(0, 0.3)
        for arm, seconds in (("control", 0.03), ("candidate", 0.02)):
            gaps[arm][0] += 100
            gaps[arm][1] += 100 * seconds * shared * draw.lognormal(0, 0.05)
        readings = {arm: Reading(gaps=count, gap_seconds=total) for arm, (count, total) in gaps.items()}
        splitter.look(counters(requests=i), read=readings)
    ratio = splitter.controller.sequence.ratio()
    assert splitter.controller.sequence.count == 39
    assert ratio is not None
    assert 1.5 in ratio
    assert splitter.controller.figures()["speed"] == "higher"


# --- what workers say


def test_metrics_of_workers_are_added_up() -> None:
    def text(fast: int, slow: int, accept: float) -> str:
        return (
            "# TYPE sglang:time_to_first_token_seconds histogram\n"
            f'sglang:time_to_first_token_seconds_bucket{{le="0.1",model="m"}} {fast}\n'
            f'sglang:time_to_first_token_seconds_bucket{{le="+Inf",model="m"}} {fast + slow}\n'
            "# TYPE sglang:inter_token_latency_seconds histogram\n"
            'sglang:inter_token_latency_seconds_bucket{le="+Inf"} 10\n'
            "sglang:inter_token_latency_seconds_sum 0.5\nsglang:inter_token_latency_seconds_count 10\n"
            "# TYPE sglang:spec_accept_length gauge\n"
            f"sglang:spec_accept_length {accept}\n"
        )

    reading = parse([text(9, 1, 2.0), text(5, 5, 3.0)])
    assert reading == Reading({0.1: 14, math.inf: 20}, 1.0, 20, 2.5, 2)
    assert quantile(Reading(), reading, 0.5) == 0.1
    assert quantile(Reading(), reading, 0.99) == math.inf
    assert mean_gap(Reading(), reading) == pytest.approx(0.05)
    assert quantile(reading, Reading(), 0.5) is None  # a worker that began anew
    assert mean_gap(reading, Reading()) is None


def test_the_engine_exports_what_is_read() -> None:
    (source,) = importlib.util.find_spec("sglang").submodule_search_locations  # type: ignore[union-attr]
    exported = "\n".join(path.read_text() for path in (Path(source) / "srt" / "observability").glob("*.py"))
    for name in (telemetry._TTFT, telemetry._GAP, telemetry._ACCEPT):
        assert f'"{name}"' in exported


def test_the_manifests_hold_a_split_that_can_be_read(tmp_path: Path) -> None:
    manifests = list(yaml.safe_load_all((ROOT / "docker" / "ab-live.yaml").read_text()))
    (config,) = (one for one in manifests if one["kind"] == "ConfigMap")
    file = tmp_path / "split.yaml"
    file.write_text(config["data"]["split.yaml"])
    split = read_split(file)
    sets = {one["metadata"]["name"]: one["spec"]["replicas"] for one in manifests if one["kind"] == "StatefulSet"}
    for fleet, name in ((split.control, "control"), (split.candidate, "candidate")):
        assert fleet.workers == tuple(f"http://{name}-{i}.{name}:30000" for i in range(sets[name]))


def test_the_split_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "production.md").read_text()
    file = tmp_path / "split.yaml"
    file.write_text(text.split("```yaml\n")[1].split("```")[0])
    split = read_split(file)
    assert dataclasses.asdict(split.guardrails) == dataclasses.asdict(Guardrails())
    assert split.test == SpeedTest()
    assert split.ramp == Split(split.control, split.candidate).ramp


# --- HAProxy and simulated fleets


class Fleets:
    """A simulated control and candidate behind HAProxy, and a split that watches them in a thread."""

    def __init__(self, folder: Path) -> None:
        self.servers = {
            name: ServerProcess(("--round-ms", "3", "--name", name, *extra), name=name, command=SIMULATOR)
            for name, extra in (("control", ()), ("candidate", ("--gamma", "3")))
        }
        for server in self.servers.values():
            server.start()
        for server in self.servers.values():
            server.wait_ready()
        fleets = {name: Fleet(name, (server.base_url,)) for name, server in self.servers.items()}
        self.split = Split(
            **fleets, listen=f"127.0.0.1:{free_port()}", ramp=(Step(50, 60),), audit=folder / "audit.jsonl",
            guardrails=Guardrails(min_requests=10, window_seconds=10, stalled_seconds=3), response_seconds=8,
        )  # fmt: skip
        self.proxy = OwnProxy(self.split, folder)

    def fall_ill(self, **illness: float) -> None:
        httpx.post(f"{self.servers['candidate'].base_url}/simulate", json=illness).raise_for_status()

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.split.audit.read_text().splitlines()]

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Fleets]:
    if shutil.which("haproxy") is None:
        pytest.skip("no HAProxy: apt-get install haproxy")
    made = Fleets(tmp_path)
    try:
        with made.proxy:
            yield made
    finally:
        made.stop()


async def _ask(session: aiohttp.ClientSession, url: str, user: str) -> tuple[float, int, str]:
    """When it was sent, its status (0: none), and which arm answered."""
    sent = time.monotonic()
    body = {"messages": [{"role": "user", "content": user}], "max_tokens": 4}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, headers={"X-User-Id": user}) as answer:
            await answer.read()
            return sent, answer.status, answer.headers.get("X-Arm", "")
    except aiohttp.ClientError:
        return sent, 0, ""


async def _traffic(url: str, seconds: float, users: int, pause: float = 0.02) -> list[tuple[float, int, str]]:
    """Every user asks again and again."""
    end = time.monotonic() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def user(name: str) -> list[tuple[float, int, str]]:
            seen = []
            while time.monotonic() < end:
                seen.append(await _ask(session, url, name))
                await asyncio.sleep(pause)
            return seen

        return [one for many in await asyncio.gather(*(user(f"user-{i}") for i in range(users))) for one in many]


async def _who(url: str, users: int) -> list[str]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=20)) as session:
        return [arm for _, _, arm in await asyncio.gather(*(_ask(session, url, f"user-{i}") for i in range(users)))]


def test_the_split_is_sticky_weighted_and_grows_without_moving_anybody_back(fleets: Fleets) -> None:
    url = f"http://{fleets.split.listen}"
    chosen: set[int] = set()
    for percent in (0, 10, 50, 100):
        fleets.proxy.set_percent(percent)
        assert fleets.proxy.percent() == percent
        who = asyncio.run(_who(url, 400))
        assert who == asyncio.run(_who(url, 400))
        now = {i for i, arm in enumerate(who) if arm == "candidate"}
        assert len(now) == pytest.approx(4 * percent, abs=25)
        assert chosen <= now
        chosen = now
    figures = fleets.proxy.counters()
    assert figures["control"].requests + figures["candidate"].requests == 3200
    assert figures["control"].errors == figures["candidate"].errors == 0


@pytest.mark.parametrize("illness", ["killed", "errors", "drops", "hangs"])
def test_a_sick_candidate_loses_its_traffic_in_ten_seconds(fleets: Fleets, illness: str) -> None:
    watcher = threading.Thread(target=watch, args=(fleets.split, fleets.proxy), kwargs={"seconds": 13})
    watcher.start()
    fell_ill = time.monotonic() + 2.0

    def fall_ill() -> None:
        if illness == "killed":
            fleets.servers["candidate"].stop()
        else:
            fleets.fall_ill(**{illness: 1.0})

    timer = threading.Timer(2.0, fall_ill)
    timer.start()
    answers = asyncio.run(_traffic(f"http://{fleets.split.listen}", 12.5, users=12))
    watcher.join()
    timer.join()
    before = [arm for sent, status, arm in answers if sent < fell_ill - 0.2 and status == 200]
    assert before.count("candidate") > 20
    after = [(sent, status, arm) for sent, status, arm in answers if sent > fell_ill + 8.5]
    assert len(after) > 20
    assert all(status == 200 and arm == "control" for _, status, arm in after)
    records = fleets.audit()
    (last,) = (
        record for record in records if record["to_percent"] == 0 and record["why"] not in ("started", "stopped")
    )
    expected = {
        "killed": "no worker of the candidate is up", "errors": "error rate", "drops": "error rate",
        "hangs": "no byte of an answer",
    }  # fmt: skip
    assert expected[illness] in last["why"]
    if illness == "killed":
        # What was being answered is lost, at most one request a user; what had not reached it is not.
        lost = [sent for sent, status, _ in answers if status != 200]
        assert len(lost) <= 12
        assert all(sent < fell_ill + 1.0 for sent in lost)


def test_the_configuration_can_be_written_for_a_proxy_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "split.yaml").write_text(MINIMAL)
    flags = [
        "--config",
        str(tmp_path / "split.yaml"),
        "--write-proxy",
        str(tmp_path / "ha.cfg"),
        "--socket",
        "/run/x.sock",
    ]
    assert main(flags) == 0
    text = (tmp_path / "ha.cfg").read_text()
    assert text == configuration(read_split(tmp_path / "split.yaml"), Path("/run/x.sock"))
    assert "server w1 127.0.0.1:3" in text
    assert "server spare0 127.0.0.1:1 backup" in text


def test_workers_may_have_names(tmp_path: Path) -> None:
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("no HAProxy: apt-get install haproxy")
    fleets = {name: Fleet(name, (f"http://{name}-0.{name}:30000",)) for name in ("control", "candidate")}
    file = tmp_path / "ha.cfg"
    file.write_text(configuration(Split(**fleets), tmp_path / "a.sock"))
    assert "server w0 candidate-0.candidate:30000" in file.read_text()
    checked = subprocess.run([program, "-c", "-f", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
