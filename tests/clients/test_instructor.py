"""`instructor`, which wants older versions than the other clients, and so has an environment of its own."""

import asyncio
import contextlib
import json
from typing import Literal

import instructor
import openai
import pytest
from instructor.core import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field, field_validator
from serving import NAME, Server

# The modes in which the server is told the form.
HELD = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Country(Closed):
    code: Literal["FR", "IT"]


class City(Closed):
    """A city."""

    name: str = Field(pattern="^[A-Z][a-z]{1,11}$")
    country: Country
    rivers: list[Literal["Seine", "Tiber"]] = Field(max_length=1)


# At a temperature at which this model writes no JSON of its own accord; the seed makes it repeatable.
ASK = {
    "model": NAME,
    "messages": [{"role": "user", "content": "Describe Paris."}],
    "temperature": 1.5,
    "seed": 3,
    "max_tokens": 300,
}


@pytest.fixture(params=HELD, ids=lambda mode: mode.value)
def held(server: Server, request: pytest.FixtureRequest) -> instructor.Instructor:
    return instructor.from_openai(server.client(), mode=request.param)


def test_a_nested_form_is_kept(held: instructor.Instructor) -> None:
    city, reply = held.create_with_completion(response_model=City, max_retries=0, **ASK)
    assert isinstance(city, City) and isinstance(city.country, Country)
    assert reply.usage.completion_tokens > 0


def test_a_streamed_form_grows_to_a_whole_one(held: instructor.Instructor) -> None:
    grown = [city.model_dump() for city in held.create_partial(response_model=City, max_retries=0, **ASK)]
    City.model_validate(grown[-1])
    names = [city["name"] for city in grown if city["name"]]
    assert len(names) > 3 and all(names[-1].startswith(name) for name in names)


def test_what_a_validator_refuses_is_asked_again_with_the_reason(held: instructor.Instructor) -> None:
    refusals = ["Rivers come first."]
    requests: list[list[dict]] = []

    class Stubborn(City):
        @field_validator("name")
        @classmethod
        def refused_once(cls, name: str) -> str:
            if refusals:
                raise ValueError(refusals.pop())
            return name

    held.on("completion:kwargs", lambda *_, **kwargs: requests.append(list(kwargs["messages"])))
    assert isinstance(held.create(response_model=Stubborn, max_retries=1, **ASK), Stubborn)
    first, second = requests
    # The server has read its own answer again, and what was wrong with it.
    assert len(second) > len(first) and "Rivers come first." in str(second[len(first) :])


def test_json_mode_gives_an_object_or_says_why_not(server: Server) -> None:
    client = instructor.from_openai(server.client(), mode=instructor.Mode.JSON)
    finished: list[object] = []
    client.on("completion:response", finished.append)
    city = None
    # The server knows only that it is to be JSON; the schema stands in the prompt, which small models do not follow.
    with contextlib.suppress(InstructorRetryException, IncompleteOutputException):
        city = client.create(response_model=City, max_retries=0, **ASK | {"max_tokens": 60})
    (reply,) = finished
    choice = reply.choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert city is None or City.model_validate_json(choice.message.content).name == city.name


def test_async_calls_of_one_seed_are_the_same(server: Server) -> None:
    async def at_once() -> list[City]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as inner:
            client = instructor.from_openai(inner)
            return await asyncio.gather(*(client.create(response_model=City, max_retries=0, **ASK) for _ in range(2)))

    one, other = asyncio.run(at_once())
    assert isinstance(one, City) and one.model_dump() == other.model_dump()


def test_anthropics_api_keeps_the_form_as_well(server: Server) -> None:
    client = instructor.from_anthropic(server.anthropic(), mode=instructor.Mode.TOOLS)
    request = {name: value for name, value in ASK.items() if name not in ("seed", "temperature")}
    city = client.create(response_model=City, max_retries=0, **request)
    assert isinstance(city, City)


def test_what_is_wrong_is_named_in_the_clients_own_errors(held: instructor.Instructor) -> None:
    for fields, kind, code in (
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": 5}, openai.BadRequestError, "invalid_value"),
    ):
        with pytest.raises(InstructorRetryException) as caught:
            held.create(response_model=City, max_retries=0, **ASK | fields)
        causes = [caught.value]
        while causes[-1].__cause__:
            causes.append(causes[-1].__cause__)
        refused = next(cause for cause in causes if isinstance(cause, openai.APIStatusError))
        assert isinstance(refused, kind) and refused.code == code
