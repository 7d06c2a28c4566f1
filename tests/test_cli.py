"""The ``rallypoint`` command as a person runs it: a process, its exit code, and what it leaves behind."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rallypoint.cli.main import SUB_COMMANDS
from rallypoint.impl.etcd_server import EtcdServer, find_etcd

COMMAND = str(Path(sys.executable).with_name("rallypoint"))
COMMANDS = ", ".join(SUB_COMMANDS)
BOUND = 180.0  # seconds; a `doctor` that imports torch on a busy machine
MARK = "RALLYPOINT_TEST_MARK"


class Shell:
    """Runs the command; every process that comes of it inherits ``mark`` in its environment."""

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        (folder / "tmp").mkdir()

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "TMPDIR": str(self.folder / "tmp"), MARK: self.mark, **more}
        return subprocess.Popen(
            [COMMAND, *arguments],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **more) as process:
            try:
                out, err = process.communicate(timeout=BOUND)
            finally:
                process.kill()
        assert "Traceback" not in out + err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def left_behind(self) -> list[str]:
        """Command lines of living processes that bear the mark, once none is about to end."""
        deadline = time.monotonic() + 10
        while (found := list(self._marked())) and time.monotonic() < deadline:
            # A process that was killed by its group leader may need a moment; it ends by itself or it is found.
            select.select([], [], [], 0.05)
        return found

    def _marked(self) -> Iterator[str]:
        wanted = f"{MARK}={self.mark}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended, or it is not ours


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    assert shell.left_behind() == []
    assert list((tmp_path / "tmp").iterdir()) == []


def refused(ran: subprocess.CompletedProcess[str]) -> str:
    """The one line with which unusable input is refused."""
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("rallypoint: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr.strip()


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], f"no command (there are {COMMANDS}): see `rallypoint --help`"),
        (
            ["chekc"],
            f"unknown command 'chekc' (there are {COMMANDS}): did you mean 'check'?",
        ),
        (
            ["dance"],
            f"unknown command 'dance' (there are {COMMANDS}): see `rallypoint --help`",
        ),
        ([""], f"unknown command '' (there are {COMMANDS}): see `rallypoint --help`"),
        (["two\nlines"], r"unknown command 'two\nlines' "),
        (["--frobnicate"], "(rallypoint): see `rallypoint --help`"),
        (["doctor", "--frobnicate"], "(rallypoint doctor): see `rallypoint doctor --help`"),
        (["doctor", "sur\nplus"], r"(sur\nplus) (rallypoint doctor): see `rallypoint doctor --help`"),
        (["doctor", "--endpoint"], "--endpoint"),
        (["doctor", "--json", "/nonexistent/report.json"], "the folder '/nonexistent' does not exist"),
        (["doctor", "--json", "/"], "is a directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(shell: Shell, arguments: list[str], said: str) -> None:
    assert said in refused(shell.run(*arguments))


@pytest.mark.parametrize(
    "endpoint",
    ["", "nonsense", "host:", ":2379", "host:0", "host:65536", "host:+1", "http://host:2379", "::1:2379", "a b:1"],
)
def test_an_endpoint_that_cannot_be_one_is_refused(shell: Shell, endpoint: str) -> None:
    assert f"{endpoint!r} is not HOST:PORT" in refused(shell.run("doctor", "--endpoint", endpoint))


def test_help_lists_every_command_without_loading_one(shell: Shell) -> None:
    # A torch that cannot be imported: nothing that only a sub-command needs is touched.
    (shell.folder / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')\n")
    for option in ("-h", "--help"):
        ran = shell.run(option, PYTHONPATH=str(shell.folder))
        assert ran.returncode == 0
        assert ran.stderr == ""
        for name in ("check", "explore", "tlc", "status", "doctor"):
            assert f"\n  {name} " in ran.stdout
    (shell.folder / "torch.py").unlink()


def added_command(folder: Path, code: str) -> list[str]:
    """How to call a sub-command whose module has the given code."""
    (folder / "added_command.py").write_text(code + "\n")
    caller = (
        "import sys; from rallypoint.cli import main as cli;"
        "cli.SUB_COMMANDS['added'] = cli.SubCommand('added_command', '');"
        "sys.exit(cli.main(['added']))"
    )
    return [sys.executable, "-c", caller]


@pytest.mark.parametrize("error", ["ImportError", "ModuleNotFoundError", "OSError", "RuntimeError"])
def test_a_sub_command_that_cannot_be_loaded_is_one_line(tmp_path: Path, error: str) -> None:
    command = added_command(tmp_path, f"raise {error}('libascendcl.so: cannot open')")
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert f"added cannot be loaded ({error}: libascendcl.so: cannot open): `rallypoint doctor`" in refused(ran)


@pytest.mark.parametrize("flush", [True, False])
def test_a_reader_that_went_away_ends_it_quietly(tmp_path: Path, flush: bool) -> None:
    print_it = f"command = click.command()(lambda: print('nobody reads this', flush={flush}))"
    command = added_command(tmp_path, f"import click\n{print_it}")
    read, write = os.pipe()
    os.close(read)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(write) as pipe:
        ran = subprocess.run(
            command, cwd=tmp_path, env=buffered, stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (ran.returncode, ran.stderr) == (1, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--endpoint", "localhost:1"]])
def test_a_full_disk_is_one_line(shell: Shell, arguments: list[str]) -> None:
    more = without_torch(shell)
    environment = {**os.environ, **more, "TMPDIR": str(shell.folder / "tmp"), MARK: shell.mark}
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [COMMAND, *arguments],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=BOUND,
            check=False,
        )
    assert ran.returncode == 2
    assert ran.stderr == (
        "rallypoint: output cannot be written (No space left on device): make room, then run the command again\n"
    )


@pytest.mark.parametrize("variable", ["TLA2TOOLS_JAR", "JAVA"])
def test_tlc_refuses_what_the_user_named_wrongly(shell: Shell, variable: str) -> None:
    named = shell.folder / "named"
    named.write_text("neither a jar with the pinned hash nor a program")
    said = refused(shell.run("tlc", **{variable: str(named)}))
    assert f"{variable}: {named}" in said


@pytest.mark.parametrize(
    ("ending", "code", "said"), [(signal.SIGINT, 130, "rallypoint: interrupted"), (signal.SIGTERM, 143, "")]
)
def test_a_signal_ends_it_with_all_that_it_started(shell: Shell, ending: signal.Signals, code: int, said: str) -> None:
    fifo = shell.folder / "started"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    java = script(shell.folder / "java", f"echo > '{fifo}'; exec sleep 1000")
    with shell.start("doctor", JAVA=java) as process:
        try:
            assert select.select([reader], [], [], BOUND)[0], "the probe did not start"
            process.send_signal(ending)
            _, err = process.communicate(timeout=BOUND)
        finally:
            process.kill()
            os.close(reader)
    assert process.returncode == code
    assert err.strip() == said


def doctor(shell: Shell, *arguments: str, **more: str) -> tuple[int, Mapping[str, Mapping[str, Any]]]:
    """The exit code of ``rallypoint doctor`` and its findings by name, after checking that table and JSON agree."""
    report = shell.folder / "report.json"
    ran = shell.run("doctor", "--json", str(report), *arguments, **more)
    assert ran.stderr.count("\n") == (ran.returncode == 2), "one line if a server that was named cannot be used"
    told = json.loads(report.read_text())
    conditions = {condition["name"]: condition for condition in told["conditions"]}
    assert told["usable"] is (ran.returncode == 0)
    unmet = [name for name, condition in conditions.items() if not condition["met"]]
    last_line = f"not met: {', '.join(unmet)}" if unmet else "everything that rallypoint check needs is there"
    assert ran.stdout.splitlines()[-1] == last_line
    for name, condition in conditions.items():
        assert f"│ {name} " in ran.stdout
        assert condition["verdict"] in {"ok", "missing", "broken", "absent", "not checked"}
        assert condition["found"]
        assert condition["todo"] or condition["verdict"] not in {"missing", "broken"}
    return ran.returncode, conditions


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_doctor_on_a_server_that_serves(shell: Shell) -> None:
    with EtcdServer() as server:
        code, found = doctor(shell, "--endpoint", f"127.0.0.1:{server.get_port()}")
    assert {name for name, condition in found.items() if condition["verdict"] not in {"ok", "absent"}} == set()
    assert code == 0
    assert found["etcd v2 API"]["found"].startswith("started on localhost:")
    assert find_etcd().version in found["etcd binary"]["found"]
    assert find_etcd().version in found["endpoint"]["found"]


def test_doctor_reports_an_unreachable_server_as_missing(shell: Shell) -> None:
    code, found = doctor(shell, "--endpoint", f"127.0.0.1:{free_port()}", **without_torch(shell))
    assert code == 2
    assert found["endpoint"]["verdict"] == "missing"
    assert "refused" in found["endpoint"]["found"]
    assert found["endpoint v2 API"]["verdict"] == "not checked"


def test_doctor_reports_a_server_without_the_v2_api(shell: Shell) -> None:
    with EtcdServer(enable_v2=False) as server:
        code, found = doctor(shell, "--endpoint", f"localhost:{server.get_port()}", **without_torch(shell))
    assert code == 2
    assert found["endpoint"]["verdict"] == "ok"
    assert found["endpoint v2 API"]["verdict"] == "broken"
    assert "--enable-v2" in found["endpoint v2 API"]["todo"]


def test_doctor_says_what_is_wrong_with_each_thing_that_the_user_named(shell: Shell) -> None:
    (shell.folder / "other.jar").write_bytes(b"not the pinned one")
    named = {
        "TORCHELASTIC_ETCD_BINARY_PATH": "/nonexistent/etcd",
        "TLA2TOOLS_JAR": str(shell.folder / "other.jar"),
        "JAVA": script(shell.folder / "java", "exit 3"),
    }
    code, found = doctor(shell, **named, **without_torch(shell))
    assert code == 1
    for name, variable in (("etcd binary", "TORCHELASTIC_ETCD_BINARY_PATH"), ("java", "JAVA")):
        assert found[name]["verdict"] == "broken"
        assert variable in found[name]["found"]
        assert named[variable] in found[name]["found"]
    assert found["tla2tools.jar"]["verdict"] == "broken"
    assert "sha256" in found["tla2tools.jar"]["found"]
    assert found["etcd v2 API"] == {**found["etcd v2 API"], "verdict": "not checked", "found": "needs: etcd binary"}
    assert found["torch"]["verdict"] == "missing"
    assert found["python-etcd"]["verdict"] == "ok"


def test_doctor_reports_an_embedded_etcd_that_has_no_v2_api(shell: Shell) -> None:
    drop = 'for a; do shift; [ "$a" = --enable-v2 ] || set -- "$@" "$a"; done'
    named = script(shell.folder / "etcd", f'{drop}; exec "{find_etcd().path}" "$@"')
    code, found = doctor(shell, TORCHELASTIC_ETCD_BINARY_PATH=named, **without_torch(shell))
    assert code == 1
    assert found["etcd binary"]["verdict"] == "ok"
    assert found["etcd v2 API"]["verdict"] == "broken"
    assert "--enable-v2" in found["etcd v2 API"]["todo"]


def without_torch(shell: Shell) -> dict[str, str]:
    """An environment in which torch is not installed, as far as an import can tell (and doctor is faster)."""
    folder = shell.folder / "modules"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ModuleNotFoundError('no torch here', name='torch')\n")
    return {"PYTHONPATH": str(folder)}
