"""Writes small tokenizer directories in the ways that published models are configured, and to expected.json
what transformers 4.57.1 makes of each.

Usage: pip install transformers==4.57.1 && python generate.py
"""

import json
import pathlib
import shutil

from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "",
    "hello world",
    "<s>hi</s>",
    "a <end>  b",
    "  <keep> c<new> d<new2>",
    "<role>x <pad>",
    "café 🙂",
    "[INST] the he [/INST]",
]


def added(id, content, special=True, **more):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return token | {"normalized": not special, "special": special} | more


def byte_level(add_prefix_space=False):
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": True,
    }


def byte_level_model():
    vocab = ["<s>", "</s>", *sorted(bytes_to_unicode().values()), "he", "the", "Ġw"]
    model = {"type": "BPE", "vocab": {piece: id for id, piece in enumerate(vocab)}, "ignore_merges": False}
    return model | {"merges": [["h", "e"], ["t", "he"], ["Ġ", "w"]]}


def metaspace_model():
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = ["<unk>", "<s>", "</s>", *fallback, *"▁helowrdti", "he", "▁w", "▁h"]
    model = {"type": "BPE", "vocab": {piece: id for id, piece in enumerate(vocab)}, "unk_token": "<unk>"}
    return model | {"fuse_unk": True, "byte_fallback": True, "merges": [["h", "e"], ["▁", "w"], ["▁", "h"]]}


def bos_processor(id):
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [id], "tokens": ["<s>"]}},
    }


def tokenizer(model, pre_tokenizer, decoder, added_tokens, post_processor=None, truncation=None):
    return {
        "version": "1.0",
        "truncation": truncation,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


BYTES = byte_level_model()
ENDS = [added(0, "<s>"), added(1, "</s>")]
ROLES = {"bos_token": "<s>", "eos_token": "</s>"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}

# Name: tokenizer.json, tokenizer_config.json, special_tokens_map.json.
DIRECTORIES = {
    "llama class adds a bos": (
        tokenizer(BYTES, byte_level(), byte_level(), ENDS),
        {"tokenizer_class": "LlamaTokenizerFast", **ROLES},
        None,
    ),
    "llama class told to add an eos only": (
        tokenizer(BYTES, byte_level(), byte_level(), ENDS, bos_processor(0)),
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True, **ROLES},
        None,
    ),
    "other class keeps its post-processor and ignores truncation": (
        tokenizer(
            BYTES,
            {"type": "Sequence", "pretokenizers": [byte_level()]},
            byte_level(),
            ENDS,
            bos_processor(0),
            {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        ),
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, **ROLES},
        None,
    ),
    "config adds tokens and changes them": (
        tokenizer(
            BYTES,
            byte_level(),
            byte_level(),
            [*ENDS, added(261, "<end>", special=False), added(262, "<keep>")],
        ),
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": {
                "content": "<s>",
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "__type": "AddedToken",
            },
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "added_tokens_decoder": {
                "261": {
                    "content": "<end>",
                    "special": True,
                    "rstrip": True,
                    "lstrip": True,
                    "normalized": False,
                    "single_word": False,
                },
                "264": {
                    "content": "<new2>",
                    "special": False,
                    "rstrip": False,
                    "lstrip": False,
                    "normalized": True,
                    "single_word": False,
                },
                "263": {
                    "content": "<new>",
                    "special": True,
                    "rstrip": False,
                    "lstrip": True,
                    "normalized": False,
                    "single_word": False,
                },
            },
            "additional_special_tokens": ["<role>"],
        },
        None,
    ),
    "roles only in the special tokens map": (
        tokenizer(BYTES, byte_level(), byte_level(), ENDS, bos_processor(0)),
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {**ROLES, "additional_special_tokens": ["<keep>"]},
    ),
    "prefix space is taken from the config": (
        tokenizer(BYTES, byte_level(add_prefix_space=True), byte_level(), ENDS),
        {"tokenizer_class": "PreTrainedTokenizerFast", **ROLES},
        None,
    ),
    "prefix space asked for": (
        tokenizer(BYTES, byte_level(), byte_level(), ENDS),
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True, **ROLES},
        None,
    ),
    "metaspace before the first word only": (
        tokenizer(
            metaspace_model(),
            METASPACE,
            LLAMA_DECODER,
            [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        ),
        {"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", **ROLES},
        None,
    ),
}


def main():
    expected = []
    for name, files in DIRECTORIES.items():
        directory = HERE / name.replace(" ", "-")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
        for file, content in zip(names, files, strict=True):
            if content is not None:
                (directory / file).write_text(json.dumps(content, ensure_ascii=False) + "\n")
        loaded = AutoTokenizer.from_pretrained(directory)
        cases = []
        for text in TEXTS:
            ids = loaded.encode(text)
            case = {"text": text, "ids": ids, "plain_ids": loaded.encode(text, add_special_tokens=False)}
            case["decoded"] = loaded.decode(ids)
            case["decoded_without_special"] = loaded.decode(ids, skip_special_tokens=True)
            cases.append(case)
        roles = {"bos_token": loaded.bos_token_id, "eos_token": loaded.eos_token_id}
        expected.append({"directory": directory.name, **roles, "cases": cases})
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
