"""Times of a layer of a decode step with norms and appends in its products, and without."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from device_check.artifact import Selection
from device_check.cases import EPSILON, pages_of, randn
from device_check.chained import SQUARES
from device_check.driver import Module
from device_check.memory import DTYPES, addresses_of, record
from device_check.shapes import PAGE_SIZE, Model, Shape, attention

# Layers with weights of their own, more bytes than the cache holds several times over.
LAYERS = 8
KEYS = 576
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Of more rows no norm is spread over products, but heads may leave their product turned and appended.
MOST_CHAINED = 64


def times(
    modules: Mapping[str, Module], selection: Selection, model: Model, replay: Callable[[Sequence[Any]], list[float]]
) -> Iterator[dict[str, Any]]:
    """Microseconds of a layer, by number of rows, as lowered and with operators in one, in turns."""
    for rows in ROWS:
        row: dict[str, Any] = {"what": "layer", "model": model.name, "rows": rows, "ours": {}}
        for form in ("plain", "chained" if rows <= MOST_CHAINED else "projected"):
            layers = Layers(modules, selection, model, rows)
            if form == "projected" and not layers.fitting(PROJECTED, layers.projection(), layers.heads()):
                continue
            calls = layers.calls(form)
            samples = [each * len(calls) / LAYERS for each in replay(calls)]
            facts = {"artifacts": sorted(layers.names), "launches": len(calls) // LAYERS}
            row["ours"][form] = {**record(samples), **facts}
        yield row
        torch.cuda.empty_cache()


PROJECTED = ("projected.projected",)


class Layers:
    """The operators of several layers, one after another as a plan has them."""

    def __init__(self, modules: Mapping[str, Module], selection: Selection, model: Model, rows: int) -> None:
        self.modules, self.selection, self.model, self.rows = modules, selection, model, rows
        # Nothing in a chain writes keys but those of the tokens that attend.
        self.attributes = {"epsilon": EPSILON, "scale": model.head_dim**-0.5, "settled": 1}
        # The family of products that share a norm.
        self.chain = "chained_gemv" if rows == 1 else "chained_gemm"
        # What the calls need to stay alive, and what they run.
        self.held: list[Any] = []
        self.names: set[str] = set()
        qkv = (model.num_q_heads + 2 * model.num_kv_heads) * model.head_dim
        hidden, inner, query = model.hidden_size, model.intermediate_size, model.num_q_heads * model.head_dim
        self.sizes = {"qkv": (qkv, hidden), "o": (hidden, query), "gate_up": (inner, hidden), "down": (hidden, inner)}
        pages = -(-KEYS // PAGE_SIZE) + 1
        self.paged = {
            **attention(model.head_dim, rows, pages, model.num_q_heads, model.num_kv_heads),
            "tokens": rows,
            "rotary_dim": model.head_dim,
            "max_positions": pages * PAGE_SIZE,
        }
        self.kept = {
            "hidden": randn(rows, hidden, dtype=torch.float32),
            "normed": randn(rows, hidden),
            "squares": torch.ones(rows, hidden // SQUARES, device="cuda"),
            "projected": randn(rows, qkv),
            "rotated": randn(rows, query),
            "attended": randn(rows, query),
            "activated": randn(rows, inner),
            "bias": randn(qkv),
            "norm_weight": randn(hidden),
            "positions": torch.full((rows,), KEYS, dtype=torch.int32, device="cuda"),
            "query_start": torch.arange(rows + 1, dtype=torch.int32, device="cuda"),
            "block_table": pages_of(rows, pages, self.paged["num_pages"]),
            "rotations": torch.rand(self.paged["max_positions"], model.head_dim // 2, 2, device="cuda"),
            "kv_len": torch.full((rows,), KEYS + 1, dtype=torch.int32, device="cuda"),
            "status": torch.zeros(1, dtype=torch.int32, device="cuda"),
        }
        pool = (self.paged["num_pages"], model.num_kv_heads, PAGE_SIZE, model.head_dim)
        self.weights = [
            {name: randn(n * (2 if name == "gate_up" else 1), k, scale=0.02) for name, (n, k) in self.sizes.items()}
            | {"k_pages": randn(*pool), "v_pages": randn(*pool)}
            for _ in range(LAYERS)
        ]

    def calls(self, form: str) -> list[Callable[[], None]]:
        """The launches of all layers, `plain`, `chained` or `projected`."""
        return [call for weights in self.weights for call in getattr(self, form)(weights)]

    def plain(self, weights: Mapping[str, torch.Tensor]) -> list[Any]:
        """A layer as it is lowered."""
        norm = {"input": "hidden", "weight": "norm_weight", "output": "normed"}
        normed = lambda: self.bind("normalization.rms_norm", self.norm_shape(), norm, {"output_dtype": "bf16"})  # noqa: E731
        bias = self.model.qkv_epilogue
        append = {"qkv": "projected", "q_out": "rotated", **self.pools(weights)}
        return [
            normed(),
            self.product("qkv", weights, {"input": "normed", "output": "projected"}, {"epilogue": bias}),
            self.bind(
                "kv_cache.rope_append",
                self.paged,
                append,
                {"head_dim": self.model.head_dim, "qk_norm": "absent", "layout": None},
            ),
            self.attention(weights),
            self.product("o", weights, self.residual("attended"), {"epilogue": "residual"}),
            normed(),
            self.product("gate_up", weights, {"input": "normed", "output": "activated"}, {"epilogue": "swiglu"}),
            self.product("down", weights, self.residual("activated"), {"epilogue": "residual"}),
        ]

    def projected(self, weights: Mapping[str, torch.Tensor]) -> list[Any]:
        """A layer whose heads leave their product turned and appended."""
        norm, _, _, *rest = self.plain(weights)
        names = {"input": "normed", "weight": weights["qkv"], "q_out": "rotated", **self.pools(weights)}
        return [norm, self.bind(PROJECTED, self.projection(), names, self.heads()), *rest]

    def projection(self) -> Shape:
        """Heads of all rows."""
        return {**self.paged, "hidden_size": self.model.hidden_size}

    def heads(self) -> Mapping[str, Any]:
        """The variant of kernels that make heads."""
        bias = "present" if self.model.qkv_epilogue == "bias" else "absent"
        return {"head_dim": self.model.head_dim, "bias": bias}

    def chained(self, weights: Mapping[str, torch.Tensor]) -> list[Any]:
        """A layer with its norms spread over its products."""
        names = {"input": "normed", "weight": weights["qkv"], "q_out": "rotated", **self.pools(weights)}
        return [
            self.bind(f"{self.chain}.scaled_projected", self.projection(), names, self.heads()),
            self.attention(weights),
            self.chained_product("weighted", "o", weights, self.residual("attended")),
            self.chained_product("scaled_swiglu", "gate_up", weights, {"input": "normed", "output": "activated"}),
            self.chained_product("weighted", "down", weights, self.residual("activated")),
        ]

    def attention(self, weights: Mapping[str, torch.Tensor]) -> Any:
        """The attention of a layer."""
        names = {"q": "rotated", "output": "attended", **self.pools(weights)}
        variant = {"head_dim": self.model.head_dim, "split": "whole", "layout": None}
        return self.bind("paged_decode.paged_decode", self.paged, names, variant)

    def pools(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Keys and values of a layer."""
        return {name: weights[name] for name in ("k_pages", "v_pages")}

    def residual(self, read: str) -> dict[str, str]:
        """Operands of a product that is added to the residual stream."""
        return {"input": read, "residual": "hidden", "output": "hidden", "weighted": "normed"}

    def norm_shape(self) -> Shape:
        """A norm of all rows."""
        return {"tokens": self.rows, "heads": 1, "hidden_size": self.model.hidden_size}

    def product(
        self, name: str, weights: Mapping[str, Any], names: Mapping[str, Any], variant: Mapping[str, Any]
    ) -> Any:
        """A product of the plan."""
        n, k = self.sizes[name]
        kernels = ("gemm.dense_small", "prefill_gemm.dense", "joint_gemm.dense", "clustered_gemm.dense_clustered")
        return self.bind(kernels, {"m": self.rows, "n": n, "k": k}, {**names, "weight": weights[name]}, variant)

    def chained_product(self, kernel: str, name: str, weights: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
        """A product with a part of a norm."""
        n, k = self.sizes[name]
        shape = {"m": self.rows, "n": n, "k": k}
        return self.bind(f"{self.chain}.{kernel}", shape, {**names, "weight": weights[name]}, {})

    def fitting(self, kernels: Sequence[str], shape: Shape, variant: Mapping[str, Any]) -> list[Module]:
        """Those of some kernels and a variant that admit a shape."""
        return [
            module
            for module in self.modules.values()
            if module.artifact.kernel in kernels
            and all(module.artifact.variant.get(key) == wanted for key, wanted in variant.items())
            and module.artifact.admits(shape)
        ]

    def bind(
        self, kernels: str | Sequence[str], shape: Shape, names: Mapping[str, Any], variant: Mapping[str, Any]
    ) -> Any:
        """The launch that a plan would choose, with operands by name."""
        fit = self.fitting((kernels,) if isinstance(kernels, str) else kernels, shape, variant)
        wanted = self.selection.algorithm(fit[0].artifact, shape) if len(fit) > 1 else None
        module = next(m for m in fit if wanted in (None, m.artifact.manifest["algorithm"]))
        given = {name: names.get(name, name) for name in module.artifact.operands}
        tensors = {name: self.kept.get(to) if isinstance(to, str) else to for name, to in given.items()}
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        made = {
            name: torch.zeros(module.artifact.shape(name, shape), dtype=DTYPES[fact["element"]], device="cuda")
            for name, fact in module.artifact.operands.items()
            if name not in tensors
        }
        run = module.bind(shape, addresses_of({**made, **tensors}), self.attributes)
        self.held.append(made)
        self.names.add(module.artifact.name)
        return lambda: run(torch.cuda.current_stream().cuda_stream)
