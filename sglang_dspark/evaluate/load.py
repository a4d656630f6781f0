"""Closed-loop load on `/generate`: N users, each sending its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

# A line of the stream may carry all of a long answer.
_READ_BUFFER_BYTES = 1 << 22


@dataclass(frozen=True)
class Request:
    """One request, its prompt tokenised by the caller.

    Attributes:
        id, domain: of the prompt; copied into the result.
        input_ids: the prompt's tokens, chat template included.
        sampling: the engine's sampling parameters, such as max_new_tokens, temperature and ignore_eos.
        top_logprobs: also return the log-probabilities of this many candidates at each output position.
        stream: without it only the end is timed.
        rid: the engine's request id, for aborting it.
        then: makes the same user's next request from a complete answer, such as the next turn; None ends.
    """

    id: str
    domain: str
    input_ids: Sequence[int]
    sampling: Mapping[str, Any]
    top_logprobs: int = 0
    stream: bool = True
    rid: str | None = None
    then: Callable[[Result], Request | None] | None = None

    def body(self) -> dict[str, Any]:
        """The JSON that `/generate` takes."""
        body: dict[str, Any] = {
            "input_ids": list(self.input_ids),
            "sampling_params": dict(self.sampling),
            "stream": self.stream,
        }
        if self.top_logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": self.top_logprobs}
        if self.rid is not None:
            body["rid"] = self.rid
        return body


@dataclass(frozen=True)
class Speculation:
    """What speculation did for one request, or for many added up.

    Attributes:
        rounds: verification rounds.
        drafted: draft tokens that were verified.
        accepted: those of them that were accepted.
        emitted: output tokens that came out of the rounds, bonus tokens counted; the first token is the prefill's.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0

    def __add__(self, other: Speculation) -> Speculation:
        return Speculation(
            self.rounds + other.rounds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.emitted + other.emitted,
        )

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Speculation:
        """Read the engine's `meta_info`; all zeros where it did not speculate.

        `spec_num_proposed_drafts` assumes that every round verifies a full block. A worker that verifies fewer reports
        the tokens it verified in `spec_cap_length`, the mean per round with the anchor counted, and that one wins.
        """
        rounds = int(meta.get("spec_verify_ct", 0))
        if not rounds:
            return cls()
        drafted = int(meta["spec_num_proposed_drafts"])
        if "spec_cap_length" in meta:
            drafted = round(meta["spec_cap_length"] * rounds) - rounds
        return cls(rounds, drafted, int(meta["spec_num_correct_drafts"]), int(meta["completion_tokens"]) - 1)


@dataclass
class Result:
    """What came back for one request. Times are in seconds since it was sent.

    Attributes:
        arrivals: (time, output tokens so far) of every piece of the stream; one entry without streaming.
        finish_reason: stop, length or abort; empty if the request failed.
        seconds: until the answer was complete, or failed.
        sent_at: on this process's monotonic clock.
        meta: the engine's last `meta_info`.
        error: why there is no complete answer; None if there is one.
    """

    id: str
    domain: str
    sent_at: float
    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    finish_reason: str = ""
    seconds: float = 0.0
    meta: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def prompt_tokens(self) -> int:
        return int(self.meta.get("prompt_tokens", 0))

    @property
    def cached_tokens(self) -> int:
        return int(self.meta.get("cached_tokens", 0))

    @property
    def ttft(self) -> float:
        """Seconds to the first output token.

        Raises:
            ValueError: no token came.
        """
        if not self.arrivals:
            raise ValueError(f"request {self.id} has no output token: {self.error}")
        return self.arrivals[0][0]

    @property
    def speculation(self) -> Speculation:
        return Speculation.from_meta(self.meta)

    def inter_token_seconds(self) -> list[float]:
        """One gap per token after the first piece; tokens that arrive together share the gap before them."""
        gaps: list[float] = []
        for (before, count_before), (now, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            if count > count_before:
                gaps += [(now - before) / (count - count_before)] * (count - count_before)
        return gaps

    def decode_tokens_per_second(self) -> float | None:
        """This user's speed after the first token; None if all tokens came at once."""
        if len(self.arrivals) < 2:
            return None
        (start, first), (end, last) = self.arrivals[0], self.arrivals[-1]
        return (last - first) / (end - start) if end > start else None


@dataclass
class LoadRun:
    """Results in the order of the requests, follow-ups after theirs, and the time from first send to last answer."""

    results: list[Result]
    seconds: float

    @property
    def answered(self) -> list[Result]:
        return [result for result in self.results if result.error is None]

    @property
    def errors(self) -> list[Result]:
        return [result for result in self.results if result.error is not None]


def run_load(
    base_url: str,
    requests: Sequence[Request],
    concurrency: int,
    *,
    request_seconds: float = 600.0,
    on_result: Callable[[Result], None] | None = None,
) -> LoadRun:
    """Send all `requests`, at most `concurrency` at a time, and wait for the answers.

    A request that fails is part of the results, with its `error`; nothing is retried.
    """
    return asyncio.run(
        closed_loop(base_url, requests, concurrency, request_seconds=request_seconds, on_result=on_result)
    )


async def closed_loop(
    base_url: str,
    requests: Sequence[Request],
    concurrency: int,
    *,
    request_seconds: float = 600.0,
    on_result: Callable[[Result], None] | None = None,
) -> LoadRun:
    """`run_load` inside a running event loop."""
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
    queue = iter(enumerate(requests))
    results: dict[int, list[Result]] = {}
    async with open_session(request_seconds) as session:

        async def user() -> None:
            for index, request in queue:
                results[index] = await converse(session, base_url, request, on_result)

        start = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(min(concurrency, len(requests)))))
        seconds = time.perf_counter() - start
    return LoadRun([result for index in range(len(requests)) for result in results[index]], seconds)


