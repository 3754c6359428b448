"""Open reports and a judgement in headless Chromium: no console error, no request, curves visible on desktop
and phone, in light and dark.

    make test-browser
    PYTHONPATH=src:tests .venv/bin/python tests/browser/check_report.py --screenshots DIR [REPORT]

Not collected by pytest: it needs a browser, which `make test` must not. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from chromium import Browser, NoBrowser, find_or_install

from fake_runs import fake_run, fake_study
from judging_problems import Proportional, lqr_log
from rl_training.judging import judge
from rl_training.report.judge_page import write_judge_page
from rl_training.report.pages import write_report

WINDOWS = {"desktop": (1280, 900), "phone": (390, 844)}
ATTACK = "<script>document.title='attacked'</script><img src=http://127.0.0.1:9/x onerror=console.error(1)>"
CURVES = 3 + 3 + 1  # a learning curve and a profile of three configurations, the curve of the hostile run
JUDGED_CURVES = 2 * (2 + 1)  # of two policies: values along time, of it and of the log, and while fitted
SMALLEST_TEXT = 9.0

MEASURE = """(() => {
  const box = element => element.getBoundingClientRect();
  const page = getComputedStyle(document.body).backgroundColor;
  const lines = [...document.querySelectorAll('figure polyline.line')].filter(line => line.checkVisibility());
  const texts = [...document.querySelectorAll('figure text')].filter(text => text.checkVisibility());
  return {
    title: document.title,
    background: page,
    overflow: document.documentElement.scrollWidth - window.innerWidth,
    curves: lines.filter(line => box(line).width > 0.3 * window.innerWidth && box(line).height > 5
      && box(line).left >= 0 && box(line).right <= window.innerWidth
      && getComputedStyle(line).stroke !== page).length,
    text: Math.min(...texts.map(text => Math.max(box(text).height, box(text).width))),
  };
})()"""


def problems_reported(browser: Browser, url: str) -> list[str]:
    """Console errors, exceptions and requests since the page was opened."""
    found = []
    for event in browser.events:
        method, details = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            found.append(f"exception: {details['exceptionDetails']['text']}")
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "assert"):
            found.append(f"console.{details['type']}")
        elif method == "Log.entryAdded" and details["entry"]["level"] == "error":
            found.append(f"log: {details['entry']['text']}")
        elif method == "Network.requestWillBeSent" and details["request"]["url"] != url:
            found.append(f"request: {details['request']['url']}")
    return found


def problems_seen(seen: dict[str, Any], curves: int, scheme: str) -> list[str]:
    """What is wrong with the measured page."""
    red = int(seen["background"].removeprefix("rgb(").split(",")[0])
    found = [] if seen["curves"] >= curves else [f"{seen['curves']} of {curves} curves visible"]
    found += [f"page is {seen['overflow']} px too wide"] if seen["overflow"] > 0 else []
    found += [f"text of {seen['text']:.1f} px"] if seen["text"] < SMALLEST_TEXT else []
    found += ["a script from a run file was executed"] if seen["title"] == "attacked" else []
    found += (
        [f"background {seen['background']} in {scheme} mode"] if (red < 128) != (scheme == "dark") else []
    )
    return found


def check(browser: Browser, report: Path, curves: int, screenshots: Path | None) -> int:
    """Look at the report in every window and scheme; return the number of problems."""
    count = 0
    for window, (width, height) in WINDOWS.items():
        for scheme in ("light", "dark"):
            browser.open(report.as_uri(), width=width, height=height, scheme=scheme)
            seen = browser.evaluate(MEASURE)
            found = problems_reported(browser, report.as_uri()) + problems_seen(seen, curves, scheme)
            count += len(found)
            state = "; ".join(found) or f"ok, {seen['curves']} curves visible"
            print(f"{report.name} {window} {width}x{height} {scheme}: {state}")
            if screenshots is not None:
                browser.screenshot(screenshots / f"{report.stem}-{window}-{scheme}.png")
    return count


def check_the_check(browser: Browser, folder: Path) -> None:
    """A page that does everything wrong has to be seen as such."""
    page = folder / "wrong.html"
    page.write_text("<script>console.error('x'); nothing()</script><img src='http://127.0.0.1:9/x.png'>")
    browser.open(page.as_uri(), width=390, height=844, scheme="light")
    found = " ".join(problems_reported(browser, page.as_uri()))
    missed = [
        sign for sign in ("exception:", "console.error", "request: http://127.0.0.1:9") if sign not in found
    ]
    if missed:
        raise RuntimeError(f"the check does not see: {', '.join(missed)}")


def example_report(folder: Path) -> Path:
    """A report on made-up runs, one of them with hostile text in its files."""
    fake_study(folder / "runs")
    fake_run(folder / "runs", name=ATTACK.replace("/", "-"), env_id=ATTACK, summary={"stop_reason": ATTACK})
    return write_report([folder / "runs"], folder / "report.html", title=f"Report {ATTACK}")


def example_judgement(folder: Path) -> Path:
    """A judgement of two policies that does not take long, one of them with a hostile name."""
    networks = {"hidden_sizes": (8, 8), "model_hidden_sizes": (8, 8), "members": 2, "model_members": 2}
    updates = {"updates": 200, "model_updates": 50, "density_updates": 20, "rollout_starts": 10}
    policies = {"steady": Proportional(0.7), ATTACK: Proportional(0.0)}
    result = judge(policies, lqr_log(30, 10), gamma=0.9, **networks, **updates)
    return write_judge_page(result, folder / "judgement.html")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", nargs="?", type=Path, help="an existing report instead of the example")
    parser.add_argument("--screenshots", type=Path, help="also save what the browser shows to this directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            program = find_or_install()
        except NoBrowser as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 1
        report = options.report.resolve() if options.report else example_report(folder)
        with Browser(program) as browser:
            check_the_check(browser, folder)
            if options.report:
                return int(check(browser, report, 1, options.screenshots) > 0)
            count = check(browser, report, CURVES, options.screenshots)
            single = write_report([folder / "runs" / "iql-0.7-s0"], folder / "one_run.html")
            count += check(browser, single, 1, options.screenshots)
            judgement = example_judgement(folder)
            return int(count + check(browser, judgement, JUDGED_CURVES, options.screenshots) > 0)


if __name__ == "__main__":
    sys.exit(main())
