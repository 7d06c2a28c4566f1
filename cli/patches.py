"""``rallypoint doctor --patches``: what importing torch_npu changes in torch.distributed, near the rendezvous.

May live here: the comparison before and after, in a child process, and the list of what is expected. Must not live
here: other conditions (``probes``).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rallypoint.cli.conform_npu import find_npu
from rallypoint.cli.json_file import write_json
from rallypoint.model.errors import UnusableError
from rich.console import Console
from rich.table import Table
from rich.text import Text

LONGEST = 180.0  # seconds for importing torch, its launcher and torch_npu on a busy machine

# What a rendezvous passes through: the launcher, the agent, the handlers, and the stores.
PACKAGES = ("torch.distributed.elastic.rendezvous", "torch.distributed.elastic.agent.server")
MODULES = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.rendezvous",
    "torch.distributed.run",
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.utils.distributed",
    "torch.distributed.elastic.utils.store",
)
REGISTRIES = (
    ("torch.distributed.elastic.rendezvous.registry", "handler_registry", "_registry"),
    ("torch.distributed.rendezvous", "_rendezvous_handlers", ""),
)

# Of these two, only what meets or keeps a store: the rest is collectives, which come after the rendezvous.
MIXED = ("torch.distributed.", "torch.distributed.distributed_c10d.")
ON_PATH = re.compile(r"rendezvous|store|^init_process_group", re.IGNORECASE)

# Version of torch_npu -> what it changes on that path. All versions that were compared do the same there: the first two
# act for its own "parallel" store only, the others add a handler of that name.
SEEN = frozenset(
    {
        "replaced torch.distributed.distributed_c10d.rendezvous",
        "replaced torch.distributed.launcher.api._get_addr_and_port",
        "added torch.distributed.elastic.rendezvous.registry handler 'parallel'",
        "added torch.distributed.rendezvous handler 'parallel'",
    }
)
EXPECTED: Mapping[str, frozenset[str]] = dict.fromkeys(("2.7.1", "2.9.0", "2.10.0", "2.11.0", "2.13.0"), SEEN)


@dataclass(frozen=True)
class Patches:
    """What torch_npu changed on the path, and how much beside it. ``expected``: None if nothing is pinned for this
    version."""

    torch: str
    torch_npu: str
    changes: tuple[str, ...]
    beside: int
    expected: frozenset[str] | None

    @property
    def unexpected(self) -> list[str]:
        """Changes that no pinned list has: findings."""
        return sorted(set(self.changes) - (self.expected or SEEN))

    @property
    def gone(self) -> list[str]:
        """Changes that the pinned list has, and this torch_npu does not make."""
        return sorted((self.expected or frozenset()) - set(self.changes))


def find_patches(environment: Mapping[str, str]) -> Patches:
    """Compare, in a process with the environment. Raises UnusableError if torch_npu cannot be imported there."""
    child = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env={**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise UnusableError(
            f"torch_npu was not imported in {LONGEST:g} s", "doctor --patches", "see what holds it up"
        ) from None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=5)
    if child.returncode:
        last = err.decode(errors="replace").strip().rpartition("\n")[2]
        raise UnusableError("torch_npu cannot be imported", last, "`rallypoint doctor` finds the cause")
    found = json.loads(out)
    release = found["torch_npu"].partition("+")[0].partition(".post")[0]
    on_path = tuple(change for change in found["changes"] if _on_path(change))
    beside = len(found["changes"]) - len(on_path)
    return Patches(found["torch"], found["torch_npu"], on_path, beside, EXPECTED.get(release))


def _on_path(change: str) -> bool:
    name = change.partition(" ")[2]
    if name.startswith(MIXED[1]):
        return ON_PATH.search(name[len(MIXED[1]) :]) is not None
    own = name.removeprefix(MIXED[0])
    return "." in own or " " in own or ON_PATH.search(own) is not None


def show(console: Console, json_file: Path | None) -> int:
    """Compare, and print what changed. 0 if it is what is pinned for this version, else 1.

    Raises UnusableError if torch_npu is not there or cannot be imported.
    """
    npu = find_npu()
    if npu.environment is None:
        raise UnusableError("nothing to compare", npu.text, "install torch-npu, then run this again")
    found = find_patches(npu.environment)
    console.print(f"torch {found.torch}, torch_npu {found.torch_npu}; {npu.text}", highlight=False)
    table = Table(title="changed by importing torch_npu, on the path of a rendezvous", title_justify="left")
    table.add_column("change", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for change in found.changes:
        new = change in found.unexpected
        table.add_row(Text(change), Text("not expected", "bold red") if new else Text("expected", "green"))
    for change in found.gone:
        table.add_row(Text(change), Text("expected, not there", "yellow"))
    console.print(table)
    console.print(f"beside that path (collectives, process groups): {found.beside} changes", highlight=False)
    good = found.expected is not None and not found.unexpected and not found.gone
    pinned = "" if found.expected else f"; nothing is pinned for torch_npu {found.torch_npu}, compared with the others"
    console.print(f"{'as' if good else 'not as'} expected{pinned}", highlight=False)
    if json_file:
        report = {**asdict(found), "expected": sorted(found.expected or ()), "cann": npu.text, "as_expected": good}
        write_json(json_file, {**report, "unexpected": found.unexpected, "gone": found.gone})
    return 0 if good else 1


# --- in the child ---------------------------------------------------------------------------------------------------


def _modules() -> Iterator[ModuleType]:
    for name in (*MODULES, *_below(PACKAGES)):
        with contextlib.suppress(ImportError):  # not every version has every module
            yield importlib.import_module(name)


def _below(packages: Iterable[str]) -> Iterator[str]:
    for name in packages:
        yield name
        for found in pkgutil.iter_modules(importlib.import_module(name).__path__):
            yield f"{name}.{found.name}"


def _attributes(modules: Iterable[ModuleType]) -> dict[str, Any]:
    """Every attribute of the modules, and of the classes that they define or that are stores, by its full name.

    Submodules are left out: that one is there only means that somebody imported it.
    """
    found: dict[str, Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, ModuleType) or (name.startswith("__") and name.endswith("__")):
                continue
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and (value.__module__ == module.__name__ or name.endswith("Store")):
                home = f"{value.__module__}.{value.__qualname__}"  # a class may be seen from several modules
                found |= {f"{home}.{key}": one for key, one in vars(value).items()}
    for place, attribute, inner in REGISTRIES:
        registry = getattr(importlib.import_module(place), attribute)
        entries = getattr(registry, inner) if inner else registry
        found |= {f"{place} handler {name!r}": handler for name, handler in dict(entries).items()}
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What was added, removed or replaced, by identity: an equal object in its place is a replacement too."""
    told = [f"added {name}" for name in after.keys() - before.keys()]
    told += [f"removed {name}" for name in before.keys() - after.keys()]
    told += [f"replaced {name}" for name in before.keys() & after.keys() if before[name] is not after[name]]
    return sorted(told)


def main() -> None:
    stdout = os.dup(1)
    os.dup2(2, 1)  # what else is printed is not the answer
    torch = importlib.import_module("torch")
    modules = list(_modules())
    before = _attributes(modules)
    extension = importlib.import_module("torch_npu")
    found = {
        "torch": torch.__version__,
        "torch_npu": extension.__version__,
        "changes": changes(before, _attributes(modules)),
    }
    with open(stdout, "w", encoding="utf-8") as file:
        json.dump(found, file)
        file.flush()
        os._exit(0)  # torch_npu's own end may hang where a device is in use


if __name__ == "__main__":
    main()
