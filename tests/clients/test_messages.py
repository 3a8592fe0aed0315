"""Anthropic's API with its official client."""

import json
from collections.abc import Callable

import anthropic
import pytest
from anthropic import Anthropic
from jsonschema import Draft202012Validator
from serving import NAME, Server

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
# The client has no arguments for sampling any more.
GREEDY = {"model": NAME, "messages": CAPITAL, "max_tokens": 60, "extra_body": {"temperature": 0}}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": WEATHER}
ASK = {
    "model": NAME,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "max_tokens": 300,
    "tools": [TOOL],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}


@pytest.fixture
def claude(server: Server) -> Anthropic:
    return server.anthropic()


def test_a_question_is_answered(claude: Anthropic) -> None:
    message = claude.messages.create(**GREEDY)
    assert [(block.type, block.text) for block in message.content] == [("text", ANSWER)]
    assert (message.role, message.model, message.stop_reason) == ("assistant", NAME, "end_turn")
    # 37 prompt tokens and 8 answer tokens by the oracle, as in the same chat.
    usage = message.usage
    assert (usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens) == (37, 8)


def test_a_stream_is_the_same_message(claude: Anthropic) -> None:
    with claude.messages.stream(**GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == final.content[0].text == ANSWER
    assert len(pieces) > 4, "it really comes in pieces"
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 8)


def test_the_events_come_in_the_documented_order(claude: Anthropic) -> None:
    kinds = [event.type for event in claude.messages.create(**GREEDY, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_system_prompt_counts_and_is_obeyed_as_in_a_chat(claude: Anthropic, server: Server) -> None:
    system = "You answer with one word."
    message = claude.messages.create(**GREEDY, system=[{"type": "text", "text": system}])
    chat = server.client().chat.completions.create(
        model=NAME, messages=[{"role": "system", "content": system}, *CAPITAL], temperature=0, max_tokens=60
    )
    assert message.content[0].text == chat.choices[0].message.content
    counted = claude.messages.count_tokens(model=NAME, messages=CAPITAL, system=system)
    assert counted.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "The capital of", "max_tokens", None),
        ({"stop_sequences": ["zzz", " France"]}, "The capital of", "stop_sequence", " France"),
    ],
)
def test_why_an_answer_ended(claude: Anthropic, fields: dict, text: str, reason: str, sequence: str | None) -> None:
    message = claude.messages.create(**GREEDY | fields)
    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == (text, reason, sequence)


def test_an_answer_that_is_begun_is_gone_on_with(claude: Anthropic) -> None:
    messages = [*CAPITAL, {"role": "assistant", "content": "The capital of France"}]
    assert claude.messages.create(**GREEDY | {"messages": messages}).content[0].text == " is Paris."


def test_forced_calls_are_valid_and_the_round_trip_is_answered(claude: Anthropic) -> None:
    for seed in range(4):
        message = claude.messages.create(**ASK, extra_body={"temperature": 1.5, "seed": seed})
        (call,) = message.content
        assert (call.type, call.name, message.stop_reason) == ("tool_use", "get_weather", "tool_use")
        Draft202012Validator(WEATHER).validate(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
    history = [
        *ASK["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    final = claude.messages.create(**ASK | {"messages": history, "tool_choice": {"type": "none"}, "max_tokens": 40})
    assert final.content[0].text


def test_the_clients_own_accumulation_of_a_stream_has_the_same_call(claude: Anthropic) -> None:
    request = ASK | {"extra_body": {"temperature": 1.5, "seed": 3}}
    whole = claude.messages.create(**request).content[0]
    with claude.messages.stream(**request) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message().content[0]
    assert (streamed.name, streamed.input) == (whole.name, whole.input)
    assert len(pieces) > 3 and json.loads("".join(pieces)) == whole.input


def test_output_is_held_to_a_schema(claude: Anthropic) -> None:
    config = {"format": {"type": "json_schema", "schema": WEATHER}}
    request = {"model": NAME, "messages": CAPITAL, "max_tokens": 200, "output_config": config}
    for seed in range(3):
        message = claude.messages.create(**request, extra_body={"temperature": 1.5, "seed": seed})
        assert message.stop_reason == "end_turn"
        Draft202012Validator(WEATHER).validate(json.loads(message.content[0].text))


def test_errors_are_the_clients_own(claude: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(**GREEDY | {"extra_body": {"temperature": 5}})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.body["error"]["message"] == "'temperature' must be from 0 to 2, got 5"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**GREEDY | {"model": "claude-opus-4-1"})
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(**GREEDY | {"messages": [{"role": "user", "content": [image]}]})
    assert "messages[0].content[0].type" in caught.value.body["error"]["message"]


def test_the_key_goes_in_anthropics_header(start: Callable[..., Server]) -> None:
    server = start("--api-key", "sk-right")
    with pytest.raises(anthropic.AuthenticationError):
        server.anthropic(api_key="sk-wrong").messages.create(**GREEDY)
    assert server.anthropic(api_key="sk-right").messages.create(**GREEDY).content[0].text == ANSWER
