"""Profile files: what is written is read back, what is damaged is named, what is not known schedules nothing."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.identity import Identity
from sglang_dspark.schedule import sglang_tables
from sglang_dspark.schedule.cost import CostModel, Curve, GraphSizes, Surface
from sglang_dspark.schedule.cost_fit import Point, fit_surface
from sglang_dspark.schedule.profile import Profile

IDENTITY = Identity("t", "d", "cpu, 2 cores", "float32", 1, 1, 5, 1, "torch_native", "0.5.23", "0.1.0", 0)
ONE_PROBE = {"sample_batch_tokens": [1], "sample_steps_per_sec": [1.0], "max_batch_tokens": 64}


@functools.cache
def measured() -> Profile:
    points = [
        Point(r, m, 100.0 * r, (0.01 + 0.001 * r + 0.0005 * m,) * 4)
        for r in (1, 2, 4, 8)
        for m in range(r, 6 * r + 1, r)
    ]
    plain = [Point(r, r, 100.0 * r, (0.01 + 0.001 * r,) * 4) for r in (1, 2, 4, 8, 16)]
    return Profile.from_fits(
        fit_surface(points), fit_surface(plain), gamma=5, identity=IDENTITY, about={"command": "profile"}
    )


def test_round_trip(tmp_path: Path) -> None:
    profile = measured()
    profile.save(tmp_path / "profile.json")
    again = Profile.load(tmp_path / "profile.json")
    assert (again.identity, again.gamma, again.about) == (IDENTITY, 5, {"command": "profile"})
    assert (again.trusted, json.loads((tmp_path / "profile.json").read_text())["trusted"]) == (True, True)
    assert [p.repeats for p in again.points] == [4] * 29
    a, b = CostModel.from_profile(profile), CostModel.from_profile(again)
    np.testing.assert_allclose(a.round_seconds(7, 900, 5), b.round_seconds(7, 900, 5), rtol=1e-5)
    assert a.undrafted_seconds(7, 900) == pytest.approx(b.undrafted_seconds(7, 900), rel=1e-5)


def test_an_error_above_five_percent_is_not_trusted() -> None:
    profile = dataclasses.replace(measured(), held_out_error=0.051)
    assert not profile.trusted
    assert "5.1%" in str(profile.trouble)
    assert CostModel.from_profile(profile).round_seconds(1, 1, 1).shape == (3,)
    assert not dataclasses.replace(profile, held_out_error=None).trusted


@pytest.mark.known_case(2)
def test_a_table_of_one_probe_is_uncalibrated(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps(ONE_PROBE))
    profile = Profile.load(tmp_path / "table.json")
    assert not profile.calibrated
    assert not profile.trusted
    with pytest.raises(ConfigError, match="uncalibrated: a single probe"):
        CostModel.from_profile(profile)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "no profile"),
        ({"version": 2}, "version"),
        ({"gamma": 0}, "gamma"),
        ({"held_out_error": "low"}, "held_out_error"),
        ({"drafted": None}, "drafted"),
        ({"drafted": {"bias_seconds": 0.1}}, "drafted.*requests"),
        ({"undrafted": {"requests": {"probes": [2, 1], "seconds": [0, 1]}}}, "undrafted.*rise strictly"),
        ({"graphs": {"sizes": [1]}}, "graphs"),
        ({"identity": {"target": "t"}}, "identity.*gamma"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "profile.json"
    measured().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=f"profile.json.*{message}"):
        Profile.load(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.json"):
        Profile.load(tmp_path / "missing.json")
    (tmp_path / "cut.json").write_text('{"format": "dspark-pro')
    with pytest.raises(ConfigError, match="not valid JSON"):
        Profile.load(tmp_path / "cut.json")
    (tmp_path / "table.json").write_text('{"sample_batch_tokens": [1, 2], "max_batch_tokens": 2}')
    with pytest.raises(ConfigError, match="sample_steps_per_sec"):
        Profile.load(tmp_path / "table.json")


STEPPED = Profile(
    gamma=3,
    source="synthetic",
    drafted=Surface(0.0, Curve((1, 8), (0.001, 0.004)), Curve((1, 8, 64), (0.01, 0.01, 0.05)), 1e-6, 1e-7),
    graphs=GraphSizes(tokens=(8, 16, 64)),
)


def test_the_additive_table_says_what_the_profile_says() -> None:
    table = sglang_tables.additive_table(STEPPED, context=200)
    assert table["bias_seconds"] > 0
    model, again = CostModel.from_profile(STEPPED), CostModel.from_profile(sglang_tables.read(table))
    for requests in (1, 3, 8):
        ours = model.round_seconds(requests, 200 * requests, 3)[requests:]
        np.testing.assert_allclose(again.round_seconds(requests, 0, 3)[requests:], ours, rtol=1e-9)


def test_the_steps_table_is_pessimistic_and_is_read_back() -> None:
    table = sglang_tables.steps_table(STEPPED, context=200)
    tokens, rates = table["sample_batch_tokens"], np.array(table["sample_steps_per_sec"])
    assert tokens == list(range(1, 65))
    assert (np.diff(rates) <= 0).all()
    assert 1 / rates[31] == pytest.approx(CostModel.from_profile(STEPPED).round_seconds(8, 1600, 3)[32])
    again = CostModel.from_profile(sglang_tables.read(table)).round_seconds(4, 0, 7)
    np.testing.assert_allclose(again[4:], 1 / rates[3:32], rtol=1e-9)


def engine_tables() -> ModuleType:
    """The engine's own module, by its file: importing it by name would import the whole engine first."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        pytest.skip("sglang is not installed")
    path = Path(found.submodule_search_locations[0], "srt/speculative/dspark_components/dspark_sps.py")
    spec = importlib.util.spec_from_file_location("dspark_sps", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dspark_sps"] = module  # where msgspec looks the annotations up
    spec.loader.exec_module(module)
    return module


def test_the_engine_reads_what_is_exported(tmp_path: Path) -> None:
    sps = engine_tables()
    for name, table in (
        ("steps", sglang_tables.steps_table(STEPPED, 200)),
        ("additive", sglang_tables.additive_table(STEPPED, 200)),
    ):
        (tmp_path / name).write_text(json.dumps(table))
    model = CostModel.from_profile(STEPPED)
    steps = sps.load_sps_table_from_path(str(tmp_path / "steps"))
    additive = sps.load_sps_table_from_path(str(tmp_path / "additive"))
    assert not sps.is_uninitialized_sps_table(steps)
    assert 1 / steps.lookup(12) == pytest.approx(model.round_seconds(3, 600, 3)[12])
    assert additive.step_time(num_reqs=4, budget=5) == pytest.approx(model.round_seconds(4, 800, 3)[9])
    assert sps.is_uninitialized_sps_table(sps.SpsCostTable.from_json(json.dumps(ONE_PROBE)))
