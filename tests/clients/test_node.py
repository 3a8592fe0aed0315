"""The cases of node/*.test.js, which Node runs, each as a test of its own."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from javascript import let_import_packages, node
from serving import ROOT, Server

FOLDER = ROOT / "tests/clients/node"
CASES = [
    (path.name, name)
    for path in sorted(FOLDER.glob("*.test.js"))
    for name in re.findall(r'^test\("(.*?)"', path.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def results(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str | None]:
    """What went wrong in each case, or None."""
    folder = tmp_path_factory.mktemp("node")
    for path in (*FOLDER.glob("*.js"), FOLDER / "package.json"):
        shutil.copy(path, folder)
    let_import_packages(folder)

    def run(file: str) -> dict[tuple[str, str], str | None]:
        ran = node(folder, "--test", "--test-reporter=./reporter.js", "--", file, server=server)
        print(ran.stderr)
        lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        assert lines, f"node ran nothing of {file}:\n{ran.stdout}\n{ran.stderr}"
        return {(file, line["name"]): line["wrong"] for line in lines}

    files = sorted({file for file, _ in CASES})
    with ThreadPoolExecutor(len(files)) as pool:
        return {case: wrong for ran in pool.map(run, files) for case, wrong in ran.items()}


@pytest.mark.parametrize(("file", "name"), CASES, ids=[f"{file}: {name}" for file, name in CASES])
def test_it(results: dict[tuple[str, str], str | None], file: str, name: str) -> None:
    assert (file, name) in results, f"node did not run it, but {results}"
    wrong = results[file, name]
    assert wrong is None, wrong


def test_node_ran_these_cases_and_no_others(results: dict[tuple[str, str], str | None]) -> None:
    assert CASES
    assert set(results) == set(CASES)
