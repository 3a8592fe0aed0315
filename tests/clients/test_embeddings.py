"""Embeddings through the official client, whose default is base64."""

import json
import math
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI
from serving import NAME, Server

# Hidden states of transformers in float32 over the same weights.
REFERENCE = json.loads((Path(__file__).parents[2] / "testdata/cases/smollm2_embeddings.json").read_text())


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.hypot(*a) / math.hypot(*b)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_are_those_of_transformers_and_have_length_one(client: OpenAI, pooling: str) -> None:
    inputs = [case["prompt_ids"] for case in REFERENCE["cases"]]
    result = client.embeddings.create(model=NAME, input=inputs, extra_body={"pooling": pooling})
    assert result.usage.prompt_tokens == sum(map(len, inputs))
    for item, case in zip(result.data, REFERENCE["cases"], strict=True):
        assert math.hypot(*item.embedding) == pytest.approx(1, abs=1e-5)
        assert cosine(item.embedding, case[pooling]) > 0.9999, case["case"]


def test_both_encodings_hold_the_same_numbers(client: OpenAI, server: Server) -> None:
    text = "The sky is blue."
    # The client asks for base64 and decodes it.
    decoded = client.embeddings.create(model=NAME, input=text).data[0].embedding
    plain = server.http.post("/v1/embeddings", json={"model": NAME, "input": text}).json()
    assert plain["data"][0]["embedding"] == pytest.approx(decoded, abs=1e-7)
    assert len(decoded) == 576


def test_an_empty_input_is_refused_by_its_place(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.embeddings.create(model=NAME, input=["a", ""])
    assert refused.value.param == "input[1]"
