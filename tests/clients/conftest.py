import importlib.util
import itertools
from collections.abc import Callable, Iterator

import pytest
from openai import OpenAI
from serving import Server

# It needs an environment of its own, in which scripts/test.sh runs it alone.
collect_ignore = [] if importlib.util.find_spec("instructor") else ["test_instructor.py"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that most tests share."""
    server = Server(tmp_path_factory.mktemp("server") / "log")
    yield server
    code = server.terminate()
    log = server.log.read_text()
    server.close()
    assert code == 0, f"the shared server ended with {code}:\n{log}"
    assert server.transport.checked > 0, "the responses were checked"


@pytest.fixture(scope="session")
def client(server: Server) -> OpenAI:
    return server.client()


@pytest.fixture
def start(tmp_path: object) -> Iterator[Callable[..., Server]]:
    """Starts servers with options of their own."""
    servers: list[Server] = []
    numbers = itertools.count()

    def start_one(*options: str) -> Server:
        servers.append(Server(tmp_path / f"log{next(numbers)}", *options))
        return servers[-1]

    yield start_one
    for server in servers:
        server.close()
