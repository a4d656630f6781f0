"""Requests that label confidences: prompts by turns, in several wordings, until enough rounds have been decoded."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.load import Request, Result, open_session, send
from sglang_dspark.evaluate.prompts import Prompt, apply_chat

# A greedy answer never changes, so more rounds need other prompts: the same one with another wish. All wordings of a
# prompt are kept on one side of a split.
WORDINGS = (
    "",
    "Explain every step.",
    "Be brief.",
    "Explain it to a beginner.",
    "Start with a short summary.",
    "Give an example at the end.",
    "Answer in plain sentences.",
    "Name what could go wrong.",
    "Write it as numbered points.",
    "Think about an alternative, too.",
)


class TrafficError(DSparkError, RuntimeError):
    """Requests failed, or too few rounds can be had from the prompts."""


@dataclass(frozen=True)
class Phase:
    """One setting of the traffic.

    Attributes:
        part: "fit" or "report", the set of prompts.
        temperature: of the requests.
        seeded: whether each request has a seed, and with it the coupled acceptance rule.
        samples: labelled rounds wanted.
    """

    part: str
    temperature: float
    seeded: bool
    samples: int

    @property
    def title(self) -> str:
        return f"{self.part} T={self.temperature:g}{' seeded' if self.seeded else ''}"


@dataclass(frozen=True)
class Origin:
    """Where a request came from: `group` is the prompt, `part` the set it belongs to."""

    domain: str
    group: str
    part: str


class Traffic:
    """Makes and numbers the requests of a run; `origins` has each one's origin by request id."""

    def __init__(self, tokenizer: Any, max_new_tokens: int, origins: dict[str, Origin] | None = None) -> None:
        self.origins: dict[str, Origin] = {} if origins is None else origins
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens

    def requests(
        self, prompts: Sequence[Prompt], phase: Phase, issued: dict[str, int] | None = None
    ) -> Iterator[Request]:
        """Every prompt in turn, then in the next wording. Without end where answers are sampled.

        Args:
            issued: how many requests of each phase were sent before; these are skipped, and the new ones counted.
        """
        counts = {} if issued is None else issued
        before = counts.get(phase.title, 0)
        turns = range(len(WORDINGS)) if phase.temperature == 0 else itertools.count()
        for place, (turn, prompt) in enumerate((turn, prompt) for turn in turns for prompt in prompts):
            if place >= before:
                counts[phase.title] = place + 1
                number = len(self.origins)
                rid = f"cal-{prompt.domain}-{number}"
                self.origins[rid] = Origin(prompt.domain, f"{phase.part}:{prompt.id}", phase.part)
                sampling: dict[str, Any] = {
                    "temperature": phase.temperature,
                    "max_new_tokens": self._max_new_tokens,
                }
                if phase.seeded:
                    sampling["sampling_seed"] = number
                text = f"{prompt.prompt} {WORDINGS[turn % len(WORDINGS)]}".strip()
                yield Request(rid, prompt.domain, apply_chat(self._tokenizer, text), sampling, stream=False, rid=rid)


def drive(
    base_url: str,
    requests: Iterator[Request],
    phase: Phase,
    concurrency: int,
    on_rounds: Callable[[int], None] | None = None,
    *,
    have: int = 0,
    deadline: float | None = None,
) -> int:
    """Send requests, `concurrency` at a time, until the answers that came back hold `phase.samples` labelled rounds.

    Args:
        on_rounds: called with the rounds each answer adds.
        have: labelled rounds there are already.
        deadline: on the monotonic clock; then what is being answered is dropped, and the call returns.

    Returns:
        Rounds with a label at every position.

    Raises:
        TrafficError: a request failed, nothing was drafted, or the prompts did not suffice.
    """
    total, in_time = have, True

    async def users() -> None:
        nonlocal in_time
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await all_users()
        except TimeoutError:
            in_time = False

    async def all_users() -> None:
        async with open_session() as session:

            async def user() -> None:
                nonlocal total
                while total < phase.samples and (request := next(requests, None)) is not None:
                    result = await send(session, base_url, request)
                    if result.error is not None:
                        raise TrafficError(f"request {request.id} failed: {result.error}")
                    added = labelled_rounds(result)
                    total += added
                    if on_rounds is not None:
                        on_rounds(added)

            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(user())

    try:
        asyncio.run(users())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    if in_time and total < phase.samples:
        raise TrafficError(
            f"{phase.title}: the prompts gave {total} of {phase.samples} rounds; give more prompts, longer answers "
            "(--max-new-tokens) or fewer --samples"
        )
    return total


def labelled_rounds(result: Result) -> int:
    """Rounds of an answer that verified a full block: not the last few of one that ran into its token limit.

    Raises:
        TrafficError: nothing was drafted for it.
    """
    speculation = result.speculation
    if len(result.output_ids) > 2 and not speculation.drafted:
        raise TrafficError(f"request {result.id}: the server verified no draft token; is speculation on?")
    if result.finish_reason != "length" or not speculation.rounds:
        return speculation.rounds
    return max(0, speculation.rounds - math.ceil(speculation.drafted / speculation.rounds))
