"""What a release names agrees: one version everywhere, and images that are made of what is there."""

import re
import tomllib

import pytest

from helpers import ROOT
from rl_training.core.version import VERSION

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
DOCKERFILES = ("Dockerfile", "Dockerfile.serve")


def test_every_place_names_the_same_version() -> None:
    assert PROJECT["project"]["version"] == VERSION
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(VERSION)}\]$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    for page in ("README.md", "docs/serve.md"):
        named = re.findall(
            r"rl_training(?:_runtime)?-([\d.]+)-py3", (ROOT / page).read_text(encoding="utf-8")
        )
        assert named and {*named} == {VERSION}, page


def test_the_changelog_has_no_entry_twice_and_no_fragment() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
    assert len(entries) == len({*entries}) and all(each.rstrip().endswith((".", ":")) for each in entries)
    outside = [line for line in text.splitlines() if line.startswith("  ") and not line.startswith("  - ")]
    assert len(outside) == sum(each.count("\n") for each in entries), "a line belongs to no entry"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_copies_what_is_there_and_starts_what_is_installed(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            built = source == "dist/rl_training_runtime-*.whl"  # by `make wheel`
            assert built or (ROOT / source).exists(), source
    for package, version in re.findall(r'"(\w+)==([\d.]+)(?:\+cpu)?"', text):
        assert re.search(rf"^{package}=={re.escape(version)}$", CONSTRAINTS, re.MULTILINE), package
    started = re.search(r'^ENTRYPOINT \["([\w-]+)"', text, re.MULTILINE)
    assert started and started[1] in PROJECT["project"]["scripts"]
    assert re.search(r"^USER (?!root)\w+$", text, re.MULTILINE), "the image runs as root"


def test_the_wheel_of_the_runtime_reaches_its_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "!dist/rl_training_runtime-*.whl" in ignored
    for wanted in PROJECT["tool"]["rl_training"]["runtime"]["dependencies"]:
        name = re.match(r"[\w-]+", wanted)
        assert name and re.search(rf"^{name[0]}==", CONSTRAINTS, re.MULTILINE | re.IGNORECASE), wanted
