"""Which libraries and symbols an installed torch_npu misses, and the C text of stand-ins for them.

May live here: names, and what a stand-in does when it is called. Must not live here: the emulation
(``emulation/``), and compiling (``build.py``). A stand-in has only a name: nothing here is taken from CANN or CUDA.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rallypoint.npu import elf

CORE = "libascendcl.so"  # holds the emulation and every stand-in that needs no version
LOOKED_UP = ("libopapi.so",)  # opened by torch_npu itself, to ask for functions by name

# Stand-ins whose callers look at more than an error code, in CUDA builds of torch: a machine without a device.
CUDA = {
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *n) { *n = 0; return 100; }",
    "cudaGetLastError": "int cudaGetLastError(void) { return 0; }",
    "cudaPeekAtLastError": "int cudaPeekAtLastError(void) { return 0; }",
    "cudaGetErrorString": 'const char *cudaGetErrorString(int e) { return "no CUDA here"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int e) { return "cudaErrorNoDevice"; }',
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *v) { *v = 0; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *v) { *v = 0; return 0; }",
    "__cudaRegisterFatBinary": "static void *fat[8]; void **__cudaRegisterFatBinary(void *p) { return fat; }",
    "__cudaPushCallConfiguration": "unsigned __cudaPushCallConfiguration(void) { return 1; }",
    # torch assigns to what this refers to while it is loaded.
    "_ZN4c10d15get_gil_checkerEv": (
        "static void *checker[64]; void *_ZN4c10d15get_gil_checkerEv(void) { return checker; }"
    ),
}
NO_CUDA_DEVICE = re.compile(r"cu|nccl|nvrtc|nvshmem|nvJit")
CUDA_SET_UP = re.compile(r"__cuda|nvtx")
TORCH = re.compile(r"_ZN?K?(3c10|2at|4c10d|5torch|5caffe)")


class Missing(NamedTuple):
    """``libraries``: names that nothing provides; ``symbols``: those of no version; ``versioned``: library -> version
    -> symbols."""

    libraries: frozenset[str]
    symbols: frozenset[str]
    versioned: dict[str, dict[str, set[str]]]

    def with_more(self, library: str | None, symbol: str | None) -> Missing:
        """One more name, learnt from the dynamic linker."""
        libraries = self.libraries | ({library} if library else set())
        return Missing(libraries, self.symbols | ({symbol} if symbol else set()), self.versioned)


def libraries_of(folders: Iterable[Path]) -> dict[str, Path]:
    """Shared libraries under the folders, by file name."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.so*")):
            if path.is_file() and elf.is_elf(path):
                found.setdefault(path.name, path)
    return found


def _of_system(name: str) -> ctypes.CDLL | None:
    """The system's library of this name; None if it has none."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def missing(torch: Path, torch_npu: Path) -> Missing:
    """What the libraries of the two packages need and neither they nor the system provide."""
    ours = {name: elf.read(path) for name, path in libraries_of([torch / "lib", torch_npu]).items()}
    ours |= {path.name: elf.read(path) for path in torch.glob("_C*.so")}
    names = {name for library in ours.values() for name in library.needed} - ours.keys()
    system = {name: _of_system(name) for name in names}
    libraries = {name for name, library in system.items() if library is None}
    # Python's own functions and the C library's are there already.
    others = [ctypes.CDLL(None), *(library for library in system.values() if library is not None)]
    defined = frozenset[str]().union(*(library.defined for library in ours.values()))
    symbols: set[str] = set()
    versioned: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for library in ours.values():
        if libraries.isdisjoint(library.needed):
            continue
        for symbol, version in library.undefined.items():
            if version is not None and version.library in libraries:
                versioned[version.library][version.name].add(symbol)
            elif version is None and symbol not in defined and not any(hasattr(other, symbol) for other in others):
                symbols.add(symbol)
    return Missing(frozenset(libraries | set(LOOKED_UP)), frozenset(symbols), versioned)


def c_text(symbols: Iterable[str]) -> str:
    """The stand-ins for these symbols."""
    names = sorted(symbols)
    variables = _variables(names)
    lines = ["int rallypoint_cann_refuse(const char *);", "void rallypoint_cann_abort(const char *);"]
    lines += ["extern char _ZTVN10__cxxabiv117__class_type_infoE[];"]
    return "\n".join(lines + [_stand_in(name, name in variables) for name in names]) + "\n"


def _stand_in(name: str, is_variable: bool) -> str:
    if name in CUDA:
        return CUDA[name]
    if name.startswith("_ZTI"):  # C++ type information: pybind11 reads the name in it
        return f'const void *{name}[4] = {{ _ZTVN10__cxxabiv117__class_type_infoE + 16, "{name[4:]}" }};'
    if is_variable or name.startswith(("_ZTV", "_ZTS")):
        return f"void *{name}[64];"
    if name.startswith("_ZTH"):  # sets up a thread's variable
        return f"void {name}(void) {{ }}"
    if CUDA_SET_UP.match(name) or TORCH.match(name):
        return f"int {name}() {{ return 0; }}"
    if NO_CUDA_DEVICE.match(name):
        return f"int {name}() {{ return 100; }}"
    if name.startswith("_Z"):
        return f'void {name}() {{ rallypoint_cann_abort("{name}"); }}'
    if "Create" in name and not name.startswith("aclrt"):  # returns a pointer
        return f'void *{name}() {{ rallypoint_cann_refuse("{name}"); return 0; }}'
    return f'int {name}() {{ return rallypoint_cann_refuse("{name}"); }}'


def _variables(names: list[str]) -> set[str]:
    """C++ names of variables: those that read without a parameter list."""
    mangled = [name for name in names if name.startswith("_ZN")]
    if not mangled:
        return set()
    ran = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, timeout=60, check=True)
    return {name for name, plain in zip(mangled, ran.stdout.splitlines(), strict=True) if "(" not in plain}
