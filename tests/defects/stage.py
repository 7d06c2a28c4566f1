"""Where a scenario plays: one side's modules, a real etcd behind a fault proxy, handlers, and worker processes.

May live here: everything that is the same for both sides, and the one place where they differ, which is how a TTL is
scaled down (ours by an option, upstream's by the constant of its module). Must not live here: what is required.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rallypoint.impl.etcd_server import EtcdServer, find_free_port
from rallypoint.live.proxy import Exchange, FaultProxy, Predicate

if TYPE_CHECKING:
    from typing_extensions import Self

UPSTREAM, OURS = "upstream", "ours"
PACKAGES = {UPSTREAM: "torch.distributed.elastic.rendezvous", OURS: "rallypoint.impl"}
BACKENDS = {UPSTREAM: ("etcd", "etcd-v2"), OURS: ("rallypoint-etcd", "rallypoint-etcd-v2")}
CONSTANTS = {
    "setup_ttl": "CONST_ETCD_SETUP_TTL",
    "joinable_ttl": "CONST_ETCD_JOINABLE_EPHEMERAL_TTL",
    "frozen_ttl": "CONST_ETCD_FROZEN_TTL",
    "keep_alive_ttl": "CONST_WORKER_KEEPALIVE_TTL",
    "run_ttl": "CONST_RUNID_SUBROOT_TTL",
}
DIRECTORY_TTL = "run_ttl"  # ours gives the run's directory no TTL
RUN = "/torchelastic/p2p/run_job"
ACTIVE = RUN + "/rdzv/active_version"


class Side:
    """The modules of one implementation, by the names that both use."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_upstream = name == UPSTREAM
        self.backend_name, self.dynamic_name = BACKENDS[name]

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{PACKAGES[self.name]}.{name}")

    @property
    def rendezvous(self) -> Any:
        return self._module("etcd_rendezvous")

    @property
    def backend(self) -> Any:
        return self._module("etcd_rendezvous_backend")

    @property
    def store(self) -> Any:
        return self._module("etcd_store")

    @property
    def server(self) -> Any:
        return self._module("etcd_server")

    def handler(self, endpoint: str, min_nodes: int, max_nodes: int, **options: Any) -> Any:
        """A handler for the run "job", made as torch makes it. TTLs that are not scaled here stay at their defaults."""
        from torch.distributed.elastic.rendezvous import RendezvousParameters

        config = {"timeout": 20, "last_call_timeout": 1, **options}
        for name, constant in CONSTANTS.items():
            if name in config and (self.is_upstream or name == DIRECTORY_TTL):
                seconds = config.pop(name)
                if self.is_upstream:
                    setattr(self.rendezvous, constant, seconds)
        parameters = RendezvousParameters(
            backend="etcd",
            endpoint=endpoint,
            run_id="job",
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            local_addr="127.0.0.1",
            **config,
        )
        return self.rendezvous.create_rdzv_handler(parameters)


class Attempt:
    """A call in a thread of its own, so that one that hangs is seen to hang."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._call = call
        self._ended = threading.Event()
        self._started = time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - self._started
        self._ended.set()

    def ended(self, seconds: float) -> bool:
        """The call is over, within so many seconds from now."""
        return self._ended.wait(seconds)

    def returned(self, seconds: float) -> bool:
        """The call is over and raised nothing."""
        return self.ended(seconds) and self.error is None

    def told(self) -> str:
        """How it went, in a few words."""
        if not self._ended.is_set():
            return f"no answer after {time.monotonic() - self._started:.1f} s"
        if self.error is not None:
            words = " ".join(str(self.error).split())[:80]
            return f"{type(self.error).__name__} after {self.seconds:.1f} s{': ' + words if words else ''}"
        return f"{self.value!r} after {self.seconds:.1f} s"


def becomes(condition: Callable[[], bool], seconds: float) -> bool:
    """The condition comes true in time. For what etcd and other processes do, of which no event is sent here."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def writes(key: str, *texts: str) -> Predicate:
    """Picks the writes to a key (by its end) whose value holds all the texts."""

    def picks(exchange: Exchange) -> bool:
        value = exchange.form.get("value", "")
        return exchange.method == "PUT" and exchange.key.endswith(key) and all(text in value for text in texts)

    return picks


