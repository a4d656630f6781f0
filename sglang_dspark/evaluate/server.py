"""The project's one server launcher: start `serve` on a free port, wait until it answers, take all of it down again."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from sglang_dspark.errors import DSparkError

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.25
# What a Python traceback or a usage message ends with; the last such line names the cause better than the log's tail.
_CAUSE = re.compile(r"(Error|Exception|error:|Killed)\b")

_libc = ctypes.CDLL(None)
_running: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


class ServerStartError(DSparkError, RuntimeError):
    """The server did not become ready; the message carries the cause and the end of its log.

    Attributes:
        exit_code: what the process returned, None if it was still running at the time limit.
    """

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ServerProcess:
    """One `python -m sglang_dspark serve` with everything it spawns. Use as a context manager.

    To bring several up side by side, call `start` on each and then `wait_ready` on each. The server dies with the
    *thread* that called `start` (Linux), so that nothing survives a killed test run: start from the main thread.

    Args:
        flags: flags of `serve`; the launcher adds `--host` and `--port`.
        name: used in messages and in the log's file name.
        log_path: where stdout and stderr go; a file in the temporary directory by default.
        environment: variables on top of this process's own.
        ready_seconds: limit for the start.
        stop_seconds: how long a graceful stop may take before the process tree is killed.
        port: a free port is chosen by default.
        command: what to run before the flags, for tests.
    """

    def __init__(
        self,
        flags: Sequence[str] = (),
        *,
        name: str = "server",
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ready_seconds: float = 600.0,
        stop_seconds: float = 15.0,
        port: int | None = None,
        command: Sequence[str] = (sys.executable, "-m", "sglang_dspark", "serve"),
    ) -> None:
        self.name = name
        self.flags = tuple(flags)
        self.port = port if port is not None else free_port()
        self.log_path = log_path if log_path is not None else _new_log(name)
        self._ready_seconds = ready_seconds
        self._stop_seconds = stop_seconds
        # Threads that spin while they wait for work slow a small machine down by an order of magnitude.
        self._environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **(environment or {})}
        self._command = [*command, *flags, "--host", "127.0.0.1", "--port", str(self.port)]
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the launcher, which is also its process group."""
        if self._process is None:
            raise RuntimeError(f"{self.name}: not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Spawn the process and return at once."""
        if self._process is not None:
            raise RuntimeError(f"{self.name}: already started")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        _running.add(self)
        self._started_at = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                # Only a system call runs there, so the fork is safe with other threads about.
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def wait_ready(self) -> None:
        """Return once `/health` answers, which the engine does after it has generated a token.

        Raises:
            ServerStartError: the process ended, or the time limit passed.
        """
        deadline = self._started_at + self._ready_seconds
        with httpx.Client(base_url=self.base_url, timeout=10.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if not self.alive:
                    self._fail(f"ended {time.monotonic() - self._started_at:.0f} s after its start")
                try:
                    if client.get("/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # not listening yet; the loop's own limit reports it if this lasts
                time.sleep(_POLL_SECONDS)
        self._fail(f"was not ready within {self._ready_seconds:.0f} s")

    def wait_exit(self, seconds: float) -> int:
        """Exit code of a server that is expected to refuse its flags.

        Raises:
            TimeoutError: it is still running after `seconds`.
        """
        assert self._process is not None, "start() first"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name}: still running after {seconds:.0f} s; log {self.log_path}") from None

    def log_tail(self, lines: int = 25) -> str:
        """The last `lines` lines the server wrote."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def tree(self) -> list[psutil.Process]:
        """The launcher and all its descendants that are still there."""
        if self._process is None:
            return []
        group = self._process.pid
        try:
            main = psutil.Process(group)
            found = [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        # Orphans have another parent by now, but stay in the session that start() made.
        known = {process.pid for process in found}
        for process in psutil.process_iter():
            try:
                if process.pid not in known and os.getsid(process.pid) == group:
                    found.append(process)
            except (ProcessLookupError, PermissionError):
                continue
        return found

    def memory_bytes(self) -> int:
        """Memory that the tree shares with nobody: what another server of its kind would take."""
        return int(sum(_read(process, lambda p: p.memory_full_info().uss) for process in self.tree()))

    def cpu_seconds(self) -> float:
        """Processor time the tree has used so far."""
        return sum(_read(process, lambda p: sum(p.cpu_times()[:2])) for process in self.tree())

    def stop(self) -> None:
        """Ask for a graceful end, then kill whatever is left. Safe to call twice."""
        if self._process is None:
            return
        _running.discard(self)
        tree = self.tree()
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kill below is for this
                self._process.wait(self._stop_seconds)
        for process in {*tree, *self.tree()}:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()
        psutil.wait_procs(tree, timeout=5)
        self._process = None

    def _fail(self, what: str) -> None:
        exit_code = self._process.poll() if self._process is not None else None
        tail = self.log_tail()
        causes = [line for line in tail.splitlines() if _CAUSE.search(line)]
        raise ServerStartError(
            f"{self.name} {what} (exit code {exit_code}): {causes[-1].strip() if causes else 'no error in its log'}\n"
            f"--- end of {self.log_path}\n{tail}",
            exit_code,
        )


def free_port() -> int:
    """A TCP port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _new_log(name: str) -> Path:
    handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".log")
    os.close(handle)
    return Path(path)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(process: psutil.Process, figure: Callable[[psutil.Process], float]) -> float:
    try:
        return figure(process)
    except psutil.NoSuchProcess:
        return 0


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        server.stop()
