"""`train`: make text with a target, train a draft on it, measure and export it.

train data --target T --prompts P.jsonl --out text.jsonl.gz     the target answers prompts
train run --target T --data text.jsonl.gz --out runs/a          train (again with the same --out: resume)
train export --target T --run runs/a --out draft                write the averaged weights as a checkpoint
train reduce --draft draft --data text.jsonl.gz --size 8192 --out draft-8k     let it propose frequent tokens only
train eval --target T --draft draft --data heldout.jsonl.gz     accept length by domain and temperature
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from sglang_dspark.errors import ConfigError, DSparkError
from sglang_dspark.model.draft import DraftShape
from sglang_dspark.train.configs import read_config, shipped
from sglang_dspark.train.settings import DraftSettings, TrainSettings, add_flags, given


def main(argv: list[str]) -> int:
    """Run one subcommand; returns the exit status (2: something the user has to change)."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang_dspark train", description=__doc__.split("\n")[0] if __doc__ else "")
    commands = parser.add_subparsers(required=True, metavar="{data,run,export,reduce,eval}")

    def command(name: str, run: Any, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        sub.set_defaults(run=run)
        sub.add_argument("--target", type=Path, help="folder of a Hugging Face model; default: the demo target")
        sub.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto", help="of the matmuls")
        return sub

    data = command("data", _data, "text for training: the target answers prompts")
    data.add_argument("--prompts", type=Path, required=True, help="JSON Lines with id, domain and prompt")
    data.add_argument("--out", type=Path, required=True, help="JSON Lines to append to (.gz: compressed)")
    data.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0], help="one answer for each")
    data.add_argument("--domains", nargs="+", help="only prompts of these domains")
    data.add_argument("--per-domain", type=int, help="only the first so many prompts of each domain")
    data.add_argument("--max-new-tokens", type=int, default=256)
    data.add_argument("--max-prompt-tokens", type=int, default=512, help="longer prompts are skipped")
    data.add_argument("--batch-size", type=int, default=128)
    data.add_argument("--seed", type=int, default=0)

    run = command("run", _run, "train a draft, or resume a run")
    run.add_argument("--data", type=Path, nargs="+", required=True, help="target-generated text (JSON Lines)")
    run.add_argument("--out", type=Path, required=True, help="folder of the run; one with a checkpoint is resumed")
    run.add_argument("--export", type=Path, help="write the draft here at every save")
    run.add_argument("--config", help=f"settings to start from, a .toml file or one of {', '.join(shipped())}")
    add_flags(run, DraftSettings)
    add_flags(run, TrainSettings)

    export = command("export", _export, "write a run's averaged weights as a checkpoint")
    export.add_argument("--run", dest="folder", type=Path, required=True, help="folder of the run")
    export.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    export.add_argument(
        "--zero-head", action="store_true", help="give a DFlash draft a head that adds nothing: DSPARK then serves it"
    )

    reduce = command("reduce", _reduce, "let a draft propose the most frequent tokens only")
    reduce.add_argument("--draft", type=Path, required=True, help="folder of the draft checkpoint")
    reduce.add_argument("--data", type=Path, nargs="+", required=True, help="text of the target")
    reduce.add_argument("--size", type=int, required=True, help="tokens it keeps")
    reduce.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")

    evaluate = command("eval", _eval, "accept length by domain and temperature")
    evaluate.add_argument("--draft", type=Path, required=True, help="folder of the draft checkpoint")
    evaluate.add_argument("--data", type=Path, nargs="+", required=True, help="held-out text of the target")
    evaluate.add_argument("--loop", action="store_true", help="decode for real instead, from the prompts of --data")
    evaluate.add_argument("--max-new-tokens", type=int, default=128, help="tokens per answer")
    evaluate.add_argument("--json", type=Path, help="write the numbers here as well")
    evaluate.add_argument("--seed", type=int, default=0)
    return parser


def _target(arguments: argparse.Namespace, dtype: torch.dtype | None = None) -> Any:
    from sglang_dspark.train.target import Target

    path = arguments.target
    if path is None:
        from sglang_dspark.model.demo_target import ensure_demo_target

        path = ensure_demo_target()
    return Target(path, dtype or _dtype(arguments.dtype))


