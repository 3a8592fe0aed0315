"""The table of docs/evidence names every record, and nothing that is not there."""

import re

from records import EVIDENCE

README = EVIDENCE / "README.md"


def links() -> set[str]:
    """What the README links to in this repository; records of a `{a, b}.json` group have a link each."""
    found = re.findall(r"\]\(([^)\s]+)\)", README.read_text())
    return {link.split("#")[0] for link in found if "://" not in link}


def test_every_file_is_linked_from_the_readme():
    files = {path.name for path in EVIDENCE.iterdir()} - {README.name}
    assert files and files - links() == set()


def test_everything_that_the_readme_links_to_is_there():
    assert [link for link in links() if not (EVIDENCE / link).exists()] == []
