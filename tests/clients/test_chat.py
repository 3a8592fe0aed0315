"""Chats with the official client."""

import math

import pytest
from openai import OpenAI
from serving import NAME, Server

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
GREEDY = {"model": NAME, "messages": CAPITAL, "temperature": 0}


def test_a_question_is_answered(client: OpenAI) -> None:
    reply = client.chat.completions.create(**GREEDY)
    assert reply.model == NAME
    choice = reply.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        ANSWER,
        "stop",
    )
    # 37 prompt tokens and 8 answer tokens by the oracle, the end of the answer included.
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (37, 8, 45)


def test_text_parts_are_the_same_question(client: OpenAI) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": CAPITAL[0]["content"]}]}]
    assert client.chat.completions.create(**GREEDY | {"messages": parts}).choices[0].message.content == ANSWER


def test_a_stream_is_the_same_answer_with_usage_at_its_end(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == ANSWER
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])
    # It really comes in pieces.
    assert len(chunks) > 4
    assert len({chunk.id for chunk in chunks}) == 1


def test_log_probabilities_have_bytes_and_ranked_alternatives(client: OpenAI) -> None:
    reply = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=5)
    tokens = reply.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens[:-1]).decode() == ANSWER
    assert len(tokens) == reply.usage.completion_tokens
    for token in tokens:
        best = [top.logprob for top in token.top_logprobs]
        assert len(best) == 5 and best == sorted(best, reverse=True)
        # Greedy takes the best.
        assert token.logprob == best[0]
        assert sum(map(math.exp, best)) <= 1.0001


def test_n_answers_differ_when_sampled_and_agree_when_greedy(client: OpenAI) -> None:
    sampled = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Tell me a story."}],
        n=4,
        max_tokens=12,
        temperature=1.5,
        seed=1,
    )
    assert [choice.index for choice in sampled.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in sampled.choices}) > 1
    greedy = client.chat.completions.create(**GREEDY, n=3)
    assert [choice.message.content for choice in greedy.choices] == [ANSWER] * 3
    assert greedy.usage.completion_tokens == 3 * 8


def test_a_seed_fixes_the_text(client: OpenAI) -> None:
    def sample(seed: int) -> str:
        reply = client.chat.completions.create(model=NAME, messages=CAPITAL, max_tokens=24, temperature=1.5, seed=seed)
        return reply.choices[0].message.content

    texts = [sample(7), sample(7), sample(8)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(("stop", "text"), [("France", "The capital of "), ([" is", "zzz"], "The capital of France")])
def test_a_stop_string_is_cut_off_also_in_a_stream(client: OpenAI, stop: object, text: str) -> None:
    reply = client.chat.completions.create(**GREEDY, stop=stop)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (text, "stop")
    streamed = ""
    for chunk in client.chat.completions.create(**GREEDY, stop=stop, stream=True):
        streamed += chunk.choices[0].delta.content or ""
        assert text.startswith(streamed)
    assert streamed == text


def test_stop_inside_a_token_and_across_tokens(client: OpenAI) -> None:
    # "ital of Fr" begins and ends inside tokens.
    reply = client.chat.completions.create(**GREEDY, stop="ital of Fr")
    assert reply.choices[0].message.content == "The cap"
    assert reply.choices[0].model_extra["stop_reason"] == "ital of Fr"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_ends_with_length(client: OpenAI, field: str) -> None:
    reply = client.chat.completions.create(**GREEDY, **{field: 3})
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("The capital of", "length")


def test_logit_bias_forbids_a_token(client: OpenAI, server: Server) -> None:
    paris = server.http.post("/tokenize", json={"prompt": " Paris", "add_special_tokens": False}).json()["tokens"]
    assert len(paris) == 1
    reply = client.chat.completions.create(**GREEDY, max_tokens=12, logit_bias={str(paris[0]): -100})
    assert "Paris" not in reply.choices[0].message.content


def test_vllms_extensions_work_through_extra_body(client: OpenAI) -> None:
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0, "ignore_eos": True, "min_tokens": 2}
    reply = client.chat.completions.create(
        model=NAME, messages=CAPITAL, max_tokens=12, extra_body=extra | {"return_token_ids": True}
    )
    # top_k 1 is greedy; with ignore_eos it goes on past the answer's end.
    assert reply.choices[0].message.content.startswith(ANSWER)
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 12)
    assert len(reply.choices[0].model_extra["token_ids"]) == 12
    assert len(reply.model_extra["prompt_token_ids"]) == 37


def test_a_message_can_be_continued(client: OpenAI) -> None:
    messages = [*CAPITAL, {"role": "assistant", "content": "The capital of France"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    reply = client.chat.completions.create(**GREEDY | {"messages": messages}, extra_body=extra)
    assert reply.choices[0].message.content == " is Paris."


def test_an_answer_can_be_sent_back_as_the_client_parsed_it(client: OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY).choices[0].message
    messages = [*CAPITAL, answer, {"role": "user", "content": "Thanks!"}]
    assert client.chat.completions.create(**GREEDY | {"messages": messages}, max_tokens=4).choices[0].message.content


def test_a_repeated_prompt_comes_from_the_cache(client: OpenAI) -> None:
    long = [{"role": "user", "content": "One two three four five. " * 40}]
    for _ in range(2):
        reply = client.chat.completions.create(model=NAME, messages=long, max_tokens=1)
    assert reply.usage.prompt_tokens_details.cached_tokens >= 192
