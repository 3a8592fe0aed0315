"""What a cubin says about itself: entry symbols, parameter layout and resources, read from the ELF file."""

import struct
from dataclasses import dataclass

PARAMETER_INFO = 0x17
FRAME_SIZE = 0x11
REGISTER_COUNT = 0x2F
# Bytes of payload by attribute format: none, one byte, two bytes; format 4 carries its own size.
INLINE_FORMATS = (1, 2, 3)
SIZED_FORMAT = 4


@dataclass(frozen=True)
class Section:
    """One section of the file."""

    name: str
    kind: int
    data: bytes
    size: int
    link: int


@dataclass(frozen=True)
class Entry:
    """One kernel of a cubin."""

    parameter_sizes: tuple[int, ...]
    registers: int
    stack_bytes: int
    static_shared_memory: int


def entries(cubin: bytes) -> dict[str, Entry]:
    """Every kernel of the cubin by symbol."""
    sections = read_sections(cubin)
    by_name = {section.name: section for section in sections}
    symbols = symbol_names(sections)
    registers, frames = {}, {}
    for attribute, payload in attributes(by_name[".nv.info"].data):
        if attribute in (REGISTER_COUNT, FRAME_SIZE):
            index, value = struct.unpack_from("<II", payload)
            (registers if attribute == REGISTER_COUNT else frames)[symbols[index]] = value
    found = {}
    for name in (name.removeprefix(".text.") for name in by_name if name.startswith(".text.")):
        info = by_name.get(f".nv.info.{name}")
        if info is None:
            continue
        shared = by_name.get(f".nv.shared.{name}")
        found[name] = Entry(
            parameter_sizes=parameter_sizes(info.data),
            registers=registers.get(name, 0),
            stack_bytes=frames.get(name, 0),
            static_shared_memory=shared.size if shared else 0,
        )
    return found


def read_sections(elf: bytes) -> list[Section]:
    """The section table of a 64-bit little-endian ELF file."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    offset = struct.unpack_from("<Q", elf, 0x28)[0]
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    raw = [struct.unpack_from("<IIQQQQII", elf, offset + entry_size * i) for i in range(count)]
    names = elf[raw[names_index][4] :]
    no_bits = 8
    return [
        Section(
            name=names[name : names.index(b"\0", name)].decode(),
            kind=kind,
            data=b"" if kind == no_bits else elf[start : start + size],
            size=size,
            link=link,
        )
        for name, kind, _flags, _address, start, size, link, _info in raw
    ]


def symbol_names(sections: list[Section]) -> list[str]:
    """The symbol table's names, by symbol index."""
    table = next(section for section in sections if section.name == ".symtab")
    strings = sections[table.link].data
    starts = [struct.unpack_from("<I", table.data, at)[0] for at in range(0, len(table.data), 24)]
    return [strings[start : strings.index(b"\0", start)].decode() for start in starts]


def attributes(info: bytes) -> list[tuple[int, bytes]]:
    """The (attribute, payload) pairs of an `.nv.info` section."""
    pairs, at = [], 0
    while at + 4 <= len(info):
        fmt, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if fmt == SIZED_FORMAT:
            pairs.append((attribute, info[at : at + size]))
            at += size
        elif fmt not in INLINE_FORMATS:
            raise ValueError(f"unknown attribute format {fmt} in .nv.info")
    return pairs


def parameter_sizes(info: bytes) -> tuple[int, ...]:
    """Sizes of a kernel's parameters in order."""
    sizes = {}
    for attribute, payload in attributes(info):
        if attribute == PARAMETER_INFO:
            _index, ordinal, _offset, packed = struct.unpack_from("<IHHI", payload)
            sizes[ordinal] = packed >> 18
    return tuple(sizes[ordinal] for ordinal in sorted(sizes))
