"""The shape matrix: which dimensions each kernel is checked and timed with. No GPU and no PyTorch here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from device_check.artifact import Artifact

Shape = dict[str, int]
PAGE_SIZE = 64


@dataclass(frozen=True)
class Model:
    """Sizes of a model's layers, for timing."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    qkv_epilogue: str = "bias"

    @property
    def projections(self) -> Mapping[str, tuple[str, int, int]]:
        """Matrix products of a layer: the epilogue, n and k."""
        qkv = (self.num_q_heads + 2 * self.num_kv_heads) * self.head_dim
        return {
            "qkv": (self.qkv_epilogue, qkv, self.hidden_size),
            "o": ("residual", self.hidden_size, self.num_q_heads * self.head_dim),
            "gate_up": ("swiglu", self.intermediate_size, self.hidden_size),
            "down": ("residual", self.hidden_size, self.intermediate_size),
            "lm_head": ("none", self.vocab_size, self.hidden_size),
        }


QWEN_0_5B = Model("qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151_936)
QWEN_1_5B = Model("qwen2.5-1.5b", 1536, 8960, 12, 2, 128, 151_936)
QWEN_7B = Model("qwen2.5-7b", 3584, 18_944, 28, 4, 128, 152_064)
LLAMA_1B = Model("llama-3.2-1b", 2048, 8192, 32, 8, 64, 128_256, "none")
LLAMA_8B = Model("llama-3.1-8b", 4096, 14_336, 32, 8, 128, 128_256, "none")


def correctness(artifact: Artifact) -> Iterator[Shape]:
    """Shapes to check an artifact with: odd sizes, page boundaries, one row and many."""
    yield from {
        "embedding.gather": gather,
        "embedding.gather_weighted": gather,
        "normalization.rms_norm": rows_of_norm,
        "normalization.add_rms_norm": rows_of_norm,
        "gemm.dense_small": products,
        "prefill_gemm.dense": products,
        "joint_gemm.dense": products,
        "clustered_gemm.dense_clustered": products,
        "streamed_gemm.dense_streamed": streamed_products,
        "chained_gemm.weighted": products,
        "chained_gemm.scaled_swiglu": scaled_products,
        "chained_gemm.scaled_projected": scaled_projections,
        "projected.projected": scaled_projections,
        "chained_tiles.scaled_swiglu": scaled_products,
        "chained_gemv.weighted": single_products,
        "chained_gemv.scaled": single_products,
        "chained_gemv.scaled_swiglu": single_products,
        "chained_gemv.scaled_projected": single_projections,
        "kv_cache.rope_append": appends,
        "paged_decode.paged_decode": decodes,
        "paged_prefill.paged_prefill": prefills,
        "single_decode.single_decode": single_decodes,
        "ragged_prefill.ragged_prefill": ragged_prefills,
        "kv_cache.paged_append": appends,
        "position.rope": ropes,
        "activation.swiglu": gates,
        "sampling.argmax": choices,
        "greedy_head.candidates": candidates,
        "greedy_head.pick": picks,
        "sample.sample": samples,
        "log_probabilities.log_probabilities": log_probabilities,
        "history.record_history": histories,
    }[artifact.kernel](artifact)


def gather(artifact: Artifact) -> Iterator[Shape]:
    """Tokens of a batch, and hidden sizes around a block's width."""
    feedback = {"max_sequences": 37} if "slots" in artifact.operands else {}
    for tokens, vocab_size, hidden_size in ((1, 7, 8), (5, 1000, 896), (256, 49_152, 576), (33, 3001, 8200)):
        yield {"tokens": tokens, "vocab_size": vocab_size, "hidden_size": hidden_size, **feedback}


def rows_of_norm(artifact: Artifact) -> Iterator[Shape]:
    """The smallest and the largest row of the domain, one inside, one and many rows."""
    domain = artifact.manifest["dimensions"]["hidden_size"]
    largest, step = domain["max"], domain["multiple_of"]
    for tokens, heads, hidden_size in (
        (1, 1, largest),
        (37, 1, largest - step),
        (3, 5, largest // 2 // step * step + step),
        (256, 1, step),
    ):
        yield {"tokens": tokens, "heads": heads, "hidden_size": hidden_size}


def products(artifact: Artifact) -> Iterator[Shape]:
    """Rows around the tile, n and k that no tile divides, and a k of one step."""
    tile = artifact.schedule["block_m"]
    for m, n, k in (
        (1, 1544, 1544),
        (tile - 1, 2048, 1536),
        (tile, 8, 8),
        (tile + 1, 136, 4104),
        (2 * tile + 3, 968, 72),
        # More tiles than blocks that stay.
        (17 * tile + 5, 2056, 136),
    ):
        yield {"m": m, "n": n, "k": k}


def streamed_products(artifact: Artifact) -> Iterator[Shape]:
    """As `products`, and several tiles for each block, with one span of k for each warp and with several."""
    yield from products(artifact)
    for n, k in ((17_920, 1536), (9000, 4104), (6472, 200)):
        yield {"m": artifact.schedule["block_m"] - 1, "n": n, "k": k}


def scaled_products(artifact: Artifact) -> Iterator[Shape]:
    """Rows around the tile, an n that no tile divides, and k of a step and of many, more than are loaded ahead."""
    # Those of `chained_tiles` have 64 rows.
    tile = artifact.schedule.get("block_m", 64)
    for m, n, k in (
        (1, 1544, 1536),
        (tile - 1, 2048, 1536),
        (tile, 8, 32),
        (tile + 1, 136, 4128),
        (2 * tile + 3, 968, 96),
    ):
        yield {"m": m, "n": n, "k": k}


def scaled_projections(artifact: Artifact) -> Iterator[Shape]:
    """Heads of several models, batches around the tile."""
    tile, head_dim = artifact.schedule["block_m"], artifact.variant["head_dim"]
    for batch, num_q_heads, num_kv_heads, hidden_size in (
        (1, 12, 2, 1536),
        (tile - 1, 28, 4, 3584),
        (tile, 9, 3, 576),
        (2 * tile + 3, 32, 8, 4096),
        (tile + 1, 1, 1, 32),
    ):
        shape = attention(head_dim, batch, 9, num_q_heads, num_kv_heads)
        yield {**shape, "tokens": batch, "rotary_dim": head_dim, "max_positions": 500, "hidden_size": hidden_size}


def single_products(artifact: Artifact) -> Iterator[Shape]:
    """The least k and n, and products of several models: of a span, of a part of one and of many, tiles to spare."""
    for n, k in ((8, 32), (1536, 1536), (136, 4128), (1000, 576), (1536, 8960), (200, 18_944)):
        yield {"m": 1, "n": n, "k": k}


def single_projections(artifact: Artifact) -> Iterator[Shape]:
    """Heads of several models."""
    head_dim = artifact.variant["head_dim"]
    for num_q_heads, num_kv_heads, hidden_size in ((12, 2, 1536), (28, 4, 3584), (9, 3, 576), (1, 1, 32), (3, 3, 8192)):
        shape = attention(head_dim, 1, 9, num_q_heads, num_kv_heads)
        yield {**shape, "tokens": 1, "rotary_dim": head_dim, "max_positions": 500, "hidden_size": hidden_size}


def appends(artifact: Artifact) -> Iterator[Shape]:
    """Decode batches and chunks; heads of several models."""
    head_dim = artifact.variant["head_dim"]
    for batch, tokens, num_q_heads, num_kv_heads in ((1, 1, 12, 2), (7, 7, 28, 4), (3, 201, 32, 8), (130, 300, 9, 3)):
        yield {
            "batch": batch,
            "tokens": tokens,
            "num_q_heads": num_q_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "rotary_dim": head_dim,
            "page_size": page_size_of(artifact),
            "max_pages": 700 // page_size_of(artifact) - 1,
            "num_pages": batch * (700 // page_size_of(artifact)) + 3,
            "max_positions": 700,
        }


def page_size_of(artifact: Artifact) -> int:
    """Tokens of a page."""
    return artifact.variant.get("page_size", PAGE_SIZE)


def ropes(artifact: Artifact) -> Iterator[Shape]:
    """Heads of several models."""
    head_dim = artifact.variant["head_dim"]
    for tokens, num_heads in ((1, 32), (37, 9), (300, 2)):
        shape = {"tokens": tokens, "num_heads": num_heads, "max_positions": 700}
        yield {**shape, "head_dim": head_dim, "rotary_dim": head_dim}


def gates(artifact: Artifact) -> Iterator[Shape]:
    """One row and many; a row of one load, and of more than a block has."""
    for rows, size in ((1, 8), (37, 8968), (300, 1536)):
        yield {"rows": rows, "size": size}


def decodes(artifact: Artifact) -> Iterator[Shape]:
    """Batches of 1 to 256 sequences, and a share of more than the 32 pages that a warp finds at once.

    Page boundaries come from the lengths that the check draws.
    """
    head_dim = artifact.variant["head_dim"]
    most = max(condition["domain"]["max"] for condition in artifact.manifest["conditions"])
    for batch, max_pages, num_q_heads, num_kv_heads, splits in (
        (1, 3, 12, 2, 2),
        (5, 15, 28, 4, 4),
        (9, 8, 32, 8, 16),
        (3, 70, 14, 2, 64),
        (2, 100, 12, 2, 2),
        (256, 4, 9, 3, 1),
        (2, 5, 16, 1, 3),
    ):
        if num_q_heads // num_kv_heads > most:
            continue
        shape = attention(head_dim, batch, max_pages, num_q_heads, num_kv_heads, page_size_of(artifact))
        yield {**shape, "splits": splits} if "splits" in artifact.manifest["dimensions"] else shape


def single_decodes(artifact: Artifact) -> Iterator[Shape]:
    """Keys around a tile, and more than the blocks of a cluster have tiles."""
    head_dim = artifact.variant["head_dim"]
    for kv_len, num_q_heads, num_kv_heads, splits in ((1, 12, 2, 2), (64, 28, 4, 7), (777, 32, 8, 3), (5000, 9, 3, 40)):
        heads = {"num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        shape = {"kv_len": kv_len, **heads}
        yield {**shape, "splits": splits} if "splits" in artifact.manifest["dimensions"] else shape


def ragged_prefills(artifact: Artifact) -> Iterator[Shape]:
    """As `prefills`; the check draws how many keys there are."""
    for shape in prefills(artifact):
        kept = ("batch", "num_q_heads", "num_kv_heads", "head_dim", "tokens")
        yield {**{name: shape[name] for name in kept}, "kv_tokens": shape["max_pages"] * PAGE_SIZE * shape["batch"]}


def prefills(artifact: Artifact) -> Iterator[Shape]:
    """Groups of 1 to 8 query heads; the check draws mixed batches of chunks, decode rows and empty sequences."""
    head_dim = artifact.variant["head_dim"]
    for batch, max_pages, num_q_heads, num_kv_heads, tokens in (
        (1, 3, 12, 2, 130),
        (9, 9, 28, 4, 900),
        (7, 5, 32, 8, 455),
        (3, 40, 14, 2, 5),
        (2, 6, 9, 3, 384),
        (5, 4, 8, 8, 400),
        (1, 8, 16, 2, 512),
        (300, 3, 64, 8, 700),
    ):
        pages = max_pages * PAGE_SIZE // page_size_of(artifact)
        yield {
            **attention(head_dim, batch, pages, num_q_heads, num_kv_heads, page_size_of(artifact)),
            "tokens": tokens,
        }


def attention(
    head_dim: int, batch: int, max_pages: int, num_q_heads: int, num_kv_heads: int, page_size: int = PAGE_SIZE
) -> Shape:
    """What both attention kernels over pages have."""
    return {
        "batch": batch,
        "max_pages": max_pages,
        "num_pages": batch * max_pages + 5,
        "num_q_heads": num_q_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "page_size": page_size,
    }


def choices(_artifact: Artifact) -> Iterator[Shape]:
    """Vocabularies around a chunk and of real models."""
    for rows, vocab_size in ((1, 151_936), (256, 49_152), (30, 4097), (5, 1), (2, 4096)):
        yield {"rows": rows, "vocab_size": vocab_size, "max_sequences": 300}


def candidates(artifact: Artifact) -> Iterator[Shape]:
    """Rows up to a tile's, vocabularies around one and of real models, a hidden size of one load and of many slices."""
    most, columns = artifact.schedule["block_m"], artifact.variant["tile_tokens"]
    for rows, vocab_size, hidden_size in (
        (1, 1, 8),
        (most - 1, columns, 72),
        (31, columns + 1, 1536),
        (most, 1000, 4104),
        (most // 2 + 1, 49_152, 576),
        (most, 151_936, 1536),
    ):
        yield {"rows": rows, "vocab_size": vocab_size, "hidden_size": hidden_size}


def picks(_artifact: Artifact) -> Iterator[Shape]:
    """One candidate, around a block's threads, and the tiles of real vocabularies."""
    for rows, candidates in ((1, 792), (256, 792), (30, 257), (5, 1), (21, 256)):
        yield {"rows": rows, "candidates": candidates, "max_sequences": 300}


def samples(_artifact: Artifact) -> Iterator[Shape]:
    """Vocabularies of one token, of a few, around a block's run, of real models; one row and many."""
    for rows, vocab_size in ((1, 151_936), (48, 1000), (5, 1), (256, 49_152), (24, 151_936), (3, 262_144), (64, 33)):
        yield {
            "rows": rows,
            "vocab_size": vocab_size,
            "max_sequences": rows + 7,
            "mask_rows": 5,
            "max_adjust": 40 * rows,
        }


def log_probabilities(_artifact: Artifact) -> Iterator[Shape]:
    """Vocabularies smaller than the list, and as for sampling."""
    for rows, vocab_size in ((1, 151_936), (48, 1000), (5, 1), (256, 49_152), (24, 151_936), (3, 262_144), (64, 33)):
        yield {"rows": rows, "vocab_size": vocab_size}


def histories(_artifact: Artifact) -> Iterator[Shape]:
    """Entries around a block's width, many of them for the same token."""
    for entries, max_sequences, vocab_size in ((1, 1, 1), (129, 3, 10), (4000, 7, 49_152)):
        yield {"entries": entries, "max_sequences": max_sequences, "vocab_size": vocab_size}


def dry_run(artifacts: list[Artifact]) -> int:
    """Resolve every launch of every shape, as the checks will; the number of shapes."""
    count = 0
    for artifact in artifacts:
        assert artifact.cubin[:4] == b"\x7fELF"
        for shape in correctness(artifact):
            artifact.check(shape)
            count += 1
    return count
