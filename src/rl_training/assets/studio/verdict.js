// The page of a judgement in a frame that can run nothing, its sentence, and value against dial.
import { button, choose, command, field, follow, h, number, post, problem, put, remember, remembered, say } from "./dom.js";
import { chart } from "./charts.js";

export async function showVerdict(main, folder, { signal, query, again }) {
  const work = folder.work.find(each => each.name === query.get("work"));
  const wanted = query.get("page") || work?.pages?.[0]?.name
    || [...folder.work.flatMap(each => each.pages || []), ...folder.pages].map(each => each.name).find(each => /(auto|judge)\.html$/.test(each));
  if (work && !work.pages?.length) main.append(...follow_up(work, signal, again));
  const runs = folder.runs.filter(each => !each.problem && each.state !== "unfinished");
  const shown = h("section");
  main.append(
    folder.pages.length ? field("Page", choose(folder.pages.map(each => [each.name, each.name]), wanted, name => open(name)))
      : h("p", {}, "No page of a judgement yet."), shown);
  const judge = h("section", {}, h("h2", {}, "Judge a run"));
  if (runs.length) {
    let run = work?.runs?.[0]?.name || runs[0].name;
    judge.append(field("Run", choose(runs.map(each => [each.name, each.name]), run, name => { run = name; preview(); })),
      button("Judge it", async () => begin({ kind: "judge", settings: { runs: [run] } })), " ",
      button("Write its policy file", async () => begin({ kind: "export", settings: { run } })));
    const same = h("div");
    const preview = async () => put(same, command((await post("command", { kind: "judge", settings: { runs: [run] } })).command));
    judge.append(same);
    main.append(judge);
    preview();
  }
  const begin = async order => {
    const begun = await post("start", order);
    location.hash = `#/verdict?work=${encodeURIComponent(begun.name)}`;
  };
  const open = async name => {
    try {
      const verdict = await post("verdict", { page: name });
      if (signal.aborted) return;
      const maker = folder.work.find(each => (each.pages || []).some(page => page.name === name));
      put(shown, verdict.sentence && h("p", { class: "answer" }, verdict.sentence), ...dials(verdict),
        h("iframe", { src: verdict.link, title: `The page ${name}`, sandbox: "" }),
        h("p", {}, h("a", { href: verdict.link, target: "_blank", rel: "noopener" }, "Open it alone"), " · ",
          h("a", { href: "#/whatif" }, "Go on: what if")), maker && command(maker.command));
    } catch (wrong) {
      put(shown, problem(wrong.message));
    }
  };
  if (wanted && folder.pages.some(each => each.name === wanted)) await open(wanted);
}

// A judgement or an export that is under way, or a training without a page: what to do about it.
function follow_up(work, signal, again) {
  const place = h("section", {}, h("h2", {}, work.name));
  if (work.problem) return [problem(work.problem)];
  if (["auto", "train"].includes(work.kind) && work.state !== "running") {
    place.append(h("p", {}, work.kind === "train" ? "This run has no page yet: have it judged, and write its policy file." : "This search has not ended."));
    return [place];
  }
  const output = h("pre", { tabindex: "0" }, work.output);
  place.append(h("p", {}, `It is ${work.state}.`), output, command(work.command));
  if (work.state === "running") follow(`work/${encodeURIComponent(work.name)}/events`, signal, told => {
    output.textContent = told.output;
    if (told.state !== "running") { say(`${work.name} is ${told.state}.`); again(); }
  }).catch(() => {});
  return [place, work.policies?.length > 0 && h("p", {}, h("a", { class: "next", href: "#/whatif" }, `${work.policies[0].name} is written. Go on: what if`))].filter(Boolean);
}

function dials({ dials, recommended }) {
  return dials.filter(each => Array.isArray(each.positions) && each.positions.length > 1).map(curve => {
    const at = h("output"), shown = h("div");
    const taken = curve.positions.find(each => each.name === recommended)?.dial;
    const chosen = remembered("dial") ?? taken ?? curve.recommended ?? curve.positions[0].dial;
    const slider = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: chosen,
      oninput: () => { remember("dial", Number(slider.value)); turn(); } });
    const turn = () => {
      at.textContent = `${number(Number(slider.value))}: what-if and the shadow start here`;
      put(shown, chart(`Value against dial, ${curve.name}`, ["low", "value", "high"].map((key, index) =>
        ({ label: key === "value" ? key : `${key} end of the interval`, color: 0, dashed: key !== "value", points: curve.positions.map(each => [each.dial, each[key]]) })),
        { xLabel: "0: as today, 1: as good as the model believes", at: Number(slider.value) }));
    };
    turn();
    return h("section", {}, h("h2", {}, "Dial"), field("Position", slider), at, shown);
  });
}
