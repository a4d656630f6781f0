from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from sglang_dspark.evaluate.server import ServerProcess, ServerStartError, free_port

# Listens after a moment, with a child that ignores a polite signal.
HEALTHY = """
    import http.server, os, signal, subprocess, sys, time
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)"
    subprocess.Popen([sys.executable, "-c", child])
    print("wait policy", os.environ["OMP_WAIT_POLICY"], "arguments", sys.argv[1:], flush=True)
    time.sleep(0.3)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""
DYING = """
    print("loading", flush=True)
    raise ValueError("--draft-model no-such-folder: not found")
"""
SILENT = "import time; time.sleep(99)"


def script(folder: Path, source: str) -> tuple[str, str]:
    path = folder / "serve.py"
    path.write_text(textwrap.dedent(source))
    return sys.executable, str(path)


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
        if not left:
            return True
        time.sleep(0.05)
    return False


def test_start_and_stop_leave_nothing_behind(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "one.log"
    with ServerProcess(["--flag", "x"], log_path=log, command=script(tmp_path, HEALTHY), stop_seconds=5) as server:
        assert server.alive
        assert server.base_url.endswith(f":{server.port}")
        tree = [process.pid for process in server.tree()]
        assert len(tree) == 2
        assert server.pid in tree
        assert server.memory_bytes() > 1e6
        assert server.cpu_seconds() > 0
        assert "wait policy PASSIVE" in server.log_tail()
        assert f"['--flag', 'x', '--host', '127.0.0.1', '--port', '{server.port}']" in server.log_tail()
    assert not server.alive
    assert gone(tree)
    server.stop()


def test_an_exception_stops_it_too(tmp_path: Path) -> None:
    server = ServerProcess(command=script(tmp_path, HEALTHY), log_path=tmp_path / "log", stop_seconds=5)
    tree: list[int] = []

    def interrupted() -> None:
        with server:
            tree.extend(process.pid for process in server.tree())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert tree
    assert gone(tree)


def test_orphans_are_found(tmp_path: Path) -> None:
    server = ServerProcess(command=script(tmp_path, HEALTHY), log_path=tmp_path / "log")
    server.start()
    server.wait_ready()
    tree = [process.pid for process in server.tree()]
    os.kill(server.pid, signal.SIGKILL)
    server.wait_exit(5)
    server.stop()
    assert gone(tree)


def test_a_failed_start_names_the_cause(tmp_path: Path) -> None:
    server = ServerProcess(name="arm-b", log_path=tmp_path / "log", command=script(tmp_path, DYING))
    with pytest.raises(ServerStartError) as caught, server:
        pytest.fail("it did start")
    message = str(caught.value)
    assert message.startswith("arm-b ended")
    assert caught.value.exit_code == 1
    assert "no-such-folder: not found" in message.splitlines()[0]
    assert str(tmp_path / "log") in message
    assert "loading" in message


def test_the_time_limit(tmp_path: Path) -> None:
    server = ServerProcess(log_path=tmp_path / "log", command=script(tmp_path, SILENT), ready_seconds=1)
    with pytest.raises(ServerStartError, match="not ready within 1 s") as caught, server:
        pytest.fail("it did start")
    assert caught.value.exit_code is None
    assert not server.alive


def test_wait_exit(tmp_path: Path) -> None:
    server = ServerProcess(log_path=tmp_path / "log", command=script(tmp_path, DYING))
    server.start()
    assert server.wait_exit(20) == 1
    server.stop()
    server = ServerProcess(log_path=tmp_path / "log", command=script(tmp_path, SILENT))
    server.start()
    with pytest.raises(TimeoutError, match="still running"):
        server.wait_exit(0.2)
    server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="relies on the parent-death signal")
def test_it_dies_with_a_killed_parent(tmp_path: Path) -> None:
    command = script(tmp_path, SILENT)
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\n"
            "from sglang_dspark.evaluate.server import ServerProcess\n"
            f"server = ServerProcess(command={command!r})\n"
            "server.start()\n"
            "print(server.pid, flush=True)\n"
            "time.sleep(60)\n",
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone([pid])


def test_free_port_is_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
