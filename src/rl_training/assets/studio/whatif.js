// Sliders for what the policy observes; its action at once. And a logged episode, beside what it would have done.
import { button, choose, chosenLog, command, field, h, number, post, problem, put, remember, remembered } from "./dom.js";
import { chart } from "./charts.js";

export async function showWhatIf(main, folder, { signal, query }) {
  if (!folder.policies.length) {
    main.append(h("p", {}, "No policy file yet: let a search recommend one, or write that of a run (", h("a", { href: "#/verdict" }, "verdict"), ")."));
    return;
  }
  const names = folder.policies.map(each => each.name);
  const chosen = [query.get("policy"), remembered("policy")].find(each => names.includes(each)) || newest(folder) || names[0];
  const below = h("div");
  main.append(field("Policy", choose(names.map(each => [each, each]), chosen, name => open(name))), below);
  const open = async name => {
    remember("policy", name);
    try {
      const log = logOf(folder, name);
      await drawPolicy(below, name, log, await post("policy", { policy: name, log }), signal);
    } catch (wrong) {
      put(below, problem(wrong.message));
    }
  };
  await open(chosen);
}

const newest = folder => folder.work.flatMap(each => each.policies || []).map(each => each.name)[0];

// The log that a policy was trained on, where it was trained from here; else the one that was chosen.
function logOf(folder, policy) {
  const made = folder.work.find(each => (each.policies || []).some(one => one.name === policy));
  const run = made?.settings?.run;
  const source = run ? folder.work.find(each => (each.runs || []).some(one => one.name === run)) : made;
  return source?.settings?.log || chosenLog(folder);
}

async function drawPolicy(below, name, log, told, signal) {
  const values = {}, inputs = {};
  const same = h("div"), outputs = h("div", { class: "outputs" }), note = h("p", { role: "status" });
  let asking = false, asked = false, turned = null, again = null;
  const ask = async () => {
    if (asking) { asked = true; return; }
    asking = true;
    try {
      const reply = await post("policy/act", { policy: name, values, inputs });
      put(outputs, told.actions.map(action => drawAction(action, reply.action?.[action.name])));
      put(same, command(reply.command));
      put(note, reply.flagged ? h("strong", { class: "problem" }, `Flagged: ${reply.reasons.filter(each => each !== "an episode begins").join("; ")}.`)
        : reply.novelty === null ? "" : `Like the log: novelty ${number(reply.novelty)}, the limit is 1.`);
    } catch (wrong) {
      put(note, h("span", { class: "problem" }, wrong.message));
    }
    asking = false;
    if (asked) { asked = false; ask(); }
  };
  const slider = (label, unit, [low, high], start, set) => {
    const shown = h("output"), step = (high - low) / 200 || 0.01;
    const control = h("input", { type: "range", min: low, max: high, step, oninput: () => move(Number(control.value)) });
    const move = (value, quiet) => {
      set(value);
      control.value = String(value);
      shown.textContent = `${number(value)} ${unit}`;
      control.setAttribute("aria-valuetext", shown.textContent);
      if (!quiet) ask();
    };
    move(start, true);
    return { element: field(label, control, shown), move };
  };
  const columns = told.observations.map(each => slider(each.name, each.unit, each.range,
    (each.range[0] + each.range[1]) / 2, value => { values[each.name] = value; }));
  const dial = remembered("dial");
  const dials = told.inputs.map(each => slider(each.name, "", [each.low, each.high],
    each.name === "dial" && dial !== null ? dial : each.default, value => {
      const first = inputs[each.name] === undefined;
      inputs[each.name] = value;
      if (first) return;
      if (each.name === "dial") remember("dial", value);
      clearTimeout(turned);
      turned = setTimeout(() => again?.(), 400);
    }));
  const played = h("section");
  put(below,
    h("p", { class: "note" }, `${told.algo}, ${told.guarded ? "with a guard" : "without a guard"}${told.remembers ? "; it remembers: the sliders stand for the beginning of an episode" : ""}.`),
    h("div", { class: "whatif" },
      h("section", {}, h("h2", {}, "Readings"), columns.map(each => each.element), dials.map(each => each.element)),
      h("section", { "aria-live": "polite" }, h("h2", {}, "What it does"), outputs, note)),
    same, played,
    h("p", {}, h("a", { class: "next", href: "#/ship" }, "Go on: ship")));
  await ask();
  if (log) again = drawEpisode(played, name, log, inputs, told, columns, signal);
}

function drawAction(action, value) {
  if (action.levels) return h("p", {}, `${action.name}: `, h("strong", {}, value ?? "–"));
  const [low, high] = action.range;
  return h("p", { class: "meter" }, h("span", {}, `${action.name} `, h("strong", {}, `${number(value)} ${action.unit}`)),
    h("meter", { min: low, max: high, value: typeof value === "number" ? value : low, "aria-label": action.name }),
    h("span", { class: "note" }, `${number(low)} to ${number(high)}`));
}

function drawEpisode(place, name, log, inputs, told, columns, signal) {
  const index = h("input", { type: "number", min: 0, value: "0" });
  const step = h("input", { type: "range", min: 0, max: 0, value: "0", oninput: () => go(Number(step.value)) });
  const pictures = h("div", { class: "plots" }), where = h("output");
  let steps = [], timer = null;
  const go = at => {
    step.value = String(at);
    const here = steps[at];
    where.textContent = `step ${at} of ${steps.length - 1}${here.flagged ? ", flagged" : ""}`;
    columns.forEach((column, place) => column.move(here.values[place], timer !== null && at % 5));
    put(pictures, told.actions.filter(each => !each.levels).map(action => chart(action.name, [
      { label: "logged", color: 7, dashed: true, points: steps.map((each, at) => [at, each.logged?.[action.name]]) },
      { label: "the policy", color: 0, points: steps.map((each, at) => [at, each.proposed?.[action.name]]) },
    ], { xLabel: "step", at, width: 380, height: 170 })));
  };
  const pause = () => { clearInterval(timer); timer = null; play.firstChild.textContent = "Play"; };
  const open = async () => {
    steps = (await post("policy/episode", { policy: name, log, index: Math.max(0, Math.round(Number(index.value) || 0)), inputs })).steps;
    step.max = String(steps.length - 1);
    go(Math.min(Number(step.value), steps.length - 1));
  };
  const play = button("Play", async () => {
    if (timer !== null) { pause(); return; }
    if (!steps.length) await open();
    play.firstChild.textContent = "Pause";
    timer = setInterval(() => {
      const next = Number(step.value) + 1;
      if (signal.aborted || next >= steps.length) { pause(); return; }
      go(next);
    }, 150);
  });
  put(place, h("h2", {}, "An episode of the log"),
    h("p", { class: "note" }, "What the policy would have done in the logged states; before each step it is told what was really done."),
    h("div", { class: "row" }, field("Episode", index), button("Show", async () => { step.value = "0"; await open(); }), play), field("Step", step), where, pictures);
  const show = () => open().catch(wrong => put(pictures, problem(wrong.message)));
  show();
  return show;
}
