"""What a call of EtcdStore costs, PyTorch's and ours side by side: ``python benchmarks/store.py [--keys N]``.

One etcd, one set of keys that both stores read (the wire is the same). Bytes and requests are counted by a relay in
front of etcd, times are taken without it: the median of the repetitions. The exit code is 1 if a ``get`` of ours
reads more than its own key.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

import etcd
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_store import EtcdStore
from rich.console import Console
from rich.table import Table
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore as UpstreamStore

PREFIX = "/store"
HEADERS = 1000  # bytes of a reply that are not the value, at most


class Meter:
    """A relay to ``port`` of this machine that counts what etcd sends. It ends with the process."""

    def __init__(self, port: int) -> None:
        self.received = 0
        self.requests = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, sink, from_etcd in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, from_etcd), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, from_etcd: bool) -> None:
        while data := source.recv(1 << 16):
            if from_etcd:
                self.received += len(data)
            else:
                self.requests += data.count(b" HTTP/1.1\r\n")
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class Cost(NamedTuple):
    """Of one call: seconds, bytes that etcd sent, requests."""

    seconds: float
    received: int
    requests: int


def measured(call: Callable[[Any], object], direct: Any, metered: Any, meter: Meter, times: int) -> Cost:
    """One call through the meter, then ``times`` calls without it."""
    call(metered)  # the connection is there from now on
    received, requests = meter.received, meter.requests
    call(metered)
    counted = meter.received - received, meter.requests - requests
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call(direct)
        seconds.append(time.perf_counter() - started)
    return Cost(statistics.median(seconds), *counted)


CALLS: dict[str, Callable[[Any], object]] = {
    "get": lambda store: store.get("key7"),
    "wait for 1 key": lambda store: store.wait(["key7"]),
    "check of 8 keys": lambda store: store.check([f"key{number}" for number in range(8)]),
    "set": lambda store: store.set("key7", b"x" * 10),
    "add": lambda store: store.add("count", 1),
}


def table(costs: dict[str, tuple[Cost, Cost]], keys: int, size: int) -> Table:
    """Upstream's cost, ours, and how many times ours goes into upstream's."""
    shown = Table(title=f"EtcdStore with {keys} keys of {size} bytes", title_justify="left")
    for column in ("call", "upstream", "rallypoint", "fewer bytes", "faster"):
        shown.add_column(column, justify="left" if column == "call" else "right", no_wrap=True)
    for name, (theirs, ours) in costs.items():
        cells = [f"{cost.received:,} B  {cost.requests} req  {cost.seconds * 1000:.2f} ms" for cost in (theirs, ours)]
        ratios = theirs.received / ours.received, theirs.seconds / ours.seconds
        shown.add_row(name, *cells, *(f"{ratio:,.1f} x" for ratio in ratios))
    return shown


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    options.add_argument("--keys", type=int, default=2000, help="how many keys the store holds (8 or more)")
    options.add_argument("--size", type=int, default=1000, help="bytes in a value")
    options.add_argument("--times", type=int, default=30, help="repetitions")
    given = options.parse_args()
    if given.keys < 8 or given.size < 0 or given.times < 1:
        options.error("at least 8 keys, values of 0 bytes, and 1 repetition")
    with EtcdServer() as server:
        meter = Meter(server.get_port())

        def client(port: int) -> Any:
            return etcd.Client("127.0.0.1", port, read_timeout=60)

        writer = EtcdStore(client(server.get_port()), PREFIX)
        for number in range(given.keys):
            writer.set(f"key{number}", b"x" * given.size)
        limit = timedelta(seconds=60)
        stores = [
            [kind(client(port), PREFIX, limit) for port in (server.get_port(), meter.port)]
            for kind in (UpstreamStore, EtcdStore)
        ]
        costs = {}
        for name, call in CALLS.items():
            theirs, ours = (measured(call, direct, metered, meter, given.times) for direct, metered in stores)
            costs[name] = theirs, ours
    Console().print(table(costs, given.keys, given.size))
    one_key = given.size * 4 // 3 + HEADERS
    return int(costs["get"][1].received > one_key)


if __name__ == "__main__":
    sys.exit(main())
