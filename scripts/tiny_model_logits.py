"""Computes testdata/tiny_models.json: float32 logits of small models by transformers, for oxide-infer-engine's tests.

Weights are a formula of their name and index (crates/oxide-infer-engine/src/testing/tiny_model.rs has the same one), so
that no weights are stored. Needs torch and transformers (the file says which made it):

    python scripts/tiny_model_logits.py testdata/tiny_models.json
"""

import json
import sys

import numpy as np
import torch
import transformers

BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "eos_token_id": 2,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
    "sliding_window": None,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

CASES = [
    ("llama", "LlamaForCausalLM", {}),
    ("llama tied", "LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("llama one KV head, wide heads", "LlamaForCausalLM", {"num_key_value_heads": 1, "head_dim": 32}),
    ("llama biases", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    ("llama llama3 rope", "LlamaForCausalLM", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    ("llama linear rope", "LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("mistral window", "MistralForCausalLM", {"sliding_window": 24}),
    ("qwen2", "Qwen2ForCausalLM", {"rope_theta": 1000000.0, "tie_word_embeddings": True}),
    ("qwen2 yarn", "Qwen2ForCausalLM", {"rope_scaling": YARN}),
    (
        "qwen2 window from layer 1",
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    ("qwen3", "Qwen3ForCausalLM", {"head_dim": 32, "rope_theta": 1000000.0}),
]

TOKENS = 90
POSITIONS = [0, 1, 40, 63, 64, 89]


def fnv1a64(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def splitmix64(state: np.ndarray) -> np.ndarray:
    z = state * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def values(name: str, shape: torch.Size) -> torch.Tensor:
    count = int(np.prod(shape))
    bits = splitmix64(np.arange(count, dtype=np.uint64) + np.uint64(fnv1a64(name))) >> np.uint64(40)
    u = bits.astype(np.float32) / np.float32(2**23) - np.float32(1)
    if name.endswith("bias"):
        u *= np.float32(0.5)
    elif len(shape) == 1:
        u = np.float32(1) + u * np.float32(0.25)
    elif name != "model.embed_tokens.weight":
        u *= np.float32(0.25)
    return torch.from_numpy(u.reshape(shape))


def logits(architecture: str, fields: dict, tokens: list[int]) -> torch.Tensor:
    raw = {**BASE, **fields, "architectures": [architecture]}
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**raw)
    config._attn_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    state = {
        name: values(name, tensor.shape)
        for name, tensor in model.state_dict().items()
        if not (name == "lm_head.weight" and raw["tie_word_embeddings"])
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def main() -> None:
    torch.set_num_threads(1)
    np.seterr(over="ignore")
    tokens = [int(token) for token in splitmix64(np.arange(TOKENS, dtype=np.uint64) + np.uint64(1)) % np.uint64(128)]
    cases = []
    for name, architecture, fields in CASES:
        rows = logits(architecture, fields, tokens)
        rows = {str(p): [float(f"{x:.8g}") for x in rows[p].tolist()] for p in POSITIONS}
        cases.append({"name": name, "architecture": architecture, "fields": fields, "logits": rows})
    made_by = f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager attention"
    with open(sys.argv[1], "w") as file:
        head = json.dumps({"made_by": made_by, "tokens": tokens}, separators=(",", ":"))
        file.write(head[:-1] + ',"cases":[\n')
        file.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]}\n")


main()
