"""A test that may be looked at all the time: a confidence sequence for the mean of paired differences.

The boundary is that of the Gaussian mixture (the mixture SPRT), with the running variance put in, which makes it valid
asymptotically for any distribution with a variance: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform
central limit theory and asymptotic confidence sequences" (2021), equation for AsympCS. A t-test that is repeated at
every look would find a difference where there is none sooner or later; this finds one in at most a part α of splits,
however long they run. Pairs must be independent and not extremely skewed: means over a window of traffic are neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_dspark.evaluate.statistics import Interval

# The sequence is tightest about this many pairs after the start; any number is valid.
_TIGHTEST = 200


@dataclass
class ConfidenceSequence:
    """Pairs so far, on the logarithmic scale.

    Args:
        alpha: chance that the sequence ever leaves the truth.
        min_pairs: before which there is no interval: the variance must be known a little.
    """

    alpha: float = 0.05
    min_pairs: int = 50
    count: int = 0
    _mean: float = 0.0
    _squares: float = 0.0

    def add(self, candidate: float, control: float) -> None:
        """One pair of positive figures from the same stretch of time."""
        value = math.log(candidate / control)
        self.count += 1
        step = value - self._mean
        self._mean += step / self.count
        self._squares += step * (value - self._mean)

    def ratio(self) -> Interval | None:
        """Candidate over control with its interval; None with too few pairs."""
        if self.count < max(self.min_pairs, 2):
            return None
        deviation = math.sqrt(self._squares / (self.count - 1))
        half = deviation * boundary(self.count, self.alpha)
        return Interval(*(math.exp(self._mean + edge) for edge in (0.0, -half, half)))

    def verdict(self) -> str:
        """`higher`, `lower` or `open`."""
        ratio = self.ratio()
        if ratio is None or 1.0 in ratio:
            return "open"
        return "higher" if ratio.value > 1 else "lower"


def boundary(count: int, alpha: float) -> float:
    """Half-width of the sequence after `count` pairs, in standard deviations of a pair."""
    # The mixture's variance that makes it tightest there, by its asymptotic form.
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / _TIGHTEST
    scaled = count * rho2 + 1
    return math.sqrt(2 * scaled / (count**2 * rho2) * math.log(math.sqrt(scaled) / alpha))
