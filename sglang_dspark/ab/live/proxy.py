"""HAProxy in front of both fleets: its configuration, its process, its weight and its counters.

A user's key is hashed into one of 10,000 buckets; those below a threshold go to the candidate. Raising the threshold
only adds users, so nobody is moved back and forth along a ramp. The threshold is a variable of the running process:
changing it reloads nothing and drops no connection. A request whose connection to a candidate fails has not reached it
and goes to the control fleet instead.
"""

from __future__ import annotations

import csv
import io
import ipaddress
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from sglang_dspark.ab.live.config import Fleet, Split
from sglang_dspark.errors import ConfigError, DSparkError

BUCKETS = 10_000
_VARIABLE = "proc.threshold"


class ProxyError(DSparkError, RuntimeError):
    """HAProxy did not start, or does not answer."""


@dataclass(frozen=True)
class Counters:
    """Of one fleet since HAProxy started, requests that went to spares not included.

    Attributes:
        requests: answered, in any way.
        errors: of these, status 5xx or an answer that broke off; and connections that failed.
        in_flight: now.
        bytes_out: of answers.
        up: a worker is taking requests.
    """

    requests: int
    errors: int
    in_flight: int
    bytes_out: int
    up: bool


def configuration(split: Split, control_socket: Path) -> str:
    """HAProxy's configuration file for a split; it starts with nobody at the candidate."""
    spares = "\n".join(f"  server spare{i} {_address(worker)} backup" for i, worker in enumerate(split.control.workers))
    by_name = not all(_is_address(worker) for worker in (*split.control.workers, *split.candidate.workers))
    # A name may appear, and change its address, after HAProxy has started.
    naming = " resolvers system init-addr last,libc,none" if by_name else ""
    resolvers = "\nresolvers system\n  parse-resolv-conf\n  hold valid 5s\n" if by_name else ""
    return f"""# Written by python -m sglang_dspark ab live.
global
  stats socket {control_socket} mode 600 level admin
  set-var {_VARIABLE} int(0)

defaults
  mode http
  timeout connect 2s
  timeout client 1h
  timeout server {split.response_seconds:g}s
  timeout http-request 30s
  option httpchk GET {split.health_path}
  # Only what has not reached a worker is sent again: a request may have had effects.
  retries 3
  option redispatch 1
  retry-on conn-failure
  default-server check inter 1s fall 2 rise 3 observe layer4 error-limit 1 on-error mark-down{naming}
{resolvers}
frontend live
  bind {split.listen}
  http-request set-var(txn.key) req.hdr({split.user_key})
  http-request set-var(txn.key) src unless {{ var(txn.key) -m found }}
  http-request set-var(txn.bucket) var(txn.key),xxh32({split.salt}),mod({BUCKETS})
  use_backend candidate if {{ var(txn.bucket),sub({_VARIABLE}) -m int lt 0 }}
  default_backend control

backend control
  balance leastconn
  http-response set-header X-Arm {split.control.name}
{_servers(split.control)}

backend candidate
  balance leastconn
  http-response set-header X-Arm {split.candidate.name} if {{ srv_name -m beg w }}
  http-response set-header X-Arm {split.control.name} if {{ srv_name -m beg spare }}
{_servers(split.candidate)}
  # When no candidate can be reached, the control fleet takes its users at once.
{spares}
"""


def _servers(fleet: Fleet) -> str:
    return "\n".join(f"  server w{i} {_address(worker)}" for i, worker in enumerate(fleet.workers))


def _address(worker: str) -> str:
    return urlsplit(worker).netloc


def _is_address(worker: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(worker).hostname or "")
    except ValueError:
        return False
    return True


class Proxy:
    """A running HAProxy, by its control socket.

    Args:
        control_socket: as in `configuration`.
    """

    def __init__(self, control_socket: Path) -> None:
        self._socket = control_socket

    def set_percent(self, percent: float) -> None:
        """The candidate's share of the users, from the next request on."""
        buckets = round(percent / 100 * BUCKETS)
        self.ask(f"experimental-mode on; set var {_VARIABLE} expr int({buckets})")
        if self.percent() != 100 * buckets / BUCKETS:
            raise ProxyError(f"{self._socket}: HAProxy did not take the weight {percent:g} %")

    def percent(self) -> float:
        """The share that is in force."""
        answer = self.ask(f"get var {_VARIABLE}")
        try:
            return 100 * int(answer.split("value=<")[1].split(">")[0]) / BUCKETS
        except (IndexError, ValueError) as error:
            raise ProxyError(f"{self._socket}: unexpected answer {answer.strip()!r}") from error

    def counters(self) -> dict[str, Counters]:
        """By backend, `control` and `candidate`."""
        rows = list(csv.DictReader(io.StringIO(self.ask("show stat").lstrip("# "))))
        found = {}
        for backend in ("control", "candidate"):
            mine = [row for row in rows if row["pxname"] == backend and row["svname"].startswith("w")]

            def total(name: str, mine: list[dict[str, str]] = mine) -> int:
                return sum(int(row[name] or 0) for row in mine)

            answered = sum(total(f"hrsp_{kind}") for kind in ("1xx", "2xx", "3xx", "4xx", "5xx", "other"))
            # Connections that failed, and answers that never came or broke off, have no status of the worker's.
            without = total("econ") + total("eresp")
            up = any(row["status"].startswith("UP") for row in mine)
            found[backend] = Counters(answered + without, total("hrsp_5xx") + without, total("scur"), total("bout"), up)
        return found

    def ask(self, command: str) -> str:
        """Send a command to the control socket.

        Raises:
            ProxyError: nobody answers.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(5.0)
                connection.connect(str(self._socket))
                connection.sendall(command.encode() + b"\n")
                return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        except OSError as error:
            raise ProxyError(f"{self._socket}: HAProxy does not answer ({error})") from error


class OwnProxy(Proxy):
    """An HAProxy that this process starts, and ends gracefully with it. Use as a context manager.

    Args:
        split: what it splits.
        folder: of its configuration and its socket; the path must be short (a socket's name has 107 letters).
    """

    def __init__(self, split: Split, folder: Path) -> None:
        super().__init__(folder / "haproxy.sock")
        self._file, self._log = folder / "haproxy.cfg", folder / "haproxy.log"
        self._file.write_text(configuration(split, folder / "haproxy.sock"), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = shutil.which("haproxy")
        if program is None:
            raise ConfigError("ab live needs HAProxy: apt-get install haproxy, or its image in docker/ab-live.yaml")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([program, "-f", str(self._file), "-db"], stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                self.percent()
                return self
            except ProxyError:
                time.sleep(0.05)
        self.stop()
        raise ProxyError(f"HAProxy did not start: {self._log.read_text(encoding='utf-8').strip()[-500:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of HAProxy."""
        assert self._process is not None, "not started"
        return self._process.pid

    def stop(self) -> None:
        """Let requests end (at most 10 s), then end HAProxy."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(10)  # SIGUSR1: no new connections
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
