"""Builds the stand-ins for the CANN libraries that an installed torch_npu misses, into a cache.

May live here: compiling, the cache, the proof that torch_npu imports on what was built. Must not live here: which
names are missing (``stubs.py``), and whether the emulation is used at all (``cann.py``).

The cache is ``$XDG_CACHE_HOME/rallypoint/npu`` (default ``~/.cache``). An entry is a folder of libraries, named after
the version of torch_npu and the content of all that it was built from. It appears whole or not at all; of several that
are built at the same time the first to be done stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rallypoint.model.errors import UnusableError
from rallypoint.npu import elf, stubs
from rallypoint.npu.stubs import CORE, Missing

SOURCES = Path(__file__).with_name("emulation")
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-shared", "-fPIC", "-O1", "-fwrapv", "-w"]
EXPORTED = "{ global: acl*; Hccl*; rt*; Msprof*; rallypoint_cann_*; _Z*; *_s; cu*; __cuda*; nv*; nccl*; local: *; };\n"
LIBRARY = "-l:libstdc++.so.6"  # by its file's name: the name for compiling comes with a C++ compiler only
LONGEST = 300.0  # seconds for one compilation or one import on a busy machine
ROUNDS = 20  # names that the dynamic linker may ask for, one by one, beyond those that the libraries list
IMPORT = "import torch, torch_npu; assert torch.npu.device_count() == 1, torch.npu.device_count()"


def built(torch: Path, torch_npu: Path, version: str) -> Path:
    """The folder of libraries for the two packages' folders; built now if it is not in the cache.

    Raises UnusableError without a C compiler, and when torch_npu does not import on what was built.
    """
    place = _cache() / f"torch_npu-{version}-{_content(torch, torch_npu)}"
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix="building-", dir=place.parent))
    except OSError as error:
        raise UnusableError("the CANN emulation cannot be stored", str(error), "set XDG_CACHE_HOME") from None
    try:
        _build(workshop, torch, torch_npu)
        with contextlib.suppress(OSError):  # somebody else was faster
            workshop.rename(place)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return place


def environment(libraries: Path, torch_npu: Path) -> dict[str, str]:
    """This process's environment, with the libraries and the package where Python and the dynamic linker look."""
    paths = {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": torch_npu.parent}
    return {
        **os.environ,
        **{name: os.pathsep.join(filter(None, [str(path), os.environ.get(name)])) for name, path in paths.items()},
    }


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rallypoint" / "npu"


def _content(torch: Path, torch_npu: Path) -> str:
    """A hash of what is compiled and for what: our texts, and names and sizes of the packages' libraries."""
    digest = hashlib.sha256(f"{platform.machine()} {sys.version} {COMPILER} {torch} {torch_npu}".encode())
    for source in sorted([*SOURCES.iterdir(), *map(Path, (__file__, stubs.__file__, elf.__file__))]):
        digest.update(source.read_bytes())
    for name, path in sorted(stubs.libraries_of([torch, torch_npu]).items()):
        digest.update(f"{name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def _build(place: Path, torch: Path, torch_npu: Path) -> None:
    missing = stubs.missing(torch, torch_npu)
    for _ in range(ROUNDS):
        _compile(place, missing)
        trouble = _import_trouble(place, torch_npu)
        if trouble is None:
            return
        library = re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file", trouble)
        symbol = re.search(r"undefined symbol: (\w+)", trouble)
        more = missing.with_more(library and library[1], symbol and symbol[1])
        if more == missing:
            raise UnusableError("torch_npu does not import on the CANN emulation", str(torch_npu), trouble[-500:])
        missing = more
    raise UnusableError("torch_npu still misses libraries", str(torch_npu), f"{ROUNDS} were added one by one")


def _compile(place: Path, missing: Missing) -> None:
    emulation = place / "emulation.o"
    if not emulation.exists():
        objects = []
        for source in sorted(SOURCES.glob("*.c")):
            objects.append(place / (source.stem + ".o"))
            _run(["-c", *FLAGS[1:], "-o", objects[-1], source])
        _run(["-r", "-nostdlib", "-o", emulation, *objects])
        for one in objects:
            one.unlink()
    defined = _defined(emulation)
    core, exported = place / "core.c", place / "exported.map"
    core.write_text(stubs.c_text(missing.symbols - defined))
    exported.write_text(EXPORTED)
    _run(
        [
            *FLAGS,
            f"-Wl,-soname,{CORE},--version-script,{exported}",
            "-o",
            place / CORE,
            core,
            emulation,
            "-l:libstdc++.so.6",
        ]
    )
    # Each of the others leads to the core, so that a name is found in whichever library it is looked up.
    for name in missing.libraries - {CORE}:
        versions = missing.versioned.get(name, {})
        symbols = {symbol for group in versions.values() for symbol in group}
        source, script = place / f"{name}.c", place / f"{name}.map"
        source.write_text(stubs.c_text(symbols))
        script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(s))}; }};\n" for v, s in versions.items()))
        linking = f"-Wl,-soname,{name},--no-as-needed" + (f",--version-script,{script}" if versions else "")
        _run([*FLAGS, linking, "-o", place / name, source, f"-L{place}", f"-l:{CORE}", LIBRARY])


def _defined(emulation: Path) -> set[str]:
    ran = subprocess.run(
        ["nm", "--defined-only", "-g", emulation], capture_output=True, text=True, timeout=LONGEST, check=True
    )
    return {line.split()[-1] for line in ran.stdout.splitlines()}


def _run(arguments: list[object]) -> None:
    command = [COMPILER, *map(str, arguments)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except FileNotFoundError:
        raise UnusableError(
            "no C compiler, which the CANN emulation needs", COMPILER, "install gcc, or name one by CC=/path/to/cc"
        ) from None
    if ran.returncode:
        raise UnusableError("the CANN emulation does not compile", " ".join(command), ran.stderr.strip()[-1500:])


def _import_trouble(place: Path, torch_npu: Path) -> str | None:
    """What goes wrong when torch_npu is imported on the libraries, None if nothing does."""
    surroundings = environment(place, torch_npu) | {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "RALLYPOINT_EMULATED_NPUS": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT], env=surroundings, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    return ran.stderr.strip() or f"exit code {ran.returncode}" if ran.returncode else None
