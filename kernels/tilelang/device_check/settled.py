"""An append that begins before its heads are there, and decode attention before its newest keys are.

They may read only what is settled.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from device_check.cases import NAN, pages_of, randint, randn
from device_check.driver import Module
from device_check.memory import DTYPES, addresses_of
from device_check.shapes import PAGE_SIZE, Shape, attention, page_size_of

BATCHES = (1, 5, 64)
# Keys that a sequence may have, and shares where the caller says how many.
MOST_KEYS, SPLITS = 700, 3
DRAWS, REPLAYS = 3, 3


def check(modules: Mapping[str, Module]) -> dict[str, Any]:
    """Of decode attention that is told what is settled, by name, the batches in which it or its append read more.

    One whose keys no module appends cannot be checked, which is a fault too.
    """
    appends = {keys_of(m): m for m in modules.values() if is_append(m)}
    told = [m for m in modules.values() if is_told(m)]
    found = {m.artifact.name: list(faults_of(appends[keys_of(m)], m)) for m in told if keys_of(m) in appends}
    faults = [f"{name}: {batches}" for name, batches in found.items() if batches]
    alone = [m.artifact.name for m in told if m.artifact.name not in found]
    return {"faults": faults + [f"{name}: no rope_append beside it" for name in alone], "checked": len(found)}


def is_append(module: Module) -> bool:
    """Whether it turns and appends heads as they are."""
    return module.artifact.kernel == "kv_cache.rope_append" and module.artifact.variant["qk_norm"] == "absent"


def is_told(module: Module) -> bool:
    """Whether it is decode attention that may begin with settled keys."""
    parameters = module.artifact.manifest["launches"][0]["parameters"]
    told = any(parameter["kind"] == "settled" for parameter in parameters)
    return told and module.artifact.kernel == "paged_decode.paged_decode"


def keys_of(module: Module) -> tuple[int, str, int]:
    """Where its keys lie."""
    variant = module.artifact.variant
    return variant["head_dim"], variant.get("layout", "hnd"), page_size_of(module.artifact)


def faults_of(append: Module, decode: Module) -> Iterator[int]:
    """Batches of which it reads a query or a newest key that is not there yet."""
    for batch in BATCHES:
        torch.manual_seed(batch)
        chain = Chain(append, decode, batch)
        if not all(chain.holds() for _ in range(DRAWS)):
            yield batch


class Chain:
    """An append and the attention to what it appends; both as one graph, and one after the other."""

    def __init__(self, append: Module, decode: Module, batch: int) -> None:
        dim, self.layout, self.page_size = keys_of(decode)
        pages = -(-MOST_KEYS // self.page_size)
        shape = attention(dim, batch, pages, 12, 2, self.page_size)
        shape |= {"tokens": batch, "rotary_dim": dim, "max_positions": pages * self.page_size, "splits": SPLITS}
        axes = (2, self.page_size) if self.layout == "hnd" else (self.page_size, 2)
        self.heads = {"qkv": randn(batch, 16, dim)}
        q, k, v = self.heads["qkv"].split((12, 2, 2), 1)
        self.heads |= {"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}
        self.tensors = {
            "positions": torch.zeros(batch, dtype=torch.int32, device="cuda"),
            "kv_len": torch.ones(batch, dtype=torch.int32, device="cuda"),
            "query_start": torch.arange(batch + 1, dtype=torch.int32, device="cuda"),
            "block_table": pages_of(batch, pages, shape["num_pages"]),
            "rotations": torch.rand(shape["max_positions"], dim // 2, 2, device="cuda"),
            "k_pages": randn(shape["num_pages"], *axes, dim),
            "v_pages": randn(shape["num_pages"], *axes, dim),
            "q": randn(batch, 12, dim),
            "output": randn(batch, 12, dim),
            "status": torch.zeros(1, dtype=torch.int32, device="cuda"),
        }
        self.nothing = torch.full((batch, 2, dim), NAN, dtype=torch.bfloat16, device="cuda")
        self.kept = {name: tensor.clone() for name, tensor in self.heads.items()}
        appended = {**self.tensors, **self.heads, "q_out": self.tensors["q"]}
        self.append = {settled: self.bind(append, shape, appended, settled) for settled in (0, 1)}
        self.decode = {settled: self.bind(decode, shape, self.tensors, settled) for settled in (0, 1)}
        self.spoil()
        self.append[0]()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.spoil()
            self.append[1]()
            self.decode[1]()

    def bind(
        self, module: Module, shape: Shape, tensors: dict[str, torch.Tensor], settled: int = 0
    ) -> Callable[[], None]:
        """A launch on the present stream; workspaces are made."""
        for name, operand in module.artifact.operands.items():
            if name not in tensors:
                extents = module.artifact.shape(name, shape)
                tensors[name] = torch.zeros(extents, dtype=DTYPES[operand["element"]], device="cuda")
        addresses = addresses_of({name: tensors[name] for name in module.artifact.operands})
        run = module.bind(shape, addresses, {"scale": shape["head_dim"] ** -0.5, "settled": settled})
        return lambda kept=tensors: run(torch.cuda.current_stream().cuda_stream)

    def spoil(self) -> None:
        """Leave no query and no newest key or value, and heads to append that have only just come."""
        for name, tensor in self.heads.items():
            tensor.fill_(NAN)
            tensor.copy_(self.kept[name])
        positions = self.tensors["positions"].long()
        rows = torch.arange(len(positions), device="cuda")
        page = self.tensors["block_table"][rows, positions // self.page_size].long()
        for name in ("k_pages", "v_pages"):
            pool = self.tensors[name] if self.layout == "hnd" else self.tensors[name].transpose(1, 2)
            pool[page, :, positions % self.page_size] = self.nothing
        self.tensors["q"].fill_(NAN)
        self.tensors["output"].fill_(NAN)

    def holds(self) -> bool:
        """Whether new lengths, the first and the last key of a tile among them, give the same bits both ways."""
        positions = randint(0, MOST_KEYS, (len(self.tensors["positions"]),))
        if len(positions) > 2:
            positions[1], positions[2] = PAGE_SIZE, 2 * PAGE_SIZE - 1
        self.tensors["positions"].copy_(positions)
        self.tensors["kv_len"].copy_(positions + 1)
        self.spoil()
        for call in (self.append[0], self.decode[0]):
            torch.cuda.synchronize()
            call()
        torch.cuda.synchronize()
        expected = self.tensors["output"].clone()
        same = not expected.isnan().any()
        for _ in range(REPLAYS):
            self.graph.replay()
            torch.cuda.synchronize()
            same = same and torch.equal(expected, self.tensors["output"])
        return same and int(self.tensors["status"]) == 0
