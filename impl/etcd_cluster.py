"""An etcd cluster on this machine, to lose members of."""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING

from rallypoint.impl.etcd_http import bracketed
from rallypoint.impl.etcd_process import Supervised, await_ready
from rallypoint.impl.etcd_server import (
    EtcdStartTimeout,
    etcd_command,
    find_free_port,
    temporary_directory,
    without_fsync,
)
from rallypoint.model.errors import UnusableError

if TYPE_CHECKING:
    from typing_extensions import Self


class EtcdCluster:
    """``size`` members with the v2 API on loopback, as a context manager. Members are numbered from 0.

    In a fork of the process that made it nothing can be started: ports and directories are the parent's.
    """

    def __init__(self, size: int = 3) -> None:
        if size < 1:
            raise ValueError("a cluster has at least one member")
        with contextlib.ExitStack() as reserved:
            sockets = [reserved.enter_context(find_free_port()) for _ in range(2 * size)]
            address = sockets[0].getsockname()[0]
            ports = [sock.getsockname()[1] for sock in sockets]
        clients, peers = ports[:size], ports[size:]
        host = bracketed(address)
        cluster = ",".join(f"member{i}=http://{host}:{peer}" for i, peer in enumerate(peers))
        self.endpoints: tuple[tuple[str, int], ...] = tuple((address, port) for port in clients)
        self._directories = [temporary_directory() for _ in range(size)]
        self._commands = [
            etcd_command(f"member{i}", f"{directory}/0", (address, clients[i], peers[i]), cluster)
            for i, directory in enumerate(self._directories)
        ]
        self._members: list[Supervised | None] = [None] * size
        self._pid = os.getpid()
        weakref.finalize(self, _Closer(self._members))

    def start(self, timeout: float = 60) -> None:
        """Start all members and wait until they serve. Raises as ``EtcdServer.start``, and in a fork."""
        deadline = time.monotonic() + timeout
        try:
            for number in range(len(self._members)):
                self._launch(number)
            for number in range(len(self._members)):
                self._await(number, deadline)
        except UnusableError:
            self.stop()
            raise

    def kill(self, number: int) -> None:
        """SIGKILL one member; its data stays."""
        self._member(number).kill()

    def restart(self, number: int, timeout: float = 60) -> None:
        """Start a killed member again on its data and wait until it serves (which needs a majority)."""
        self._launch(number)
        self._await(number, time.monotonic() + timeout)

    def pid(self, number: int) -> int:
        """The process id of a running member."""
        pid = self._member(number).pid
        if pid is None or self._member(number).ended() is not None:
            raise UnusableError("this member does not run", f"member {number}", "restart it")
        return pid

    def leader(self, timeout: float = 10) -> int:
        """The number of the member that leads, as it says itself. Raises EtcdStartTimeout if there is none in time."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for number, member in enumerate(self._members):
                if member is not None and member.ended(0.02) is None and self._leads(number):
                    return number
        raise EtcdStartTimeout("the cluster has no leader", str(self.endpoints), "keep a majority of members running")

    def stop(self) -> None:
        """End all members and remove their data. A second call does nothing. In a fork the members go on."""
        _Closer(self._members)()
        self._members[:] = [None] * len(self._members)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _member(self, number: int) -> Supervised:
        member = self._members[number]
        if member is None:
            raise UnusableError("this member does not run", f"member {number}", "start the cluster first")
        return member

    def _launch(self, number: int) -> None:
        if self._pid != os.getpid():
            raise UnusableError("this cluster is the parent's", f"member {number}", "make an EtcdCluster in the fork")
        before = self._members[number]
        command = [*self._commands[number], "--enable-v2", *without_fsync(self._commands[number][0])]
        self._members[number] = Supervised(command, directory=self._directories[number])
        if before is not None:
            before.release()

    def _await(self, number: int, deadline: float) -> None:
        host, port = self.endpoints[number]
        if not await_ready(self._member(number), host, port, deadline):
            raise EtcdStartTimeout("a member was not ready in time", f"{bracketed(host)}:{port}", "allow more time")

    def _leads(self, number: int) -> bool:
        connection = HTTPConnection(*self.endpoints[number], timeout=1)
        try:
            connection.request("GET", "/v2/stats/self")
            return bool(json.loads(connection.getresponse().read()).get("state") == "StateLeader")
        except (OSError, HTTPException, ValueError):
            return False
        finally:
            connection.close()


class _Closer:
    """Ends the members of a list; knows the list and not the cluster, so that the cluster can be collected."""

    def __init__(self, members: list[Supervised | None]) -> None:
        self._members = members

    def __call__(self) -> None:
        for member in self._members:
            if member is not None:
                member.close()
