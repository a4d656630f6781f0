"""What users ask: dialogues of one turn or more, from the shipped prompts, JSONL, ShareGPT files, or random tokens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.evaluate.prompts import PromptError, load_prompts

# What a user says next where the data has no second turn.
FOLLOW_UPS = (
    "Please explain the most important step again, in other words.",
    "Give me one more example.",
    "Now sum it up in two sentences.",
)
_RANDOM = re.compile(r"(\d+),(\d+)$")


@dataclass(frozen=True)
class Dialogue:
    """What one user sends, turn by turn.

    Attributes:
        id: unique within the dataset.
        domain: what accept lengths are reported by.
        turns: the user's texts; empty for random tokens.
        input_ids: the prompt's tokens where there is no text.
        output_tokens: the answer's length where the data says it.
    """

    id: str
    domain: str
    turns: tuple[str, ...] = ()
    input_ids: tuple[int, ...] = ()
    output_tokens: int | None = None


@dataclass(frozen=True)
class Dataset:
    """Dialogues, and what may be concluded from them.

    Attributes:
        name: as the report shows it.
        fit_for_acceptance: False for random tokens: a draft cannot guess what means nothing.
    """

    name: str
    dialogues: tuple[Dialogue, ...]
    fit_for_acceptance: bool = True


def load_dataset(source: str, *, seed: int = 0, domains: Sequence[str] | None = None, size: int = 512) -> Dataset:
    """A dataset by its name on the command line.

    Args:
        source: `shipped`; a JSONL file with id, domain and prompt (optionally `turns`, a list of texts);
            `sharegpt:FILE`; `random:IN,OUT`, with input and output lengths uniform between half of these and these.
        seed: order, and the random tokens.
        domains: keep these only.
        size: dialogues of a random dataset, and the most of a ShareGPT file.

    Raises:
        PromptError: a file or a line that cannot be used.
    """
    kind, colon, rest = source.partition(":")
    if kind == "random" and colon:
        return _random(rest, seed, size)
    if kind == "sharegpt" and colon:
        return _sharegpt(Path(rest), seed, size)
    if source == "shipped":
        prompts = load_prompts(None, domains, seed=seed)
        return Dataset("shipped prompts", tuple(Dialogue(p.id, p.domain, (p.prompt,)) for p in prompts))
    prompts = load_prompts(source, domains, seed=seed)
    more = _turns(Path(source))
    return Dataset(Path(source).name, tuple(Dialogue(p.id, p.domain, (p.prompt, *more.get(p.id, ()))) for p in prompts))


def _turns(path: Path) -> dict[str, tuple[str, ...]]:
    """Further user turns by id; `load_prompts` has checked that every line is an object."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        record = json.loads(line) if line.strip() else {}
        turns = record.get("turns")
        if turns is None:
            continue
        if not isinstance(turns, list) or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise PromptError(f"{path}, line {number}: field 'turns' must be a list of texts")
        found[record["id"]] = tuple(turns)
    return found


def _sharegpt(path: Path, seed: int, size: int) -> Dataset:
    """A JSON list of `{"conversations": [{"from": "human", "value": ...}, ...]}`; the human turns are kept."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PromptError(f"sharegpt:{path}: {error}") from error
    if not isinstance(records, list):
        raise PromptError(f"sharegpt:{path}: must hold a list of conversations")
    dialogues = []
    for number, record in enumerate(records):
        turns = _human_turns(record)
        if turns:
            dialogues.append(Dialogue(str(record.get("id", number)) + f"-{number}", "sharegpt", turns))
    if not dialogues:
        raise PromptError(f"sharegpt:{path}: no conversation begins with a human turn that has an answer")
    random.Random(seed).shuffle(dialogues)
    return Dataset(f"ShareGPT, {path.name}", tuple(dialogues[:size]))


def _human_turns(record: Any) -> tuple[str, ...]:
    if not isinstance(record, dict):
        return ()
    turns: list[dict[str, Any]] = record.get("conversations") or record.get("conversation") or []
    texts = [turn.get("value", "") for turn in turns if turn.get("from") in ("human", "user")]
    usable = len(turns) >= 2 and turns[0].get("from") in ("human", "user") and all(text.strip() for text in texts)
    return tuple(texts) if usable else ()


def _random(lengths: str, seed: int, size: int) -> Dataset:
    match = _RANDOM.match(lengths)
    if match is None or min(int(match[1]), int(match[2])) < 2:
        raise PromptError(f"random:{lengths}: give input and output tokens, such as random:512,128")
    inputs, outputs = int(match[1]), int(match[2])
    draw = random.Random(seed)
    # Below 200 lie byte tokens and special ones in most vocabularies; above 20,000 small vocabularies end.
    dialogues = tuple(
        Dialogue(
            f"random-{i:04}",
            "random",
            input_ids=tuple(draw.choices(range(200, 20_000), k=draw.randint(inputs // 2, inputs))),
            output_tokens=draw.randint(outputs // 2, outputs),
        )
        for i in range(size)
    )
    return Dataset(f"random tokens, up to {inputs} in and {outputs} out", dialogues, fit_for_acceptance=False)
