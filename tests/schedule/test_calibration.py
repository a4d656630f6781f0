"""Applying, saving and loading calibrations; SGLang's own file."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.schedule.calibration import CLASSES, Calibration, ClassParameters, class_index
from sglang_dspark.schedule.sts import export_sts, import_sts

GREEDY = ClassParameters("greedy", (0.5, 2.0), (0.1, -0.2), "slope-offset", (2.0, 0.5), 20_000, 90)
SAMPLED = ClassParameters("high", (1.0, 1.0), (1.0, 0.0), "slope-offset", (0.9, 1.1), 20_000, 90)


def calibration(*parameters: ClassParameters) -> Calibration:
    return Calibration(2, parameters or (GREEDY, SAMPLED), {"target": "abc"}, True, {"prompts": "p"}, "a test")


def test_classes_follow_temperature_and_coupling() -> None:
    temperature = np.array([0, 0, 0.2, 0.6, 0.8, 1, 1.2, 2, 1], dtype=np.float32)
    coupled = np.array([0, 1, 0, 0, 0, 0, 0, 0, 1], dtype=bool)
    names = [CLASSES[i].name for i in class_index(temperature, coupled)]
    assert names == ["greedy", "greedy", "low", "medium", "medium", "high", "high", "hot", "high-coupled"]
    for kind, t in ((CLASSES[i], t) for i, t in zip(class_index(temperature, coupled), temperature, strict=True)):
        assert t == kind.low == 0 or kind.low < t <= kind.high


def test_apply_is_slope_and_offset_on_the_logit() -> None:
    c = np.array([[0.9, 0.3], [0.9, 0.3], [0.9, 0.3]], dtype=np.float32)
    got = calibration().apply(c, np.array([0.0, 1.0, 0.5]), np.zeros(3, dtype=bool))
    z = np.log(c / (1 - c))
    expected = 1 / (1 + np.exp(-np.array([z[0] * [0.5, 2.0] + [0.1, -0.2], z[1] + [1.0, 0.0]])))
    np.testing.assert_allclose(got[:2], expected, rtol=1e-5)
    np.testing.assert_array_equal(got[2], c[2])  # no fit for T = 0.5: bit for bit
    assert got.dtype == np.float32


def test_without_a_fitted_class_nothing_changes() -> None:
    c = np.array([[0.9, 0.3]], dtype=np.float32)
    np.testing.assert_array_equal(calibration().apply(c, [1.0], [True]), c)


def test_extremes_and_broken_confidences() -> None:
    nan = float("nan")
    c = np.array([[0.0, 1.0], [nan, 0.5], [1.5, -0.5], [np.inf, -np.inf]], dtype=np.float32)
    got = calibration(GREEDY).apply(c, np.zeros(4), np.zeros(4, dtype=bool))
    np.testing.assert_array_equal(got[0], [0.0, 1.0])
    assert np.isnan(got[[1, 2, 2, 3, 3], [0, 0, 1, 0, 1]]).all()
    assert np.isfinite(got[1, 1])


def test_apply_takes_no_notice_of_other_rows_and_positions() -> None:
    generator = np.random.default_rng(0)
    c = generator.random((8, 2), dtype=np.float32)
    t, coupled = np.tile([0.0, 1.0], 4), np.zeros(8, dtype=bool)
    changed = c.copy()
    changed[:, 1] = generator.random(8)
    changed[3] = 0.5
    a, b = calibration().apply(c, t, coupled), calibration().apply(changed, t, coupled)
    kept = np.arange(8) != 3
    np.testing.assert_array_equal(a[kept, 0], b[kept, 0])


def test_apply_costs_microseconds() -> None:
    c = np.random.default_rng(0).random((32, 5), dtype=np.float32)
    five = ClassParameters("greedy", (0.9,) * 5, (0.1,) * 5, "slope-offset", (1.1,) * 5, 1, 1)
    table, t, coupled = Calibration(5, (five,), {}, True), np.zeros(32), np.zeros(32, dtype=bool)
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(20):
            table.apply(c, t, coupled)
        best = min(best, (time.perf_counter() - start) / 20)
    assert best < 60e-6  # 30 on a quiet machine


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.calibration.json"
    calibration().save(path)
    back = Calibration.load(path)
    assert (back.parameters, back.identity, back.passed, back.report, back.source) == (
        (GREEDY, SAMPLED),
        {"target": "abc"},
        True,
        {"prompts": "p"},
        "a test",
    )
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def _change(document: dict[str, Any], change: str) -> None:
    entry = document["parameters"][0]
    match change:
        case "format":
            document["format"] = "dspark-profile"
        case "version":
            document["version"] = 2
        case "gamma":
            document["gamma"] = 3
        case "slope":
            entry["slope"] = [1.0, -1.0]
        case "offset":
            entry["offset"] = [0.0, float("nan")]
        case "class":
            entry["class"] = "warm"
        case "temperature":
            entry["temperature"] = [0.0, 1.0]
        case "twice":
            document["parameters"][1] = entry
        case "passed":
            document["passed"] = "yes"


@pytest.mark.parametrize(
    "change", ["format", "version", "gamma", "slope", "offset", "class", "temperature", "twice", "passed"]
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, change: str) -> None:
    path = tmp_path / "x.json"
    calibration().save(path)
    document = json.loads(path.read_text())
    _change(document, change)
    path.write_text(json.dumps(document))
    field = {"gamma": "slope", "twice": "twice"}.get(change, change)
    with pytest.raises(ConfigError, match=field) as raised:
        Calibration.load(path)
    assert "x.json" in str(raised.value)


def test_what_is_no_file_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        Calibration.load(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        Calibration.load(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ConfigError, match="object"):
        Calibration.load(tmp_path / "x.json")


def test_sts_import_divides_every_class_by_tau(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_text(json.dumps({"temperatures": [2.0, 0.5], "num_samples": 7, "ece_before": [0.1, 0.2]}))
    table = import_sts(path, gamma=2)
    c = np.full((3, 2), 0.8, dtype=np.float32)
    got = table.apply(c, np.array([0.0, 0.5, 1.0]), np.array([False, False, True]))
    z = np.log(4.0)
    np.testing.assert_allclose(got, np.tile(1 / (1 + np.exp([-z / 2, -z * 2])), (3, 1)), rtol=1e-5)
    assert table.passed is None
    with pytest.raises(ConfigError, match="temperatures"):
        import_sts(path, gamma=3)


def test_sts_export_is_read_by_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    figures = {"temperature_only": {"greedy": {"ece_before": [0.1, 0.2], "ece_after": [0.01, 0.02]}}, "prompts": "p"}
    export_sts(Calibration(2, (GREEDY,), {}, True, figures), path)
    written = json.loads(path.read_text())
    assert written == {
        "temperatures": [2.0, 0.5],
        "dataset": "p",
        "num_samples": 20_000,
        "ece_before": [0.1, 0.2],
        "ece_after": [0.01, 0.02],
    }
    assert import_sts(path, 2).parameters[0].temperatures == (2.0, 0.5)
    with pytest.raises(ConfigError, match="high"):
        export_sts(Calibration(2, (GREEDY,), {}, True), path, "high")


def test_the_engines_own_reader_takes_the_file(tmp_path: Path) -> None:
    # Its one file, without the packages above it, which take seconds to import.
    package = importlib.util.find_spec("sglang")
    assert package is not None
    assert package.submodule_search_locations
    source = Path(package.submodule_search_locations[0]) / "srt/speculative/dspark_components/dspark_sts.py"
    spec = importlib.util.spec_from_file_location("engine_dspark_sts", source)
    assert spec is not None
    assert spec.loader is not None
    engine = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = engine
    spec.loader.exec_module(engine)
    export_sts(Calibration(2, (GREEDY,), {}, True), tmp_path / "sts.json")
    assert engine.load_sts_calibration_from_path(str(tmp_path / "sts.json")).temperatures == [2.0, 0.5]
