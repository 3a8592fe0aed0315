"""HTTP transports that check every response against a schema.

The schemas were written by hand from OpenAI's, Anthropic's and vLLM's documentation, not from the server's code, which
only shows them in its OpenAPI document."""

import json
from collections.abc import AsyncIterator, Iterator
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


class Checker:
    """Checks responses, and counts what it has checked."""

    def __init__(self) -> None:
        self.checked = 0

    def events_of(self, request: httpx2.Request, response: httpx2.Response) -> "Events | None":
        """Checks the head of a response, and returns what checks its events if it has these."""
        assert response.headers.get("x-request-id"), "every response has an id"
        if response.headers["content-type"].split(";")[0] != "text/event-stream":
            return None
        assert response.status_code == 200
        return Events(request.url.path, self)

    def check_whole(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Checks a body that was read."""
        path = request.url.path
        if path in ("/metrics", "/openapi.json"):
            return
        assert response.headers["content-type"].split(";")[0] == "application/json"
        check(self.schema_of(request.method, path, response.status_code), response.json())
        self.checked += 1

    @staticmethod
    def schema_of(method: str, path: str, status: int) -> str:
        if path in STATUS_PATHS and status in (200, 503):
            return WHOLE[method, path]
        if status != 200:
            return error_schema(path)
        return "model" if path.startswith("/v1/models/") else WHOLE[method, path]


class Events:
    """Checks each server-sent event of a stream as it passes."""

    def __init__(self, path: str, checker: Checker) -> None:
        self.pending = b""
        self.schema = WHOLE["POST", path] + ".chunk"
        self.error = error_schema(path)
        self.checker = checker

    def feed(self, data: bytes) -> None:
        *events, self.pending = (self.pending + data).split(b"\n\n")
        for event in events:
            self.check_event(event.decode())

    def end(self) -> None:
        assert self.pending == b"", "a stream ends with a whole event"

    def check_event(self, event: str) -> None:
        if event.startswith(":") or event == "data: [DONE]":
            return
        name, data = event.split("\n") if "\n" in event else (None, event)
        assert data.startswith("data: "), event
        body = json.loads(data.removeprefix("data: "))
        check(self.error if "error" in body else self.schema, body)
        # Events that have names are named by their types.
        assert name is None or name == f"event: {body['type']}"
        self.checker.checked += 1


class CheckingTransport(Checker, httpx2.BaseTransport):
    """Passes requests on and checks every response."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self.inner.handle_request(request)
        if events := self.events_of(request, response):
            response.stream = CheckedStream(response.stream, events)
        else:
            response.read()
            self.check_whole(request, response)
        return response

    def close(self) -> None:
        self.inner.close()


class CheckedStream(httpx2.SyncByteStream):
    def __init__(self, inner: httpx2.SyncByteStream, events: Events) -> None:
        self.inner = inner
        self.events = events

    def __iter__(self) -> Iterator[bytes]:
        for data in self.inner:
            self.events.feed(data)
            yield data
        self.events.end()

    def close(self) -> None:
        self.inner.close()


class AsyncCheckingTransport(Checker, httpx2.AsyncBaseTransport):
    """The same for clients of asyncio."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.inner.handle_async_request(request)
        if events := self.events_of(request, response):
            response.stream = AsyncCheckedStream(response.stream, events)
        else:
            await response.aread()
            self.check_whole(request, response)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


class AsyncCheckedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, events: Events) -> None:
        self.inner = inner
        self.events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self.inner:
            self.events.feed(data)
            yield data
        self.events.end()

    async def aclose(self) -> None:
        await self.inner.aclose()