def _dtype(name: str) -> torch.dtype:
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    # Without AMX or AVX512-BF16, bf16 matmuls are emulated and slower than float32.
    fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def _data(arguments: argparse.Namespace) -> None:
    from tqdm import tqdm

    from sglang_dspark.train.data import read_prompts, write_rows
    from sglang_dspark.train.generate import generate

    prompts = read_prompts(arguments.prompts)
    if arguments.domains:
        prompts = [p for p in prompts if p.domain in arguments.domains]
    if arguments.per_domain:
        taken: dict[str, int] = {}
        for prompt in list(prompts):
            taken[prompt.domain] = taken.get(prompt.domain, 0) + 1
            if taken[prompt.domain] > arguments.per_domain:
                prompts.remove(prompt)
    if not prompts:
        raise ConfigError(f"--prompts {arguments.prompts}: no prompt of the domains {arguments.domains}")
    target = _target(arguments)
    limits = (arguments.batch_size, arguments.max_prompt_tokens)
    with tqdm(total=len(prompts) * len(arguments.temperatures), unit="answer") as bar:
        for index, temperature in enumerate(arguments.temperatures):
            seed = arguments.seed + index
            for rows in generate(target, prompts, temperature, arguments.max_new_tokens, seed, *limits):
                write_rows(arguments.out, rows, append=True)
                bar.update(len(rows))


def _run(arguments: argparse.Namespace) -> None:
    from sglang_dspark.model.draft_vocabulary import most_frequent
    from sglang_dspark.train.data import fit_rows, limit_per_domain, read_rows, split_rows
    from sglang_dspark.train.export import export
    from sglang_dspark.train.generate import stop_ids
    from sglang_dspark.train.initialise import from_target
    from sglang_dspark.train.loop import Trainer
    from sglang_dspark.train.ranks import Ranks
    from sglang_dspark.train.state import CHECKPOINT

    of_draft, of_training = read_config(arguments.config) if arguments.config else ({}, {})
    wanted = DraftSettings(**(of_draft | given(arguments, DraftSettings)))
    settings = TrainSettings(**(of_training | given(arguments, TrainSettings)))
    ranks = Ranks.join()
    read = read_rows(arguments.data)
    target = _target(arguments)
    shape = _shape(wanted, target.config)
    limit = wanted.max_row_tokens or int(target.config["max_position_embeddings"])
    usable, said = fit_rows(read, limit, shape.vocab_size)
    notes = [said] if said else []
    rows, validation = split_rows(usable, settings.validation_share, settings.seed)
    rows = limit_per_domain(rows, settings.rows_per_domain, settings.seed)
    vocabulary = None
    if shape.draft_vocab_size:
        texts = (row.r for row in rows)
        vocabulary, covered = most_frequent(texts, shape.draft_vocab_size, shape.vocab_size, stop_ids(target))
        notes.append(f"{shape.draft_vocab_size} draft tokens cover {covered:.2%} of the answers")
    draft = from_target(shape, target, settings.seed, vocabulary)
    trainer = Trainer(draft, target, rows, validation, settings, arguments.out, ranks)
    if (arguments.out / CHECKPOINT).exists():
        trainer.load()
        notes.append(f"resuming {arguments.out} at step {trainer.step}")
    notes.append(f"{len(rows)} answers to train on, {len(trainer.validation)} to validate")
    if ranks.first:
        print("\n".join(notes), file=sys.stderr)

    def on_save() -> None:
        if arguments.export:
            export(trainer.weights(), shape, target.config, arguments.export)

    trainer.run(on_save)


