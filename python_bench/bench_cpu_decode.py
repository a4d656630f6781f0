"""Plain decoding on a CPU behind the real engine: this project's attention beside the engine's own, in one run.

Both engines are up at once and answer the same prompts in turn, in an order drawn anew each time, so that the machine's
other work meets both alike. A step is the time of a decoding batch: the answer to the whole request minus that to its
prompt alone, per further token.

    python python_bench/bench_cpu_decode.py --model-path DIR [--requests 1 8 32] [--dtype bfloat16] [--write]
"""

from __future__ import annotations

from sglang_dspark.engine.cpu.bootstrap import install

install()  # before the engine is imported, here and in every process it spawns

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import statistics  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

from timing import interleave, machine, write_results  # noqa: E402

from sglang_dspark.config import ENVIRONMENT_VARIABLE  # noqa: E402

ARMS: dict[str, dict[str, str]] = {"fast": {}, "stock attention": {"cpu_attention": "stock"}}


def start(model: str, dtype: str, settings: dict[str, str]) -> Any:
    """An engine whose processes read `settings` from the environment, as those of a server do."""
    import sglang

    os.environ[ENVIRONMENT_VARIABLE] = json.dumps({"plugin": "off", **settings})
    return sglang.Engine(
        model_path=model, dtype=dtype, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="none", disable_cuda_graph=True, disable_radix_cache=True, skip_tokenizer_init=True,
        sleep_on_idle=True, max_total_tokens=16384, max_running_requests=32, log_level="error",
    )  # fmt: skip


def generate(engine: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    return [answer["output_ids"] for answer in engine.generate(input_ids=prompts, sampling_params=sampling)]


def measure(engines: dict[str, Any], requests: int, tokens: int, repetitions: int) -> list[dict[str, Any]]:
    """One row per arm: seconds per step, output tokens per second, and the ratio to the last arm with its range."""
    draw = random.Random(0)
    prompts = [[draw.randrange(100, 20000) for _ in range(40 + 3 * i)] for i in range(requests)]
    texts = {name: generate(engine, prompts, tokens) for name, engine in engines.items()}
    functions = {}
    for name, engine in engines.items():
        functions[name] = partial(generate, engine, prompts, tokens)
        functions[f"{name}, prompt"] = partial(generate, engine, prompts, 1)
    seconds = interleave(functions, repetitions, warmup=0)
    steps = {
        name: [
            (whole - prompt) / (tokens - 1)
            for whole, prompt in zip(seconds[name], seconds[f"{name}, prompt"], strict=True)
        ]
        for name in engines
    }
    base = list(engines)[-1]
    rows = []
    for name in engines:
        ratios = [slow / fast for slow, fast in zip(steps[base], steps[name], strict=True)]
        rows.append(
            {
                "requests": requests,
                "arm": name,
                "step_ms": 1e3 * statistics.median(steps[name]),
                "tokens_per_second": requests * tokens / statistics.median(seconds[name]),
                "ratio": statistics.median(ratios),
                "ratio_range": [min(ratios), max(ratios)],
                "same_text": sum(a == b for a, b in zip(texts[name], texts[base], strict=True)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64, help="output tokens of each request")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="also write python_bench/results/cpu_decode_<dtype>.json")
    options = parser.parse_args()
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    print(f"{machine()['cpu']}, {machine()['cores']} cores, {options.dtype}")
    engines = {name: start(options.model_path, options.dtype, settings) for name, settings in ARMS.items()}
    rows = []
    for requests in options.requests:
        for row in measure(engines, requests, options.tokens, options.repetitions):
            low, high = row["ratio_range"]
            print(
                f"{requests:3} requests  {row['arm']:16} {row['step_ms']:7.1f} ms/step  "
                f"{row['tokens_per_second']:7.1f} tok/s  {row['ratio']:.2f} x [{low:.2f}, {high:.2f}]  "
                f"same text {row['same_text']}/{requests}",
                flush=True,
            )
            rows.append(row)
    for engine in engines.values():
        engine.shutdown()
    if options.write:
        print(
            write_results(f"cpu_decode_{options.dtype}", {"model": os.path.basename(options.model_path), "rows": rows})
        )


if __name__ == "__main__":
    main()
