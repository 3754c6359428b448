// Which screen is shown: the part of the address behind #/. Every screen draws itself anew.
import { get, h, problem, put, say, takeToken } from "./dom.js";
import { showLog } from "./log.js";
import { showTrain } from "./train.js";
import { showVerdict } from "./verdict.js";
import { showWhatIf } from "./whatif.js";
import { showShip } from "./ship.js";
import { showRuns } from "./runs.js";

const SCREENS = {
  log: ["Log", showLog], train: ["Train", showTrain], verdict: ["Verdict", showVerdict],
  whatif: ["What if", showWhatIf], ship: ["Ship", showShip], runs: ["Runs", showRuns],
};

let leave = null;

async function show() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const screen = SCREENS[name] ? name : "log";
  say("");
  if (leave) leave.abort();
  leave = new AbortController();
  const here = leave, [title, draw] = SCREENS[screen];
  document.title = `${title} · studio`;
  put(document.getElementById("screens"), ...Object.entries(SCREENS).map(([key, [label]]) =>
    h("li", {}, h("a", { href: `#/${key}`, ...(key === screen && { "aria-current": "page" }) }, label))));
  const main = document.getElementById("main"), heading = h("h1", { tabindex: "-1" }, title);
  put(main, heading, h("p", { class: "note" }, "Looking into the directory …"));
  if (moved) heading.focus();
  moved = true;
  try {
    const folder = await get("folder");
    if (here.signal.aborted) return;
    document.getElementById("directory").textContent = folder.directory;
    put(main, heading);
    await draw(main, folder, { signal: here.signal, query: new URLSearchParams(query), again: show });
  } catch (wrong) {
    if (!here.signal.aborted) put(main, heading, problem(wrong.message));
  }
}
let moved = false;

if (takeToken()) {
  addEventListener("hashchange", show);
  show();
} else {
  put(document.getElementById("main"), 
    problem("Open the address that the terminal shows: it ends in a token that this page needs."));
}
