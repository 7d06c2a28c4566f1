"""The entry points for torchrun, and upstream's handler on our backend and store (defect B-J)."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.torchrun import BACKEND_OPTIONS, HANDLER_OPTIONS, OTHER_NAMES, with_known_options
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler


def parameters(endpoint: str, run_id: str = "run", **options: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd-v2", endpoint, run_id, 1, 2, **options)


def test_the_entry_points_import_nothing_heavy() -> None:
    program = """
import sys
from importlib.metadata import entry_points
creators = {one.name: one.load()() for one in entry_points(group="torchrun.handlers") if one.name.startswith("rally")}
print(sorted(creators), sorted({"torch", "etcd", "urllib3"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "['rallypoint', 'rallypoint-etcd', 'rallypoint-etcd-v2'] []\n"
    assert {one.name for one in entry_points(group="torchrun.handlers")} >= {"rallypoint", "rallypoint-etcd"}


def test_B_J_options_mean_something_or_are_refused() -> None:
    known = with_known_options(parameters("h:1", timeout=900, heartbeat=7, ttl=5, protocol="http"))
    assert known.config == {"join_timeout": 900, "heartbeat_timeout": 7, "ttl": 5, "protocol": "http"}
    assert with_known_options(parameters("h:1", timeout=900, join_timeout=5)).config == {"join_timeout": 5}
    with pytest.raises(
        ValueError, match=r"unknown rendezvous option jointimeout, tll; the known ones are .*join_timeout"
    ):
        with_known_options(parameters("h:1", tll=5, jointimeout=3))


@pytest.mark.parametrize(
    "names", [("rallypoint-etcd-v2",) * 2, ("rallypoint-etcd-v2", "etcd-v2")], ids=["ours", "mixed"]
)
def test_two_agents_meet_on_our_backend(etcd_server: EtcdServer, names: tuple[str, str], prefix: str) -> None:
    """Upstream's dynamic handler, on our backend and store, alone and together with upstream's own."""

    def agent(name: str) -> RendezvousHandler:
        options: dict[str, Any] = {"timeout": 30} if name.startswith("rally") else {"join_timeout": 30}
        return get_rendezvous_handler(
            RendezvousParameters(name, etcd_server.get_endpoint(), prefix[6:], 2, 2, "127.0.0.1", **options)
        )

    handlers = [agent(name) for name in names]
    with ThreadPoolExecutor() as pool:
        infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
    assert sorted(info.rank for info in infos) == [0, 1]
    assert [info.world_size for info in infos] == [2, 2]
    assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
    infos[0].store.set("k", "v")
    assert infos[1].store.get("k") == b"v"
    assert [handler.get_backend() for handler in handlers] == list(names)
    assert handlers[0].shutdown()
    end = time.monotonic() + 10
    while not handlers[1].is_closed():  # upstream's handler looks at the state at most once a second
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_torchrun_runs_on_our_backend(etcd_server: EtcdServer, tmp_path: Path, prefix: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:1", "--nproc-per-node=2"]
    command += ["--rdzv-backend=rallypoint-etcd-v2", f"--rdzv-endpoint={etcd_server.get_endpoint()}"]
    command += [f"--rdzv-id={prefix[6:]}", "--rdzv-conf=last_call_timeout=1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 of 2",
        "rank 1 of 2",
    ]


def test_the_documentation_names_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "etcd_v2.md").read_text(encoding="utf-8")
    assert [name for name in {*HANDLER_OPTIONS, *BACKEND_OPTIONS, *OTHER_NAMES} if f"`{name}`" not in page] == []
