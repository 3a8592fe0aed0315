"""Requests made from the OpenAPI document, valid ones and malformed ones, against the real routes."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from serving import Server

# What is valid by the document may still be refused: a prompt may be too long, or a tool be named twice.
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
EXAMPLES = 40


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    """The document of a server whose answers are short whatever is asked for."""
    server = Server(tmp_path_factory.mktemp("openapi") / "log", "--max-model-len", "96")
    yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    code = server.terminate()
    server.close()
    assert code == 0, server.log.read_text()


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_request_is_answered_as_documented(document: schemathesis.BaseSchema, mode: GenerationMode) -> None:
    tried = answered = 0
    for result in document.get_all_operations():
        operation = result.ok()
        if mode == GenerationMode.NEGATIVE and not operation.body:
            continue
        statuses = statuses_of(operation, mode)
        tried += 1
        answered += 200 in statuses
        if mode == GenerationMode.NEGATIVE:
            assert statuses <= {400, 404}, f"{operation.label}: {statuses}"
    # Eight take a body and twelve do not; the library leaves out the document's own route. Of those with a body at
    # least some are asked for something that they do.
    if mode == GenerationMode.POSITIVE:
        assert tried == 20 and answered > 16
    else:
        assert tried == 8


def statuses_of(operation: schemathesis.APIOperation, mode: GenerationMode) -> set[int]:
    """Sends many requests, checks the answers, and returns their statuses."""
    statuses: set[int] = set()

    @settings(
        max_examples=EXAMPLES if operation.body else 3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def every_case(case: schemathesis.Case) -> None:
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    every_case()
    return statuses
