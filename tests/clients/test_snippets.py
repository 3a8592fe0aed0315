"""The documentation's snippets run as they stand, but for the address and the model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from javascript import let_import_packages, node
from serving import NAME, ROOT, Server, needed

SNIPPETS = [
    (path, number, language, code)
    for path in ("README.md", "docs/api.md", "docs/clients.md")
    for number, (language, code) in enumerate(
        re.findall(r"```(python|js)\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    )
]
# instructor lives in an environment of its own.
INSTRUCTOR = Path(os.environ.get("OXIDE_INFER_INSTRUCTOR", "instructor/bin/python"))


def run(language: str, code: str, folder: Path, server: Server) -> subprocess.CompletedProcess[str]:
    if language == "js":
        let_import_packages(folder)
        (folder / "snippet.mjs").write_text(code)
        return node(folder, "snippet.mjs", server=server)
    python = sys.executable
    if "import instructor" in code:
        python = needed(INSTRUCTOR, "scripts/venv.sh instructor tests/clients/instructor.txt")
    return subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("path", "number", "language", "code"), SNIPPETS, ids=[f"{path}-{number}" for path, number, *_ in SNIPPETS]
)
def test_a_snippet_prints_an_answer(
    server: Server, tmp_path: Path, path: str, number: int, language: str, code: str
) -> None:
    ours = code.replace("http://127.0.0.1:8000", server.url).replace("Qwen/Qwen2.5-0.5B-Instruct", NAME)
    assert server.url in ours and NAME in ours, f"snippet {number} of {path} names another address or model"
    ran = run(language, ours, tmp_path, server)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_every_client_has_a_section_with_a_snippet() -> None:
    sections = re.split(r"^## ", (ROOT / "docs/clients.md").read_text(), flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if "```python\n" in section or "```js\n" in section] == [
        "`openai` for Python",
        "`openai` for Node",
        "`anthropic` for Python",
        "Vercel AI SDK",
        "`langchain-openai`",
        "`instructor`",
    ]
