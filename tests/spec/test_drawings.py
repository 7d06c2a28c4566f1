"""What is drawn from code stands in the documents as it is drawn."""

from __future__ import annotations

import re
from pathlib import Path

import rallypoint.model
from rallypoint.model import system, worker
from rallypoint.model.explorer import Explorer
from rallypoint.model.rules import Rules, upstream
from rallypoint.model.system import Budget, Config
from rallypoint.spec.picture import OURS, PYTORCHS, worker_table
from rallypoint.tla import SPEC_DIR
from rallypoint.tla.readme import configurations

MODEL_DIR = Path(rallypoint.model.__path__[0])
SPEC = (SPEC_DIR / "Rendezvous.tla").read_text(encoding="utf-8")


def test_the_workers_table_is_drawn_from_its_code() -> None:
    assert f"\n\n{worker_table()}\n\n" in (MODEL_DIR / "README.md").read_text(encoding="utf-8")


def test_the_configurations_are_drawn_from_the_manifest() -> None:
    assert (SPEC_DIR / "README.md").read_text(encoding="utf-8").endswith(f"\n\n{configurations()}\n")


def lines(*configs: Config) -> set[str]:
    """The lines of the table at which some worker stands somewhere in these spaces."""
    reached: set[str] = set()

    def note(_: Config, state: system.State) -> bool:
        reached.update(it.pc for it in state.workers)
        return True

    for config in configs:
        assert Explorer(config).explore({"": note}).complete
    return reached & set(worker.TABLE)


def test_whose_line_is_whose() -> None:
    ours, theirs = Rules(1, 2), upstream(Rules(1, 2))
    faults = (Budget(crashes=1), Budget(deadlines=1), Budget(closes=1), Budget(lost_leases=1))
    address = Budget(crashes=1, deadlines=1)
    met = [Config(ours, 2, budget) for budget in (*faults, Budget(lost_runs=1))]
    met.append(Config(ours, 2, Budget(), others=(1,), other_bounds=(2, 2)))
    assert lines(*met, Config(Rules(2, 2, bootstrap=True), 2, address)) == set(worker.TABLE) - PYTORCHS
    met = [Config(theirs, 2, budget) for budget in faults]
    assert lines(*met, Config(upstream(Rules(2, 2, bootstrap=True)), 2, address)) == set(worker.TABLE) - OURS


def test_every_action_of_the_spec_names_its_function_and_where_it_comes_from() -> None:
    named = dict.fromkeys(re.findall(r"^    \\/ (?:\\E i \\in Slots : )?(\w+)(?:\(i\))?$", SPEC, re.M))
    groups = {"Progress", "Mishap"}
    actions = [*(set(named) - groups), "LastCallEnds", "RunOut", "MeetAgain"]
    assert {row.action for row in worker.TABLE.values()} < set(actions)
    for action in actions:
        about = re.search(rf"^\\\* (\w+)\.(\w+); (ours|upstream \d|of ).*\n{action}(?:\(i\))? ==", SPEC, re.M)
        assert about, f"{action} has no comment"
        source = (MODEL_DIR / f"{about[1]}.py").read_text(encoding="utf-8")
        assert re.search(rf"^def {about[2]}\(", source, re.M), f"{action}: no function {about[1]}.{about[2]}"
