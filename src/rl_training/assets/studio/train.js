// Start a training and watch it; it is a process of its own, this page only looks.
import { button, choose, chosenLog, command, field, follow, h, number, post, problem, put, remember, remembered, say } from "./dom.js";
import { chart } from "./charts.js";

const WORDS = { running: "running", done: "done", failed: "failed", stopped: "stopped" };
const TRAININGS = ["auto", "train"];

export async function showTrain(main, folder, { signal, query, again }) {
  const trainings = folder.work.filter(each => TRAININGS.includes(each.kind));
  const form = h("section"), list = h("section"), watched = h("section");
  main.append(form, watched, list);
  drawForm(form, folder, again);
  put(list, h("h2", {}, "What was started here"), trainings.length === 0 && h("p", {}, "Nothing yet."),
    h("ul", { class: "works" }, trainings.map(each => h("li", { "data-work": each.name },
      h("a", { href: `#/train?work=${encodeURIComponent(each.name)}` }, each.name),
      each.problem ? problem(each.problem) : h("span", { class: `state ${each.state}` }, WORDS[each.state])))));
  const name = query.get("work") || (trainings.find(each => each.state === "running") || trainings[0] || {}).name;
  if (name) watch(watched, name, signal, again);
}

function drawForm(form, folder, again) {
  const log = chosenLog(folder);
  put(form, h("h2", {}, "Start a training"));
  if (!log) {
    form.append(h("p", {}, "First ", h("a", { href: "#/log" }, "choose a log"), "."));
    return;
  }
  const plan = remembered("plan") || { kind: "auto", minutes: "20", algo: "iql", steps: "20000" };
  const order = () => plan.kind === "auto"
    ? { kind: "auto", settings: { log, minutes: Number(plan.minutes) } }
    : { kind: "train", settings: { log, algo: plan.algo, steps: Number(plan.steps) } };
  const same = h("div");
  const changed = async () => {
    remember("plan", plan);
    try {
      put(same, command((await post("command", order())).command));
    } catch (wrong) {
      put(same, problem(wrong.message));
    }
  };
  const radio = (kind, label) => h("label", {}, h("input", { type: "radio", name: "kind", value: kind,
    ...(plan.kind === kind && { checked: true }), onchange: () => { plan.kind = kind; changed(); } }), label);
  const numeric = (key, label, note) => field(label, h("input", { type: "number", min: 0, value: plan[key],
    oninput: event => { plan[key] = event.target.value; changed(); } }), note);
  form.append(
    h("p", {}, "Log: ", h("strong", {}, log.file), " ", h("a", { href: "#/log" }, "change")),
    h("fieldset", {}, h("legend", {}, "How"),
      radio("auto", "Find the best policy: several trainings, judged by episodes that none has seen"),
      numeric("minutes", "Minutes of processor time", "Longer is better; the log may still say no."),
      radio("train", "One algorithm"),
      field("Algorithm", choose(folder.algorithms.map(each => [each, each]), plan.algo, value => { plan.algo = value; changed(); })),
      numeric("steps", "Gradient steps", "")),
    button("Start", async () => {
      const work = await post("start", order());
      say(`${work.name} was started.`);
      location.hash = `#/train?work=${encodeURIComponent(work.name)}`;
    }, { class: "main" }), same);
  changed();
}

async function watch(place, name, signal, again) {
  put(place, h("h2", {}, name), h("p", { class: "note" }, "Looking …"));
  let last = "";
  const metric = { chosen: null };
  try {
    await follow(`work/${encodeURIComponent(name)}/events`, signal, work => {
      draw(place, work, metric, again);
      if (work.state === last) return;
      last = work.state;
      say(`${name} is ${WORDS[last]}.`);
      const listed = document.querySelector(`[data-work="${CSS.escape(name)}"] .state`);
      if (listed) put(listed, WORDS[last]).className = `state ${last}`;
    });
  } catch (wrong) {
    if (!signal.aborted) place.append(problem(wrong.message));
  }
}

function draw(place, work, metric, again) {
  const focused = document.activeElement?.dataset?.keep;
  const open = place.querySelector("details")?.open;
  const runs = work.runs;
  const done = runs.reduce((sum, run) => sum + (run.total ? Math.min(1, run.step / run.total) : 0), 0);
  const names = [...new Set(runs.flatMap(run => Object.keys(run.curves)))];
  if (!names.includes(metric.chosen)) metric.chosen = ["eval_return_mean", "critic_loss", "actor_loss"].find(each => names.includes(each)) || names[0];
  const select = choose(names.map(each => [each, each.replaceAll("_", " ")]), metric.chosen, value => { metric.chosen = value; draw(place, work, metric, again); });
  select.dataset.keep = "metric";
  put(place, h("h2", {}, work.name, h("span", { class: `state ${work.state}` }, WORDS[work.state])),
    runs.length > 0 && h("p", {}, h("progress", { max: Math.max(work.planned, runs.length), value: done, "aria-label": "Progress of the trainings" }), " ",
      work.planned > 1 ? `${runs.filter(run => run.state !== "unfinished").length} of ${work.planned} trainings done. ` : "",
      runs.filter(run => run.state === "unfinished" || work.planned < 2)
        .map(run => `${short(run.name)}: ${number(run.step)}${run.total ? ` of ${number(run.total)}` : ""} steps`).join(", ")),
    work.state === "running" && work.output && h("p", { class: "note" }, work.output.split("\n").pop()),
    names.length > 0 && field("Curve", select),
    names.length > 0 && chart(metric.chosen.replaceAll("_", " "), runs.filter(run => run.curves[metric.chosen]).map((run, index) =>
      ({ label: short(run.name), color: index, points: run.curves[metric.chosen] })), { xLabel: "gradient steps", height: 240 }),
    work.output && h("details", { ...((open ?? work.state !== "done") && { open: true }) }, h("summary", {}, "What it prints"), h("pre", { tabindex: "0" }, work.output)),
    h("p", { class: "row" },
      work.state === "running" && button("Stop", async () => post(`work/${encodeURIComponent(work.name)}/stop`), { "data-keep": "stop" }),
      ["stopped", "failed"].includes(work.state) && button("Go on", async () => { await post(`work/${encodeURIComponent(work.name)}/go-on`); again(); }),
      work.state === "done" && h("a", { class: "next", href: `#/verdict?work=${encodeURIComponent(work.name)}` }, "Go on: verdict")),
    command(work.command));
  if (focused) place.querySelector(`[data-keep="${focused}"]`)?.focus();
}

// Of a search the training, of anything else the run.
const short = name => name.includes("/runs/") ? name.split("/runs/")[1].split("/")[0] : name.split("/").pop();
