"""NPU workers: ranks and world sizes are judged on what they gathered by hccl, through kills and rejoins."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from members import DIES
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.live.run import run_live
from rallypoint.live.torchrun_job import run_job
from rallypoint.npu.cann import Cann

Script = Callable[..., Any]
DEVICES = 4  # as the fixture has them


def test_members_prove_their_group_while_others_die_and_come(script: Script, etcd_server: EtcdServer) -> None:
    told = script("members.py", etcd_server.get_endpoint(), uuid.uuid4().hex)
    proofs = [report for report in told if "rows" in report]
    for proof in proofs:
        assert proof["rows"] == [[proof["version"], rank, proof["world"]] for rank in range(proof["world"])]
    places = [(proof["version"], proof["rank"]) for proof in proofs]
    assert len(set(places)) == len(places)
    for version in {version for version, _ in places}:
        assert len({proof["world"] for proof in proofs if proof["version"] == version}) == 1
    assert max(version for version, _ in places) >= 4
    broken = [report for report in told if "broken" in report]
    assert {report["name"] for report in broken} <= {"a", "c"}
    assert broken, f"nobody noticed that one {DIES}"


@pytest.mark.parametrize(
    "backend",
    [
        "rallypoint",
        pytest.param("rallypoint-etcd-v2", marks=pytest.mark.slow),
        pytest.param("etcd", marks=pytest.mark.slow),
        pytest.param("etcd-v2", marks=pytest.mark.slow),
    ],
)
def test_two_torchrun_agents_all_reduce_by_hccl(backend: str, cann: Cann, etcd_server: EtcdServer) -> None:
    """torch_npu is loaded in the agents, too."""
    environment = cann.environment | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    result = run_job(
        backend, etcd_server.get_endpoint(), uuid.uuid4().hex, device="npu", environment=environment, timeout=120
    )
    assert result.complaint(2) == ""


@pytest.mark.slow
def test_drawn_jobs_prove_their_groups_by_hccl(cann: Cann) -> None:
    """What `rallypoint check --device npu` plays: kills and rejoins, every request replayed in the model."""
    result = run_live(8, 1, device="npu", members=DEVICES, environment=cann.environment)
    assert result.verdict == "holds", result.failure
    assert result.groups_formed


def test_a_number_of_npus_without_npus_is_a_usage_error() -> None:
    command = [str(Path(sys.executable).with_name("rallypoint")), "check", "--nproc", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "--device npu" in ran.stderr
