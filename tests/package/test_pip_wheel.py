"""The setup tool that fetches pip where Python came without it: index pages, settings and the checksum."""

import hashlib
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

TOOL = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "tools" / "pip_wheel.py")))
CONTENT = b"stands for a wheel"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of files that holds three releases: an old one, the newest, and one for a later Python."""
    folder = tmp_path / "simple" / "pip"
    folder.mkdir(parents=True)
    links = [
        link("pip-9.0.3-py3-none-any.whl"),
        link("pip-24.10-py3-none-any.whl", 'data-requires-python="&gt;=3.8"'),
        link("pip-99.0-py3-none-any.whl", 'data-requires-python="&gt;=4.2"'),
        link("pip-98.0-py3-none-any.whl", 'data-yanked="broken"'),
        link("pip-97.0.tar.gz"),
    ]
    (folder / "index.html").write_text("<html><body>" + "".join(links) + "</body></html>")
    (folder / "pip-24.10-py3-none-any.whl").write_bytes(CONTENT)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.delenv("PIP_CERT", raising=False)
    return folder


def link(name: str, attributes: str = "") -> str:
    return f'<a href="{name}#sha256={SHA256}" {attributes}>{name}</a>'


def test_newest_release_for_this_python_is_saved(index: Path, tmp_path: Path) -> None:
    wheel = TOOL.download(tmp_path)
    assert wheel.name == "pip-24.10-py3-none-any.whl"
    assert wheel.read_bytes() == CONTENT


def test_changed_content_is_refused(index: Path, tmp_path: Path) -> None:
    (index / "pip-24.10-py3-none-any.whl").write_bytes(CONTENT + b"!")
    with pytest.raises(TOOL.NoPip, match="does not match the sha256"):
        TOOL.download(tmp_path)


def test_missing_index_is_named(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere/simple")
    with pytest.raises(TOOL.NoPip, match="file:///nowhere/simple"):
        TOOL.download(tmp_path)


def test_json_pages_are_understood() -> None:
    files = [
        {"url": "a.whl", "hashes": {"sha256": "1"}, "requires-python": ">=3.9", "yanked": False},
        {"url": "b.whl", "hashes": {}, "yanked": "reason"},
    ]
    found = TOOL.files_of_json(json.dumps({"files": files}))
    assert found == [{"url": "a.whl", "sha256": "1", "requires_python": ">=3.9"}]


def test_environment_wins_over_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://general.example\n[install]\nindex-url = https://install.example\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert TOOL.pip_setting("index-url") == "https://install.example"
    monkeypatch.setenv("PIP_INDEX_URL", "https://environment.example")
    assert TOOL.pip_setting("index-url") == "https://environment.example"


def test_a_login_is_kept_out_of_messages_and_follows_links_on_its_host_only() -> None:
    page = "https://name:secret@index.example/simple/pip/"
    assert TOOL.without_login(page) == "https://index.example/simple/pip/"
    assert (
        TOOL.with_login_of(page, "https://index.example/f.whl") == "https://name:secret@index.example/f.whl"
    )
    assert TOOL.with_login_of(page, "https://other.example/f.whl") == "https://other.example/f.whl"
