"""LangChain's `langchain-openai`."""

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field
from serving import NAME, Server

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
ASK = "What is the weather in Paris?"


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")

    city: str = Field(pattern="^[A-Z][a-z]{2,9}$")
    days: int = Field(ge=1, le=7)


@tool(args_schema=Weather)
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: clear for {days} days"


def model(server: Server, **options: object) -> ChatOpenAI:
    options = {"temperature": 0, "max_retries": 0} | options
    return ChatOpenAI(
        model=NAME, base_url=f"{server.url}/v1", api_key="unused", http_client=server.http, timeout=120, **options
    )


def wild(server: Server) -> ChatOpenAI:
    """At a temperature at which this model writes no JSON of its own accord; the seed makes it repeatable."""
    return model(server, temperature=1.5, seed=3, max_tokens=300)


def test_a_chat_is_answered(server: Server) -> None:
    reply = model(server).invoke(QUESTION)
    assert (reply.content, reply.response_metadata["finish_reason"]) == (ANSWER, "stop")
    # 37 prompt tokens and 8 answer tokens by the oracle.
    assert (reply.usage_metadata["input_tokens"], reply.usage_metadata["output_tokens"]) == (37, 8)
    messages = [SystemMessage("You answer with one word."), HumanMessage(QUESTION)]
    cut = model(server, max_tokens=3).invoke(messages)
    assert cut.response_metadata["finish_reason"] == "length" and cut.usage_metadata["output_tokens"] == 3


def test_a_streamed_chat_is_the_same_answer_with_usage_at_its_end(server: Server) -> None:
    chunks = list(model(server, stream_usage=True).stream(QUESTION))
    assert len([chunk for chunk in chunks if chunk.content]) > 3, "it comes in pieces"
    whole = added(chunks)
    assert (whole.content, whole.response_metadata["finish_reason"]) == (ANSWER, "stop")
    assert whole.usage_metadata["output_tokens"] == 8


def added(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def test_a_batch_and_async_calls_are_the_same_answers(server: Server) -> None:
    questions = [QUESTION, "What is the capital of Italy?", "Hi"]
    one_by_one = [model(server).invoke(question).content for question in questions]
    assert [reply.content for reply in model(server).batch(questions)] == one_by_one

    async def at_once() -> tuple[list[str], str]:
        chat = model(server)
        replies = await asyncio.gather(*map(chat.ainvoke, questions))
        return [reply.content for reply in replies], "".join([chunk.content async for chunk in chat.astream(QUESTION)])

    assert asyncio.run(at_once()) == (one_by_one, ANSWER)


@pytest.mark.parametrize("choice", ["any", "get_weather"])
def test_a_forced_call_is_the_same_whole_and_streamed_and_the_round_trip_is_answered(
    server: Server, choice: str
) -> None:
    chat = wild(server).bind_tools([get_weather], tool_choice=choice, strict=True, parallel_tool_calls=False)
    reply = chat.invoke(ASK)
    (call,) = reply.tool_calls
    assert call["name"] == "get_weather" and reply.invalid_tool_calls == []
    Weather.model_validate(call["args"])

    chunks = list(chat.stream(ASK))
    assert sum(len(chunk.tool_call_chunks) for chunk in chunks) > 3, "the arguments come as they are made"
    (streamed,) = added(chunks).tool_calls
    assert (streamed["name"], streamed["args"]) == (call["name"], call["args"])

    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage) and result.tool_call_id == call["id"]
    history = [HumanMessage(ASK), reply, result]
    final = model(server, max_tokens=20).bind_tools([get_weather], tool_choice="none").invoke(history)
    assert final.content and final.tool_calls == []


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_form_is_kept(server: Server, method: str) -> None:
    chat = wild(server).with_structured_output(Weather, method=method, strict=True, include_raw=True)
    reply = chat.invoke(ASK)
    assert reply["parsing_error"] is None and isinstance(reply["parsed"], Weather)
    assert isinstance(reply["raw"], AIMessage)
    plain = wild(server).with_structured_output(Weather.model_json_schema(), method=method, strict=True)
    answer = plain.invoke(ASK)
    Weather.model_validate(answer)
    assert list(plain.stream(ASK))[-1] == answer


def test_any_json_object_is_one(server: Server) -> None:
    chat = model(server, max_tokens=60).with_structured_output(None, method="json_mode", include_raw=True)
    reply = chat.invoke("Describe Paris as a JSON object with a name and a country.")
    assert reply["raw"].content.startswith("{")
    assert isinstance(reply["parsed"], dict) or reply["raw"].response_metadata["finish_reason"] == "length"


def test_the_responses_api_is_the_same_answer(server: Server) -> None:
    chat = model(server, use_responses_api=True)
    assert chat.invoke(QUESTION).text == ANSWER
    assert added(list(chat.stream(QUESTION))).text == ANSWER
    forced = model(server, use_responses_api=True, temperature=1.5, max_tokens=300, extra_body={"seed": 3})
    with_tool = forced.bind_tools([get_weather], tool_choice="any", strict=True, parallel_tool_calls=False)
    (call,) = with_tool.invoke(ASK).tool_calls
    Weather.model_validate(call["args"])
    assert isinstance(forced.with_structured_output(Weather, method="json_schema", strict=True).invoke(ASK), Weather)


def test_a_text_is_continued(server: Server) -> None:
    options = {"base_url": f"{server.url}/v1", "api_key": "unused", "http_client": server.http, "max_retries": 0}
    text = OpenAI(model=NAME, temperature=0, max_tokens=4, **options)
    whole = text.invoke("The capital of France is")
    assert "Paris" in whole
    assert "".join(text.stream("The capital of France is")) == whole


def test_what_is_wrong_is_named_in_the_clients_own_errors(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        model(server, temperature=5).invoke(QUESTION)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "temperature")
    with pytest.raises(openai.BadRequestError) as caught:
        list(model(server, top_p=0).stream(QUESTION))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "top_p")
    with pytest.raises(openai.NotFoundError) as missing:
        model(server).bind(model="gpt-9").invoke(QUESTION)
    assert missing.value.code == "model_not_found" and "gpt-9" in missing.value.message