def _shape(wanted: DraftSettings, config: dict[str, Any]) -> DraftShape:
    layers, vocabulary, hidden = (int(config[n]) for n in ("num_hidden_layers", "vocab_size", "hidden_size"))
    ids = list(wanted.target_layer_ids) or default_layer_ids(layers)
    if max(ids) > layers - 2 or min(ids) < 0 or sorted(set(ids)) != ids:
        # The engine captures what enters a layer, so the last layer's output is out of its reach.
        raise ConfigError(f"--target-layer-ids {ids}: ascending, each between 0 and {layers - 2}")
    for flag, value, most in (
        ("--draft-vocab-size", wanted.draft_vocab_size, vocabulary),
        ("--mask-token-id", wanted.mask_token_id, vocabulary - 1),
        ("--markov-rank", wanted.markov_rank if wanted.markov_head != "none" else 0, hidden),
    ):
        if value > most:
            raise ConfigError(f"{flag} {value}: at most {most} with this target")
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)  # Gemma has one set for each kind of layer
    return DraftShape(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=wanted.layers,
        num_attention_heads=int(config["num_attention_heads"]),
        num_key_value_heads=int(config["num_key_value_heads"]),
        head_dim=int(config.get("head_dim") or hidden // config["num_attention_heads"]),
        intermediate_size=int(config["intermediate_size"]),
        block_size=wanted.block_size,
        target_layer_ids=tuple(ids),
        mask_token_id=wanted.mask_token_id,
        markov_rank=0 if wanted.markov_head == "none" else wanted.markov_rank,
        markov_head_type="vanilla" if wanted.markov_head == "none" else wanted.markov_head,
        markov_activation=wanted.markov_activation,
        draft_vocab_size=wanted.draft_vocab_size % vocabulary,
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
    )


def default_layer_ids(layers: int) -> list[int]:
    """Four layers spread over the target, up to the last one whose output the engine can capture."""
    last = layers - 2
    return sorted({last * i // 4 for i in (1, 2, 3)} | {last})


def _export(arguments: argparse.Namespace) -> None:
    from sglang_dspark.train.export import export, with_zero_head
    from sglang_dspark.train.state import read_state, shape_of, weights_of

    state = read_state(arguments.folder)
    weights, shape = weights_of(state), shape_of(state)
    if arguments.zero_head:
        weights, shape = with_zero_head(weights, shape)
    export(weights, shape, _target(arguments).config, arguments.out)


def _reduce(arguments: argparse.Namespace) -> None:
    from sglang_dspark.model.draft_vocabulary import most_frequent
    from sglang_dspark.train.data import read_rows
    from sglang_dspark.train.export import export, load_draft, reduced
    from sglang_dspark.train.generate import stop_ids

    draft = load_draft(arguments.draft)
    if not 0 < arguments.size < draft.shape.vocab_size:
        raise ConfigError(f"--size {arguments.size}: must lie between 0 and the draft's {draft.shape.vocab_size}")
    target = _target(arguments)
    texts = (row.r for row in read_rows(arguments.data))
    vocabulary, covered = most_frequent(texts, arguments.size, draft.shape.vocab_size, stop_ids(target))
    print(f"{arguments.size} draft tokens cover {covered:.2%} of the answers", file=sys.stderr)
    export(*reduced(draft.state_dict(), draft.shape, vocabulary), target.config, arguments.out)


def _eval(arguments: argparse.Namespace) -> None:
    from sglang_dspark.train.data import read_rows
    from sglang_dspark.train.evaluate import evaluate, mean_over_domains
    from sglang_dspark.train.export import load_draft

    draft = load_draft(arguments.draft)
    target = _target(arguments, torch.float32 if arguments.dtype == "auto" else None)
    rows = [
        dataclasses.replace(row, r=row.r[: arguments.max_new_tokens])
        for row in read_rows(arguments.data)
        if len(row.r) > 1
    ]
    if arguments.loop:
        from sglang_dspark.train.decode import decode_rows

        groups = decode_rows(draft, target, rows, arguments.max_new_tokens, arguments.seed)
    else:
        groups = evaluate(draft, target, rows)
    result: dict[str, Any] = {"by_domain": {}, "mean": {}}
    for (domain, temperature), length in sorted(groups.items()):
        positions = [round(v, 3) for v in length.by_position]
        print(f"T={temperature:g} {domain:8s} accept length {length.mean:.3f}   by position {positions}")
        entry = {"accept_length": length.mean, "tokens": length.tokens, "rounds": length.rounds}
        result["by_domain"][f"{domain}@{temperature:g}"] = {**entry, "by_position": positions}
    for temperature, mean in mean_over_domains(groups).items():
        print(f"T={temperature:g} mean of domains {mean:.3f}")
        result["mean"][f"{temperature:g}"] = mean
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
