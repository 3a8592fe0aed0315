#!/usr/bin/env python3
"""Makes a model, prompts, and the logits of transformers in float32 and in bfloat16: what `compare.py` judges ours by.

    reference.py --profile qwen2.5-1.5b --out /dev/shm/parity

Writes into the folder: model/ (config.json and safetensors), cases.json (prompts and continuations), float32.bin and
bf16.bin (raw little-endian f32 logits [cases, new_tokens, vocab_size], teacher-forced), reference.json (what was run).
"""

import argparse
import json
import math
import platform
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

PROFILES = Path(__file__).parent / "profiles"
# Models that are checked in two layers at full width; the others whole.
TWO_LAYERS = {"qwen2.5-7b", "qwen3-4b", "llama-3.1-8b", "mistral-7b"}
# Lengths at the borders of pages and tiles; the other prompts have random ones.
LENGTHS = [1, 2, 63, 64, 65, 127, 128, 129, 2000]
# Prompts that are continued together.
GROUP = 16


def main() -> int:
    args = arguments()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.time()

    model_dir = args.model or make_model(args)
    config = json.loads((model_dir / "config.json").read_text())
    float32 = load(model_dir, torch.float32, "eager", args.device)
    cases = oracle_cases(args.oracle) if args.oracle else make_cases(args, float32, config["vocab_size"])
    (args.out / "cases.json").write_text(json.dumps({"cases": cases}) + "\n")
    say(args, started, f"{len(cases)} cases, {sum(len(case['prompt']) for case in cases)} prompt tokens")

    best = write_logits(float32, cases, args.out / "float32.bin", args.device)
    del float32
    if args.oracle:
        check_oracle(args.oracle, best)
    say(args, started, "float32 logits are written")
    bf16 = load(model_dir, torch.bfloat16, "sdpa", args.device)
    write_logits(bf16, cases, args.out / "bf16.bin", args.device)
    say(args, started, "bfloat16 logits are written")

    reference = {
        "profile": args.profile,
        "model": str(model_dir),
        "layers": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "new_tokens": len(cases[0]["continuation"]),
        "seed": args.seed,
        "oracle": args.oracle and str(args.oracle),
        "command": sys.argv,
        "float32": "eager attention, TF32 off, weights as they are stored",
        "bf16": "sdpa attention",
        "device": device_facts(args.device),
        "versions": versions(),
        "seconds": round(time.time() - started, 1),
    }
    (args.out / "reference.json").write_text(json.dumps(reference, indent=2) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--profile", choices=sorted(path.name for path in PROFILES.iterdir()))
    source.add_argument("--model", type=Path, help="a directory with config.json and safetensors")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, help="layers of the profile's model")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=JSON", help="change the profile's config")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-prompt", type=int, default=max(LENGTHS))
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--oracle", type=Path, help="take prompts and continuations from this file of oracle cases")
    return parser.parse_args()


