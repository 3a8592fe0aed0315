"""Two servers behind nginx and behind vllm-router: how requests are spread, and what happens when a server ends."""

import json
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from fronts import Front
from serving import NAME, Server

TOKENS = 16
LONG = 150


@dataclass
class Pair:
    """Two servers, each of which can be ended and started again."""

    folder: Path
    servers: list[Server] = field(default_factory=list)

    def start(self, port: int | None = None) -> Server:
        log = self.folder / f"server-{time.monotonic_ns()}.log"
        return Server(log, "--threads", "1", "--max-model-len", "1024", port=port)

    def restart(self, index: int) -> Server:
        self.servers[index].close()
        self.servers[index] = self.start(self.servers[index].port)
        return self.servers[index]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    pair.servers = [pair.start(), pair.start()]
    yield pair
    for server in pair.servers:
        server.close()


@pytest.fixture
def front(pair: Pair, tmp_path: Path) -> Iterator[Callable[[str], Front]]:
    fronts: list[Front] = []

    def start(kind: str) -> Front:
        fronts.append(Front(kind, tmp_path, [server.port for server in pair.servers]))
        return fronts[-1]

    yield start
    for front in fronts:
        front.close()


@dataclass
class Outcome:
    """What a client saw of its request."""

    status: int | None = None
    received: bytes = b""
    error: httpx2.HTTPError | None = None

    def is_whole(self, tokens: int) -> bool:
        """Whether the answer is complete: its length, or for a stream its last chunk, says so."""
        if self.error or self.status != 200:
            return False
        if not self.received.startswith(b"data: "):
            body = json.loads(self.received)
            return body["usage"]["completion_tokens"] == tokens
        return b'"finish_reason":"length"' in self.received and self.received.endswith(b"data: [DONE]\n\n")


class Request(threading.Thread):
    """One chat, asked through a front on a connection of its own."""

    def __init__(self, front: Front, number: int, tokens: int = TOKENS, stream: bool = False) -> None:
        super().__init__(daemon=True)
        messages = [{"role": "user", "content": f"Tell me story number {number}."}]
        self.body = {"model": NAME, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        self.url = f"{front.url}/v1/chat/completions"
        self.tokens = tokens
        self.outcome = Outcome()
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with httpx2.Client(timeout=120) as http, http.stream("POST", self.url, json=self.body) as response:
                self.outcome.status = response.status_code
                for data in response.iter_raw():
                    self.outcome.received += data
                    self.begun.set()
        except httpx2.HTTPError as error:
            self.outcome.error = error


def ask(front: Front, content: str, tokens: int = 1) -> dict:
    """The usage of an answer."""
    messages = [{"role": "user", "content": content}]
    body = {"model": NAME, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    response = httpx2.post(f"{front.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["usage"]


def who_answers(pair: Pair, work: Callable[[], object]) -> int:
    """The server that has computed a prompt meanwhile."""
    before = [server.metric("prompt_tokens_total") for server in pair.servers]
    work()
    after = [server.metric("prompt_tokens_total") for server in pair.servers]
    (index,) = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]
    return index


@pytest.mark.parametrize("kind", ["nginx", "round_robin"])
def test_round_robin_gives_each_server_every_other_request(
    pair: Pair, front: Callable[[str], Front], kind: str
) -> None:
    through = front(kind)
    answered = [who_answers(pair, lambda number=number: ask(through, f"Number {number}")) for number in range(6)]
    assert sorted(answered) == [0, 0, 0, 1, 1, 1]


def test_prefix_aware_routing_keeps_a_conversation_on_the_server_that_knows_it(
    pair: Pair, front: Callable[[str], Front]
) -> None:
    through = front("cache_aware")
    before = [server.metric("prompt_tokens_total") for server in pair.servers]
    texts = [
        f"{topic} are many. " + f"{topic} are old and few. " * 40 for topic in ("Ships", "Birds", "Clocks", "Songs")
    ]
    # At once, so that the router has a reason to spread them.
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(lambda text: ask(through, text, tokens=30), texts))
    after = [server.metric("prompt_tokens_total") for server in pair.servers]
    assert all(new > old for old, new in zip(before, after, strict=True)), "both servers have conversations"
    for turn in range(2):
        for index, text in enumerate(texts):
            texts[index] = text + f"And then, in turn {turn}? "
            # The other server knows only what all chats begin with.
            assert ask(through, texts[index])["prompt_tokens_details"]["cached_tokens"] > 200


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("nginx", signal.SIGKILL),
        ("nginx", signal.SIGTERM),
        ("round_robin", signal.SIGKILL),
        ("round_robin", signal.SIGTERM),
        ("cache_aware", signal.SIGKILL),
    ],
)
def test_a_server_that_ends_under_load_loses_only_streams_that_have_begun_and_rejoins(
    pair: Pair, front: Callable[[str], Front], kind: str, end: signal.Signals
) -> None:
    through = front(kind)
    streams = [Request(through, number, LONG, stream=True) for number in range(2)]
    assert all(stream.begun.wait(60) for stream in streams)
    others = [Request(through, 100 + number, stream=number % 2 == 0) for number in range(4)]
    time.sleep(0.1)
    # A server that has at least one stream under way.
    index = 0 if pair.servers[0].metric("num_requests_running") > 0 else 1
    victim = pair.servers[index]
    victim.process.send_signal(end)
    for number in range(6):
        others.append(Request(through, 200 + number, stream=number % 2 == 0))
        time.sleep(0.05)
    requests = streams + others
    for request in requests:
        request.join(120)
        assert not request.is_alive()
    broken = [request.outcome for request in requests if not request.outcome.is_whole(request.tokens)]
    for outcome in broken:
        assert outcome.received.startswith(b"data: "), f"lost before it had begun: {outcome}"
        # A connection that breaks off is an error for every client; no end is pretended.
        assert isinstance(outcome.error, httpx2.RemoteProtocolError), outcome
        assert b"[DONE]" not in outcome.received
    assert bool(broken) == (end == signal.SIGKILL), broken
    assert victim.process.wait(60) == (0 if end == signal.SIGTERM else -signal.SIGKILL)

    again = pair.restart(index)
    deadline = time.monotonic() + 30
    while again.metric("request_success_total") == 0:
        assert time.monotonic() < deadline, f"it did not come back:\n{through.log.read_text()}"
        # Texts with nothing in common: a router that keeps conversations together sends what looks like an earlier
        # one (a third of it is enough) to the server that had that.
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: ask(through, secrets.token_hex(40), tokens=8), range(4)))
