// Choose a log, say what its columns are, see what is in it.
import { button, choose, chosenLog, command, field, h, number, post, problem, put, remember, remembered, say, table, upload } from "./dom.js";
import { chart } from "./charts.js";

const ROLES = [
  ["observation", "observation"], ["action", "action (number)"], ["choice", "action (choice)"], ["reward", "reward"],
  ["episode", "episode"], ["time", "time"], ["terminated", "terminated"], ["truncated", "cut off"],
  ["operator", "operator"], ["unused", "unused"],
];
const SINGLE = ["reward", "episode", "time", "terminated", "truncated", "operator"];

// What requests say of the chosen log: made of the roles, and of what is written below them.
function asRequest(state) {
  const named = role => state.columns.filter(each => each.role === role);
  const request = {
    file: state.file,
    observations: state.formulas ? [state.formulas] : named("observation").map(each => quoted(each.name)),
    actions: [...named("action").map(each => quoted(each.name)), ...named("choice").map(each => each.as_choice || each.name)],
    action_low: numbers(state.low), action_high: numbers(state.high),
  };
  if (!state.columns.length) return { file: state.file, action_low: request.action_low, action_high: request.action_high };
  for (const role of SINGLE) if (named(role).length) request[role] = named(role)[0].name;
  if (state.reward) request.reward = state.reward;
  if (state.missing) request.missing_values = state.missing;
  if (state.length) request.episode_length = state.length;
  return request;
}

const quoted = name => /[,(){}\[\]]/.test(name) ? `\`${name}\`` : name;
const numbers = text => text ? text.split(/[\s;]+/).filter(Boolean).map(Number).filter(Number.isFinite) : [];

export async function showLog(main, folder, { signal, query }) {
  const picked = remembered("state"), earlier = chosenLog(folder), chosen = query.get("file") || picked?.file || earlier?.file;
  const below = h("div");
  const pick = async name => {
    put(below, h("p", { class: "note" }, "Reading the columns …"));
    try {
      const guess = await post("log/guess", { file: name });
      const old = remembered("state");
      const state = old && old.file === name ? old : newState(name, guess, earlier?.file === name ? earlier : null);
      if (!signal.aborted) await showColumns(below, state, guess, signal);
    } catch (wrong) {
      put(below, problem(wrong.message));
    }
  };
  const names = folder.logs.map(each => each.name);
  const list = choose([["", "choose a file"], ...folder.logs.map(each => [each.name, `${each.name} (${size(each.bytes)})`])],
    names.includes(chosen) ? chosen : "", name => name && pick(name));
  const file = h("input", { type: "file", onchange: () => take(file.files[0]) });
  const note = h("p", { class: "problem", role: "alert" });
  const take = async chosen => {
    if (!chosen) return;
    note.textContent = "";
    say(`Copying ${chosen.name} …`);
    try {
      const { name } = await upload(chosen);
      list.append(h("option", { value: name, selected: true }, name));
      list.value = name;
      say(`${name} is in the directory.`);
      await pick(name);
    } catch (wrong) {
      note.textContent = wrong.message;
    }
  };
  const drop = h("div", {
    class: "drop",
    ondragover: event => { event.preventDefault(); drop.classList.add("over"); },
    ondragleave: () => drop.classList.remove("over"),
    ondrop: event => { event.preventDefault(); drop.classList.remove("over"); take(event.dataTransfer.files[0]); },
  }, field("A log of this directory", list), field("or a file of yours (or drop it here)", file,
    "It is copied into the directory: CSV, Excel, Parquet, JSON lines, HDF5 …"), note);
  main.append(drop, below);
  if (names.includes(chosen)) await pick(chosen);
}

function newState(file, guess, request) {
  if (request && guess.columns.length) return asState(request, guess);

  const actions = guess.columns.filter(each => each.role === "action");
  const same = key => new Set(actions.map(each => each[key])).size === 1;
  const piled = actions.length > 0 && actions.every(each => Math.max(...each.piles) > 0.005) && same("low") && same("high");
  return {
    file, columns: guess.columns.map(({ name, role, as_choice }) => ({ name, role, as_choice })),
    missing: guess.missing_values || "", low: piled ? actions[0].low : "", high: piled ? actions[0].high : "",
  };
}

// The way back: a request that was started earlier as what is filled in here.
function asState(request, guess) {
  const named = new Set(guess.columns.map(each => quoted(each.name)));
  const plain = request.observations.every(each => named.has(each));
  const role = ({ name, as_choice }) => SINGLE.find(each => request[each] === name)
    || (request.actions.includes(quoted(name)) ? "action" : as_choice && request.actions.includes(as_choice) ? "choice"
      : request.observations.includes(quoted(name)) ? "observation" : "unused");
  return {
    file: request.file, columns: guess.columns.map(each => ({ name: each.name, as_choice: each.as_choice, role: role(each) })),
    formulas: plain ? "" : request.observations.join(", "), missing: request.missing_values || "", length: request.episode_length || "",
    reward: guess.columns.some(each => each.name === request.reward) ? "" : request.reward || "",
    low: request.action_low.join(" "), high: request.action_high.join(" "),
  };
}