def make_model(args: argparse.Namespace) -> Path:
    """Random weights in bfloat16, saved as a checkpoint."""
    model_dir = args.out / "model"
    shutil.rmtree(model_dir, ignore_errors=True)
    model_dir.mkdir()
    config = json.loads((PROFILES / args.profile / "config.json").read_text())
    if args.profile in TWO_LAYERS:
        config["num_hidden_layers"] = 2
    if args.layers:
        config["num_hidden_layers"] = args.layers
    for change in args.set:
        name, value = change.split("=", 1)
        config[name] = json.loads(value)
    (model_dir / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir), dtype=torch.bfloat16)
    initialize(model, args.seed, args.device)
    model.save_pretrained(model_dir)
    # As the profile has it, not as transformers writes it: the engine reads the file that users have.
    (model_dir / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return model_dir


def initialize(model: torch.nn.Module, seed: int, device: str) -> None:
    """Weights that make every part of the model matter and the logits well spread.

    Logits and attention scores get standard deviations of 3 and 1. With sharper scores a deep random model is chaotic:
    with twice the gain of q_proj and k_proj, what bfloat16 changes grows over 28 layers to a third of the logits. As it
    is, most margins are over what bfloat16 changes, and one other token at the start changes everything after it. The
    two matrices that add to the residual stream outweigh the embedding, so that a tied head does not repeat the last
    token. Norms differ from 1, and biases from 0, so that one that is left out shows.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(shape: torch.Size, mean: float, std: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32) * std + mean

    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            part = name.rsplit(".", 2)[-2]
            if weight.ndim == 1:
                mean, std = (0.0, 0.1) if name.endswith("bias") else (1.0, 0.1)
            else:
                gains = {"embed_tokens": 3, "lm_head": 3, "o_proj": 2, "down_proj": 2}
                mean, std = 0.0, gains.get(part, 1) / math.sqrt(weight.shape[1])
            weight.copy_(normal(weight.shape, mean, std))


def load(model_dir: Path, dtype: torch.dtype, attention: str, device: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation=attention)
    # Angles in less than float32 would be another model.
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    return model.to(device).eval()


def make_cases(args: argparse.Namespace, model: torch.nn.Module, vocab_size: int) -> list[dict]:
    """Random prompts of many lengths, each with a greedy continuation.

    The continuation is computed in padded groups, to save time. A near tie may fall differently there than in the
    logits that are compared; that does not matter, since every implementation is given the same tokens.
    """
    rng = random.Random(args.seed)
    lengths = [length for length in LENGTHS if length <= args.max_prompt][: args.prompts]
    while len(lengths) < args.prompts:
        lengths.append(round(math.exp(rng.uniform(0, math.log(args.max_prompt)))))
    prompts, seen = [], set()
    for length in lengths:
        prompt = [rng.randrange(vocab_size) for _ in range(length)]
        while tuple(prompt) in seen:
            prompt = [rng.randrange(vocab_size) for _ in range(length)]
        seen.add(tuple(prompt))
        prompts.append(prompt)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    continuations = {}
    for first in range(0, len(order), GROUP):
        group = order[first : first + GROUP]
        found = greedy(model, [prompts[i] for i in group], args.new_tokens, args.device)
        continuations.update(zip(group, found, strict=True))
    return [
        {"id": f"random_{i}_{len(prompt)}", "prompt": prompt, "continuation": continuations[i]}
        for i, prompt in enumerate(prompts)
    ]


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompts: list[list[int]], new_tokens: int, device: str) -> list[list[int]]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    config = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, pad_token_id=0, eos_token_id=None)
    model.generation_config = config
    found = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:]
    assert found.shape == (len(prompts), new_tokens), found.shape
    return found.tolist()


def oracle_cases(path: Path) -> list[dict]:
    cases = json.loads(path.read_text())["cases"]
    return [{"id": case["id"], "prompt": case["prompt_ids"], "continuation": case["new_ids"]} for case in cases]


def check_oracle(path: Path, best: list[list[int]]) -> None:
    """The float32 model must be the oracle's: its best token is the oracle's at every step."""
    for case, found in zip(json.loads(path.read_text())["cases"], best, strict=True):
        wrong = [i for i, (a, b) in enumerate(zip(case["new_ids"], found, strict=True)) if a != b]
        if wrong:
            margins = {i: case["margins"][i] for i in wrong}
            sys.exit(f"{case['id']}: float32 differs from the oracle at these steps, with these margins: {margins}")


@torch.inference_mode()
def write_logits(model: torch.nn.Module, cases: list[dict], path: Path, device: str) -> list[list[int]]:
    """Writes the logits at the positions of the continuation; returns the best tokens."""
    best = []
    with path.open("wb") as file:
        for case in cases:
            # The last token of the continuation is an answer only.
            tokens = torch.tensor([case["prompt"] + case["continuation"][:-1]], device=device)
            count = len(case["continuation"])
            logits = model(input_ids=tokens, use_cache=False, logits_to_keep=count).logits[0].float()
            assert logits.shape[0] == count and logits.isfinite().all(), case["id"]
            best.append(logits.argmax(-1).tolist())
            logits.cpu().numpy().tofile(file)
    return best


def device_facts(device: str) -> dict:
    if not device.startswith("cuda"):
        return {"name": platform.processor() or platform.machine()}
    facts = torch.cuda.get_device_properties(device)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = None
    return {
        "name": facts.name,
        "compute_capability": f"{facts.major}.{facts.minor}",
        "total_memory": facts.total_memory,
        "driver": driver,
    }


def versions() -> dict:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
    }


def say(args: argparse.Namespace, started: float, what: str) -> None:
    memory = ""
    if args.device.startswith("cuda"):
        memory = f", at most {torch.cuda.max_memory_allocated(args.device) / 1e9:.1f} GB of the device"
    print(f"{time.time() - started:6.1f} s  {what}{memory}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
