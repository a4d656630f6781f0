"""Prometheus metrics of DSpark, beside the engine's own on `/metrics`."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge


class Metrics:
    """Hands the counts of a state (`Watch.state`) to Prometheus. One object a process.

    Args:
        labels: on every metric, such as model name and rank.
        profile: identity of the cost table in use, shown as labels of a metric that is always 1.
    """

    def __init__(self, labels: dict[str, str], profile: dict[str, str]) -> None:
        self._labels = labels
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._handed: dict[tuple[str, str], float] = {}
        self._set("profile_info", "Identity of the cost table in use", 1.0, **profile)

    def publish(self, state: dict[str, Any]) -> None:
        """Bring every metric up to `state`."""
        for mode, count in state["rounds"].items():
            self._count("rounds", "Decoding rounds", count, mode=mode)
        for length, count in enumerate(state["verify_lengths"]):
            self._count("verify_length", "Requests by draft tokens verified in a round", count, length=str(length))
        for position, count in enumerate(state["verified_by_position"], start=1):
            self._count("verified", "Draft tokens verified, by position", count, position=str(position))
        for position, count in enumerate(state["accepted_by_position"], start=1):
            self._count("accepted", "Draft tokens accepted, by position", count, position=str(position))
        for part, seconds in state["part_seconds"].items():
            self._count("part_seconds", "Host time of a round, by part", seconds, part=part)
        recent = state["recent"]
        self._set("budget", "Draft tokens verified in a round, running mean", recent.get("budget", 0.0))
        if "seconds" in recent:
            self._set("theta_real", "Tokens a second of decoding rounds", recent["tokens"] / recent["seconds"])
            self._set("round_seconds", "Time of a round, running mean", recent["seconds"])
        if "predicted_seconds" in recent:
            self._set("round_seconds_predicted", "The same by the cost table", recent["predicted_seconds"])
            if "predicted_tokens" in recent:
                predicted = recent["predicted_tokens"] / recent["predicted_seconds"]
                self._set("theta_predicted", "Tokens a second by cost table and confidences", predicted)
        fuses = state["fuses"]
        most = fuses["kv_pool"]
        self._set("fuse", "1 while the fuse acts", float(most is not None), fuse="kv_pool")
        self._set("fuse", "1 while the fuse acts", float(fuses["checkpoint_misread"]), fuse="checkpoint_misread")
        self._count("unusable_positions", "Draft positions that were not finite", fuses["unusable_positions"])
        for group, judged in fuses.get("calibration", {}).items():
            acts = float(judged["level"] > 0)
            self._set("fuse", "1 while the fuse acts", acts, fuse=f"calibration {group}")
            for position, ece in enumerate(judged["ece"], start=1):
                if ece is not None:
                    text = "Expected calibration error of survival, on explored requests"
                    self._set("live_ece", text, ece, group=group, position=str(position))
        guard = state.get("guard")
        if guard is not None:
            for mode, rate in enumerate(guard["tokens_per_second"]):
                name = "adaptive" if mode == len(guard["tokens_per_second"]) - 1 else str(mode)
                self._set("guard_tokens_per_second", "Expected of each mode, corrected", rate, mode=name)
            self._count("guard_probes", "Probes of another mode", guard["probes"])
            self._count("guard_changes", "Changes of mode", guard["changes"])
            self._set("slo_met", "1 while some mode keeps every request at the rate asked for", float(guard["slo_met"]))

    def _count(self, name: str, text: str, total: float, /, **labels: str) -> None:
        key = (name, ",".join(labels.values()))
        more = total - self._handed.get(key, 0.0)
        all_labels = {**self._labels, **labels}
        if name not in self._counters:
            self._counters[name] = Counter(f"dspark_{name}", text, list(all_labels))
        if more > 0:
            self._counters[name].labels(**all_labels).inc(more)
            self._handed[key] = total

    def _set(self, name: str, text: str, value: float, /, **labels: str) -> None:
        all_labels = {**self._labels, **labels}
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"dspark_{name}", text, list(all_labels), multiprocess_mode="mostrecent")
        self._gauges[name].labels(**all_labels).set(value)
