// Take the policy away, or let it run beside the machine and watch what it writes down.
import { button, choose, command, field, get, h, number, post, problem, put, remember, remembered, table } from "./dom.js";

export async function showShip(main, folder, { signal, again }) {
  const names = folder.policies.map(each => each.name);
  if (!names.length) {
    main.append(h("p", {}, "No policy file yet: ", h("a", { href: "#/train" }, "train"), " first."));
  } else {
    const chosen = names.includes(remembered("policy")) ? remembered("policy") : newest(folder) || names[0];
    const below = h("div");
    main.append(field("Policy", choose(names.map(each => [each, each]), chosen, name => draw(name).catch(wrong => put(below, problem(wrong.message))))), below);
    const draw = async name => {
      remember("policy", name);
      const policy = folder.policies.find(each => each.name === name);
      const told = await post("policy", { policy: name, log: null });
      const dial = told.inputs.some(each => each.name === "dial") ? remembered("dial") : null;
      const order = { kind: "serve", settings: { policy: name, dial } };
      put(below, h("p", { class: "row" },
        h("a", { class: "button", href: policy.link, download: "" }, "Download the policy"),
        policy.card && h("a", { class: "button", href: policy.card, download: "" }, "Download its card"),
        button("Start a shadow server", async () => { await post("start", order); again(); }, { class: "main" })),
      h("p", { class: "note" }, "A shadow recommends and writes down every decision; what is done stays with your operators.", dial === null ? "" : ` Its dial stands at ${number(dial)}.`));
    };
    await draw(chosen).catch(wrong => put(below, problem(wrong.message)));
  }
  const shadows = folder.work.filter(each => each.kind === "serve" && !each.problem);
  for (const each of shadows) {
    const place = h("section");
    main.append(place);
    watch(place, each, folder, signal, again);
  }
}

const newest = folder => folder.work.flatMap(each => each.policies || []).map(each => each.name)[0];

async function watch(place, work, folder, signal, again) {
  const path = `work/${encodeURIComponent(work.name)}`;
  const counts = h("div"), pages = folder.work.filter(each => each.kind === "drift" && each.settings?.decisions?.startsWith(`studio/${work.name}/`) && each.pages?.length);
  const newestRows = h("div");
  put(place, h("h2", {}, work.name, h("span", { class: `state ${work.state}` }, work.state)), counts, newestRows,
    h("p", { class: "row" },
      work.state === "running" ? button("Stop", async () => { await post(`${path}/stop`); await new Promise(done => setTimeout(done, 800)); again(); })
        : button("Start again", async () => { await post(`${path}/go-on`); again(); }),
      button("Does it still fit? (drift)", async () => {
        const told = await get(`${path}/decisions`);
        const begun = await post("start", { kind: "drift", settings: { decisions: told.log, policy: told.policy } });
        location.hash = `#/verdict?work=${encodeURIComponent(begun.name)}`;
      }),
      work.state !== "failed" && h("a", { href: `#/log?file=${encodeURIComponent(`studio/${work.name}/decisions.db`)}` }, "Learn from its decisions"),
      pages.map(each => h("a", { href: `#/verdict?page=${encodeURIComponent(each.pages[0].name)}` }, `Page ${each.name}`))),
    work.state === "failed" && h("pre", { tabindex: "0" }, work.output), command(work.command));
  let last = "";
  while (!signal.aborted) {
    try {
      const told = await get(`${path}/decisions`);
      const text = JSON.stringify(told);
      if (text !== last && !signal.aborted) drawDecisions(counts, newestRows, told, work);
      last = text;
    } catch (wrong) {
      put(counts, problem(wrong.message));
    }
    if (work.state !== "running") return;
    await new Promise(done => setTimeout(done, 1500));
  }
}

function drawDecisions(counts, newestRows, told, work) {
  const flagged = told.count ? ` Flagged: ${number(told.flagged)} (${(100 * told.flagged / told.count).toFixed(1)} %).` : "";
  put(counts, h("p", {}, work.state === "running" ? ["It listens at ", h("code", {}, told.address), ". "] : "",
    `Decisions written down: ${number(told.count)}.${flagged}`),
  !told.count && work.state === "running" && h("details", { open: true }, h("summary", {}, "How to ask it"),
    h("pre", { tabindex: "0" }, `curl -X POST ${told.address}/act -d '${JSON.stringify(told.example)}'`)));
  put(newestRows, told.rows.length > 0 && table(told.header, told.rows.map(row => row.map((cell, index) =>
    told.header[index] === "at" ? new Date(1000 * cell).toLocaleTimeString() : number(cell)))));
}
