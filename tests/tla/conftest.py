"""Real runs of TLC on the toy specifications, made once and judged by many tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from rallypoint.tla.graph import Graph
from rallypoint.tla.tlc import Job, Simulation, TlcResult, run_all, state_graph
from toys import job


def _jobs() -> dict[str, Job]:
    def simulated(checked: str) -> Job:
        it = job(checked=checked)
        return Job(it.spec_dir, it.module, it.cfg, simulation=Simulation(behaviours=5, depth=10, seed=1))

    no_wrap = job(checked="INVARIANT InRange", wraps=False)
    return {
        "holds": job(checked="INVARIANTS InRange NamedRight"),
        "invariant": job(checked="INVARIANTS InRange BelowTwo"),
        "initial state": job(checked="INVARIANT StartsAtOne"),
        "initial property": job(checked="PROPERTY StartsAtOne"),
        "action property": job(checked="PROPERTY NeverDown"),
        "deadlock": Job(no_wrap.spec_dir, no_wrap.module, no_wrap.cfg, deadlock=True),
        "dead end": no_wrap,
        "lasso": job("FairSpec", "PROPERTIES ReachesMax StaysAtMax"),
        "stuttering": job("Spec", "PROPERTY ReachesMax"),
        "cut": job(checked="CONSTRAINT Small\nINVARIANT InRange"),
        "simulated": simulated("INVARIANT InRange"),
        "simulated violation": simulated("INVARIANT BelowTwo"),
        "assertion": job("AssertingSpec"),
        "nobody": job("NobodySpec"),
        "warning": job("WarningSpec"),
        "unknown name": job(checked="INVARIANT Nowhere"),
        "parse error": job(module="Broken"),
    }


@pytest.fixture(scope="session")
def runs() -> Mapping[str, TlcResult]:
    """name -> what TLC made of it."""
    jobs = _jobs()
    names = list(jobs)
    return {names[index]: result for index, result in run_all(list(jobs.values()), parallel=2)}


@pytest.fixture(scope="session")
def dumped() -> Callable[[str], Graph]:
    """The state graph of the toy under a specification, by TLC; each is made once."""
    graphs: dict[str, Graph] = {}

    def graph(checked: str) -> Graph:
        if checked not in graphs:
            result, found = state_graph(job("FairSpec", checked))
            assert found is not None, result
            assert found.edges.total() == result.edges or "CONSTRAINT" in checked
            graphs[checked] = found
        return graphs[checked]

    return graph
