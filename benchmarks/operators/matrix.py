"""The rows that are measured: `matrix.json`, and what follows from a row alone. Needs neither PyTorch nor a GPU."""

import dataclasses
import json
import pathlib
from typing import Any

MATRIX = pathlib.Path(__file__).with_name("matrix.json")
BYTES = 2  # of a bf16


@dataclasses.dataclass(frozen=True)
class Row:
    """An operator with its sizes."""

    id: str
    family: str
    sizes: dict[str, Any]

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """Queries and keys of every sequence."""
        return [(queries, keys) for count, queries, keys in self.sizes["sequences"] for _ in range(count)]

    @property
    def tokens(self) -> int:
        """Query rows of all sequences."""
        return sum(queries for queries, _ in self.sequences)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values that attention reads; 0 where there is none."""
        if self.family not in ("paged_decode", "paged_prefill", "ragged_prefill"):
            return 0
        return 2 * BYTES * sum(keys for _, keys in self.sequences) * self.sizes["heads"][1] * self.sizes["head_dim"]

    @property
    def bytes(self) -> int:
        """Bytes that must move: every operand once."""
        if self.family == "gemm":
            m, n, k = (self.sizes[name] for name in "mnk")
            return BYTES * (n * k + m * k + m * n)
        if self.family == "rms_norm":
            return 2 * BYTES * self.sizes["tokens"] * self.sizes["hidden_size"]
        q_heads, kv_heads = self.sizes["heads"]
        if self.family == "rope_append":
            return 2 * BYTES * self.tokens * (q_heads + 2 * kv_heads) * self.sizes["head_dim"]
        return self.cache_bytes + 2 * BYTES * self.tokens * q_heads * self.sizes["head_dim"]

    @property
    def operations(self) -> float:
        """Multiplications and additions of products; a causal row counts the keys that it sees."""
        if self.family == "gemm":
            return 2.0 * self.sizes["m"] * self.sizes["n"] * self.sizes["k"]
        if not self.cache_bytes:
            return 0.0
        seen = sum(queries * (keys - (queries - 1) / 2) for queries, keys in self.sequences)
        return 4.0 * seen * self.sizes["heads"][0] * self.sizes["head_dim"]


def rows(path: pathlib.Path = MATRIX) -> list[Row]:
    """Every row, in the order of the file."""
    found = []
    for row in json.loads(path.read_text())["rows"]:
        sizes = {name: value for name, value in row.items() if name not in ("id", "family")}
        found.append(Row(row["id"], row["family"], sizes))
    return found
