"""Completions, models and tokenization with the official client and plain HTTP."""

from openai import OpenAI
from serving import NAME, Server

GREEDY = {"model": NAME, "temperature": 0}


def tokenize(server: Server, text: str) -> list[int]:
    return server.http.post("/tokenize", json={"model": NAME, "prompt": text}).json()["tokens"]


def test_text_token_ids_and_arrays_of_either_are_the_same_prompts(client: OpenAI, server: Server) -> None:
    texts = ["The sun rises in the", "Once upon a"]
    ids = [tokenize(server, text) for text in texts]
    alone = [client.completions.create(**GREEDY, prompt=text, max_tokens=5).choices[0].text for text in texts]
    assert client.completions.create(**GREEDY, prompt=ids[0], max_tokens=5).choices[0].text == alone[0]
    for prompts in (texts, ids):
        reply = client.completions.create(**GREEDY, prompt=prompts, max_tokens=5)
        assert [choice.text for choice in reply.choices] == alone
        assert reply.usage.prompt_tokens == sum(map(len, ids))


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(client: OpenAI) -> None:
    prompts = ["The sun rises in the", "Once upon a"]
    alone = [client.completions.create(**GREEDY, prompt=text, max_tokens=4).choices[0].text for text in prompts]
    reply = client.completions.create(**GREEDY, prompt=prompts, max_tokens=4, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in reply.choices] == [alone[0], alone[0], alone[1], alone[1]]


def test_a_stream_is_the_same_text(client: OpenAI) -> None:
    request = GREEDY | {"prompt": "The sun rises in the", "max_tokens": 12}
    whole = client.completions.create(**request)
    chunks = list(client.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.choices[0].finish_reason == "length"


def test_echo_with_log_probabilities_scores_the_prompt(client: OpenAI, server: Server) -> None:
    """What lm-eval's `local-completions` asks: the continuation's score, and whether greedy gives it."""
    context, continuation = "The capital of France is", " Paris"
    tokens = tokenize(server, context + continuation)
    start = len(tokenize(server, context))
    reply = client.completions.create(**GREEDY, prompt=tokens, max_tokens=1, logprobs=1, echo=True)
    logprobs = reply.choices[0].logprobs
    assert reply.choices[0].text.startswith(context + continuation)
    assert len(logprobs.tokens) == len(tokens) + 1
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert logprobs.tokens[start:-1] == [" Paris"]
    assert logprobs.text_offset[start] == len(context)
    # The same number as when the token is generated.
    generated = client.completions.create(**GREEDY, prompt=context, max_tokens=1, logprobs=5).choices[0].logprobs
    assert abs(generated.top_logprobs[0][" Paris"] - logprobs.token_logprobs[start]) < 1e-3
    greedy = generated.tokens[0] == " Paris"
    assert (logprobs.token_logprobs[start] == max(logprobs.top_logprobs[start].values())) == greedy


def test_a_batch_of_requests_as_lm_eval_sends_them(server: Server) -> None:
    """`local-completions` sends contexts with continuations as token ids in one request, and reads it in this way."""
    pairs = [("The capital of France is", " Paris"), ("Two and two make", " four")]
    contexts = [tokenize(server, context) for context, _ in pairs]
    prompts = [tokenize(server, context + continuation) for context, continuation in pairs]
    for limit in (1, 0):
        request = {"model": NAME, "prompt": prompts, "temperature": 0, "max_tokens": limit, "logprobs": 1, "seed": 1234}
        reply = server.http.post("/v1/completions", json=request | {"echo": True}).json()
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        for choice, prompt, context in zip(choices, prompts, contexts, strict=True):
            end = len(prompt)
            scores = choice["logprobs"]["token_logprobs"][len(context) : end]
            best = choice["logprobs"]["top_logprobs"][len(context) : end]
            tokens = choice["logprobs"]["tokens"][len(context) : end]
            assert len(scores) == len(prompt) - len(context) and all(score <= 0 for score in scores)
            for token, score, top in zip(tokens, scores, best, strict=True):
                assert top[token] == score <= max(top.values())


def test_echo_without_an_answer(client: OpenAI) -> None:
    reply = client.completions.create(**GREEDY, prompt="Hello there", max_tokens=0, logprobs=0, echo=True)
    assert reply.choices[0].text == "Hello there"
    assert reply.usage.completion_tokens == 0
    assert len(reply.choices[0].logprobs.tokens) == reply.usage.prompt_tokens


def test_token_ids_are_returned_on_request(client: OpenAI, server: Server) -> None:
    reply = client.completions.create(
        **GREEDY, prompt="Once upon a", max_tokens=4, extra_body={"return_token_ids": True}
    )
    extra = reply.choices[0].model_extra
    assert extra["prompt_token_ids"] == tokenize(server, "Once upon a")
    detokenized = server.http.post("/detokenize", json={"tokens": extra["token_ids"]}).json()["prompt"]
    assert detokenized == reply.choices[0].text


def test_the_model_is_listed(client: OpenAI, server: Server) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [NAME]
    assert client.models.retrieve(NAME).model_extra["max_model_len"] == 8192
    assert server.http.get("/version").json()["version"]
    assert server.http.get("/health").json() == {"status": "ok"}


def test_tokens_survive_a_round_trip(server: Server) -> None:
    text = "Grüße, 世界! 🦀 <|im_end|> 123"
    assert server.http.post("/detokenize", json={"tokens": tokenize(server, text)}).json()["prompt"] == text


def test_messages_are_tokenized_as_chats_are(client: OpenAI, server: Server) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    tokenized = server.http.post(
        "/tokenize", json={"model": NAME, "messages": messages, "return_token_strs": True}
    ).json()
    reply = client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert tokenized["tokens"] == reply.model_extra["prompt_token_ids"]
    assert tokenized["count"] == len(tokenized["token_strs"]) == 37
    assert tokenized["max_model_len"] == 8192


def test_prompt_logprobs_are_those_of_an_echo(client: OpenAI, server: Server) -> None:
    request = GREEDY | {"prompt": "The capital of France is Paris", "max_tokens": 1}
    echo = client.completions.create(**request, logprobs=0, echo=True).choices[0].logprobs
    reply = client.completions.create(**request, extra_body={"prompt_logprobs": 1})
    places = reply.choices[0].model_extra["prompt_logprobs"]
    tokens = tokenize(server, request["prompt"])
    assert places[0] is None and len(places) == len(tokens)
    for token, place, logprob in zip(tokens[1:], places[1:], echo.token_logprobs[1:], strict=False):
        assert place[str(token)]["logprob"] == logprob
