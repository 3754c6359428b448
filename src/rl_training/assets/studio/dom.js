// What all screens share: requests with the token, elements made of text (never of HTML), words for people.

const KEY = "rl-training-studio-token";

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname + "#/log");
  }
  return sessionStorage.getItem(KEY);
}

export class Problem extends Error {}

async function send(path, options = {}) {
  let answer;
  try {
    answer = await fetch(`/api/${path}`, {
      ...options, headers: { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` },
    });
  } catch (stop) {
    if (stop.name === "AbortError") throw stop;
    throw new Problem("The studio does not answer. Start it again (rl-training studio) and open the address that it prints; what was started goes on meanwhile.");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Problem(answer.status === 401
    ? "This page belongs to a studio that was started anew. Open the address that the terminal shows."
    : told.error || `The studio answered with status ${answer.status}.`);
}

export const get = async path => (await send(path)).json();
export const post = async (path, body = {}) => (await send(path, { method: "POST", body: JSON.stringify(body) })).json();
export const upload = async file =>
  (await send(`upload/${encodeURIComponent(file.name)}`, { method: "PUT", body: file })).json();

// Server-sent events read by fetch, which unlike EventSource can send the token.
export async function follow(path, signal, tell) {
  const reader = (await send(path, { signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find(line => line.startsWith("data: "));
      if (part.startsWith("event: problem")) throw new Problem(JSON.parse(data.slice(6)));
      if (data) tell(JSON.parse(data.slice(6)));
    }
  }
}

export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export function put(element, ...children) {
  element.textContent = "";
  return fill(element, {}, children);
}

let saying = null;
export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(saying);
  saying = setTimeout(() => { place.textContent = ""; }, 6000);
}

// Do something for a button: it is off meanwhile, and what goes wrong is said beside it.
export function button(label, act, attributes = {}) {
  const note = h("span", { class: "problem", role: "alert" });
  const made = h("button", {
    type: "button", ...attributes,
    onclick: async () => {
      made.disabled = true;
      note.textContent = "";
      try {
        await act();
      } catch (problem) {
        note.textContent = problem.message;
      }
      made.disabled = false;
    },
  }, label);
  return h("span", { class: "action" }, made, note);
}

export function field(label, control, note = "") {
  const id = control.id || (control.id = `f${++fields}`);
  return h("p", { class: "field" }, h("label", { for: id }, label), control, note && h("span", { class: "note" }, note));
}
let fields = 0;

export function choose(options, chosen, change) {
  return h("select", { onchange: event => change(event.target.value) },
    options.map(([value, text]) => h("option", { value, ...(value === chosen && { selected: true }) }, text)));
}

export function command(text) {
  return h("div", { class: "command" },
    h("span", { class: "note" }, "The same on the command line"), h("code", { tabindex: "0" }, text));
}

export function table(header, rows) {
  return h("div", { class: "scroll", tabindex: "0" }, h("table", {},
    h("thead", {}, h("tr", {}, header.map(name => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(row => h("tr", {}, row.map(cell => h("td", {}, cell)))))));
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

export function problem(text) {
  return h("p", { class: "problem", role: "alert" }, text);
}

// ---- what is chosen in this tab; everything else lies in the directory

export function remembered(name) {
  try {
    return JSON.parse(sessionStorage.getItem(`studio-${name}`));
  } catch {
    return null;
  }
}

// The log chosen in this tab; in a new one, that of what was started last.
export function chosenLog(folder) {
  return remembered("log") || folder.work.find(each => each.settings?.log)?.settings.log || null;
}

export function remember(name, value) {
  sessionStorage.setItem(`studio-${name}`, JSON.stringify(value));
}
