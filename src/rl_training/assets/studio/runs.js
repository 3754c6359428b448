// Every run of the directory; several judged by their log, compared, in a report.
import { button, command, follow, h, number, post, problem, put, table } from "./dom.js";

export async function showRuns(main, folder, { signal, query, again }) {
  if (!folder.runs.length) {
    main.append(h("p", {}, "No run yet: ", h("a", { href: "#/train" }, "train"), " first."));
    return;
  }
  const chosen = new Set();
  const note = h("p", { role: "status" });
  const rows = folder.runs.map(run => {
    const box = h("input", { type: "checkbox", onchange: () => {
      if (box.checked) chosen.add(run.name); else chosen.delete(run.name);
      note.textContent = `${chosen.size} chosen`;
      preview();
    } });
    return run.problem ? [run.name, h("span", { class: "problem" }, run.problem), "", "", ""]
      : [h("label", { class: "pick" }, box, run.name), run.algo, `${number(run.step)}${run.total ? ` of ${number(run.total)}` : ""}`, run.state.replaceAll("_", " "),
        run.value === null ? number(run.return) : `${number(run.value)}, ${run.verdict}`];
  });
  const same = h("div");
  const preview = async () => {
    put(same, chosen.size > 0 && command((await post("command", { kind: "judge", settings: { runs: [...chosen] } })).command));
  };
  const begin = kind => async () => {
    const work = await post("start", { kind, settings: { runs: [...chosen] } });
    location.hash = `#/runs?work=${encodeURIComponent(work.name)}`;
  };
  const result = h("section");
  main.append(table(["run", "algorithm", "steps", "ended by", "value or return"], rows), note,
    h("p", { class: "row" }, button("Judge by the log", begin("judge"), { class: "main" }), button("Compare two", begin("compare")),
      button("Report", begin("report"))), same, result);
  const done = folder.work.filter(each => ["compare", "report", "judge"].includes(each.kind) && !each.problem);
  const name = query.get("work") || done[0]?.name;
  if (name) follow(`work/${encodeURIComponent(name)}/events`, signal, work => put(result,
    h("h2", {}, work.name, h("span", { class: `state ${work.state}` }, work.state)),
    work.pages.length ? h("iframe", { src: work.pages[0].link, title: `The page ${work.pages[0].name}`, sandbox: "" }) : h("pre", { tabindex: "0" }, work.output),
    command(work.command))).catch(wrong => put(result, problem(wrong.message)));
}
