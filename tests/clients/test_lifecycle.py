"""Many clients, clients that leave, and the end of the server."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import pytest
from checking import AsyncCheckingTransport
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk
from serving import DEVICE, NAME, Server

STORY = [{"role": "user", "content": "Tell me a very long story."}]
ENDLESS = {"model": NAME, "messages": STORY, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}

# Enough tokens for an answer to be there still while a server is told to end and asked again.
LONG = 60 if DEVICE == "cpu" else 1500


# On a GPU the fastest plan rounds by how many rows a step has, so that a text may be another in other company.
AS_IF_ALONE = DEVICE == "cpu"


def test_fifty_requests_at_once_are_all_answered_and_each_as_if_alone(client: OpenAI) -> None:
    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"What comes after {number % 5}?"}]
        request = {"model": NAME, "messages": messages, "max_tokens": 6, "temperature": 0}
        if number % 2:
            return client.chat.completions.create(**request).choices[0].message.content
        chunks = client.chat.completions.create(**request, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    alone = [ask(number) for number in range(5)]
    with ThreadPoolExecutor(50) as pool:
        together = list(pool.map(ask, range(50)))
    assert all(together)
    if AS_IF_ALONE:
        assert together == [alone[number % 5] for number in range(50)]


def test_64_streams_that_are_open_at_once_all_finish_and_equal_prompts_have_equal_answers(server: Server) -> None:
    streams, prompts, tokens = 64, 8, 6
    transport = AsyncCheckingTransport()

    async def ask(client: AsyncOpenAI, number: int, opened: asyncio.Barrier) -> list[ChatCompletionChunk]:
        stream = await client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": f"What comes after {number % prompts}?"}],
            max_tokens=tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        # Nobody reads before the last stream is open.
        await opened.wait()
        return [chunk async for chunk in stream]

    async def ask_all() -> list[list[ChatCompletionChunk]]:
        opened = asyncio.Barrier(streams)
        async with server.async_client(transport) as client:
            return await asyncio.gather(*(ask(client, number, opened) for number in range(streams)))

    answers = asyncio.run(asyncio.wait_for(ask_all(), 120))
    texts = []
    for *parts, last in answers:
        choices = [choice for chunk in parts for choice in chunk.choices]
        assert [choice.finish_reason for choice in choices if choice.finish_reason] in (["stop"], ["length"])
        assert last.choices == [] and 0 < last.usage.completion_tokens <= tokens < last.usage.prompt_tokens
        texts.append("".join(choice.delta.content or "" for choice in choices))
    assert all(texts)
    if AS_IF_ALONE:
        assert texts == texts[:prompts] * (streams // prompts)
    assert transport.checked == sum(map(len, answers))
    server.wait_for_metric("num_requests_running", 0)


def test_a_client_that_leaves_mid_stream_cancels_its_request(client: OpenAI, server: Server) -> None:
    cancelled = server.metric("request_success_total")
    stream = client.chat.completions.create(**ENDLESS, stream=True)
    for number, _ in enumerate(stream):
        if number == 3:
            break
    assert server.metric("num_requests_running") == 1
    stream.close()
    server.wait_for_metric("num_requests_running", 0)
    server.wait_for_metric("kv_cache_usage_perc", 0)
    server.wait_for_metric("request_success_total", cancelled + 1)


def test_a_client_that_gives_up_on_a_whole_answer_cancels_its_request(server: Server) -> None:
    with pytest.raises(openai.APITimeoutError):
        server.client(timeout=0.2).chat.completions.create(**ENDLESS)
    server.wait_for_metric("num_requests_running", 0)


def test_a_client_that_does_not_read_holds_up_nobody(client: OpenAI, server: Server) -> None:
    with server.http.stream("POST", "/v1/chat/completions", json=stalled_request()) as response:
        assert response.status_code == 200
        started = time.monotonic()
        client.chat.completions.create(model=NAME, messages=STORY, max_tokens=4)
        assert time.monotonic() - started < 30
    server.wait_for_metric("num_requests_running", 0)


def stalled_request() -> dict:
    return {"model": NAME, "messages": STORY, "max_tokens": 500, "ignore_eos": True, "stream": True}


def test_metrics_count_what_was_asked(client: OpenAI, server: Server) -> None:
    names = ["prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count"]
    before = [server.metric(name) for name in names]
    usage = client.chat.completions.create(model=NAME, messages=STORY, max_tokens=5).usage
    after = [server.metric(name) for name in names]
    grown = [new - old for new, old in zip(after, before, strict=True)]
    assert grown == [usage.prompt_tokens, usage.completion_tokens, 1]


def test_sigterm_drains_and_exits_with_0(start: Callable[..., Server]) -> None:
    server = start()
    request = ENDLESS | {"max_tokens": LONG}
    texts: list[str] = []
    first = threading.Event()

    def read() -> None:
        for chunk in server.client().chat.completions.create(**request, stream=True):
            texts.append(chunk.choices[0].finish_reason or "")
            first.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(60)
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while server.http.get("/ready").status_code != 503:
        assert time.monotonic() < deadline
    with pytest.raises(openai.InternalServerError) as caught:
        server.client().chat.completions.create(model=NAME, messages=STORY)
    assert (caught.value.status_code, caught.value.code) == (503, "shutting_down")
    reader.join(60)
    # The request in flight came to its own end.
    assert texts[-1] == "length"
    assert server.process.wait(30) == 0
    with pytest.raises(httpx2.ConnectError):
        server.http.get("/health")


def test_a_drain_that_takes_too_long_is_cut_short_and_exits_with_0(start: Callable[..., Server]) -> None:
    server = start("--drain-timeout", "200ms")
    stream = server.client().chat.completions.create(**ENDLESS, stream=True)
    next(stream)
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError) as caught:
        for _ in stream:
            pass
    assert caught.value.code == "shutting_down"
    assert server.process.wait(15) == 0
