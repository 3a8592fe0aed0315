"""Every class of error, as the official client sees it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import OpenAI
from serving import NAME, Server

HI = [{"role": "user", "content": "Hi"}]


def refused(error: openai.APIStatusError, status: int, code: str, param: str | None = None) -> None:
    assert (error.status_code, error.code, error.param) == (status, code, param), error


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 5}, "invalid_value", "temperature"),
        ({"n": "two"}, "invalid_type", "n"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"stop": ["a"] * 5}, "invalid_value", "stop"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logit_bias": {"999999": 1}}, "invalid_value", "logit_bias"),
        ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
        ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
        ({"extra_body": {"no_such_field": 1}}, "unknown_parameter", "no_such_field"),
        ({"max_tokens": 100_000}, "context_length_exceeded", "max_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "context_length_exceeded", "messages"),
        ({"seed": 2**70}, "invalid_type", "seed"),
    ],
)
def test_a_bad_request_is_400_and_names_its_field(client: OpenAI, fields: dict, code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": NAME, "messages": HI} | fields)
    refused(caught.value, 400, code, param)
    assert caught.value.type == "invalid_request_error"


def test_images_and_audio_are_refused(client: OpenAI) -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": image}])
    refused(caught.value, 400, "unsupported_parameter", "messages[0].content[0].type")


def test_an_unknown_model_is_404(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=HI)
    refused(caught.value, 404, "model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_an_unknown_route_is_404_and_a_wrong_method_405(client: OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.moderations.create(input="Hi")
    refused(caught.value, 404, "unknown_url")
    assert server.http.get("/v1/chat/completions").status_code == 405


def test_broken_json_is_400(server: Server) -> None:
    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/completions", content=b'{"prompt": ', headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_a_body_that_is_too_large_is_413(start: Callable[..., Server]) -> None:
    server = start("--max-body", "64KiB")
    with pytest.raises(openai.APIStatusError) as caught:
        server.client().completions.create(model=NAME, prompt="word " * 20_000)
    refused(caught.value, 413, "request_too_large")


def test_with_a_key_only_its_owner_is_let_in(start: Callable[..., Server]) -> None:
    server = start("--api-key", "sk-right")
    with pytest.raises(openai.AuthenticationError) as caught:
        server.client(api_key="sk-wrong").models.list()
    refused(caught.value, 401, "invalid_api_key")
    assert server.http.post("/tokenize", json={"prompt": "a"}).status_code == 401
    assert server.http.get("/health").status_code == server.http.get("/metrics").status_code == 200
    assert server.client(api_key="sk-right").models.list().data[0].id == NAME


def test_a_full_queue_is_429_and_the_client_comes_back(start: Callable[..., Server]) -> None:
    server = start("--max-waiting", "1", "--max-sequences", "1")

    def ask(retries: int) -> object:
        request = {"model": NAME, "messages": HI, "max_tokens": 24, "extra_body": {"ignore_eos": True}}
        try:
            return server.client(max_retries=retries).chat.completions.create(**request).usage.completion_tokens
        except openai.RateLimitError as error:
            assert int(error.response.headers["retry-after"]) >= 1
            refused(error, 429, "rate_limit_exceeded")
            return "refused"

    with ThreadPoolExecutor(12) as pool:
        outcomes = list(pool.map(ask, [0] * 12))
    assert 24 in outcomes and "refused" in outcomes, outcomes
    # The client's own retries, which follow Retry-After, get through.
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, [10] * 3)) == [24, 24, 24]
