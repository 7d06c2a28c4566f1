"""As a script: agents meet by our handler and prove their group on NPUs while some are killed and others come; as JSON.

Each agent is a fork; a proof is ``worker.prove``. What comes out is every proof and every break, in order.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from rallypoint.impl.etcd_rendezvous import create_rdzv_handler
from rallypoint.npu import worker
from torch.distributed.elastic.rendezvous import RendezvousParameters

BOUND = 30.0  # seconds for each phase
PROOF = 6.0  # seconds for a proof, and so for noticing that it will not come
OPTIONS = {"last_call_timeout": 1, "setup_ttl": 2, "joinable_ttl": 2, "frozen_ttl": 2, "keep_alive_ttl": 2}
DIES = "dies before it gathers"


def agent(name: str, endpoint: str, run_id: str, tell: Callable[[dict[str, Any]], None]) -> None:
    """Meet, prove, and meet again when told, until killed. One that is called ``DIES`` is killed in its proof."""
    if name == DIES:
        form = worker._hccl
        me = os.getpid()

        def dying(*arguments: Any) -> Any:
            group = form(*arguments)
            os.kill(me, signal.SIGKILL)
            signal.pause()
            return group

        setattr(worker, "_hccl", dying)  # noqa: B010  (its type is not its name's)
    parameters = RendezvousParameters("rallypoint-etcd", endpoint, run_id, 2, 3, "127.0.0.1", **OPTIONS)
    handler = create_rdzv_handler(parameters)
    while True:
        info = handler.next_rendezvous()
        version = int(handler._rdzv_impl._worker.version or 0)
        met = {"name": name, "version": version, "rank": info.rank, "world": info.world_size}
        try:
            rows = worker.prove("npu", info.store, info.rank, info.world_size, version, PROOF)
            tell({**met, "rows": rows})
        except (RuntimeError, LookupError, ValueError) as error:
            tell({**met, "broken": str(error)})
        while not handler.num_nodes_waiting():
            time.sleep(0.1)


class Stage:
    """The agents, and what they have told."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        self.endpoint, self.run_id = endpoint, run_id
        self.reading, self.writing = os.pipe()
        self.pids: dict[str, int] = {}
        self.told: list[dict[str, Any]] = []
        self.unread = b""

    def start(self, name: str) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                agent(name, self.endpoint, self.run_id, self.tell)
            finally:
                os._exit(1)
        self.pids[name] = pid

    def tell(self, report: dict[str, Any]) -> None:
        os.write(self.writing, json.dumps(report).encode() + b"\n")  # shorter than a pipe's atomic write

    def kill(self, name: str) -> None:
        pid = self.pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def proved(self, names: set[str]) -> None:
        """Wait until these have proved a version of just them. Raises TimeoutError."""
        deadline = time.monotonic() + BOUND
        start = len(self.told)
        while True:
            groups: dict[int, set[str]] = {}
            for report in self.told[start:]:
                if "rows" in report and report["world"] == len(names):
                    groups.setdefault(report["version"], set()).add(report["name"])
            if names in groups.values():
                return
            if not select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"{names} have not proved a group: {self.told}")
            *lines, self.unread = (self.unread + os.read(self.reading, 65536)).split(b"\n")
            self.told += map(json.loads, lines)


def main(endpoint: str, run_id: str) -> None:
    worker.prepare("npu")
    stage = Stage(endpoint, run_id)
    try:
        for name in ("a", "b", "c"):
            stage.start(name)
        stage.proved({"a", "b", "c"})
        stage.kill("b")
        stage.proved({"a", "c"})
        stage.start(DIES)
        stage.proved({"a", "c"})
        stage.start("d")
        stage.proved({"a", "c", "d"})
    finally:
        for name in list(stage.pids):
            stage.kill(name)
    print(json.dumps(stage.told))


if __name__ == "__main__":
    main(*sys.argv[1:])
