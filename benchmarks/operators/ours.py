"""This project's side of a row: the artifact that the selection's rules choose, launched by its manifest."""

import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "kernels/tilelang"))

from device_check.artifact import Artifact, Selection  # noqa: E402

ARTIFACTS = ROOT / "crates/oxide-infer-cuda/artifacts/sm_90a"
EPSILON = 1e-6
# Orders of a page's axes and tokens of a page, those of the peers first.
PAGES = (("nhd", 16), ("hnd", 64))
ATTENTION = {"dtype": "bf16", "window": "none", "soft_cap": "none", "lse": "absent"}
APPEND = {"dtype": "bf16", "pairing": "neox"}
PACKED_APPEND = {**APPEND, "qkv": "packed", "qk_norm": "absent"}
GEMM = {"input": "bf16", "weight": "bf16", "output": "bf16", "bias": "absent", "residual": "absent"}
NORM = {"dtype": "bf16", "weight_dtype": "bf16", "output_dtype": "bf16", "residual": "absent"}


class NotCovered(LookupError):
    """No artifact serves a row."""


class Ours:
    """The artifacts, loaded as rows need them."""

    def __init__(self, folder: pathlib.Path = ARTIFACTS) -> None:
        self.selection = Selection.of(folder)
        self.modules: dict[str, Any] = {}
        self.driver: Any = None

    def select(self, contract: str, properties: Mapping[str, str], dimensions: Mapping[str, int]) -> Artifact:
        """As `Registry::select` has it: equal properties, the same dimensions, and the rule if there are several."""
        fits = [
            artifact
            for artifact in self.selection.artifacts
            if artifact.manifest["contract"] == contract
            and artifact.manifest["properties"] == properties
            and artifact.manifest["dimensions"].keys() == dimensions.keys()
            and artifact.admits(dimensions)
        ]
        if len(fits) > 1:
            algorithm = self.selection.algorithm(fits[0], dimensions)
            fits = [artifact for artifact in fits if artifact.manifest["algorithm"] == algorithm]
        if len(fits) != 1:
            raise NotCovered(f"{len(fits)} artifacts for {contract} {dict(properties)} {dict(dimensions)}")
        return fits[0]

    def paged(
        self, contract: str, properties: Mapping[str, str], sizes: Callable[[int], Mapping[str, int]]
    ) -> tuple[Artifact, Mapping[str, int], str, int]:
        """The artifact for the first order of pages that has one, its dimensions, and that order."""
        for layout, page_size in PAGES:
            wanted = {**properties, "kv_dtype": "bf16", "page_layout": layout}
            dimensions = {**sizes(page_size), "page_size": page_size}
            try:
                return self.select(contract, wanted, dimensions), dimensions, layout, page_size
            except NotCovered as error:
                missed = error
        raise missed

    def calls(
        self, artifact: Artifact, dimensions: Mapping[str, int], sets: Sequence[Mapping[str, Any]]
    ) -> list[Callable[[], None]]:
        """A call for each set of operands. What a set lacks (outputs, workspaces, the status word) is made for it."""
        import torch
        from device_check.driver import Driver, Module
        from device_check.memory import DTYPES, addresses_of

        self.driver = self.driver or Driver()
        if artifact.name not in self.modules:
            self.modules[artifact.name] = Module(self.driver, artifact)
        module = self.modules[artifact.name]
        calls = []
        for tensors in sets:
            made = {
                name: torch.zeros(artifact.shape(name, dimensions), dtype=DTYPES[operand["element"]], device="cuda")
                for name, operand in artifact.operands.items()
                if name not in tensors
            }
            operands = {**made, **tensors}
            for name in artifact.operands:
                found, wanted = tuple(operands[name].shape), artifact.shape(name, dimensions)
                if math.prod(found) != math.prod(wanted):
                    raise ValueError(f"{artifact.name}: operand {name} is {found}, must be {wanted}")
            head_dim = dimensions.get("head_dim", 1)
            run = module.bind(
                dimensions,
                addresses_of({name: operands[name] for name in artifact.operands}),
                {"epsilon": EPSILON, "scale": head_dim**-0.5},
            )
            # The operands stay as long as the call.
            calls.append(lambda run=run, kept=operands: run(torch.cuda.current_stream().cuda_stream))
        return calls
