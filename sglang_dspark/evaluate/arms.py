"""The arms of a comparison: a name and flags of `serve` each, and the servers that run them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import psutil

from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.server import ServerProcess

logger = logging.getLogger(__name__)

Layout = Literal["auto", "side-by-side", "one-at-a-time"]

# A scheduler without work polls in a loop, which would take a core from the arm being measured; and a stream that
# repeats the whole answer with every token costs the client more with every token.
BENCH_FLAGS = ("--sleep-on-idle", "--incremental-streaming-output")

# Of the memory an arm's first server takes, what each further one must find free to run beside it.
_MEMORY_MARGIN = 1.25


@dataclass(frozen=True)
class Arm:
    """One way to serve the same model."""

    name: str
    flags: tuple[str, ...] = ()


KNOWN_ARMS = {
    arm.name: arm
    for arm in (
        Arm("plain", ("--dspark-draft", "none")),
        Arm("dspark"),
        Arm("dspark-stock", ("--dspark-plugin", "off")),
        Arm("plain-stock-attention", ("--dspark-draft", "none", "--dspark-cpu-attention", "stock")),
    )
}


def parse_arm(text: str) -> Arm:
    """`name` of a known arm, or `name=flags` with the flags quoted as in a shell.

    Raises:
        ConfigError: an unknown name without flags, or quotes that do not close.
    """
    name, equals, flags = text.partition("=")
    if not equals:
        if name not in KNOWN_ARMS:
            raise ConfigError(f"--arm {text!r}: give one of {', '.join(KNOWN_ARMS)}, or name='flags of serve'")
        return KNOWN_ARMS[name]
    if not name:
        raise ConfigError(f"--arm {text!r}: the name before '=' is empty")
    try:
        return Arm(name, tuple(shlex.split(flags)))
    except ValueError as error:
        raise ConfigError(f"--arm {text!r}: {error}") from error


class ArmServers:
    """The servers of several arms, up side by side if they fit in memory, else one at a time.

    Args:
        arms: names must differ.
        flags: given to every arm, after its own.
        layout: auto measures the first server and keeps all up if the others fit too.
        ready_seconds: limit for each start.
    """

    def __init__(
        self, arms: Sequence[Arm], flags: Sequence[str] = (), layout: Layout = "auto", ready_seconds: float = 600.0
    ) -> None:
        names = [arm.name for arm in arms]
        if len(set(names)) != len(names):
            raise ConfigError(f"--arm: every arm needs a name of its own, not {', '.join(names)}")
        self._arms = {arm.name: arm for arm in arms}
        self._flags = (*BENCH_FLAGS, *flags)
        self._layout = layout
        self._ready_seconds = ready_seconds
        self._up: dict[str, ServerProcess] = {}

    def __enter__(self) -> Self:
        try:
            first, *others = self._arms
            server = self.get(first)
            if self._layout == "auto":
                need = server.memory_bytes() * _MEMORY_MARGIN * len(others)
                self._layout = "side-by-side" if need < psutil.virtual_memory().available else "one-at-a-time"
            if self.side_by_side:
                for name in others:
                    self.get(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def side_by_side(self) -> bool:
        return self._layout == "side-by-side"

    def get(self, name: str) -> ServerProcess:
        """The arm's server, ready. One at a time, this stops the others first."""
        if name not in self._up:
            if not self.side_by_side:
                self.stop()
            arm = self._arms[name]
            logger.info("starting %s: serve %s", name, shlex.join((*arm.flags, *self._flags)))
            server = ServerProcess((*arm.flags, *self._flags), name=name, ready_seconds=self._ready_seconds)
            self._up[name] = server
            server.start()
            server.wait_ready()
        return self._up[name]

    def restart(self, name: str) -> ServerProcess:
        """A fresh server for the arm."""
        if name in self._up:
            self._up.pop(name).stop()
        return self.get(name)

    def stop(self) -> None:
        """Stop every server that is up."""
        while self._up:
            self._up.popitem()[1].stop()
