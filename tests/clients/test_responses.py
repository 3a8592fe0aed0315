"""OpenAI's Responses API with the official client."""

import json

import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field
from serving import NAME

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
GREEDY = {"model": NAME, "input": QUESTION, "temperature": 0}


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str = Field(pattern="^[A-Z][a-z]{2,9}$")
    days: int = Field(ge=1, le=7)


def tool() -> dict:
    """A function in the flat form of this API."""
    function = pydantic_function_tool(GetWeather)["function"]
    return {"type": "function", **function}


ASK = {
    "model": NAME,
    "input": [{"role": "user", "content": "What is the weather in Paris?"}],
    "temperature": 1.5,
    "max_output_tokens": 300,
    "tools": [tool()],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


def test_a_question_is_answered(client: OpenAI) -> None:
    response = client.responses.create(**GREEDY)
    assert (response.output_text, response.status, response.model) == (ANSWER, "completed", NAME)
    # 37 prompt tokens and 8 answer tokens by the oracle, as in the same chat.
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (37, 8, 45)


def test_items_and_instructions_are_the_same_chat(client: OpenAI) -> None:
    system = "You answer with one word."
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    response = client.responses.create(**GREEDY | {"input": items}, instructions=system, max_output_tokens=60)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=60)
    assert response.output_text == chat.choices[0].message.content
    assert response.instructions == system


def test_a_stream_is_the_same_response_in_the_documented_order(client: OpenAI) -> None:
    events = list(client.responses.create(**GREEDY, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"} and len(kinds) > 10
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == events[-1].response.output_text == ANSWER


def test_the_clients_own_accumulation_of_a_stream(client: OpenAI) -> None:
    with client.responses.stream(**GREEDY) as stream:
        final = stream.get_final_response()
    assert final.output_text == ANSWER and final.usage.output_tokens == 8


def test_a_limit_makes_a_response_incomplete(client: OpenAI) -> None:
    response = client.responses.create(**GREEDY, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == "The capital of"


def test_forced_calls_are_valid_and_the_round_trip_is_answered(client: OpenAI) -> None:
    for seed in range(4):
        response = client.responses.create(**ASK, extra_body={"seed": seed})
        (call,) = response.output
        assert (call.type, call.name) == ("function_call", "GetWeather")
        GetWeather.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "clear"}'}
    history = [*ASK["input"], *response.output, result]
    final = client.responses.create(**ASK | {"input": history, "tool_choice": "none", "max_output_tokens": 40})
    assert final.output_text


def test_a_streamed_call_is_the_same(client: OpenAI) -> None:
    request = ASK | {"extra_body": {"seed": 3}}
    whole = client.responses.create(**request).output[0]
    with client.responses.stream(**request) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        streamed = stream.get_final_response().output[0]
    assert "".join(pieces) == streamed.arguments == whole.arguments and len(pieces) > 3
    GetWeather.model_validate(streamed.parsed_arguments)


def test_parse_gives_the_object_of_a_class(client: OpenAI) -> None:
    request = {"model": NAME, "input": QUESTION, "temperature": 1.5, "max_output_tokens": 200}
    for seed in range(3):
        response = client.responses.parse(**request, text_format=GetWeather, extra_body={"seed": seed})
        assert isinstance(response.output_parsed, GetWeather)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "it", "schema": schema, "strict": True}}
    response = client.responses.create(**request, text=text)
    Draft202012Validator(schema).validate(json.loads(response.output_text))


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 5}, "invalid_value", "temperature"),
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "unsupported_parameter", None),
    ],
)
def test_what_is_wrong_is_named(client: OpenAI, fields: dict, code: str, param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**GREEDY | fields)
    assert (caught.value.code, caught.value.param) == (code, param or "input[0].content[0].type")
