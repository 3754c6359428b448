// Lines over one axis as inline SVG, in the colours of the reports.
import { h, svg, number } from "./dom.js";

const LEFT = 56, RIGHT = 14, TOP = 10, BOTTOM = 30;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= rough / 1.5);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}

function span(values) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - Math.abs(low) / 2 - 0.5, high + Math.abs(high) / 2 + 0.5];
  return [low, high];
}

// As many units as there are pixels, so that text has the size of other text.
const wide = () => Math.min(1080, document.getElementById("main").clientWidth || 360);

const short = value => Math.abs(value) >= 1e4 ? `${number(value / 1e3)}k` : number(Number(value.toPrecision(6)));

// series: [{label, color, points: [[x, y] …], dashed}]; `at` marks a place on the horizontal axis.
export function chart(title, series, { xLabel = "", width = wide(), height = 190, at = null } = {}) {
  const drawn = series.map(each => ({ ...each, points: each.points.filter(([, y]) => typeof y === "number") }));
  const all = drawn.flatMap(each => each.points);
  const [x0, x1] = span(all.map(([x]) => x));
  const [y0, y1] = span(all.map(([, y]) => y));
  const x = value => LEFT + (value - x0) / (x1 - x0) * (width - LEFT - RIGHT);
  const y = value => height - BOTTOM - (value - y0) / (y1 - y0) * (height - TOP - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, class: "plot" },
    ticks(y0, y1, 3).map(value => [
      svg("path", { class: "grid", d: `M${LEFT} ${y(value)}H${width - RIGHT}` }),
      svg("text", { class: "tick end", x: LEFT - 6, y: y(value) + 4 }, short(value))]),
    ticks(x0, x1, width < 400 ? 3 : 5).map(value =>
      svg("text", { class: "tick middle", x: x(value), y: height - 12 }, short(value))),
    svg("path", { class: "axis", d: `M${LEFT} ${TOP}V${height - BOTTOM}H${width - RIGHT}` }),
    drawn.map(each => svg("polyline", {
      class: `line c${each.color % 8}${each.dashed ? " d1" : ""}`,
      points: each.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") })),
    at !== null && svg("path", { class: "mark", d: `M${x(at)} ${TOP}V${height - BOTTOM}` }));
  const legend = series.length > 1 && h("ul", { class: "legend" }, series.map(each => h("li", {},
    svg("svg", { class: "key", viewBox: "0 0 24 10", "aria-hidden": "true" },
      svg("path", { class: `line c${each.color % 8}${each.dashed ? " d1" : ""}`, d: "M1 5H23" })), each.label)));
  return h("figure", { class: "plot" },
    h("figcaption", {}, title, xLabel && h("span", { class: "note" }, ` · ${xLabel}`)), picture, legend);
}
