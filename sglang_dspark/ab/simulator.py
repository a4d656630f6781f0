"""A server that only pretends: the endpoints of `serve`, with speeds, noise and illnesses of one's choice.

No model runs. For testing the A/B itself: what it should find is known beforehand.

python -m sglang_dspark.ab.simulator --port 30000 --round-ms 4 --accept 0.6 --gamma 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

_CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_VOCABULARY = 256


@dataclass
class _Job:
    """A request that is running."""

    prompt: int
    total: int
    sampled: bool
    rounds: int = 0
    tokens: list[int] = field(default_factory=list)
    accepted: int = 0
    last: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Simulator:
    """One pretended engine: a loop of rounds, in which every running request gets a token and what was accepted.

    Args:
        options: of `parse_options`.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._jobs: list[_Job] = []
        self._work = asyncio.Event()
        self._served = self._failed = 0
        self._ttft: list[float] = []
        self._tokenizer = _write_tokenizer()
        self._speed = 1.0
        self._gaps, self._gap_seconds = 0, 0.0

    def app(self) -> web.Application:
        """The web application; its loop of rounds starts with it."""
        app = web.Application()
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, self._health)
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/simulate", self._simulate)
        app.cleanup_ctx.append(self._rounds)
        return app

    async def _rounds(self, _app: web.Application) -> Any:
        task = asyncio.create_task(self._run())
        yield
        task.cancel()

    async def _run(self) -> None:
        """Rounds as long as there are requests; each takes a fixed time, a time per request, and noise."""
        options, due = self._options, time.perf_counter()
        while True:
            if not self._jobs:
                self._work.clear()
                await self._work.wait()
                # The speed of a stretch of work: what other tenants of a machine do to it.
                self._speed = self._random.lognormvariate(0.0, options.noise)
                due = time.perf_counter()
            due += (options.round_ms + options.request_ms * len(self._jobs)) / 1e3 * self._speed
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            for job in list(self._jobs):
                self._advance(job)

    def _advance(self, job: _Job) -> None:
        accepted = 0
        if job.tokens:
            job.rounds += 1
            while accepted < self._options.gamma and self._random.random() < self._options.accept:
                accepted += 1
        new = min(1 + accepted, job.total - len(job.tokens))
        now = time.perf_counter()
        if job.tokens:
            job.accepted += new - 1
            self._gaps += new
            self._gap_seconds += now - job.last
        job.last = now
        for _ in range(new):
            place = len(job.tokens)
            noise = self._random.randrange(_VOCABULARY) if job.sampled else 0
            job.tokens.append((job.prompt + 31 * place + noise) % _VOCABULARY)
        if len(job.tokens) >= job.total:
            self._jobs.remove(job)
        job.news.set()

    async def _start(self, ids: list[int], sampling: dict[str, Any]) -> _Job:
        job = _Job(
            zlib.crc32(bytes(token % 256 for token in ids)),
            int(sampling.get("max_new_tokens", 16)),
            float(sampling.get("temperature", 1.0)) > 0,
        )
        self._jobs.append(job)
        self._work.set()
        return job

    async def _illness(self, request: web.Request) -> web.StreamResponse | None:
        """What happens instead of an answer, if anything does."""
        options, draw = self._options, self._random.random()
        if draw < options.errors:
            self._failed += 1
            return web.json_response({"error": {"message": "simulated failure"}}, status=500)
        if draw < options.errors + options.hangs:
            self._failed += 1
            await asyncio.sleep(3600)
        if draw < options.errors + options.hangs + options.drops:
            self._failed += 1
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return None

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if (ill := await self._illness(request)) is not None:
            return ill
        body = await request.json()
        started = time.perf_counter()
        job = await self._start(body["input_ids"], body["sampling_params"])
        try:
            return await self._stream(request, job, len(body["input_ids"]), started)
        finally:
            if job in self._jobs:
                self._jobs.remove(job)

    async def _stream(self, request: web.Request, job: _Job, prompt: int, started: float) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        while sent < job.total:
            await job.news.wait()
            job.news.clear()
            if sent == 0:
                self._ttft.append(time.perf_counter() - started)
            ids = job.tokens[sent:]
            sent += len(ids)
            await response.write(b"data: " + json.dumps(self._piece(job, ids, sent, prompt)).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        self._served += 1
        return response

    def _piece(self, job: _Job, ids: list[int], sent: int, prompt: int) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "prompt_tokens": prompt,
            "cached_tokens": 0,
            "completion_tokens": sent,
            "finish_reason": {"type": "length", "length": sent} if sent >= job.total else None,
        }
        if self._options.gamma and job.rounds:
            meta |= {
                "spec_verify_ct": job.rounds,
                "spec_num_proposed_drafts": job.rounds * self._options.gamma,
                "spec_num_correct_drafts": job.accepted,
            }
        return {"output_ids": ids, "text": "".join(chr(97 + token % 26) for token in ids), "meta_info": meta}

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if (ill := await self._illness(request)) is not None:
            return ill
        body = await request.json()
        started = time.perf_counter()
        ids = list(json.dumps(body["messages"]).encode())
        sampling = {"max_new_tokens": body.get("max_tokens", 16), "temperature": body.get("temperature", 1.0)}
        job = await self._start(ids, sampling)
        while len(job.tokens) < job.total:
            await job.news.wait()
            job.news.clear()
            if len(job.tokens) and len(self._ttft) <= self._served:
                self._ttft.append(time.perf_counter() - started)
        self._served += 1
        text = "".join(chr(97 + token % 26) for token in job.tokens)
        return web.json_response(
            {
                "id": f"sim-{self._served}",
                "object": "chat.completion",
                "model": self._options.name,
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}],
                "usage": {"prompt_tokens": len(ids), "completion_tokens": job.total},
            }
        )

    async def _simulate(self, request: web.Request) -> web.Response:
        """Fall ill, get well, change speed: fields of the options, while running."""
        for name, value in (await request.json()).items():
            if not hasattr(self._options, name):
                return web.Response(status=400, text=f"no option {name}")
            setattr(self._options, name, value)
        return web.Response(text="changed")

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._options.name, "object": "model"}]})

    async def _info(self, _request: web.Request) -> web.Response:
        speculative = "DSPARK" if self._options.gamma else None
        return web.json_response(
            {
                "tokenizer_path": self._tokenizer,
                "model_path": self._options.name,
                "speculative_algorithm": speculative,
                "device": "simulated",
                "version": "simulator",
            }
        )

    async def _loads(self, _request: web.Request) -> web.Response:
        rank = {
            "num_running_reqs": len(self._jobs),
            "num_waiting_reqs": 0,
            "num_used_tokens": 0,
            "max_total_num_tokens": 100_000,
        }
        return web.json_response({"loads": [rank]})

    async def _flush(self, _request: web.Request) -> web.Response:
        return web.Response(text="Cache flushed.")

    async def _metrics(self, _request: web.Request) -> web.Response:
        edges = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
        lines = ["# TYPE sglang:time_to_first_token_seconds histogram"]
        lines += [
            f'sglang:time_to_first_token_seconds_bucket{{le="{edge}"}} {sum(t <= edge for t in self._ttft)}'
            for edge in edges
        ]
        lines += [
            f'sglang:time_to_first_token_seconds_bucket{{le="+Inf"}} {len(self._ttft)}',
            f"sglang:time_to_first_token_seconds_sum {sum(self._ttft)}",
            f"sglang:time_to_first_token_seconds_count {len(self._ttft)}",
            "# TYPE sglang:inter_token_latency_seconds histogram",
            f'sglang:inter_token_latency_seconds_bucket{{le="+Inf"}} {self._gaps}',
            f"sglang:inter_token_latency_seconds_sum {self._gap_seconds}",
            f"sglang:inter_token_latency_seconds_count {self._gaps}",
            "# TYPE sglang:spec_accept_length gauge",
            f"sglang:spec_accept_length {1 + self._options.accept if self._options.gamma else 0}",
        ]
        return web.Response(text="\n".join(lines) + "\n")


