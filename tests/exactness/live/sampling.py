"""Sample from the real engine, in a process of its own.

Run as a program it reads an `EngineJob` as JSON on stdin and writes what each stream gave as JSON on stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "engine")]

from engine_process import CPU_FLAGS, run_program  # noqa: E402  # prepares the process for the engine

from live.reference import Ints  # noqa: E402

PAIR = Path(__file__).parent / "pair"
PLANT = "DSPARK_TESTS_PLANT"
COUNTS = ("rounds", "proposed", "accepted", "cached")

if os.environ.get(PLANT):  # every process of the engine imports this module first
    from live.planted import plant

    plant(os.environ[PLANT])


@dataclass
class Stream:
    """Requests of one setting: `concurrent` at a time, each of one prompt and `new_tokens` long.

    Attributes:
        prompts: token ids, all of one length.
        sampling: parameters of each request, its length not included.
    """

    prompts: list[list[int]]
    sampling: dict[str, Any]
    concurrent: int
    new_tokens: int


@dataclass
class EngineJob:
    """One server (fields of `DSparkConfig`, a seed) and what to ask it, one stream after the other."""

    server: dict[str, Any]
    seed: int
    streams: list[Stream]
    planted: str | None = None


@dataclass
class Drawn:
    """What a stream gave.

    Attributes:
        outputs: `[S, L]` token ids, in the order of the prompts.
        rounds, proposed, accepted: verification rounds and draft tokens, over all requests, as the engine counts them:
            it takes γ proposals a round, whatever was verified.
        cached: prompt tokens taken from the prefix cache.
        seconds: wall time of the stream.
    """

    outputs: Ints
    rounds: int
    proposed: int
    accepted: int
    cached: int
    seconds: float


def draw(job: EngineJob, timeout: float) -> list[Drawn]:
    """Run the job on one thread; raises as `run_program` does."""
    environment = {"SGLANG_DSPARK_CONFIG": json.dumps(job.server), "OMP_NUM_THREADS": "1"}
    if job.planted:
        environment[PLANT] = job.planted
    results = run_program(__file__, asdict(job), timeout, environment)
    return [Drawn(**{**result, "outputs": np.array(result["outputs"])}) for result in results]


@dataclass
class _Totals:
    outputs: list[list[int]]
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def add(self, index: int, answer: dict[str, Any]) -> None:
        meta = answer["meta_info"]
        assert meta["finish_reason"]["type"] == "length", meta["finish_reason"]
        self.outputs[index] = answer["output_ids"]
        self.counts["rounds"] += meta["spec_verify_ct"]
        self.counts["proposed"] += meta["spec_num_proposed_drafts"]
        self.counts["accepted"] += meta["spec_num_correct_drafts"]
        self.counts["cached"] += meta["cached_tokens"]


async def _run(engine: Any, stream: Stream) -> dict[str, Any]:
    sampling = {**stream.sampling, "max_new_tokens": stream.new_tokens, "ignore_eos": True}
    waiting = iter(enumerate(stream.prompts))
    totals = _Totals([[] for _ in stream.prompts])

    async def client() -> None:
        for index, prompt in waiting:  # shared by the clients: each takes the next prompt
            totals.add(index, await engine.async_generate(input_ids=prompt, sampling_params=sampling))

    loop = asyncio.get_running_loop()
    start = loop.time()
    await asyncio.gather(*(client() for _ in range(stream.concurrent)))
    return {"outputs": totals.outputs, "seconds": round(loop.time() - start, 2), **totals.counts}


def main() -> None:
    import sglang

    job = json.load(sys.stdin)
    flags = {
        "model_path": str(PAIR / "target"), "speculative_draft_model_path": str(PAIR / "draft"), "dtype": "float32",
        "speculative_algorithm": "DSPARK", "skip_tokenizer_init": False, "grammar_backend": "xgrammar",
        "random_seed": job["seed"], "disable_overlap_schedule": job["server"]["overlap"] == "off",
    }  # fmt: skip
    engine = sglang.Engine(**CPU_FLAGS | flags)
    results = [engine.loop.run_until_complete(_run(engine, Stream(**stream))) for stream in job["streams"]]
    engine.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
