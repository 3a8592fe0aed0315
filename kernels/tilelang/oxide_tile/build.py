"""Builds the artifacts of a profile, making again only what changed."""

import importlib
import json
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import zstandard

from oxide_tile import lowering, nvrtc, sources
from oxide_tile.definition import Definition
from oxide_tile.launch import Lowered
from oxide_tile.manifest import ZSTD_LEVEL, encode, manifest, source
from oxide_tile.profile import Job, Profile, ProfileError, Rule, load

INDEX = "index.json"
SCHEMA = 2


@dataclass(frozen=True)
class Request:
    """What to build and where to put it."""

    profile: str
    output: Path
    cache: Path
    only: str
    workers: int


@dataclass(frozen=True)
class Artifact:
    """A built artifact and how it came about."""

    job: Job
    manifest: dict[str, object]
    cubin: bytes
    seconds: float
    compiled: bool


def build(request: Request, report: Callable[[str], None]) -> None:
    """Write manifests, compressed cubins and, unless only some were asked for, the index of a profile."""
    profile = load(sources.ROOT, request.profile)
    request.output.mkdir(parents=True, exist_ok=True)
    request.cache.mkdir(parents=True, exist_ok=True)
    wanted = [job for job in profile.jobs if request.only in job.name]
    same_builder = read_index(request.output).get("source") == builder_source(profile, request.profile)
    current = {job.name for job in wanted if same_builder and is_current(job, request.output)}
    stale = [job for job in wanted if job.name not in current]
    report(f"{len(current)} of {len(wanted)} artifacts are current")
    with ProcessPoolExecutor(request.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(make, job, profile, request.cache) for job in stale]
        for done, future in enumerate(futures, start=1):
            artifact = future.result()
            changed = write(artifact, request.output)
            report(progress(f"[{done}/{len(stale)}]", artifact, changed))
    if not request.only:
        remove_stale(request.output, {job.name for job in wanted})
        put(request.output / INDEX, encode(index(profile, request.profile, request.output)))


def progress(count: str, artifact: Artifact, changed: bool) -> str:
    """One artifact's line."""
    how = "compiled" if artifact.compiled else "from cache"
    state = "written" if changed else "same bytes"
    return f"{count} {artifact.job.name}: {how} in {artifact.seconds:.1f} s, {len(artifact.cubin)} bytes, {state}"


def is_current(job: Job, output: Path) -> bool:
    """Whether the artifact in `output` was made from the present sources and its cubin is whole."""
    try:
        old = json.loads((output / f"{job.name}.json").read_text())
        compressed = (output / f"{job.name}.cubin.zst").read_bytes()
        cubin = zstandard.ZstdDecompressor().decompress(compressed)
    except (OSError, ValueError, zstandard.ZstdError):
        return False
    return old["source"] == source(job) and old["cubin"]["sha256"] == sources.sha256(cubin)


def make(job: Job, profile: Profile, cache: Path) -> Artifact:
    """Build one artifact, taking the cubin from the cache when its CUDA text was compiled before."""
    start = time.monotonic()
    try:
        definition = define(job)
        lowered = lower(job, definition, cache)
        (cache / f"{job.name}.cu").write_text(lowered.source)
        cached = cache / f"{nvrtc.cache_key(lowered.source)}.cubin"
        compiled = not cached.exists()
        if compiled:
            put(cached, nvrtc.compile_cubin(lowered.source, lowering.SITE))
        cubin = cached.read_bytes()
        facts = manifest(job, profile, definition, lowered, cubin)
    except Exception as error:
        raise RuntimeError(f"{job.name}: {type(error).__name__}: {error}") from error
    return Artifact(job, facts, cubin, time.monotonic() - start, compiled)


def lower(job: Job, definition: Definition, cache: Path) -> Lowered:
    """Lower a kernel, or take from the cache what lowering the same sources gave before."""
    cached = cache / f"{sources.sha256(encode(source(job)))}.lowered"
    if not cached.exists():
        lowered = lowering.lower(definition.function, definition.pass_configs, definition.derived)
        put(cached, pickle.dumps(lowered))
    return pickle.loads(cached.read_bytes())


def define(job: Job) -> Definition:
    """Ask the job's family for its kernel, and name its entry symbol after the artifact."""
    family = importlib.import_module(f"oxide_tile.families.{job.family}")
    definition = getattr(family, job.kernel)(**job.variant, **job.schedule)
    symbol = job.name.replace(".", "_")
    return replace(definition, function=definition.function.with_attr("global_symbol", symbol))


def write(artifact: Artifact, output: Path) -> bool:
    """Write the manifest and the compressed cubin; whether either differed from what was there."""
    name = artifact.job.name
    compressed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(artifact.cubin)
    wrote_cubin = put(output / f"{name}.cubin.zst", compressed)
    return put(output / f"{name}.json", encode(artifact.manifest)) or wrote_cubin


def put(path: Path, data: bytes) -> bool:
    """Write `data` unless the file already holds it; whether it was written. A reader never sees half a file."""
    if path.exists() and path.read_bytes() == data:
        return False
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
    return True


def remove_stale(output: Path, names: set[str]) -> None:
    """Delete artifacts that the profile no longer names."""
    for path in output.iterdir():
        name = path.name.removesuffix(".json").removesuffix(".cubin.zst")
        if name not in names and path.name != INDEX:
            path.unlink()


def read_index(output: Path) -> dict[str, object]:
    """The index written last, or nothing."""
    path = output / INDEX
    return json.loads(path.read_text()) if path.exists() else {}


def builder_source(profile: Profile, profile_name: str) -> dict[str, object]:
    """The files, beside the kernels', that decide manifests and index."""
    files = sources.builder_files(profile_name, {job.family for job in profile.jobs})
    return {"files": list(files), "sha256": sources.hash_files(files)}


def index(profile: Profile, profile_name: str, output: Path) -> dict[str, object]:
    """The profile's list of artifacts with the hash of each manifest, and its selection rules."""
    texts = {name: (output / f"{name}.json").read_bytes() for name in sorted(job.name for job in profile.jobs)}
    check_rules(profile.rules, [json.loads(text) for text in texts.values()])
    return {
        "schema": SCHEMA,
        "architecture": profile.architecture,
        "source": builder_source(profile, profile_name),
        "artifacts": {name: sources.sha256(text) for name, text in texts.items()},
        "selection": [
            {
                "contract": rule.contract,
                "properties": dict(rule.properties),
                "when": {name: {"min": low, "max": high} for name, (low, high) in rule.when.items()},
                "choice": rule.choice.json(),
            }
            for rule in profile.rules
        ],
    }


def check_rules(rules: Iterable[Rule], manifests: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a rule for an algorithm that nothing it is for has, or by a dimension that is not the artifact's."""
    for rule in rules:
        built = [found for found in manifests if rule.is_of(found["contract"], found["properties"])]
        for algorithm, cost in rule.choice.algorithms().items():
            named = [found for found in built if found["algorithm"] == algorithm]
            if not named:
                raise ProfileError(f"a rule of {rule.contract} names {algorithm}, which no build that it is for has")
            for found in named if cost else ():
                unknown = sorted(cost.names() - set(found["dimensions"]))
                if unknown:
                    raise ProfileError(f"the cost of {algorithm} is by {unknown[0]}, which {found['name']} lacks")
