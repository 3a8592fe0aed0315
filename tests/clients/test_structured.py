"""Answers held to a format, checked with an independent validator (the `jsonschema` package)."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field
from serving import DEVICE, NAME
from structured_schemas import KEPT, REFUSED, closed, generated

ASK = [{"role": "user", "content": "Describe Paris as JSON."}]
# Far above what a model is good for, so that only the grammar keeps the answer in form.
WILD = {"model": NAME, "messages": ASK, "temperature": 1.5, "max_tokens": 150}
GENERATED = 200
AT_ONCE = 8


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern="^[A-Z][a-z]{1,11}$")
    country: Literal["France", "Italy"]
    population: int = Field(ge=0, le=50_000_000)
    rivers: list[Literal["Seine", "Tiber"]] = Field(max_length=2)


def json_schema(schema: dict, **more: object) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


def check(schema: dict, text: str) -> None:
    value = json.loads(text)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)


def checked(client: OpenAI, schema: dict, seed: int) -> bool:
    """Whether an answer was complete; then it is valid."""
    reply = client.chat.completions.create(**WILD, response_format=json_schema(schema), seed=seed)
    choice = reply.choices[0]
    if choice.finish_reason == "length":
        assert reply.usage.completion_tokens == WILD["max_tokens"]
        return False
    assert choice.finish_reason == "stop"
    check(schema, choice.message.content)
    return True


def test_every_schema_is_kept_at_a_high_temperature(client: OpenAI) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = {name: pool.submit(checked, client, schema, 1) for name, schema in KEPT.items()}
        complete = [name for name, job in jobs.items() if job.result()]
    assert len(complete) > 0.8 * len(KEPT), f"cut off: {set(KEPT) - set(complete)}"


def test_generated_schemas_are_kept_at_a_high_temperature(client: OpenAI) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(checked, client, generated(seed), seed) for seed in range(GENERATED)]
        complete = sum(job.result() for job in jobs)
    assert complete > 0.8 * GENERATED, f"{complete} of {GENERATED} were not cut off"


@pytest.mark.parametrize(("schema", "keyword", "place"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name_and_place(
    client: OpenAI, schema: dict, keyword: str, place: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**WILD, response_format=json_schema(schema))
    assert caught.value.param == "response_format.json_schema.schema"
    assert f"'{keyword}'" in caught.value.message and f"at {place}" in caught.value.message


def test_parse_gives_the_object_of_a_class(client: OpenAI) -> None:
    reply = client.chat.completions.parse(**WILD, response_format=City, seed=3)
    assert isinstance(reply.choices[0].message.parsed, City)


def test_a_stream_is_parsed_to_the_object_of_a_class(client: OpenAI) -> None:
    with client.chat.completions.stream(**WILD, response_format=City, seed=4) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)


def test_several_choices_of_one_seed_are_kept_and_reproduced(client: OpenAI) -> None:
    request = WILD | {"response_format": json_schema(City.model_json_schema(), strict=True), "seed": 7, "n": 2}
    first, again = (client.chat.completions.create(**request) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    for text in texts:
        City.model_validate_json(text)
    assert texts[0] != texts[1]
    again_texts = [choice.message.content for choice in again.choices]
    chunks = client.chat.completions.create(**request, stream=True)
    streamed = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    for text in (*again_texts, *streamed):
        City.model_validate_json(text)
    # A GPU's fastest plan promises the same text in the same company only, which three requests need not have.
    if DEVICE == "cpu":
        assert again_texts == texts
        assert streamed == texts


def test_any_json_object(client: OpenAI) -> None:
    for seed in range(4):
        reply = client.chat.completions.create(**WILD, response_format={"type": "json_object"}, seed=seed)
        choice = reply.choices[0]
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_a_greedy_answer_is_sensible(client: OpenAI) -> None:
    """The grammar leaves the model what it wants to say."""
    schema = closed(city={"enum": ["Paris", "Rome", "Oslo"]})
    messages = [{"role": "user", "content": "What is the capital of France? Answer as JSON."}]
    reply = client.chat.completions.create(
        model=NAME, messages=messages, temperature=0, max_tokens=40, response_format=json_schema(schema)
    )
    assert json.loads(reply.choices[0].message.content) == {"city": "Paris"}


def test_a_stop_string_ends_an_answer_early(client: OpenAI) -> None:
    reply = client.chat.completions.create(**WILD, response_format=json_schema(City.model_json_schema()), stop="name")
    choice = reply.choices[0]
    assert (choice.finish_reason, choice.model_extra["stop_reason"]) == ("stop", "name")
    assert choice.message.content.strip() == '{"' or choice.message.content.endswith('"')


GBNF = """
# A sum of two numbers.
root ::= term " + " term
term ::= [1-9] [0-9]? | "x"
"""


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": r"\w{1,10}@example\.(com|org)"}, r"\w{1,10}@example\.(com|org)"),
        ({"choice": ["positive", "negative"]}, "positive|negative"),
        ({"grammar": 'start: NUMBER " + " NUMBER\nNUMBER: /[0-9]{1,3}/'}, r"\d{1,3} \+ \d{1,3}"),
        ({"grammar": GBNF}, r"([1-9][0-9]?|x) \+ ([1-9][0-9]?|x)"),
    ],
)
def test_other_forms_are_kept_in_chats_and_completions(client: OpenAI, outputs: dict, pattern: str) -> None:
    for seed in range(3):
        extra = {"structured_outputs": outputs}
        chat = client.chat.completions.create(**WILD, extra_body=extra, seed=seed).choices[0]
        completion = client.completions.create(
            model=NAME, prompt="Answer:", temperature=1.5, max_tokens=80, extra_body=extra, seed=seed
        ).choices[0]
        for text, finish in [(chat.message.content, chat.finish_reason), (completion.text, completion.finish_reason)]:
            assert finish == "stop"
            assert re.fullmatch(pattern, text), text


def test_guided_and_free_answers_run_together(client: OpenAI) -> None:
    def free(seed: int) -> int:
        extra = {"ignore_eos": True}
        request = WILD | {"max_tokens": 40, "seed": seed, "extra_body": extra}
        return client.chat.completions.create(**request).usage.completion_tokens

    schema = City.model_json_schema()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        guided = [pool.submit(checked, client, schema, seed) for seed in range(4)]
        others = [pool.submit(free, seed) for seed in range(4)]
        assert all(job.result() for job in guided)
        assert [job.result() for job in others] == [40] * 4