async def converse(
    session: aiohttp.ClientSession, base_url: str, first: Request, on_result: Callable[[Result], None] | None = None
) -> list[Result]:
    """Send a request and then, one at a time, those that its `then` makes of the answers. A failure ends it."""
    results: list[Result] = []
    request: Request | None = first
    while request is not None:
        result = await send(session, base_url, request)
        results.append(result)
        if on_result is not None:
            on_result(result)
        request = request.then(result) if request.then is not None and result.error is None else None
    return results


def open_session(request_seconds: float = 600.0) -> aiohttp.ClientSession:
    """A session whose requests may each take `request_seconds`; its connections are not limited."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=request_seconds),
        read_bufsize=_READ_BUFFER_BYTES,
    )


async def send(
    session: aiohttp.ClientSession,
    base_url: str,
    request: Request,
    on_piece: Callable[[Result], None] | None = None,
) -> Result:
    """Send one request and collect its answer. Cancelling the call drops the connection, which aborts the request.

    Args:
        session: from `open_session`.
        base_url, request: where and what.
        on_piece: called with the unfinished result after every piece of the stream.
    """
    result = Result(request.id, request.domain, time.perf_counter())
    try:
        async with session.post(f"{base_url}/generate", json=request.body()) as response:
            if response.status != 200:
                result.error = f"HTTP {response.status}: {(await response.text())[:500]}"
            else:
                pieces = _pieces(response) if request.stream else _whole(response)
                async for piece in pieces:
                    _add(result, piece)
                    if on_piece is not None:
                        on_piece(result)
    except TimeoutError:
        result.error = f"no complete answer within {session.timeout.total} s"
    except (aiohttp.ClientError, json.JSONDecodeError, KeyError, OSError) as error:
        result.error = f"{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - result.sent_at
    if result.error is None and not result.finish_reason:
        result.error = "the stream ended before the answer did"
    return result


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        data = line.strip().removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if data:
            yield json.loads(data)


async def _whole(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    yield await response.json()


def _add(result: Result, piece: dict[str, Any]) -> None:
    if "error" in piece:
        result.error = str(piece["error"].get("message", piece["error"]))
        return
    meta, ids = piece["meta_info"], piece["output_ids"]
    if len(ids) == meta["completion_tokens"]:  # the whole answer so far
        result.output_ids, result.text = list(ids), piece["text"]
    else:  # --incremental-streaming-output sends what is new
        result.output_ids += ids
        result.text += piece["text"]
    result.meta = meta
    if ids:
        result.arrivals.append((time.perf_counter() - result.sent_at, len(result.output_ids)))
    if reason := meta["finish_reason"]:
        result.finish_reason = reason["type"]
        if reason["type"] == "abort":
            result.error = f"aborted: {reason.get('message', 'no message')}"
