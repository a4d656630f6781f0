"""Which calibration a server takes, and why not another."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sglang_dspark.calibrate.store import find_calibration, installed_path
from sglang_dspark.identity import Identity
from sglang_dspark.profile.store import find_profile
from sglang_dspark.schedule.calibration import Calibration

HERE = Identity("t", "d", "a processor", "float32", 1, 1, 5, 1, "torch_native", "0.5.23", "0.1.0", 0)


def save(path: Path, passed: bool | None = True, **changes: object) -> Path:
    identity = dataclasses.replace(HERE, **changes)  # type: ignore[arg-type]
    failures = [] if passed else ["greedy, position 2: ECE 3.10%, must be below 2%"]
    report = {"gate": {"failures": failures}}
    Calibration(identity.gamma, (), identity.as_dict(), passed, report).save(path)
    return path


def test_another_machine_does_not_matter_another_draft_does(tmp_path: Path) -> None:
    save(tmp_path / "a.calibration.json", draft="other", support=64)
    other = save(tmp_path / "b.calibration.json", device="a GPU", tp=4, package="0.0.9")
    path, reasons = find_calibration(HERE, [tmp_path])
    assert path == other
    (reason,) = reasons
    assert "draft: other there, d here; support: 64 there, 0 here" in reason


def test_one_that_failed_is_refused_with_its_reason(tmp_path: Path) -> None:
    failed = save(tmp_path / "a.calibration.json", passed=False)
    path, reasons = find_calibration(HERE, [tmp_path])
    assert path is None
    assert "did not pass on held-out data (greedy, position 2: ECE 3.10%" in reasons[0]
    assert find_calibration(HERE, [tmp_path], accept_failed=True)[0] == failed


def test_gamma_and_damage_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a.calibration.json", gamma=7)
    (tmp_path / "b.calibration.json").write_text("{")
    path, reasons = find_calibration(HERE, [tmp_path])
    assert path is None
    assert "gamma 7" in reasons[0]
    assert "not JSON" in reasons[1]
    assert "calibrate" in find_calibration(HERE, [tmp_path / "none"])[1][0]


def test_a_calibration_is_no_profile(tmp_path: Path) -> None:
    save(tmp_path / "a.calibration.json")
    assert find_profile(HERE, [tmp_path])[0] is None
    assert installed_path("/models/Demo", HERE).name.startswith("demo-a-processor-")
    assert installed_path("/models/Demo", HERE).name.endswith(".calibration.json")
