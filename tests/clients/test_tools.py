"""Tool calls with the official client, which puts streams together itself."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field
from serving import NAME, Server

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WILD = {"model": NAME, "messages": ASK, "temperature": 1.5, "max_tokens": 300}

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK | {"additionalProperties": False}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def check(call: object) -> None:
    """A call of one of the functions, with arguments that an independent validator accepts."""
    Draft202012Validator(SCHEMAS[call.function.name]).validate(json.loads(call.function.arguments))


def test_required_calls_are_valid_at_a_high_temperature(client: OpenAI) -> None:
    def one(seed: int) -> int:
        reply = client.chat.completions.create(**WILD, tools=TOOLS, tool_choice="required", seed=seed)
        choice = reply.choices[0]
        calls = choice.message.tool_calls
        if choice.finish_reason == "length":
            calls = calls[:-1]
        else:
            assert choice.finish_reason == "tool_calls" and calls
        for call in calls:
            check(call)
        assert choice.message.content is None
        return len(calls)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(one, range(8))) >= 8


def test_a_named_function_is_called(client: OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    reply = client.chat.completions.create(**WILD, tools=TOOLS, tool_choice=choice).choices[0]
    (call,) = reply.message.tool_calls
    assert call.function.name == "get_time" and reply.finish_reason == "stop"
    check(call)


def test_a_greedy_call_is_sensible(client: OpenAI) -> None:
    """The grammar leaves the model what it wants to say."""
    request = WILD | {"temperature": 0, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = client.chat.completions.create(**request).choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] == "Paris"


def test_a_stream_adds_up_to_the_same_calls_and_the_round_trip_is_answered(client: OpenAI) -> None:
    request = WILD | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": 3}
    whole = client.chat.completions.create(**request).choices[0]
    names: list[str] = []
    arguments = ""
    pieces = 0
    ids: set[str] = set()
    for chunk in client.chat.completions.create(**request, stream=True):
        delta = chunk.choices[0].delta
        assert not delta.content
        for piece in delta.tool_calls or []:
            assert piece.index == 0
            names += [piece.function.name] if piece.function.name else []
            ids |= {piece.id} if piece.id else set()
            arguments += piece.function.arguments or ""
            pieces += 1
    call = whole.message.tool_calls[0]
    assert (names, arguments) == ([call.function.name], call.function.arguments)
    assert pieces > 3 and len(ids) == 1, "the arguments come as they are made"

    answer = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
    history = [*ASK, whole.message.model_dump(exclude_none=True), answer]
    final = client.chat.completions.create(
        model=NAME, messages=history, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=40
    ).choices[0]
    assert final.message.content and final.message.tool_calls is None


def test_the_clients_own_accumulation_of_a_stream_has_valid_calls(client: OpenAI) -> None:
    class GetWeather(BaseModel):
        city: str = Field(pattern="^[A-Z][a-z]{2,9}$")
        days: int = Field(ge=1, le=7)

    tool = pydantic_function_tool(GetWeather)
    assert tool["function"]["strict"] is True
    request = WILD | {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    with client.chat.completions.stream(**request, seed=5) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert final.finish_reason == "tool_calls"
    assert isinstance(final.message.tool_calls[0].function.parsed_arguments, GetWeather)


def test_the_template_shows_tools_and_what_they_answered(client: OpenAI, server: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    tokens = server.http.post("/tokenize", json={"messages": messages, "tools": TOOLS}).json()["tokens"]
    prompt = server.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    for part in ['"name":"get_weather"', '{"name": "get_time", "arguments": {"zone":"UTC"}}', "noon"]:
        assert part in prompt, prompt


def test_auto_leaves_the_model_free(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    plain = client.chat.completions.create(model=NAME, messages=messages, tools=TOOLS, temperature=0, max_tokens=60)
    choice = plain.choices[0]
    assert choice.message.content or choice.message.tool_calls


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}},
                    }
                ]
            },
            "tools[0].function.parameters",
        ),
    ],
)
def test_what_is_wrong_is_named(client: OpenAI, fields: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**WILD, **fields)
    assert caught.value.param == param
