"""The report's style sheet: system fonts, two colour schemes, a narrow layout for phones."""

STYLE = """
:root {
  --page: #ffffff; --text: #1d232b; --quiet: #59636f; --rule: #dfe3e8; --link: #0a5cad; --row: #f5f7f9;
  --shade: #0003;
  --c0: #0b6bb5; --c1: #cf4e12; --c2: #0d8a63; --c3: #a83e86;
  --c4: #8a6a00; --c5: #5b4bc4; --c6: #0f8398; --c7: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181d; --text: #e4e8ed; --quiet: #9ba6b3; --rule: #323a44; --link: #7cb8f2; --row: #1b2027;
    --shade: #fff3;
    --c0: #5aaef0; --c1: #f08a55; --c2: #4cc79c; --c3: #e088c3;
    --c4: #d9b64a; --c5: #a99cf5; --c6: #55c5d8; --c7: #f2827b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 62rem;
  background: var(--page); color: var(--text); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .2rem; }
a { color: var(--link); }
footer { margin-top: 3rem; }
.note { color: var(--quiet); font-size: .88rem; margin: .2rem 0 .6rem; }
nav ul, .legend {
  list-style: none; margin: .6rem 0; padding: 0; font-size: .9rem;
  display: flex; flex-wrap: wrap; gap: .3rem 1.1rem;
}
.verdict { margin: 1rem 0; padding: .7rem 1rem; background: var(--row); border-left: 4px solid var(--c0); }
.verdict p { margin: .2rem 0; }
figure { margin: 1rem 0; }
figure.small { display: inline-block; width: 49%; margin: .6rem 0; vertical-align: top; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
svg.wide, svg.narrow, svg.small { display: block; width: 100%; height: auto; }
svg.narrow { display: none; }
svg.key { width: 24px; height: 10px; margin-right: .4rem; vertical-align: middle; }
.grid { stroke: var(--rule); fill: none; }
.axis { stroke: var(--quiet); fill: none; }
.tick, .label { fill: var(--quiet); font-size: 12px; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.line { fill: none; stroke: var(--c); stroke-width: 2.2; stroke-linejoin: round; }
.thin { fill: none; stroke: var(--c); stroke-width: 1; opacity: .35; }
.band { fill: var(--c); opacity: .16; }
.dot { fill: var(--c); }
.diamond { fill: var(--page); stroke: var(--c); stroke-width: 1.8; }
.bar { stroke: var(--c); stroke-width: 1.8; fill: none; }
.line.estimated { stroke-dasharray: 3 4; }
.level { stroke: var(--quiet); stroke-width: 1.6; stroke-dasharray: 6 4; fill: none; }
.mark { stroke: var(--quiet); stroke-width: 1.2; stroke-dasharray: 1 3; fill: none; }
.d1 { stroke-dasharray: 7 4; }
.d2 { stroke-dasharray: 2 4; }
.scroll {
  overflow-x: auto;
  /* a shadow at the side on which there is more: the first two layers move with the table and cover it */
  background:
    linear-gradient(to right, var(--page) 30%, transparent) left / 2.5rem 100% no-repeat local,
    linear-gradient(to left, var(--page) 30%, transparent) right / 2.5rem 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / .8rem 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / .8rem 100% no-repeat scroll;
}
table {
  border-collapse: collapse; min-width: 60%;
  font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal;
}
th, td {
  text-align: left; vertical-align: top; padding: .35rem .8rem .35rem .4rem;
  border-bottom: 1px solid var(--rule);
}
td:first-child { min-width: 8rem; }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
tbody tr:nth-child(even) { background: color-mix(in srgb, var(--quiet) 7%, transparent); }
td.short { white-space: nowrap; }
.bounds { color: var(--quiet); white-space: nowrap; font-size: .92em; }
@media (max-width: 640px) {
  body { padding: 1rem .8rem 2rem; }
  svg.wide { display: none; }
  figure.small { width: 100%; }
  svg.narrow { display: block; }
  .bounds { display: block; }
}
"""
STYLE += "".join(f".c{index} {{ --c: var(--c{index}); }}\n" for index in range(8))
