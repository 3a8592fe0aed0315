"""Answers to the schemas of the official JSON-Schema-Test-Suite, checked with an independent validator."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
from jsonschema import Draft202012Validator
from openai import OpenAI
from serving import NAME, ROOT, needed

SUITE = ROOT / "models/json-schema-test-suite/draft2020-12"
ASK = [{"role": "user", "content": "Answer as JSON."}]
MAX_TOKENS = 24
AT_ONCE = 8


def schemas() -> list[tuple[str, dict]]:
    named: list[tuple[str, dict]] = []
    for path in sorted(needed(SUITE, "scripts/fetch-test-data.sh").glob("*.json")):
        groups = json.loads(path.read_text())
        named += [(f"{path.stem}: {group['description']}", group["schema"]) for group in groups]
    return [(name, schema) for name, schema in named if isinstance(schema, dict)]


def outcome(client: OpenAI, name: str, schema: dict) -> str:
    """`refused`, `stop` or `length`; a complete answer is valid."""
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    request = {"model": NAME, "messages": ASK, "temperature": 1.5, "max_tokens": MAX_TOKENS, "seed": 1}
    try:
        choice = client.chat.completions.create(**request, response_format=form).choices[0]
    except openai.BadRequestError as error:
        assert error.param == "response_format.json_schema.schema", (name, error.message)
        assert error.message, name
        return "refused"
    if choice.finish_reason == "stop":
        value = json.loads(choice.message.content)
        assert Draft202012Validator(schema).is_valid(value), (name, choice.message.content)
    return choice.finish_reason


def test_every_schema_of_the_official_suite_is_kept_or_refused(client: OpenAI) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda pair: outcome(client, *pair), schemas()))
    counts = {word: outcomes.count(word) for word in ("stop", "length", "refused")}
    assert sum(counts.values()) == len(outcomes) > 300, counts
    assert counts["stop"] > 25, counts
