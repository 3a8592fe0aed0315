"""An HTTP transport that checks every response against a schema.

The schemas were written by hand from OpenAI's, Anthropic's and vLLM's documentation, not from the server's code, which
only shows them in its OpenAPI document."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
from jsonschema import Draft202012Validator

SCHEMAS = {
    path.stem: Draft202012Validator(json.loads(path.read_text()))
    for path in (Path(__file__).parents[2] / "crates/oxide-infer-server/schemas").glob("*.json")
}
# Method and path of a response with status 200 to its schema.
WHOLE = {
    ("POST", "/v1/chat/completions"): "chat.completion",
    ("POST", "/v1/completions"): "text_completion",
    ("POST", "/v1/responses"): "response",
    ("POST", "/v1/messages"): "message",
    ("POST", "/v1/messages/count_tokens"): "message.count",
    ("POST", "/v1/embeddings"): "embeddings",
    ("POST", "/tokenize"): "tokenize",
    ("POST", "/detokenize"): "detokenize",
    ("GET", "/v1/models"): "models",
    ("GET", "/health"): "health",
    ("GET", "/ready"): "ready",
    ("GET", "/version"): "version",
    ("GET", "/page/stats"): "page.stats",
    ("GET", "/get_load"): "server.load",
    ("GET", "/get_server_info"): "server.info",
    ("GET", "/get_model_info"): "model.info",
}
# Of /health and /ready also with 503.
STATUS_PATHS = ("/health", "/ready")


def error_schema(path: str) -> str:
    """Errors have the form of the API that the route is of."""
    is_anthropic = path == "/v1/messages" or path.startswith("/v1/messages/")
    return "message.error" if is_anthropic else "error"


def check(name: str, body: object) -> None:
    """Raises jsonschema.ValidationError if a body is not what the schema says."""
    SCHEMAS[name].validate(body)


class CheckingTransport(httpx2.BaseTransport):
    """Passes requests on, checks every response, and counts what it has checked."""

    def __init__(self) -> None:
        self.inner = httpx2.HTTPTransport()
        self.checked = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self.inner.handle_request(request)
        assert response.headers.get("x-request-id"), "every response has an id"
        path = request.url.path
        kind = response.headers["content-type"].split(";")[0]
        if kind == "text/event-stream":
            assert response.status_code == 200
            response.stream = CheckedEvents(response.stream, path, self)
        elif path not in ("/metrics", "/openapi.json"):
            assert kind == "application/json"
            response.read()
            check(self.schema_of(request.method, path, response.status_code), response.json())
            self.checked += 1
        return response

    @staticmethod
    def schema_of(method: str, path: str, status: int) -> str:
        if path in STATUS_PATHS and status in (200, 503):
            return WHOLE[method, path]
        if status != 200:
            return error_schema(path)
        return "model" if path.startswith("/v1/models/") else WHOLE[method, path]

    def close(self) -> None:
        self.inner.close()


class CheckedEvents(httpx2.SyncByteStream):
    """A stream of server-sent events, each of which is checked as it passes."""

    def __init__(self, inner: httpx2.SyncByteStream, path: str, transport: CheckingTransport) -> None:
        self.inner = inner
        self.schema = WHOLE["POST", path] + ".chunk"
        self.error = error_schema(path)
        self.transport = transport

    def __iter__(self) -> Iterator[bytes]:
        pending = b""
        for data in self.inner:
            pending += data
            *events, pending = pending.split(b"\n\n")
            for event in events:
                self.check_event(event.decode())
            yield data
        assert pending == b"", "a stream ends with a whole event"

    def check_event(self, event: str) -> None:
        if event.startswith(":") or event == "data: [DONE]":
            return
        name, data = event.split("\n") if "\n" in event else (None, event)
        assert data.startswith("data: "), event
        body = json.loads(data.removeprefix("data: "))
        check(self.error if "error" in body else self.schema, body)
        # Events that have names are named by their types.
        assert name is None or name == f"event: {body['type']}"
        self.transport.checked += 1

    def close(self) -> None:
        self.inner.close()
