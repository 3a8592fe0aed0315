#!/usr/bin/env python3
"""Compile twins of artifacts whose dimensions are fixed, to measure what symbolic dimensions cost.

    PYTHONPATH=kernels/tilelang kernels/tilelang/.venv/bin/python kernels/tilelang/static_twins.py

Needs no GPU. The folder is not committed; `twin_check.py` times what is in it beside the committed artifacts. A twin
has the name of its artifact, `.static_` and what is fixed; the number of rows stays symbolic.
"""

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from oxide_tile import build, lowering, nvrtc, sources
from oxide_tile.definition import Definition, Domain
from oxide_tile.expr import evaluate
from oxide_tile.families.common import vector_lanes
from oxide_tile.manifest import encode, manifest, narrowed
from oxide_tile.profile import Job, Profile, Rule, load

PROFILE = "sm_90a"
# The products of a layer of Qwen2.5-1.5B: epilogue, n and k.
PRODUCTS = (("bias", 2048, 1536), ("residual", 1536, 1536), ("swiglu", 8960, 1536), ("residual", 1536, 8960))
# All that have an artifact with one of those epilogues.
PRODUCT_FAMILIES = ("gemm", "prefill_gemm", "joint_gemm", "clustered_gemm")
ROWS = (1, 16, 256, 4096)
HIDDEN_SIZE, NUM_Q_HEADS, NUM_KV_HEADS = 1536, 12, 2


@dataclass(frozen=True)
class Twin:
    """An artifact and what is fixed of it."""

    job: Job
    dimensions: Mapping[str, int]
    # The kernel's own names, for dimensions and for arguments that follow from them.
    symbols: Mapping[str, int]

    @property
    def name(self) -> str:
        """Its unique name."""
        fixed = "_".join(f"{name}_{value}" for name, value in self.dimensions.items())
        return f"{self.job.name}.static_{fixed}"


def twins(profile: Profile) -> list[Twin]:
    """Every twin: products in the schedules that serve `ROWS`, norms, and attention."""
    found = {}
    for (epilogue, n, k), m in ((product, m) for product in PRODUCTS for m in ROWS):
        job = product_job(profile, epilogue, {"m": m, "n": n, "k": k})
        twin = Twin(job, {"n": n, "k": k}, {"n": n, "k": k, "vectors_of_row": n // vector_lanes("bf16")})
        found[twin.name] = twin
    for job in profile.jobs:
        if job.family == "normalization" and job.variant["dtype"] != "f16" and job.algorithm == "up_to_2k":
            lanes = vector_lanes(job.variant["dtype"])
            twin = Twin(job, {"hidden_size": HIDDEN_SIZE}, {"vectors_of_row": HIDDEN_SIZE // lanes})
            found[twin.name] = twin
        # The compiler ends itself over clusters whose grid is a number in part.
        clusters = job.algorithm.startswith("cluster_")
        # The engine's pages.
        own = job.family in ("paged_decode", "paged_prefill") and "layout" not in job.variant
        if own and job.variant["head_dim"] == 128 and not clusters:
            heads = {"num_q_heads": NUM_Q_HEADS, "num_kv_heads": NUM_KV_HEADS}
            twin = Twin(job, heads, {**heads, "group_size": NUM_Q_HEADS // NUM_KV_HEADS})
            found[twin.name] = twin
    return list(found.values())


def product_job(profile: Profile, epilogue: str, shape: Mapping[str, int]) -> Job:
    """The artifact that serves a product with an epilogue, of bf16."""
    variant = {"dtype": "bf16", "epilogue": epilogue}
    jobs = [
        job for job in profile.jobs if job.family in PRODUCT_FAMILIES and variant.items() <= dict(job.variant).items()
    ]
    properties = build.define(jobs[0]).properties
    (rule,) = (rule for rule in profile.rules if matches(rule, "gemm.dense", properties, shape))
    compared = [job for job in jobs if rule.choice.costs and job.algorithm in rule.choice.costs]
    algorithm = rule.choice.among({job.algorithm for job in compared if admits(job, shape)}, shape)
    (job,) = (job for job in jobs if job.algorithm == algorithm)
    return job


def matches(rule: Rule, contract: str, properties: Mapping[str, object], shape: Mapping[str, int]) -> bool:
    """Whether a selection rule is for a request."""
    return rule.is_of(contract, properties) and all(
        low <= shape[name] <= high for name, (low, high) in rule.when.items()
    )


def admits(job: Job, shape: Mapping[str, int]) -> bool:
    """Whether a shape is in the domain of an artifact."""
    definition = build.define(job)
    values = [(shape[name], domain) for name, domain in narrowed(job, definition).items()]
    values += [(evaluate(condition.value, shape), condition.domain) for condition in definition.conditions]
    return all(domain.min <= value <= domain.max and value % domain.multiple_of == 0 for value, domain in values)


@contextlib.contextmanager
def fixed_symbols(symbols: Mapping[str, int]) -> Iterator[None]:
    """Kernels defined meanwhile have numbers in the place of some symbolic dimensions."""
    import tilelang.language as T

    symbolic = T.dynamic
    T.dynamic = lambda name, *rest: symbols[name] if name in symbols else symbolic(name, *rest)
    try:
        yield
    finally:
        T.dynamic = symbolic


def define(twin: Twin) -> Definition:
    """The twin's kernel; arguments that are fixed become numbers too."""
    from tvm import tirx

    with fixed_symbols(twin.symbols):
        definition = build.define(replace(twin.job, name=twin.name))
    function = definition.function
    arguments = {p: tirx.IntImm("int32", twin.symbols[p.name]) for p in function.params if p.name in twin.symbols}
    if arguments:
        function = function.specialize(arguments)
    dimensions = {**definition.dimensions, **{name: Domain(value, value) for name, value in twin.dimensions.items()}}
    return replace(definition, function=function, dimensions=dimensions)


def make(twin: Twin, profile: Profile) -> build.Artifact:
    """Compile a twin."""
    definition = define(twin)
    lowered = lowering.lower(definition.function, definition.pass_configs, definition.derived)
    cubin = nvrtc.compile_cubin(lowered.source, lowering.SITE)
    job = replace(twin.job, name=twin.name)
    return build.Artifact(job, manifest(job, profile, definition, lowered, cubin), cubin, 0.0, True)


def main() -> None:
    """Parse the command line and compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=sources.ROOT / ".build/twins")
    parser.add_argument("--workers", type=int, default=2, help="compile this many at a time")
    options = parser.parse_args()
    profile = load(sources.ROOT, PROFILE)
    options.output.mkdir(parents=True, exist_ok=True)
    wanted, hashes = twins(profile), {}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for done, artifact in enumerate(pool.map(make, wanted, [profile] * len(wanted)), start=1):
            build.write(artifact, options.output)
            hashes[artifact.job.name] = sources.sha256(encode(artifact.manifest))
            print(f"[{done}/{len(wanted)}] {artifact.job.name}: {len(artifact.cubin)} bytes", flush=True)
    build.remove_stale(options.output, set(hashes))
    build.put(options.output / build.INDEX, encode({"artifacts": hashes}))


if __name__ == "__main__":
    main()
