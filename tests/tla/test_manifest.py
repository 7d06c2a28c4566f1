"""The manifest's format, and how a result is held against an entry."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rallypoint.model.errors import UnusableError
from rallypoint.tla import SPEC_DIR
from rallypoint.tla.manifest import Config, Counts, Expected, load_manifest, select
from rallypoint.tla.tlc import DEADLOCK, TEMPORAL, Step, TlcResult
from rallypoint.tla.values import Fn
from toys import SPECS

ENTRY = """
[[config]]
name = "one"
about = "a"
module = "M"
time = "quick"
invariants = ["TypeOK", "Safe"]
expected = { verdict = "violated", property = "Safe", steps = 1 }
"""


def loaded(tmp_path: Path, text: str) -> tuple[Config, ...]:
    path = tmp_path / "manifest.toml"
    path.write_text(text)
    return load_manifest(path)


def test_the_toy_manifest() -> None:
    holds, reached, leaves, bigger = load_manifest(SPECS / "manifest.toml")
    assert (holds.name, holds.about) == ("holds", "The counter wraps, and stays in range.")
    assert (holds.expected, holds.counts) == (Expected("holds"), Counts(9, 27, 5))
    assert reached.expected == Expected("violated", "BelowTwo", 2)
    assert (leaves.specification, leaves.invariants, leaves.properties) == ("FairSpec", (), ("StaysAtMax",))
    assert (bigger.time, bigger.constants) == ("long", {"Max": 50, "Wraps": True, "Name": "toy"})
    assert bigger.job().large
    assert bigger.job().timeout_s > holds.job().timeout_s


def test_the_cfg_text(tmp_path: Path) -> None:
    (config,) = loaded(
        tmp_path,
        ENTRY
        + """
