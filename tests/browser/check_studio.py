"""The whole way through the studio in headless Chromium: from a CSV to the downloaded policy and a shadow
server, with the server killed in the middle of a training, two tabs, hostile names and a hostile page.

    make test-browser
    PYTHONPATH=src:tests/support .venv/bin/python tests/browser/check_studio.py [--screenshots DIR]

Not collected by pytest: it needs a browser, which `make test` must not. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from chromium import Browser, NoBrowser, find_or_install

from rl_training import load_policy
from rl_training.demo.plant import write_log

WINDOWS = {"desktop": (1280, 900), "phone": (390, 844)}
HOSTILE = "<img src=x onerror=\"document.title='attacked'\"> $(touch attacked) 'log'.csv"
SCREENS = ("log", "train", "verdict", "whatif", "ship", "runs")
STEPS = 5_000
PATIENCE = 90.0


class Failed(AssertionError):
    """A check that did not hold."""


class Walk:
    """A person in front of the page: looks until something is there, clicks on it, types."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.clicks = 0
        self.began = time.monotonic()
        self.problems: list[str] = []

    def until(self, holds: str, what: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.browser.evaluate(f"!!({holds})"):
            if time.monotonic() > deadline:
                text = self.browser.evaluate("document.body.innerText")
                raise Failed(f"{what} did not come; the page says:\n{text}")
            time.sleep(0.1)

    def click(self, words: str) -> None:
        """Click with the mouse where these words stand; what covers them is clicked instead."""
        find = (
            "[...document.querySelectorAll('button, a, summary, label')]"
            f".find(each => each.textContent.trim().startsWith({json.dumps(words)}))"
        )
        self.until(find, words)
        self.browser.evaluate(f"{find}.scrollIntoView({{block: 'center'}})")
        box = self.browser.evaluate(
            f"(() => {{ const {{x, y, width, height}} = {find}.getBoundingClientRect();"
            "return {x: x + Math.min(width, 60) / 2, y: y + height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)
        self.clicks += 1

    def set(self, find: str, value: str) -> None:
        """Choose or type into the element of a JavaScript expression."""
        self.until(find, find)
        self.browser.evaluate(
            f"(() => {{ const each = {find}; each.value = {json.dumps(value)};"
            "for (const kind of ['input', 'change']) each.dispatchEvent(new Event(kind)); })()"
        )
        self.clicks += 1

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.browser.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key]
            )

    def go(self, screen: str, ready: str) -> None:
        self.browser.evaluate(f"location.hash = '#/{screen}'")
        self.until(f"location.hash === '#/{screen}' && ({ready})", screen)

    def look(self, place: str, address: str) -> None:
        """Note what went wrong in the page since the last look."""
        for event in self.browser.events:
            method, details = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                self.problems.append(f"{place}: exception {details['exceptionDetails']['text']}")
            elif method == "Log.entryAdded" and details["entry"]["level"] == "error":
                self.problems.append(f"{place}: {details['entry']['text']}")
            elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith(address):
                self.problems.append(f"{place}: request of {details['request']['url'][:80]}")
        self.browser.events.clear()
        if self.browser.evaluate("document.title") == "attacked":
            self.problems.append(f"{place}: a script out of a name was executed")


KEYS = {"ArrowRight": 39, "Tab": 9}