const size = bytes => bytes < 1e5 ? `${number(Math.ceil(bytes / 1e3))} kB` : `${number(bytes / 1e6)} MB`;

async function showColumns(below, state, guess, signal) {
  const seen = h("div");
  let waiting = null;
  const changed = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => look(seen, state, signal, advised), 500);
  };
  const text = (key, label, note) => field(label, h("input", {
    type: "text", value: state[key] || "", oninput: event => { state[key] = event.target.value.trim(); changed(); } }), note);
  const roles = guess.columns.map((column, index) => {
    const control = choose(ROLES.filter(([role]) => role !== "choice" || column.as_choice), state.columns[index].role, role => {
      if (SINGLE.includes(role)) state.columns.forEach((other, place) => {
        if (other.role === role && place !== index) {
          other.role = "unused";
          roles[place].querySelector("select").value = "unused";
        }
      });
      state.columns[index].role = role;
      changed();
    });
    control.setAttribute("aria-label", `Role of ${column.name}`);
    return h("span", {}, control);
  });
  const advised = observations => {
    state.formulas = observations;
    showColumns(below, state, guess, signal);
  };
  put(below, 
    guess.columns.length > 0 && h("section", {},
      h("h2", {}, "What the columns are"),
      table(["column", "role", "kind", "smallest", "largest", "empty"], guess.columns.map((column, index) =>
        [h("span", { title: column.reason }, column.name), roles[index], column.kind, column.low, column.high, column.missing || ""])),
      guess.questions.length > 0 && h("details", {}, h("summary", {}, `${guess.questions.length} questions about the columns`),
        h("ul", {}, guess.questions.map(each => h("li", {}, each))))),
    h("details", { ...((state.reward || state.formulas || state.length) && { open: true }) },
      h("summary", {}, "Formulas, bounds and episodes"),
      h("div", { class: "fields" },
        text("reward", "Reward as a formula", "In place of a column: -(next(T_tank) - 60)**2"),
        text("formulas", "Observations as formulas", "In place of the columns above: T_tank, level, lags(valve, 3)"),
        text("low", "Smallest action allowed", "One number, or one per action; empty: as logged"),
        text("high", "Largest action allowed", ""),
        text("length", "Cut a continuous log into", "24h, 500 rows, day"),
        field("Empty cells", choose([["", "refuse"], ["hold", "hold the last value"], ["drop", "drop the step"]],
          state.missing, value => { state.missing = value; changed(); })))),
    seen);
  await look(seen, state, signal, advised);
}

async function look(seen, state, signal, advised) {
  remember("state", state);
  const request = asRequest(state);
  remember("log", request);
  if (state.columns.length && !(request.observations.length && request.actions.length)) {
    put(seen, problem("Say which columns are observations, and which are actions."));
    return;
  }
  say("Reading the log …");
  seen.setAttribute("aria-busy", "true");
  try {
    const found = await post("log/look", request);
    if (signal.aborted || remembered("log") === null) return;
    put(seen, ...describe(found, request, advised));
    say(`Read: ${found.episodes} episodes.`);
  } catch (wrong) {
    if (!signal.aborted) put(seen, problem(wrong.message));
    say("");
  }
  seen.removeAttribute("aria-busy");
}

function describe(found, request, advised) {
  const pictures = h("div", { class: "plots" });
  const chosen = h("input", { type: "number", min: 0, max: found.episodes - 1, value: "0", onchange: () => draw() });
  const draw = async () => {
    const index = Math.min(found.episodes - 1, Math.max(0, Math.round(Number(chosen.value) || 0)));
    chosen.value = String(index);
    const told = await post("log/episode", { log: request, index });
    const colors = { observation: 0, action: 1, reward: 2 };
    put(pictures, ...told.columns.map(each => chart(each.name,
      [{ label: each.name, color: colors[each.kind], points: each.values.map((value, step) => [step * told.each, value]) }],
      { xLabel: each.kind, width: 380, height: 170 })));
  };
  const move = by => async () => { chosen.value = String(Number(chosen.value) + by); await draw(); };
  draw();
  const use = found.advised_observations && found.advised_observations !== request.observations.join(",");
  return [
    h("section", {}, h("h2", {}, "What is in it"),
      table(["log", request.file], found.overview),
      found.findings.length ? h("ul", { class: "findings" }, found.findings.map(each => h("li", {}, each))) : h("p", {}, "Nothing suspicious was found."),
      use && h("p", {}, button("Look at what the log advises", async () => advised(found.advised_observations)),
        h("code", {}, found.advised_observations)),
      h("p", {}, h("a", { class: "next", href: "#/train" }, "Go on: train"))),
    h("section", {}, h("h2", {}, "Episodes"),
      h("div", { class: "row" }, button("Back", move(-1), { "aria-label": "Episode before" }), field(`Episode, 0 to ${found.episodes - 1}`, chosen),
        button("Next", move(1), { "aria-label": "Next episode" })),
      pictures),
    command(found.command),
  ];
}