properties = ["Live"]
constants = { N = -1, Owned = false, Rules = "UPSTREAM", Ranks = [0, 1], Names = [["a"], []] }
model_values = { Workers = ["w1", "w2"], Nobody = "Nobody" }
specification = "FairSpec"
view = "V"
constraint = "C"
deadlock = true
""",
    )
    constants = (
        'CONSTANT N = -1\nCONSTANT Owned = FALSE\nCONSTANT Rules = "UPSTREAM"\nCONSTANT Ranks = {0, 1}\n'
        'CONSTANT Names = {{"a"}, {}}\nCONSTANT Workers = {w1, w2}\nCONSTANT Nobody = Nobody\n'
    )
    checked = "INVARIANT TypeOK\nINVARIANT Safe\nPROPERTY Live\n"
    assert config.cfg() == f"SPECIFICATION FairSpec\n{constants}{checked}VIEW V\nCONSTRAINT C\n"
    assert config.cfg(checking=False) == f"SPECIFICATION FairSpec\n{constants}VIEW V\nCONSTRAINT C\n"
    assert config.job().deadlock
    assert not config.job(checking=False).deadlock


def test_defaults_are_merged(tmp_path: Path) -> None:
    defaults = '[defaults]\nview = "V"\nconstants = { A = 1, B = 2 }\n'
    (config,) = loaded(tmp_path, defaults + ENTRY + 'view = "W"\nconstants = { B = 3 }\n')
    assert (config.view, config.constants) == ("W", {"A": 1, "B": 3})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no configuration"),
        ("[[config]", "not TOML"),
        ("[config]\n", "config = .* is not of type list"),
        ("config = [1]\n", "not a list of tables"),
        ("other = 1\n" + ENTRY, "unknown keys: other"),
        (ENTRY + "cores = 4\n", r"unknown keys: cores \(manifest.toml: config 'one'\)"),
        (ENTRY + ENTRY, "of the same name: one"),
        (ENTRY.replace('module = "M"', ""), "no 'module'"),
        (ENTRY.replace('"M"', "1"), "module = 1 is not of type str"),
        (ENTRY.replace('"quick"', '"soon"'), "time = 'soon' is not one of quick, full, long"),
        (ENTRY.replace('"violated"', '"passes"'), "verdict = 'passes' is not one of"),
        (ENTRY.replace('property = "Safe"', 'property = "Sane"'), "violate 'Sane', which it does not check"),
        (ENTRY.replace('"violated"', '"holds"'), "expected to hold, yet"),
        (ENTRY.replace("steps = 1", "steps = true"), "steps = True is not of type int"),
        (ENTRY.replace("steps = 1", "steps = 1, hops = 2"), r"unknown keys: hops \(.*'one', expected\)"),
        (ENTRY.replace('["TypeOK", "Safe"]', "[]"), "nothing to check"),
        (ENTRY.replace('["TypeOK", "Safe"]', "[1]"), "not a list of texts"),
        (ENTRY + 'symmetry = "S"\nproperties = ["P"]\n', "symmetry together with properties"),
        (ENTRY + "constants = { N = 1.5 }\n", "constant N = 1.5"),
        (ENTRY + "constants = { N = '\"' }\n", "constant N = "),
        (ENTRY + "constants = 1\n", "constants = 1 is not of type dict"),
        (ENTRY + "model_values = { W = [1] }\n", "model value W"),
        (ENTRY + "deadlock = 1\n", "deadlock = 1 is not of type bool"),
        (ENTRY.replace('"Safe", steps', '"deadlock", steps'), "violate 'deadlock', which it does not check"),
    ],
)
def test_a_manifest_out_of_format_is_one_clear_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UnusableError, match=reason) as caught:
        loaded(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ("Crashs = 1", "constant 'Crashs', which Rendezvous does not declare"),
        ('Rules = ["owned_slots", "no_such_rule"]', "Rules has 'no_such_rule', of which Rendezvous knows nothing"),
    ],
)
def test_what_the_module_does_not_know_is_refused(tmp_path: Path, constants: str, reason: str) -> None:
    shutil.copy(SPEC_DIR / "Rendezvous.tla", tmp_path)
    entry = ENTRY.replace('module = "M"', 'module = "Rendezvous"')
    assert loaded(tmp_path, entry + "constants = { Crashes = 1 }\n")
    with pytest.raises(UnusableError, match=reason):
        loaded(tmp_path, entry + f"constants = {{ {constants} }}\n")


def test_a_missing_manifest_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="cannot be read: No such file"):
        load_manifest(tmp_path / "none.toml")


def test_selection_keeps_the_order_and_refuses_unknown_names(tmp_path: Path) -> None:
    configs = loaded(tmp_path, ENTRY + ENTRY.replace('"one"', '"two"'))
    assert select(configs, ["two", "one", "two"]) == list(configs)
    with pytest.raises(UnusableError, match=r"no configuration 'three' .* name one of one, two"):
        select(configs, ["three", "one"])


STEPS = tuple(Step(action, Fn({"x": 0})) for action in ("Initial predicate", "Up"))
VIOLATED = TlcResult("violated", 1.0, violates="Safe", trace=STEPS, states=5, generated=9, initial=1, depth=2)


def test_surprises(tmp_path: Path) -> None:
    (config,) = loaded(tmp_path, ENTRY + "counts = { states = 5, edges = 8, depth = 2 }\n")
    assert config.surprises(VIOLATED) == []
    assert config.surprises(replace(VIOLATED, states=4)) == ["states 4 where 5 is expected"]
    assert config.surprises(replace(VIOLATED, generated=10)) == ["edges 9 where 8 is expected"]
    shorter = replace(VIOLATED, trace=STEPS[:1], depth=3)
    assert config.surprises(shorter) == ["depth 3 where 2 is expected", "steps 0 where 1 is expected"]
    assert config.surprises(shorter, workers=2) == []
    other = replace(VIOLATED, violates="TypeOK")
    assert config.surprises(other) == ["TypeOK violated where Safe violated is expected"]
    assert config.surprises(TlcResult("holds", 1.0, states=5, generated=9, initial=1, depth=2)) == [
        "holds where Safe violated is expected"
    ]
    failed = TlcResult("harness failed", 1.0, reason="java is gone")
    assert config.surprises(failed) == ["java is gone"]


def test_a_lone_liveness_property_gets_its_name(tmp_path: Path) -> None:
    entry = ENTRY.replace('["TypeOK", "Safe"]', "[]") + 'properties = ["Safe"]\n'
    (lone,) = loaded(tmp_path, entry)
    temporal = replace(VIOLATED, violates=TEMPORAL)
    assert lone.violated(temporal) == "Safe"
    assert lone.surprises(temporal) == []
    (two,) = loaded(tmp_path, entry.replace('["Safe"]', '["Safe", "Sound"]'))
    assert two.violated(temporal) == TEMPORAL
    assert two.surprises(temporal)


def test_an_expected_deadlock(tmp_path: Path) -> None:
    (config,) = loaded(tmp_path, ENTRY.replace('"Safe", steps', '"deadlock", steps') + "deadlock = true\n")
    assert config.surprises(replace(VIOLATED, violates=DEADLOCK)) == []