@contextlib.contextmanager
def studio(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server, and the address that it prints."""
    code = f"import sys\nfrom rl_training.cli import main\nsys.exit(main(['studio', {str(directory)!r}]))"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        process.stderr.readline()
        yield process, process.stderr.readline().strip()
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def hostile_page(target: str) -> Iterator[str]:
    """A page of another origin that asks the studio to begin something, in every way that a page can."""
    body = json.dumps({"kind": "train", "settings": {"log": {"file": "x.csv"}, "algo": "bc"}})
    text = f"""<script>
      const body = {json.dumps(body)}, answers = [];
      const ways = [{{mode: 'no-cors'}}, {{mode: 'cors'}}, {{mode: 'no-cors', credentials: 'include'}}];
      Promise.allSettled(ways.map(way => fetch('{target}/api/start', {{...way, method: 'POST', body}})
        .then(answer => answers.push(answer.type + answer.status)))).then(() => {{
          document.title = 'tried ' + answers;
        }});
    </script><iframe src="{target}/"></iframe>"""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def expect(fact: object, problem: str) -> None:
    if not fact:
        raise Failed(problem)


def wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        expect(time.monotonic() < deadline, f"{what} did not come")
        time.sleep(0.1)


def from_log_to_training(walk: Walk, directory: Path, upload: Path, address: str) -> None:
    """A log with a hostile name, then one that is dropped; a corrected role; the start of a training."""
    walk.until("document.querySelector('main select')", "the list of logs")
    walk.set("document.querySelector('main select')", HOSTILE)
    walk.until("document.querySelectorAll('svg.plot').length >= 6", "episodes of the log with a hostile name")
    walk.look("a hostile name", address)
    found = walk.browser.call("Runtime.evaluate", expression="document.querySelector('input[type=file]')")[
        "result"
    ]
    walk.browser.call("DOM.setFileInputFiles", files=[str(upload)], objectId=found["objectId"])
    walk.clicks, walk.began = 1, time.monotonic()  # from here on it is counted: "I have a CSV"
    heading = (
        f"[...document.querySelectorAll('th')].some(each => each.textContent === {json.dumps(upload.name)})"
    )
    walk.until(heading, "findings of the upload")
    walk.until("document.querySelectorAll('svg.plot').length >= 6", "episodes of the upload")
    expect(
        (directory / upload.name).read_bytes() == upload.read_bytes(), "the upload is not what was dropped"
    )
    walk.set("document.querySelector('select[aria-label=\"Role of operator\"]')", "operator")
    command = "document.querySelector('.command code')?.textContent"
    walk.until(f"{command}.includes('--operator=operator')", "the corrected role")
    walk.click("Go on: train")
    walk.click("One algorithm")
    walk.set("[...document.querySelectorAll('select')].find(each => each.value === 'iql')", "bc")
    walk.until(f"{command}.includes('--algo=bc')", "the chosen algorithm")  # the page is drawn anew for it
    walk.set("document.querySelectorAll('input[type=number]')[1]", str(STEPS))
    walk.until(f"{command}.includes('--steps={STEPS}')", "the command")
    walk.click("Start")
    walk.until("document.querySelector('h2 .state.running')", "the training")
    walk.until("document.querySelector('svg.plot polyline')", "a live curve")


def kill_and_reopen(walk: Walk, directory: Path, server: subprocess.Popen[str], address: str) -> None:
    """A second tab shows the same; the server dies in the middle of the training, which does not notice."""
    place = next((directory / "studio").iterdir())
    expect(place.name == f"train-bc-{Path('tank.csv').stem}", f"the training is called {place.name}")
    first = walk.browser.session
    walk.browser.new_tab()
    walk.browser.open(address, width=1280, height=900, scheme="light")
    walk.go("train", "document.querySelector('h2 .state')")
    walk.browser.show(first)
    expect(not list(place.glob("*/summary.json")), "the training was too short to be interrupted")
    server.kill()
    server.wait()
    process = json.loads((place / "order.json").read_text())["process"]
    os.kill(process, 0)  # it lives
    walk.go("runs", "document.body.innerText.includes('does not answer')")
    walk.browser.events.clear()  # of the server that is gone


def to_the_shadow(walk: Walk, directory: Path, downloads: Path) -> None:
    """Verdict, policy file, what-if by the keyboard, download, shadow."""
    walk.click("Go on: verdict")
    walk.click("Write its policy file")
    walk.click("studio/export-bc-data-s0/policy.onnx is written")
    walk.until("document.querySelector('meter')", "the action")
    slider = "document.querySelector('input[type=range]')"
    before = walk.browser.evaluate("document.querySelector('.outputs').innerText")
    walk.browser.evaluate(f"{slider}.focus()")
    for _ in range(20):
        walk.press("ArrowRight")
    walk.until(f"document.querySelector('.outputs').innerText !== {json.dumps(before)}", "another action")
    walk.click("Show")
    walk.until("document.querySelectorAll('svg.plot').length >= 2", "a logged episode beside the policy")
    walk.click("Go on: ship")
    walk.browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
    walk.click("Download the policy")
    wait((downloads / "policy.onnx").exists, "the downloaded policy")
    readings = np.array([55.0, 45.0, 14.0])
    ours, theirs = (
        load_policy(path).predict(readings)
        for path in (downloads / "policy.onnx", directory / "studio/export-bc-data-s0/policy.onnx")
    )
    expect(
        np.array_equal(ours, theirs), f"the downloaded policy does {ours}, the one in the directory {theirs}"
    )
    walk.click("Start a shadow server")
    walk.until("document.querySelector('details pre')", "the shadow")
    call = walk.browser.evaluate("document.querySelector('details pre').textContent")
    match = re.fullmatch(r"curl -X POST (http://127\.0\.0\.1:\d+/act) -d '(.*)'", call)
    assert match is not None, call
    wait(lambda: answers(match[1], match[2]), "an answer of the shadow")
    walk.until(
        "document.body.innerText.includes('Decisions written down') && document.querySelector('td')",
        "a decision",
    )
    told = f"{time.monotonic() - walk.began:.0f} s and {walk.clicks} clicks"
    print(f"from a CSV to a shadow that decides: {told} (the training of {STEPS} steps and waiting included)")


def answers(address: str, body: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body.encode()), timeout=10) as answer:
            return bool(json.load(answer)["mode"] == "shadow")
    except OSError:
        return False


def attack(walk: Walk, directory: Path, address: str) -> None:
    """Another page in the same browser, and the studio's own page without the token."""
    before = sorted(each.name for each in (directory / "studio").iterdir())
    with hostile_page(address) as page:
        walk.browser.new_tab()
        walk.browser.open(page, width=1280, height=900, scheme="light")
        walk.until("document.title.startsWith('tried')", "the attack")
        walk.browser.open(f"{address}/", width=1280, height=900, scheme="light")
        walk.until("document.body.innerText.includes('ends in a token')", "a page without a token")
        told = walk.browser.evaluate(
            "fetch('/api/folder').then(answer => { document.title = answer.status; })"
        )
        walk.until("document.title === '401'", f"a refusal, not {told}")
    expect(
        sorted(each.name for each in (directory / "studio").iterdir()) == before, "the attack began something"
    )
    expect(not (directory / "attacked").exists(), "a name was executed")


def look_at_all(walk: Walk, address: str, screenshots: Path | None) -> None:
    """Every screen in every window and scheme."""
    for window, (width, height) in WINDOWS.items():
        for scheme in ("light", "dark"):
            walk.browser.look(width=width, height=height, scheme=scheme)
            for screen in SCREENS:
                walk.go(
                    screen,
                    "document.querySelector('main :is(svg.plot, meter, table, .command, fieldset, select)')",
                )
                time.sleep(0.3)
                wide = walk.browser.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                dark = (
                    walk.browser.evaluate("getComputedStyle(document.body).backgroundColor")
                    == "rgb(20, 24, 29)"
                )
                nameless = walk.browser.evaluate(
                    "[...document.querySelectorAll('input, select')].filter(each => !each.labels.length"
                    " && !each.ariaLabel).length"
                )
                place = f"{screen} {window} {scheme}"
                walk.problems += [f"{place}: {wide} px too wide"] if wide > 0 else []
                walk.problems += [f"{place}: wrong colours"] if dark != (scheme == "dark") else []
                walk.problems += [f"{place}: {nameless} controls without a name"] if nameless else []
                walk.look(place, address)
                if screenshots is not None:
                    walk.browser.screenshot(screenshots / f"studio-{screen}-{window}-{scheme}.png")


def stop_all(directory: Path) -> None:
    """End what was started here; each is a process of its own."""
    for order in (directory / "studio").glob("*/order.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(order.read_text())["process"], signal.SIGTERM)


def walk_through(browser: Browser, folder: Path, screenshots: Path | None) -> list[str]:
    directory, downloads, upload = folder / "plant", folder / "downloads", folder / "tank.csv"
    for each in (directory, downloads):
        each.mkdir()
    write_log(upload, runs=24, seed=0)
    write_log(directory / HOSTILE.replace("/", "-"), runs=4, seed=1)
    walk = Walk(browser)
    try:
        with studio(directory) as (server, url):
            address = url.partition("/#")[0]
            browser.open(url, width=1280, height=900, scheme="light")
            from_log_to_training(walk, directory, upload, address)
            walk.look("from the log to a training", address)
            kill_and_reopen(walk, directory, server, url)
        with studio(directory) as (_, url):
            address = url.partition("/#")[0]
            browser.open(url, width=1280, height=900, scheme="light")
            walk.go(
                "log",
                "document.querySelectorAll('svg.plot').length >= 6 || document.querySelector('main select')",
            )
            walk.go("train", "document.querySelector('h2 .state')")
            walk.until("document.querySelector('h2 .state.done')", "the end of the training")
            walk.look("after the kill", address)
            to_the_shadow(walk, directory, downloads)
            walk.look("to the shadow", address)
            own = browser.session
            attack(walk, directory, address)
            browser.show(own)
            browser.events.clear()  # of the hostile page
            look_at_all(walk, address, screenshots)
    finally:
        stop_all(directory)
    return walk.problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--screenshots", type=Path, help="also save what the browser shows to this directory")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        try:
            program = find_or_install()
        except NoBrowser as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 1
        with Browser(program) as browser:
            try:
                problems = walk_through(browser, Path(name), options.screenshots)
            except Failed as problem:
                problems = [str(problem)]
    for each in problems:
        print(f"studio: {each}")
    print(
        f"studio: {'ok' if not problems else f'{len(problems)} problems'}, {time.monotonic() - began:.0f} s"
    )
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
