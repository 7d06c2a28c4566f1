"""What the dynamic linker reads in a shared library. Must not live here: what to do about it (``stubs.py``)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple, TypeVar

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import Section

SYMBOL = struct.Struct("<IBBHQQ")  # 64-bit, little-endian: x86-64 and aarch64
LOCAL, WEAK = 0, 2
UNDEFINED = 0


class Version(NamedTuple):
    """A symbol's version: of which library, and its name there."""

    library: str
    name: str


class Library(NamedTuple):
    """``needed``: libraries by name; ``undefined``: symbols that others must define, weak ones left out."""

    needed: tuple[str, ...]
    undefined: dict[str, Version | None]
    defined: frozenset[str]


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def read(path: Path) -> Library:
    """The facts of a 64-bit ELF library."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        tags = _section(elf, ".dynamic", DynamicSection).iter_tags("DT_NEEDED")
        needed = tuple(str(getattr(tag, "needed")) for tag in tags)  # noqa: B009  (its type does not tell)
        names, versions = _section(elf, ".dynstr", Section).data(), _versions(elf)
        table = elf.get_section_by_name(".gnu.version")
        indices = [index for (index,) in struct.iter_unpack("<H", table.data())] if table else []
        undefined: dict[str, Version | None] = {}
        defined = set()
        # Not by the package's own symbols: they cost seconds for the 75 000 of torch's largest library.
        for number, symbol in enumerate(SYMBOL.iter_unpack(_section(elf, ".dynsym", Section).data())):
            start, info, _, section, _, _ = symbol
            name = names[start : names.index(b"\0", start)].decode()
            if section != UNDEFINED and info >> 4 != LOCAL:
                defined.add(name)
            elif name and info >> 4 != WEAK:
                undefined[name] = versions.get(indices[number] & 0x7FFF) if indices else None
    return Library(needed, undefined, frozenset(defined))


_Kind = TypeVar("_Kind", bound=Section)


def _section(elf: ELFFile, name: str, kind: type[_Kind]) -> _Kind:
    section = elf.get_section_by_name(name)
    if not isinstance(section, kind):
        raise ValueError(f"no section {name}: not a shared library")
    return section


def _versions(elf: ELFFile) -> dict[int, Version]:
    section = elf.get_section_by_name(".gnu.version_r")
    if not isinstance(section, GNUVerNeedSection):
        return {}
    return {
        version.entry["vna_other"]: Version(str(library.name), str(version.name))
        for library, found in section.iter_versions()
        for version in found
    }
