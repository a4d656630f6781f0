"""The arms of a comparison: a name and flags of `serve` each, and the servers that run them."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import psutil

from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.server import ServerProcess, ServerStartError

logger = logging.getLogger(__name__)

Layout = Literal["auto", "side-by-side", "one-at-a-time"]

# A scheduler without work polls in a loop, which would take a core from the arm being measured; and a stream that
# repeats the whole answer with every token costs the client more with every token.
BENCH_FLAGS = ("--sleep-on-idle", "--incremental-streaming-output")

# Of the memory an arm's first server takes, what each further one must find free to run beside it.
_MEMORY_MARGIN = 1.25


@dataclass(frozen=True)
class Arm:
    """One way to serve the same model.

    Attributes:
        name, flags: what it is called, and its flags of `serve`.
        command: what to run instead of `serve`, with these flags alone; it must take `--host` and `--port` and answer
            the endpoints of `serve` that `evaluate/` uses.
    """

    name: str
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None


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
        tolerant: an arm that does not start is put into `failed`, with the reason, instead of ending everything.
        on_start: called with an arm's name and the seconds its start took.

    Attributes:
        failed: why an arm could not be started, by name.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        flags: Sequence[str] = (),
        layout: Layout = "auto",
        ready_seconds: float = 600.0,
        tolerant: bool = False,
        on_start: Callable[[str, float], None] | None = None,
    ) -> None:
        names = [arm.name for arm in arms]
        if len(set(names)) != len(names):
            raise ConfigError(f"--arm: every arm needs a name of its own, not {', '.join(names)}")
        self._arms = {arm.name: arm for arm in arms}
        self._flags = (*BENCH_FLAGS, *flags)
        self._layout = layout
        self._ready_seconds = ready_seconds
        self._tolerant = tolerant
        self._on_start = on_start
        self._up: dict[str, ServerProcess] = {}
        self.failed: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            others = list(self._arms)
            while others and not self._up:
                self._try(others.pop(0))
            if self._layout == "auto":
                need = sum(up.memory_bytes() for up in self._up.values()) * _MEMORY_MARGIN * len(others)
                self._layout = "side-by-side" if need < psutil.virtual_memory().available else "one-at-a-time"
            if self.side_by_side:
                for name in others:
                    self._try(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _try(self, name: str) -> None:
        try:
            self.get(name)
        except ServerStartError as error:
            if not self._tolerant:
                raise
            self.failed[name] = str(error)

    @property
    def side_by_side(self) -> bool:
        return self._layout == "side-by-side"

    def get(self, name: str) -> ServerProcess:
        """The arm's server, ready. One at a time, this stops the others first."""
        if name not in self._up:
            if not self.side_by_side:
                self.stop()
            server = self._server(self._arms[name])
            self._up[name] = server
            began = time.monotonic()
            try:
                server.start()
                server.wait_ready()
            except ServerStartError:
                self._up.pop(name).stop()
                raise
            if self._on_start is not None:
                self._on_start(name, time.monotonic() - began)
        return self._up[name]

    def _server(self, arm: Arm) -> ServerProcess:
        if arm.command is not None:
            logger.info("starting %s: %s", arm.name, shlex.join((*arm.command, *arm.flags)))
            return ServerProcess(arm.flags, name=arm.name, ready_seconds=self._ready_seconds, command=arm.command)
        flags = (*arm.flags, *self._flags)
        logger.info("starting %s: serve %s", arm.name, shlex.join(flags))
        return ServerProcess(flags, name=arm.name, ready_seconds=self._ready_seconds)

    def up(self, name: str) -> ServerProcess | None:
        """The arm's server if one is up."""
        return self._up.get(name)

    def restart(self, name: str) -> ServerProcess:
        """A fresh server for the arm."""
        if name in self._up:
            self._up.pop(name).stop()
        return self.get(name)

    def stop(self) -> None:
        """Stop every server that is up."""
        while self._up:
            self._up.popitem()[1].stop()
