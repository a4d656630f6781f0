"""The command on recorded rounds: files written, exit status, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from calibration_draws import GAMMA, draw, true_logits

from sglang_dspark.calibrate import report
from sglang_dspark.calibrate.main import main
from sglang_dspark.calibrate.report import gate, judge
from sglang_dspark.errors import DSparkError
from sglang_dspark.schedule.calibration import Calibration

IDENTITY = {
    "target": "abc",
    "draft": "def",
    "device": "a processor",
    "dtype": "float32",
    "tp": 1,
    "dp": 1,
    "gamma": GAMMA,
    "page_size": 1,
    "attention_backend": "torch_native",
    "engine": "0.5.23",
    "package": "0.1.0",
    "support": 0,
}


def write_records(folder: Path, rounds: int, per_round: int = 8, *, origins: bool, cut: bool = False) -> Path:
    """Rounds of an over-confident draft at T = 0, as the recorder writes them."""
    folder.mkdir()
    samples = draw(true_logits(rounds * per_round), lambda z: 2 * z)
    header = {"format": "dspark-rounds", "version": 1, "gamma": GAMMA, "identity": IDENTITY}
    lines = [json.dumps(header)]
    rids = []
    for i in range(rounds):
        at = slice(i * per_round, (i + 1) * per_round)
        rid = [f"cal-{'math' if r % 2 else 'chat'}-{i // 20 * per_round + r}" for r in range(per_round)]
        rids += rid
        rows = {
            "rid": rid,
            "temperature": [0] * per_round,
            "coupled": [False] * per_round,
            "length": [GAMMA] * per_round,
            "accepted": samples.accepted[at].tolist(),
            "explored": [True] * per_round,
            "limit": [GAMMA] * per_round,
            "confidence": np.round(samples.confidence[at], 6).tolist(),
        }
        record = {"time": float(i), "seconds": None, "parts": None, "requests": per_round, "tokens": per_round}
        record |= {"requested": None, "context": 0, "drafted": True, "mode": "fixed3"}
        lines += [json.dumps(record | {"rows": rows}), json.dumps(record | {"rows": None})]
    text = "\n".join(lines) + "\n"
    (folder / "rounds-tp0-17-0.jsonl").write_text(text + (lines[-2][:40] if cut else ""))
    if origins:
        parts = {rid: [rid.split("-")[1], rid, "report" if int(rid.split("-")[2]) % 2 else "fit"] for rid in rids}
        about = {"prompts": "shipped", "report_prompts": "eval.jsonl"}
        state = {"origins": parts, "name": "Demo", "about": about, "issued": {}}
        (folder / "requests.json").write_text(json.dumps(state))
    return folder


def test_live_records_are_fitted_judged_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_records(tmp_path / "records", 400, origins=False, cut=True)
    output = tmp_path / "out" / "x.calibration.json"
    status = main(["--records", str(folder), "--output", str(output), "--name", "mine"])
    printed = capsys.readouterr().out
    # 1,600 held-out rounds are far from the gate's 20,000, whatever their ECE.
    assert status == 1
    assert "held-out samples, 20000 are needed" in printed
    assert "greedy (T = 0)" in printed
    written = Calibration.load(output)
    assert written.passed is False
    assert written.identity == IDENTITY
    assert written.report["gate"]["failures"]
    assert str(tmp_path) not in output.read_text()
    (parameters,) = written.parameters
    assert parameters.samples == 1_600
    assert max(parameters.slope) < 0.8  # confidences that were twice too sure
    installed = tmp_path / "cache" / "sglang_dspark" / "profiles"
    names = sorted(p.name for p in installed.iterdir())
    assert [name.split("-")[0] + Path(name).suffix for name in names] == ["mine.json", "mine.png"]


def test_kept_records_know_domains_and_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_records(tmp_path / "records", 400, origins=True)
    output = tmp_path / "x.calibration.json"
    main(["--records", str(folder), "--output", str(output), "--no-install"])
    cells = Calibration.load(output).report["cells"]
    assert {cell["domain"] for cell in cells} == {"all", "math"}  # odd requests are math, and those are reported
    for cell in cells:
        assert cell["after"]["ece"][0] < cell["before"]["ece"][0]
    assert "ECE math" in capsys.readouterr().out


def test_the_gate_reads_pooled_cells_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "GATE_SAMPLES", 9_000)
    fitting = draw(true_logits(3_000), lambda z: 2 * z)
    reports = judge(fitting, draw(true_logits(9_000, seed=5), lambda z: 2 * z, seed=6))
    assert gate(reports) == []
    # The same fit on a draft that is right already makes it worse, and that is found.
    wrong = judge(fitting, draw(true_logits(9_000, seed=5), seed=6))
    assert [f.split(":")[0] for f in gate(wrong)] == [f"greedy, position {k}" for k in (1, 2, 3)]
    assert gate([]) == ["no class had enough samples to be fitted"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--dspark-policy", "causal"], "--dspark-policy"),
        (["--dspark-record=x"], "--dspark-record"),
        (["--temperatures", "-1"], "--temperatures"),
        (["--records", "nowhere", "--port", "1"], "no server is started"),
        (["--records", "nowhere"], "no round records"),
    ],
)
def test_what_cannot_work_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(DSparkError, match=message):
        main(argv)


def test_records_of_two_servers_are_not_mixed(tmp_path: Path) -> None:
    folder = write_records(tmp_path / "records", 2, origins=False)
    other = {"format": "dspark-rounds", "version": 1, "gamma": GAMMA, "identity": IDENTITY | {"target": "other"}}
    (folder / "rounds-tp0-18-0.jsonl").write_text(json.dumps(other) + "\n")
    with pytest.raises(DSparkError, match="another server"):
        main(["--records", str(folder)])
