"""An offline engine in a process of its own, with a time limit: a crash of its scheduler kills its parent.

Run as a program it reads a `Job` as JSON on stdin and writes the answers as JSON on stdout.
"""

from __future__ import annotations

from sglang_dspark.engine.cpu.bootstrap import install

install()  # before anything else, and so in every process the engine spawns from here

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from dataclasses import asdict, dataclass, field  # noqa: E402
from typing import Any  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # in spawned processes, too
import kv_watch  # noqa: E402, F401  # watches the pools of engines that are asked for it

CPU_FLAGS: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "skip_tokenizer_init": True,
    "sleep_on_idle": True,
    "max_total_tokens": 4096,
    "max_running_requests": 16,
    "log_level": "error",
}


@dataclass
class Job:
    """What to serve and what to ask.

    Attributes:
        flags: of the engine, on top of `CPU_FLAGS`.
        batches: each a list of prompts (token ids) sent together, one batch after the other.
        new_tokens: generated for each prompt, end-of-sequence ignored.
        environment: variables of the process.
        sampling: further sampling parameters; greedy without any.
    """

    flags: dict[str, Any]
    batches: list[list[list[int]]]
    new_tokens: int
    environment: dict[str, str] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """`output_ids` and `meta_info` of one prompt."""

    output_ids: list[int]
    meta_info: dict[str, Any]


def run_engine(job: Job, timeout: float) -> list[list[Answer]]:
    """Answers of every batch; raises as `run_program` does."""
    answers = run_program(__file__, asdict(job), timeout, job.environment)
    return [[Answer(**answer) for answer in batch] for batch in answers]


def run_program(program: str, request: Any, timeout: float, environment: dict[str, str]) -> Any:
    """Give `request` as JSON to a program that starts an engine; the last line it prints is its answer.

    Raises:
        AssertionError: the engine failed, with the end of its log.
        subprocess.TimeoutExpired: it took longer than `timeout` seconds; its whole process group is gone then.
    """
    process = subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "PASSIVE", **environment},
        start_new_session=True,
    )  # fmt: skip
    try:
        out, log = process.communicate(json.dumps(request), timeout=timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, log[-4000:]
    return json.loads(out.splitlines()[-1])


def main() -> None:
    import sglang

    job = Job(**json.load(sys.stdin))
    engine = sglang.Engine(**CPU_FLAGS | job.flags)
    sampling = {"temperature": 0.0, "max_new_tokens": job.new_tokens, "ignore_eos": True, **job.sampling}
    answers = []
    for batch in job.batches:
        results = engine.generate(input_ids=batch, sampling_params=sampling)
        answers.append([{"output_ids": r["output_ids"], "meta_info": r["meta_info"]} for r in results])
    engine.shutdown()
    print(json.dumps(answers, default=str))


if __name__ == "__main__":
    main()
