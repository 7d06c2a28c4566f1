"""The README says what is true: its picture, its commands, its track record and its example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rallypoint.cli.main import SUB_COMMANDS
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.spec.picture import mermaid
from rallypoint.tla.manifest import load_manifest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_picture_is_the_one_drawn_from_the_transition_table() -> None:
    block = re.search(r"```mermaid\n(.*?)\n```", README, re.S)
    assert block is not None
    assert block[1] == mermaid()


def test_every_command_is_in_the_readme_and_every_one_in_it_exists() -> None:
    named = set(re.findall(r"`rallypoint ([a-z]+)", README))
    assert named == set(SUB_COMMANDS)


def test_the_track_record_gives_the_steps_that_the_manifest_expects() -> None:
    rows = re.findall(r"^\| (.+?) \| .+? \| (\d+) \| `rallypoint explore (\S+)` \|$", README, re.M)
    assert len(rows) >= 5
    expected = {config.name: config.expected.steps for config in load_manifest()}
    assert {name: int(steps) for _, steps, name in rows} == {name: expected[name] for _, _, name in rows}


def test_the_example_runs(etcd_server: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```python\n(.*?)\n```", README, re.S)
    assert block is not None
    code = block[1].replace('"localhost:2379"', repr(etcd_server.get_endpoint()))
    code = code.replace("last_call_timeout=5", f"last_call_timeout=0, etcd_prefix={prefix!r}")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["info"].world_size == 1  # type: ignore[attr-defined]
    assert scope["handler"].shutdown()  # type: ignore[attr-defined]
