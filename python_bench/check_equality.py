"""Greedy output with DSpark, token for token, against plain decoding in fp32.

    python python_bench/check_equality.py                                 # 64 of the package's prompts
    python python_bench/check_equality.py --prompts held_out.jsonl --limit 64
    python python_bench/check_equality.py --echo --limit 200 --batch 12 --batched-only --verify-lengths 1 2 3 4 5

Every prompt is answered one at a time and batched, with a cold and a warm prefix cache. A differing pair must be a
floating-point tie of the plain engine. Exit status: 0 equal, 1 different, 2 inconclusive (nothing was drafted).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from timing import write_results
from tqdm import tqdm

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.arms import KNOWN_ARMS, Arm, ArmServers
from sglang_dspark.evaluate.endpoints import server_info
from sglang_dspark.evaluate.equality import EqualityReport, check_equality, greedy_requests, plain_reference
from sglang_dspark.evaluate.prompts import echo_prompts, load_prompts, load_tokenizer


def main() -> int:
    """Run the check, print the verdict, write JSON."""
    options = parse_options()
    try:
        reports = measure(options)
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    settings = {k: v for k, v in vars(options).items() if k not in ("name", "results")}
    arms = {name: report.as_json() for name, report in reports.items()}
    path = write_results(options.name, {"settings": settings, "arms": arms}, options.results)
    for name, report in reports.items():
        print(
            f"{name}: {report.verdict}. {report.compared} outputs ({report.output_tokens} tokens) compared, "
            f"{len(report.differences)} differ, {len(report.ties)} of them by a floating-point tie; "
            f"{report.drafted} draft tokens verified, {report.accepted} accepted."
        )
        for difference in report.differences:
            print(f"  {difference}")
    print(f"written: {path}")
    return max({"equal": 0, "inconclusive": 2, "different": 1}[report.verdict] for report in reports.values())


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--prompts", help="JSONL with id, domain, prompt (default: the package's own)")
    add("--echo", action="store_true", help="generated requests to repeat opaque identifiers, instead of --prompts")
    add("--limit", type=int, default=64)
    add("--verify-lengths", type=int, nargs="+", help="one server for each --dspark-verify-length, not the default one")
    add("--max-new-tokens", type=int, default=128)
    add("--batch", type=int, default=16, help="requests in flight in the batched passes")
    add("--batched-only", action="store_true", help="one batched pass instead of four passes")
    add("--serve-flags", default="", help="flags of serve for both servers")
    add("--seed", type=int, default=0, help="which prompts")
    add("--name", default="equality")
    add("--results", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, EqualityReport]:
    """Serve plain and dspark and compare; one report for each dspark arm."""
    if options.echo:
        prompts = echo_prompts(options.limit, options.seed)
    else:
        prompts = load_prompts(options.prompts, limit=options.limit, seed=options.seed)
    arms = [KNOWN_ARMS["dspark"]]
    if options.verify_lengths:
        arms = [Arm(f"verify-length-{n}", ("--dspark-verify-length", str(n))) for n in options.verify_lengths]
    flags = [
        "--max-running-requests", str(options.batch), "--max-total-tokens", "16384", "--context-length", "2048",
        *shlex.split(options.serve_flags),
    ]  # fmt: skip
    with ArmServers([KNOWN_ARMS["plain"], *arms], flags, "one-at-a-time") as servers:
        plain = servers.get("plain").base_url
        tokenizer = load_tokenizer(server_info(plain)["tokenizer_path"])
        requests = greedy_requests(prompts, tokenizer, options.max_new_tokens)
        with tqdm(total=(1 + (1 if options.batched_only else 4) * len(arms)) * len(requests), unit="request") as bar:
            bar.set_description("plain")
            reference = plain_reference(plain, requests, on_result=lambda _: bar.update())
            reports = {}
            for arm in arms:
                bar.set_description(arm.name)
                server = servers.get(arm.name).base_url
                reports[arm.name] = check_equality(
                    server, requests, reference, options.batch, options.batched_only, on_result=lambda _: bar.update()
                )
            return reports


if __name__ == "__main__":
    sys.exit(main())
