"""How a report's page looks, on light and dark screens and on paper."""

CSS = """
:root { color-scheme: light dark; --page: #f7f6f2; --surface: #fff; --ink: #1c1c1a; --muted: #6a6963;
  --line: #e4e2da; --lane: #f0eee8; --compute: #2a78d6; --communication: #eb6834; --memory: #1a9c73;
  --launch: #a09e95; --sync: #6f6d66; --other: #cfcdc4; --unknown: #e3e1d9; --on: #fff; --on-light: #1c1c1a;
  --accent: #b4450f; --bar: #dfeaf8; }
@media (prefers-color-scheme: dark) { :root { --page: #161614; --surface: #1f1f1d; --ink: #f2f1ec;
  --muted: #a3a199; --line: #37362f; --lane: #2a2925; --compute: #4b90e2; --communication: #e2743f;
  --memory: #24a97f; --launch: #8c8a81; --sync: #66645d; --other: #4c4b45; --unknown: #35342f; --on: #fff;
  --on-light: #f2f1ec; --accent: #f0905c; --bar: #22344b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 0 0 6px; }
.subtitle { color: var(--muted); margin: 0 0 24px; }
section { background: var(--surface); border: 1px solid var(--line); border-radius: 8px; padding: 18px 20px;
  margin: 0 0 16px; }
.headline { font-size: 22px; font-weight: 650; margin: 0 0 8px; color: var(--accent); }
ul, ol { margin: 0; padding-left: 20px; }
li { margin: 3px 0; }
ol li { margin: 7px 0; }
code { font: 0.92em ui-monospace, "DejaVu Sans Mono", monospace; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(225px, 1fr)); gap: 12px; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; }
.tile .name { color: var(--muted); font-size: 13px; }
.tile .value { font-size: 20px; font-weight: 600; margin: 1px 0 3px; }
.source, figcaption { color: var(--muted); font-size: 12px; line-height: 1.4; font-weight: 400; }
p.source { margin: 8px 0 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 10px; font-size: 13px;
  color: var(--muted); }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
figure { margin: 0; }
figcaption { margin-top: 8px; }
figure > svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: var(--ink); }
svg .tick { fill: var(--muted); font-size: 11px; }
svg .on { fill: var(--on); }
svg .on.other-text, svg .on.unknown-text, svg .on.idle-text { fill: var(--on-light); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .lane { fill: var(--lane); }
svg .line { fill: none; stroke: var(--compute); stroke-width: 2; vector-effect: non-scaling-stroke; }
svg .chosen { fill: var(--compute); opacity: 0.2; }
svg[tabindex] { touch-action: pan-y; user-select: none; cursor: crosshair; }
svg[tabindex]:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.zoom { color: var(--muted); font-size: 12px; margin: 6px 0 0; }
.zoom button { font: inherit; color: var(--ink); background: var(--page); border: 1px solid var(--line);
  border-radius: 4px; padding: 2px 8px; cursor: pointer; }
.compute { fill: var(--compute); background: var(--compute); }
.communication { fill: var(--communication); background: var(--communication); }
.memory { fill: var(--memory); background: var(--memory); }
.launch { fill: var(--launch); background: var(--launch); }
.sync { fill: var(--sync); background: var(--sync); }
.other, .idle { fill: var(--other); background: var(--other); }
.unknown { fill: var(--unknown); background: var(--unknown); }
article { border-top: 1px solid var(--line); padding: 12px 0 4px; }
article:first-of-type { border-top: 0; padding-top: 0; }
.share { float: right; color: var(--accent); }
.who { font-weight: 400; color: var(--muted); font-size: 13px; margin-left: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; font-weight: 600; color: var(--muted); border-bottom: 1px solid var(--line);
  padding: 4px 10px 4px 6px; vertical-align: bottom; }
td { padding: 4px 10px 4px 6px; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { overflow-wrap: anywhere; min-width: 9ch; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
td.bar { background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)); }
.notes { color: var(--muted); font-size: 13px; }
@media print { .zoom { display: none; }
  .scroll { overflow: visible; } table { font-size: 11px; } th, td { padding: 3px 5px 3px 3px; }
  body { background: #fff; } section { break-inside: avoid; border-color: #ccc; } }
"""
