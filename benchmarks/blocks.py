"""Blocks of documents that tools make from records, between marks that name the tool and the block."""

import difflib
import pathlib
import re
from collections.abc import Mapping


def replace(text: str, tool: str, name: str, block: str) -> str:
    """The text with the block between its marks, which must be there once."""
    begin, end = f"<!-- made by {tool}: {name} -->", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end), re.DOTALL)
    replaced, count = pattern.subn(lambda _: f"{begin}\n{block}\n{end}", text)
    if count != 1:
        raise SystemExit(f"there are {count} blocks between {begin} and {end}; there must be one")
    return replaced


def write(root: pathlib.Path, tool: str, found: Mapping[str, Mapping[str, str]], *, check: bool) -> list[str]:
    """Write blocks, by file and name; with `check` change nothing and give the differences."""
    wrong = []
    for file, named in found.items():
        path = root / file
        before = after = path.read_text()
        for name, block in named.items():
            after = replace(after, tool, name, block)
        if not check:
            path.write_text(after)
        elif before != after:
            sides = (before.splitlines(), after.splitlines())
            wrong.append("\n".join(difflib.unified_diff(*sides, file, "what the records give", lineterm="")))
    return wrong
