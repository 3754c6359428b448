"""Download pip's newest wheel from the package index that pip would use, with the standard library alone.

The index, its extra indexes and the certificate come from pip's own settings: environment variables such as
`PIP_INDEX_URL`, then the user's and the machine's `pip.conf`. Both forms of the simple index API are
understood (HTML, PEP 503, and JSON, PEP 691), over https or as files. The download is checked against the
sha256 that the index states.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import json
import os
import re
import ssl
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import Request, urlopen

PIP_DEFAULT_INDEX = "https://pypi.org/simple"  # what pip uses when nothing is configured
ACCEPTED = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
WHEEL_NAME = re.compile(r"pip-(\d+(?:\.\d+)*)-py3-none-any\.whl")
TIMEOUT_SECONDS = 60


class NoPip(Exception):
    """No usable pip wheel was found; the message says where it was looked for."""


class Wheel(NamedTuple):
    """One release of pip on an index; ordered by version."""

    version: tuple[int, ...]
    url: str
    sha256: str


def download(folder: Path) -> Path:
    """Save the newest pip that runs on this Python into `folder` and return its path."""
    indexes = index_urls()
    wheels: list[Wheel] = []
    problems: list[str] = []
    for index in indexes:
        try:
            wheels += list_wheels(index)
        except (OSError, ValueError) as problem:
            problems.append(f"{without_login(index)}: {problem}")
    if not wheels:
        raise NoPip("; ".join(problems) or f"no wheel on {', '.join(map(without_login, indexes))}")
    newest = max(wheels)
    try:
        content, _ = fetch(newest.url)
    except URLError as problem:
        raise NoPip(f"{without_login(newest.url)}: {problem}") from problem
    if hashlib.sha256(content).hexdigest() != newest.sha256:
        raise NoPip(f"{without_login(newest.url)} does not match the sha256 of its index")
    path = folder / urlsplit(newest.url).path.rpartition("/")[2]
    path.write_bytes(content)
    return path


def list_wheels(index: str) -> list[Wheel]:
    """The pip wheels of one index that run on this Python, are not withdrawn and come with a sha256."""
    page_url = index.rstrip("/") + "/pip/"
    if page_url.startswith("file:"):
        page_url += "index.html"
    content, content_type = fetch(page_url)
    text = content.decode()
    files = files_of_json(text) if "json" in content_type else files_of_html(text)
    wheels = []
    for file in files:
        url, fragment = urldefrag(urljoin(page_url, file["url"]))
        name = WHEEL_NAME.fullmatch(unquote(urlsplit(url).path.rpartition("/")[2]))
        sha256 = file["sha256"] or fragment.removeprefix("sha256=")
        if name and sha256 and runs_here(file["requires_python"]):
            version = tuple(map(int, name[1].split(".")))
            wheels.append(Wheel(version, with_login_of(page_url, url), sha256))
    return wheels


def files_of_json(text: str) -> list[dict[str, str]]:
    """The files of a PEP 691 page."""
    return [
        {
            "url": file["url"],
            "sha256": file.get("hashes", {}).get("sha256", ""),
            "requires_python": file.get("requires-python") or "",
        }
        for file in json.loads(text)["files"]
        if not file.get("yanked")
    ]


def files_of_html(text: str) -> list[dict[str, str]]:
    """The files of a PEP 503 page; the sha256 is in the fragment of the link."""
    page = LinkPage()
    page.feed(text)
    return page.files


class LinkPage(HTMLParser):
    """Collects the links of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and found.get("href") and "data-yanked" not in found:
            requires = found.get("data-requires-python") or ""
            self.files.append({"url": found["href"] or "", "sha256": "", "requires_python": requires})


def runs_here(requires_python: str) -> bool:
    """Whether this Python meets the lower bound, the only kind that matters in pip's declarations."""
    bound = re.search(r">=\s*(\d+)\.(\d+)", requires_python)
    return bound is None or sys.version_info >= (int(bound[1]), int(bound[2]))


def fetch(url: str) -> tuple[bytes, str]:
    """The content and content type of a URL; a login inside the URL is sent as a header."""
    headers = {"Accept": ACCEPTED, "User-Agent": "rl-training-setup"}
    login, at, _ = urlsplit(url).netloc.rpartition("@")
    if at:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(login).encode()).decode()
    context = ssl.create_default_context(cafile=pip_setting("cert") or None)
    request = Request(without_login(url), headers=headers)
    with urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
        return answer.read(), answer.headers.get("Content-Type") or ""


def without_login(url: str) -> str:
    """The URL without user name and password, fit for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def with_login_of(page_url: str, url: str) -> str:
    """The URL with the page's login, if both are on the same host: links of a private index omit it."""
    login, at, host = urlsplit(page_url).netloc.rpartition("@")
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}@{host}")) if at and parts.netloc == host else url


def index_urls() -> list[str]:
    """The indexes in pip's order of preference."""
    return [pip_setting("index-url") or PIP_DEFAULT_INDEX, *pip_setting("extra-index-url").split()]


def pip_setting(name: str) -> str:
    """One of pip's settings: the environment, else the most specific configuration file, else empty."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"), "")
    if value or os.environ.get("PIP_CONFIG_FILE") == os.devnull:
        return value
    config = configparser.RawConfigParser(strict=False)
    config.read(config_files(), encoding="utf-8")
    for section in ("install", "global"):
        for spelling in (name, name.replace("-", "_")):
            if config.has_option(section, spelling):
                return config.get(section, spelling)
    return ""


def config_files() -> list[Path]:
    """pip's configuration files, from the most general to the most specific (a later one wins)."""
    home = Path.home()
    machine = os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)
    user = os.environ.get("XDG_CONFIG_HOME", str(home / ".config"))
    files = [*(Path(folder) / "pip" / "pip.conf" for folder in machine), Path("/etc/pip.conf")]
    files += [home / ".pip" / "pip.conf", Path(user) / "pip" / "pip.conf"]
    if os.environ.get("PIP_CONFIG_FILE"):
        files.append(Path(os.environ["PIP_CONFIG_FILE"]))
    return files
