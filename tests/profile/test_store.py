"""Finding a profile: the right one, or the reasons why there is none."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from sglang_dspark.identity import Identity
from sglang_dspark.profile.store import file_name, find_profile, shipped_dir
from sglang_dspark.schedule.cost import Curve, Surface
from sglang_dspark.schedule.profile import Profile

IDENTITY = Identity("t", "d", "A (R) CPU, 2 cores", "float32", 1, 1, 5, 1, "torch_native", "0.5.23", "0.1.0", 0)
PROFILE = Profile(
    5, "measured", Surface(0.1, Curve((1,), (0.0,)), Curve((1, 9), (0.0, 1.0))), identity=IDENTITY, held_out_error=0.01
)


def test_the_first_folder_wins(tmp_path: Path) -> None:
    for folder in ("installed", "shipped"):
        PROFILE.save(tmp_path / folder / "p.json")
    folders = [tmp_path / "none", tmp_path / "installed", tmp_path / "shipped"]
    assert find_profile(IDENTITY, folders) == (tmp_path / "installed" / "p.json", [])


def test_why_none_is_used(tmp_path: Path) -> None:
    other = dataclasses.replace(IDENTITY, gamma=7)
    dataclasses.replace(PROFILE, identity=other).save(tmp_path / "a.json")
    dataclasses.replace(PROFILE, held_out_error=0.2).save(tmp_path / "b.json")
    dataclasses.replace(PROFILE, identity=None).save(tmp_path / "c.json")
    (tmp_path / "d.json").write_text('{"format": "dspark-calibration"}')
    (tmp_path / "e.json").write_text('{"format": "dspark-profile", "version": 9}')
    path, reasons = find_profile(IDENTITY, [tmp_path])
    assert path is None
    assert [reason.partition(": ")[0] for reason in reasons] == [str(tmp_path / f"{n}.json") for n in "abce"]
    assert "gamma" not in reasons[1]
    assert "gamma: 7 here, 5 there" in reasons[0]
    assert "20.0%" in reasons[1]
    assert "what it was measured on" in reasons[2]
    assert "version" in reasons[3]


def test_nothing_there_says_where_it_looked(tmp_path: Path) -> None:
    path, reasons = find_profile(IDENTITY, [tmp_path])
    assert path is None
    assert "measure one with `profile`" in reasons[0]


def test_names() -> None:
    name = file_name("/models/Some-Model_1B", IDENTITY)
    assert name.startswith("some-model-1b-a-r-cpu-2-cores-")
    assert name != file_name("/models/Some-Model_1B", dataclasses.replace(IDENTITY, tp=2))
    assert (shipped_dir() / "README.md").is_file()


def test_the_package_carries_the_repository_s_profiles(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    packed = tmp_path / "sglang_dspark" / "data" / "profiles"
    assert sorted(p.name for p in packed.iterdir()) == sorted(p.name for p in (root / "profiles").glob("*.json"))
