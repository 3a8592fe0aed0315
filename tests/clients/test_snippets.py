"""The documentation's Python snippets run as they stand, but for the address and the model."""

import re
import subprocess
import sys

import pytest
from serving import NAME, ROOT, Server

SNIPPETS = [
    (path, number, code)
    for path in ("README.md", "docs/api.md")
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL))
]


@pytest.mark.parametrize(("path", "number", "code"), SNIPPETS, ids=[f"{path}-{number}" for path, number, _ in SNIPPETS])
def test_a_snippet_prints_an_answer(server: Server, path: str, number: int, code: str) -> None:
    ours = code.replace("http://127.0.0.1:8000", server.url).replace("Qwen/Qwen2.5-0.5B-Instruct", NAME)
    assert server.url in ours and NAME in ours, f"snippet {number} of {path} names another address or model"
    ran = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
