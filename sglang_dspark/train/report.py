"""What a run shows and keeps of its progress: `curve.jsonl`, TensorBoard events, and a live table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

CURVE = "curve.jsonl"
EVENTS = "tensorboard"
# Where there is no terminal to redraw, a line this often.
_SAID_EVERY = 60.0


class RunLog:
    """Records of one run; open it as a context manager around the training.

    Args:
        folder: of the run; made if missing.
        step: of the checkpoint that is continued, 0 for a new run. Later records belong to a process that was killed
            before it saved again, and are dropped.
        show: draw the table (on a terminal) or say a line now and then.
    """

    def __init__(self, folder: Path, step: int, show: bool = True) -> None:
        from tensorboardX import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._curve, self._show, self._said = folder / CURVE, show, 0.0
        self._forget_after(step)
        self._events = SummaryWriter(str(folder / EVENTS), purge_step=step + 1 if step else None)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=2, transient=False)
        self._last: dict[str, Any] = {}
        self._validation: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._show and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self._events.close()

    def record(self, numbers: dict[str, Any]) -> None:
        """One line of the curve: `step`, `minutes`, and the step's numbers or a validation."""
        with self._curve.open("a", encoding="utf-8") as file:
            file.write(json.dumps(numbers) + "\n")
        for name, value in scalars(numbers).items():
            self._events.add_scalar(name, value, numbers["step"])
        self._validation = numbers if "validation" in numbers else self._validation
        self._last = self._last if "validation" in numbers else numbers

    def show(self, progress: float) -> None:
        """Redraw; `progress` is the share of the run that is done."""
        if self._live.is_started:
            self._live.update(table(self._last, self._validation, progress))
        elif self._show and time.monotonic() - self._said > _SAID_EVERY and self._last:
            self._said = time.monotonic()
            last = self._last
            self._console.print(
                f"step {last['step']} ({progress:.0%}): loss {last['loss']:.3f}, expected accept length "
                f"{last['tau']:.2f}, hits {last['hit']}",
                highlight=False,
            )

    def _forget_after(self, step: int) -> None:
        if not self._curve.is_file():
            return
        lines = self._curve.read_text(encoding="utf-8").splitlines(keepends=True)
        # A killed process may have left half a line.
        whole = [line for line in lines if line.endswith("\n")]
        self._curve.write_text("".join(line for line in whole if json.loads(line)["step"] <= step), encoding="utf-8")


def scalars(numbers: dict[str, Any]) -> dict[str, float]:
    """A line of the curve as TensorBoard's scalars: lists by position from 1, validations by group."""
    flat: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, list):
            flat |= {f"{name}/{k}": float(v) for k, v in enumerate(value, start=1)}
        elif isinstance(value, dict):
            # TensorBoard takes no "@" in a name.
            flat |= {f"{name}/{group.replace('@', '_T')}": float(v) for group, v in value.items()}
        elif name != "step":
            flat[name] = float(value)
    return flat


def table(last: dict[str, Any], validation: dict[str, Any], progress: float) -> Group:
    """Loss, per-position hit rate and acceptance, expected accept length; the last validation below."""
    parts: list[Any] = [f"{progress:.1%} done"]
    if last:
        parts = [
            f"step {last['step']}, {progress:.1%} done, {last['minutes']} min: loss {last['loss']:.4f}, confidence "
            f"{last['confidence_loss']:.4f}, expected accept length {last['tau']:.3f}"
        ]
        drawn = Table("position", "hit rate", "acceptance")
        for k, (hit, alpha) in enumerate(zip(last["hit"], last["alpha"], strict=True), start=1):
            drawn.add_row(str(k), f"{hit:.3f}", f"{alpha:.3f}")
        parts.append(drawn)
    if validation:
        groups = "  ".join(f"{group} {value:.2f}" for group, value in validation["validation"].items())
        parts.append(f"validation, tokens a round: {groups}")
    return Group(*parts)