class Participant:
    """A worker process of its own, to be killed or paused. Make it first: it is a fork, and forks want no threads."""

    def __init__(self, side: Side) -> None:
        self._socket, theirs = socket.socketpair()
        self._lines = b""
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _participate(side, theirs)
        theirs.close()

    def order(self, call: str, endpoint: str = "", min_nodes: int = 1, max_nodes: int = 1, **options: Any) -> None:
        """Have it call a method: "rendezvous_barrier" on a new handler, later others on the same."""
        self._socket.sendall(json.dumps([call, endpoint, min_nodes, max_nodes, options]).encode() + b"\n")

    def answer(self, seconds: float) -> Any:
        """What the call returned; for an error its name and text. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while b"\n" not in self._lines:
            if not select.select([self._socket], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the worker process did not answer in {seconds} s")
            data = self._socket.recv(65536)
            if not data:
                raise EOFError("the worker process has ended")
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return json.loads(line)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
            self._socket.close()


def _participate(side: Side, sock: socket.socket) -> None:
    """The life of a worker process: it ends with its creator, also in the midst of a call."""
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_obey, args=(side, sock, orders), daemon=True).start()
    for line in sock.makefile("rb"):
        orders.put(json.loads(line))
    os._exit(0)


def _obey(side: Side, sock: socket.socket, orders: queue.SimpleQueue[Any]) -> None:
    handler: Any = None
    while True:
        call, endpoint, min_nodes, max_nodes, options = orders.get()
        try:
            if handler is None:
                handler = side.handler(endpoint, min_nodes, max_nodes, **options)
            answer = getattr(handler if hasattr(handler, call) else handler._rdzv_impl, call)()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        sock.sendall(json.dumps(answer).encode() + b"\n")


class Stage:
    """One etcd of its own and a fault proxy in front of it; a context manager.

    etcd advertises the proxy, so that a client which looks for other servers stays behind it; with ``advertised`` (a
    URL) it advertises that. ``participants``: worker processes to fork before anything else.
    """

    def __init__(self, side: Side, *, participants: int = 0, advertised: str = "") -> None:
        self.side = side
        self.participants = [Participant(side) for _ in range(participants)]
        with find_free_port() as sock:
            port = sock.getsockname()[1]
        advertised = advertised or f"http://127.0.0.1:{port}"
        self.server = EtcdServer(extra_args=["--advertise-client-urls", advertised])
        self.server.start()
        self.proxy = FaultProxy(("127.0.0.1", self.server.get_port()))
        self.proxy.refuse()
        self.proxy.port = port
        self.proxy.admit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for participant in self.participants:
            participant.kill()
        self.proxy.close()
        self.server.stop()

    @property
    def direct(self) -> str:
        """HOST:PORT of etcd itself."""
        return f"127.0.0.1:{self.server.get_port()}"

    def handler(self, min_nodes: int, max_nodes: int, *, endpoint: str = "", **options: Any) -> Any:
        return self.side.handler(endpoint or self.direct, min_nodes, max_nodes, **options)

    def client(self, *, endpoint: str = "", read_timeout: float = 10) -> Any:
        """A python-etcd client as the constructors of both sides take it."""
        import etcd

        host, port = (endpoint or self.direct).split(":")
        return etcd.Client(host, int(port), read_timeout=read_timeout, allow_reconnect=True)

    def request(self, method: str, key: str, form: str = "", *, recursive: bool = False) -> dict[str, Any]:
        """One request of the harness itself, straight to etcd; the decoded reply."""
        return dict(json.loads(self.raw(method, key, form, recursive=recursive)))

    def raw(self, method: str, key: str, form: str = "", *, recursive: bool = False) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.server.get_port(), timeout=5)
        try:
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            path = f"/v2/keys{quote(key)}{'?recursive=true' if recursive else ''}"
            connection.request(method, path, form, headers)
            return connection.getresponse().read()
        finally:
            connection.close()

    def node(self, key: str) -> dict[str, Any] | None:
        """The key as etcd shows it, None if it is absent."""
        found: dict[str, Any] | None = self.request("GET", key).get("node")
        return found

    def document(self) -> dict[str, Any]:
        """The shared document; {} if there is none."""
        node = self.node(ACTIVE)
        return dict(json.loads(node["value"])) if node else {}

    def restart(self, away: float) -> None:
        """etcd killed, and back on its data after so many seconds."""
        self.server.kill()
        time.sleep(away)
        self.server.start()
