"""Operands of products of a few rows with a norm spread over them, and what PyTorch makes of them in float32."""

from collections.abc import Mapping

import torch

from device_check.artifact import Artifact
from device_check.cases import EPSILON, Case, pages_of, randint, randn, rotate
from device_check.shapes import PAGE_SIZE, Shape

# Elements whose squares are one sum.
SQUARES = 8


def weighted(artifact: Artifact, shape: Shape) -> Case:
    """The residual stream after a product, weighted for the next norm, and the sums of its squares."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    tensors = {"input": randn(m, k), "weight": randn(n, k, scale=k**-0.5)}
    tensors |= {"residual": randn(m, n, dtype=torch.float32), "norm_weight": randn(n)}
    output = tensors["input"].float() @ tensors["weight"].float().t() + tensors["residual"]
    expected = {"output": output, "weighted": output * tensors["norm_weight"].float(), "squares": squares_of(output)}
    return Case(tensors, expected)


def swiglu(artifact: Artifact, shape: Shape) -> Case:
    """A gated product of a weighted input."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    tensors = {**stream(m, k), "weight": randn(2 * n, k, scale=k**-0.5)}
    out = product(tensors)
    return Case(tensors, {"output": torch.nn.functional.silu(out[:, :n]) * out[:, n:]}, {"epsilon": EPSILON})


def scaled(artifact: Artifact, shape: Shape) -> Case:
    """A product of a weighted input."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    tensors = {**stream(m, k), "weight": randn(n, k, scale=k**-0.5)}
    return Case(tensors, {"output": product(tensors)}, {"epsilon": EPSILON})


def projected(artifact: Artifact, shape: Shape) -> Case:
    """Heads of one token of every sequence, projected, turned and appended."""
    heads, kv_heads, dim, k = (shape[name] for name in ("num_q_heads", "num_kv_heads", "head_dim", "hidden_size"))
    batch, capacity = shape["batch"], min(shape["max_pages"] * PAGE_SIZE, shape["max_positions"])
    rows = (heads + 2 * kv_heads) * dim
    angles = torch.rand(shape["max_positions"], dim // 2, device="cuda") * 6.28
    plain = "squares" not in artifact.operands
    tensors = {
        **({"input": randn(batch, k)} if plain else stream(batch, k)),
        "weight": randn(rows, k, scale=k**-0.5),
        "bias": randn(rows),
        "positions": randint(0, capacity, (batch,)),
        "block_table": pages_of(batch, shape["max_pages"], shape["num_pages"]),
        "rotations": torch.stack((angles.cos(), angles.sin()), -1),
        "k_pages": randn(shape["num_pages"], kv_heads, PAGE_SIZE, dim),
        "v_pages": randn(shape["num_pages"], kv_heads, PAGE_SIZE, dim),
    }
    out = product(tensors) + (tensors["bias"].float() if artifact.variant["bias"] == "present" else 0.0)
    q, new_keys, new_values = out.view(batch, -1, dim).split((heads, kv_heads, kv_heads), 1)
    positions = tensors["positions"].long()
    turn = tensors["rotations"][positions][:, None]
    page = tensors["block_table"][torch.arange(batch, device="cuda"), positions // PAGE_SIZE].long()
    k_pages, v_pages = tensors["k_pages"].clone(), tensors["v_pages"].clone()
    k_pages[page, :, positions % PAGE_SIZE] = rotate(new_keys, turn).bfloat16()
    v_pages[page, :, positions % PAGE_SIZE] = new_values.bfloat16()
    return Case(
        {name: tensor for name, tensor in tensors.items() if name in artifact.operands},
        {"q_out": rotate(q, turn), "k_pages": k_pages, "v_pages": v_pages},
        {} if plain else {"epsilon": EPSILON},
    )


def stream(rows: int, k: int) -> dict[str, torch.Tensor]:
    """A residual stream, weighted, and the sums of its squares; rows of different sizes."""
    x = randn(rows, k, dtype=torch.float32) * (1 + torch.arange(rows, device="cuda")[:, None] % 5)
    return {"input": (x * randn(k).float()).bfloat16(), "squares": squares_of(x)}


def squares_of(x: torch.Tensor) -> torch.Tensor:
    """Sums of the squares of eight elements each."""
    return x.square().unflatten(-1, (-1, SQUARES)).sum(-1)


def product(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The input, over its root mean square if it comes with squares, times the weight."""
    out = tensors["input"].float() @ tensors["weight"].float().t()
    if "squares" not in tensors:
        return out
    mean = tensors["squares"].sum(-1, keepdim=True) / tensors["input"].shape[-1]
    return out * torch.rsqrt(mean + EPSILON)
