"""Trains a small SentencePiece model on this project's comments and writes its vocabulary, and what it gives
for some texts, to expected.json. The comments change, so a new run gives another vocabulary.

Usage: pip install sentencepiece==0.2.3 && python generate.py
"""

import io
import json
import pathlib

import sentencepiece

TEXTS = [
    "",
    "a",
    " ",
    "  ",
    "Hello, world!",
    " leading and trailing ",
    "The quick brown fox jumps over the lazy dog.",
    "double  spaces   here",
    "line one\nline two\n\n\tindented",
    "日本語のテキスト",
    "emoji 🙂👨‍👩‍👧 done",
    "1234567890 3.14",
    "snake_case = camelCase(x) + [1, 2];",
    "naïve café Zürich",
    "ﬁ ligature ½",
    "\u00a0nbsp",
    "a\u0000b",
    "the the the theater",
    "<0x41> is text",
    "under▁score",
    "</s> is text here",
]


def comments():
    root = pathlib.Path(__file__).parents[4]
    for path in sorted(root.glob("crates/*/src/**/*.rs")):
        for line in path.read_text().splitlines():
            if line.strip().startswith("//"):
                yield line.strip()


def token_type(model, id):
    """The value of tokenizer.ggml.token_type."""
    if model.is_unknown(id):
        return 2
    if model.is_control(id):
        return 3
    return 6 if model.is_byte(id) else 1


def main():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=comments(),
        model_writer=written,
        model_type="bpe",
        vocab_size=700,
        # As Llama 2 was trained.
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.995,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = range(model.get_piece_size())
    expected = {
        "pieces": [model.id_to_piece(id) for id in ids],
        "scores": [model.get_score(id) for id in ids],
        "types": [token_type(model, id) for id in ids],
        "unk": model.unk_id(),
        "bos": model.bos_id(),
        "eos": model.eos_id(),
        "cases": [
            {"text": text, "ids": model.encode(text), "decoded": model.decode(model.encode(text))} for text in TEXTS
        ],
    }
    path = pathlib.Path(__file__).with_name("expected.json")
    path.write_text(json.dumps(expected, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
