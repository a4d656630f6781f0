"""Target-generated text on disk, its split, and the deterministic order it is trained in."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sglang_dspark.errors import ConfigError


@dataclass(frozen=True)
class Row:
    """One answer of the target. JSON keys: `d` domain, `id`, `T` temperature, `p` prompt ids, `r` response ids."""

    d: str
    id: str
    T: float
    p: tuple[int, ...]
    r: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.p + self.r

    @property
    def anchors(self) -> range:
        """Positions that can be an anchor: emitted by the target, with at least one token after them."""
        return range(len(self.p), len(self.p) + len(self.r) - 1)


@dataclass(frozen=True)
class Prompt:
    id: str
    domain: str
    prompt: str


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Rows of JSON Lines files (`.gz` or plain), in file order.

    Raises:
        ConfigError: a file is missing, or a line does not hold a row; the message names the line.
    """
    rows = []
    for path in paths:
        for number, record in _json_lines(path, "--data"):
            try:
                row = Row(
                    str(record["d"]), str(record["id"]), float(record["T"]), tuple(record["p"]), tuple(record["r"])
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}, line {number}: not a row with d, id, T, p and r ({error!r})") from error
            rows.append(row)
    return rows


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts from JSON Lines with `id`, `domain` and `prompt`.

    Raises:
        ConfigError: as `read_rows`.
    """
    prompts = []
    for number, record in _json_lines(path, "--prompts"):
        try:
            prompts.append(Prompt(str(record["id"]), str(record["domain"]), str(record["prompt"])))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: needs id, domain and prompt ({error!r})") from error
    return prompts


def write_rows(path: Path, rows: Iterable[Row], append: bool = False) -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "at" if append else "wt", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(asdict(row), separators=(",", ":")) + "\n")


def fit_rows(rows: list[Row], limit: int, vocab_size: int) -> tuple[list[Row], str]:
    """Rows a target of `vocab_size` tokens can be trained on, cut to `limit` tokens.

    Left out are answers without two tokens, and prompts that leave no room for them.

    Returns:
        The rows, and a sentence about what was cut or left out; empty if nothing was.

    Raises:
        ConfigError: a token is not the target's.
    """
    kept, short, cut, crowded = [], 0, 0, 0
    for row in rows:
        if max(row.tokens, default=0) >= vocab_size or min(row.tokens, default=0) < 0:
            raise ConfigError(f"--data, answer {row.id!r}: a token is outside the target's {vocab_size}; other target?")
        room = limit - len(row.p)
        short += len(row.r) < 2 or not row.p
        crowded += len(row.r) >= 2 > room
        cut += len(row.r) > room >= 2
        if row.p and min(len(row.r), room) >= 2:
            kept.append(replace(row, r=row.r[:room]))
    parts = (
        (short, "without two tokens left out"),
        (crowded, f"left out, their prompts fill the limit of {limit} tokens"),
        (cut, f"cut to {limit} tokens"),
    )
    said = ", ".join(f"{count} {what}" for count, what in parts if count)
    return kept, f"answers: {said}" if said else ""


def split_rows(rows: list[Row], validation_share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Training and validation rows. All answers to one prompt fall on the same side; the seed alone decides."""

    def held_out(row: Row) -> bool:
        digest = hashlib.sha256(f"{seed}:{row.id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < validation_share * 2**64

    return [r for r in rows if not held_out(r)], [r for r in rows if held_out(r)]


def limit_per_domain(rows: list[Row], count: int, seed: int) -> list[Row]:
    """At most `count` rows of each domain (0: all), drawn by the seed; the order of the others is kept."""
    if count <= 0:
        return rows
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    taken: dict[str, list[int]] = {}
    for index in order:
        chosen = taken.setdefault(rows[index].d, [])
        if len(chosen) < count:
            chosen.append(index)
    kept = {index for chosen in taken.values() for index in chosen}
    return [row for index, row in enumerate(rows) if index in kept]


def epoch_batches(lengths: list[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of row indices for one epoch: shuffled, with rows of similar length together to save padding.

    A function of its arguments only, so a resumed run continues in the same order. Every row appears once.
    """
    rng = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    batches: list[list[int]] = []
    pool = batch_size * 16
    for start in range(0, len(order), pool):
        chunk = sorted(order[start : start + pool], key=lambda index: lengths[index])
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    rng.shuffle(batches)
    return batches


def anchors_by_domain(rows: list[Row], anchors: int, balance: float) -> dict[str, int]:
    """Blocks per answer by domain: `anchors` on average, more for domains with few answers as `balance` rises to 1."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.d] = counts.get(row.d, 0) + 1
    share = {domain: (len(rows) / (len(counts) * n)) ** balance for domain, n in counts.items()}
    mean = sum(share[domain] * n for domain, n in counts.items()) / len(rows)
    return {domain: max(1, round(anchors * s / mean)) for domain, s in share.items()}


def spread(rows: list[Row], count: int) -> list[Row]:
    """At most `count` rows, the same number from each (domain, temperature) as far as there are."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.d, row.T), []).append(row)
    share = max(1, count // max(1, len(groups)))
    return [row for _, group in sorted(groups.items()) for row in group[:share]]


def _json_lines(path: Path, flag: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.is_file():
        raise ConfigError(f"{flag} {path}: no such file")
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parse(line, f"{path}, line {number}")
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{flag} {path}: damaged after line {number} ({error}); make this file again, or leave it out"
        ) from error


def _parse(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from error