def parse_options(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--name", default="simulated")
    add("--round-ms", type=float, default=4.0, help="of a round, whatever runs")
    add("--request-ms", type=float, default=0.2, help="of a round, for each request that runs")
    add("--gamma", type=int, default=0, help="draft tokens a round")
    add("--accept", type=float, default=0.6, help="probability that a draft token is accepted after the one before")
    add("--noise", type=float, default=0.0, help="standard deviation of the logarithm of a cell's speed")
    add("--errors", type=float, default=0.0, help="part of the requests that get status 500")
    add("--hangs", type=float, default=0.0, help="part that gets no answer")
    add("--drops", type=float, default=0.0, help="part whose connection is closed")
    add("--slow-start", type=float, default=0.0, help="seconds before the server listens")
    add("--refuse-start", action="store_true", help="end at once, with an error")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Serve until stopped."""
    options = parse_options(argv)
    if options.refuse_start:
        print("RuntimeError: simulated: this server does not start", file=sys.stderr)
        return 1
    time.sleep(options.slow_start)

    async def serve() -> None:
        runner = web.AppRunner(Simulator(options).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, options.host, options.port).start()
        await asyncio.Event().wait()

    asyncio.run(serve())
    return 0


def _write_tokenizer() -> str:
    """A folder with a tokenizer of bytes and a chat template, as a checkpoint would bring it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder = Path(tempfile.gettempdir()) / "dspark-simulator-tokenizer"
    folder.mkdir(exist_ok=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _CHAT_TEMPLATE}
    # Several servers start at once: each file appears whole or not at all.
    for name, text in (("tokenizer.json", tokenizer.to_str()), ("tokenizer_config.json", json.dumps(settings))):
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(text)
        Path(file.name).replace(folder / name)
    return str(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
