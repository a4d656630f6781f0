"""Labelled confidences: what the draft believed, and how far acceptance really went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sglang_dspark.evaluate.rounds import Rows
from sglang_dspark.schedule.calibration import class_index
from sglang_dspark.schedule.survival import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Samples:
    """One row for each request and round whose full block was verified by a choice made before the draft.

    Attributes:
        confidence: `[N, γ]` float64, raw.
        accepted: `[N]`, draft tokens accepted.
        observed: `[N]`, positions that have a label: those that were verified.
        kind: `[N]`, index into `calibration.CLASSES`.
        group: `[N]`, what must not be split between fitting and reporting: the request, or the prompt behind it.
        domain: `[N]`, index into `domains`.
        domains: names.
    """

    confidence: FloatArray
    accepted: IntArray
    observed: IntArray
    kind: IntArray
    group: IntArray
    domain: IntArray
    domains: tuple[str, ...]

    @property
    def gamma(self) -> int:
        return int(self.confidence.shape[1])

    def __len__(self) -> int:
        return len(self.accepted)

    def select(self, chosen: BoolArray) -> Self:
        """The chosen rows, `[N]` bool."""
        return type(self)(
            self.confidence[chosen],
            self.accepted[chosen],
            self.observed[chosen],
            self.kind[chosen],
            self.group[chosen],
            self.domain[chosen],
            self.domains,
        )

    def has_label(self, position: int) -> BoolArray:
        """`[N]`: whether position k = `position` (from 1) was verified."""
        return self.observed >= position

    def survived(self, position: int) -> BoolArray:
        """`[N]`: whether positions 1..k were all accepted; meaningful where `has_label`."""
        return self.accepted >= position


def samples_from_rows(
    rounds: Iterable[Rows],
    gamma: int,
    origin: Mapping[str, tuple[str, str]] | None = None,
) -> Samples:
    """Collect the rows that may be used: explored, drafted, up to each request's limit.

    A row that was not explored is left out whatever it holds: how far it was verified followed the confidence, so its
    labels would be a selection. Positions from a confidence on that is not a number in [0, 1] have no label either.

    Args:
        rounds: the rows of decoding rounds.
        gamma: draft tokens a round.
        origin: (domain, group) of each request id; rows of other requests are left out. None: every request is its
            own group, in the domain "all".
    """
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    groups: dict[str, int] = {}
    domains: dict[str, int] = {}
    for rows in rounds:
        if rows.confidence is None:
            continue
        # [R, 2]: group and domain of each row, -1 for a request of somebody else.
        places = np.full((len(rows.rid), 2), -1, dtype=np.int64)
        for r, rid in enumerate(rows.rid):
            known = ("all", rid) if origin is None else origin.get(rid)
            if known is not None:
                place, shared = known
                places[r] = groups.setdefault(shared, len(groups)), domains.setdefault(place, len(domains))
        used = rows.explored & (places[:, 0] >= 0)
        c = rows.confidence[used].astype(np.float64)
        right = np.logical_and.accumulate((c >= 0.0) & (c <= 1.0), axis=1)  # NaN compares false
        parts.append(
            (
                np.where(right, c, 0.5),
                rows.accepted[used],
                np.minimum(np.minimum(rows.length, rows.limit)[used], right.sum(axis=1)),
                class_index(rows.temperature[used], rows.coupled[used]),
                places[used, 0],
                places[used, 1],
            )
        )
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Samples(np.zeros((0, gamma)), none, none, none, none, none, ())
    confidence, accepted, observed, kind, group, domain = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return Samples(confidence, accepted, observed, kind, group, domain, tuple(domains))


def split(samples: Samples, seed: int = 0) -> BoolArray:
    """`[N]`: which rows are in the fitting half. Whole groups go to one half, which gets half the rows of a domain."""
    fitting = np.zeros(len(samples), dtype=bool)
    generator = np.random.default_rng(seed)
    for domain in range(len(samples.domains)):
        groups, sizes = np.unique(samples.group[samples.domain == domain], return_counts=True)
        order = generator.permutation(len(groups))
        middle = np.cumsum(sizes[order]) - sizes[order] / 2.0
        chosen = groups[order][middle < sizes.sum() / 2.0]
        fitting |= (samples.domain == domain) & np.isin(samples.group, chosen)
    return fitting


def folds(samples: Samples, count: int, seed: int = 0) -> IntArray:
    """`[N]`: the cross-validation fold of every row; whole groups."""
    groups, index = np.unique(samples.group, return_inverse=True)
    assigned = np.arange(len(groups)) % count
    np.random.default_rng(seed).shuffle(assigned)
    return assigned[index].astype(np.int64)
