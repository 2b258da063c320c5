"""The style sheet of the page: no font, image or rule from elsewhere."""

CSS = """
:root {
  --paper: #f7f6f2; --card: #ffffff; --ink: #1c232d; --soft: #5b6573; --rule: #e2dfd7; --well: #f1efe9;
  --accent: #2b7a84; --pale: #a9cfd3; --hot: #b8452b; --warm: #a8690b; --calm: #2f7d55; --blind: #b3b8c0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161b; --card: #1a2027; --ink: #e4e7eb; --soft: #9aa6b4; --rule: #2c343e; --well: #151a20;
    --accent: #62bcc6; --pale: #356870; --hot: #f08a6c; --warm: #e0ab55; --calm: #6cc096; --blind: #5a6470;
  }
}
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%; }
body {
  max-width: 68rem; margin: 0 auto; padding: 2.5rem clamp(1rem, 4vw, 2.5rem) 3rem; line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
h1, h2, h3 { line-height: 1.25; font-weight: 650; text-wrap: balance; overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; margin: 0 0 .35rem; letter-spacing: -.015em; }
h2 { font-size: 1.3rem; margin: 0 0 1rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 0; }
p { margin: 0 0 .75rem; max-width: 46rem; }
b, th { font-weight: 600; }
section { margin-top: 3rem; }
header p, footer p { margin: 0; max-width: none; overflow-wrap: anywhere; }
.brand { color: var(--accent); font-weight: 650; letter-spacing: .04em; margin-bottom: .9rem; }
.about { color: var(--soft); }
.about b { color: var(--ink); }
.note { color: var(--soft); font-size: .875rem; font-weight: 400; }
.banner {
  margin: 1.5rem 0 0; padding: .85rem 1.1rem; max-width: none; border-radius: .5rem;
  border: 1px solid var(--warm); background: color-mix(in srgb, var(--warm) 12%, var(--card));
}
.banner strong { color: var(--warm); }

.verdict {
  --tone: var(--calm); margin-top: 1.75rem; padding: 1.6rem clamp(1.1rem, 3vw, 1.9rem); background: var(--card);
  border: 1px solid var(--rule); border-left: .35rem solid var(--tone); border-radius: .6rem;
}
.verdict.loud { --tone: var(--hot); }
.verdict.warm { --tone: var(--warm); }
.verdict h2 { font-size: clamp(1.2rem, 2.6vw, 1.55rem); margin-bottom: .6rem; max-width: 50rem; text-wrap: pretty; }
.verdict p { color: var(--soft); margin-bottom: 1.4rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: 1.2rem 2rem; margin: 0; }
.tiles div { border-top: 1px solid var(--rule); padding-top: .7rem; }
.tiles dt, .tiles dd { margin: 0; color: var(--soft); font-size: .875rem; font-weight: 400; }
.tiles dd.big { color: var(--ink); font-size: 1.65rem; font-weight: 600; letter-spacing: -.02em; line-height: 1.35; }
.tiles div:first-child dd.big { color: var(--tone); }

.card { background: var(--card); border: 1px solid var(--rule); border-radius: .6rem; padding: 1.1rem; }
.highlights { display: grid; gap: 1.1rem; }
.highlights .card { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: center; }
.highlights .card > div { flex: 1 1 15rem; min-width: 0; }
.highlights .card > .trio { flex: 2.2 1 24rem; display: grid; grid-template-columns: repeat(3, 1fr); gap: .6rem; }
.highlights .card > .trio.four { grid-template-columns: repeat(4, 1fr); }
.who { color: var(--soft); font-size: .875rem; margin: .1rem 0 .8rem; overflow-wrap: anywhere; }
figure { margin: 0; break-inside: avoid; }
figcaption { color: var(--soft); font-size: .8125rem; line-height: 1.4; margin-top: .4rem; overflow-wrap: break-word; }
figcaption b { color: var(--ink); }
img { display: block; width: 100%; height: auto; border-radius: .2rem; image-rendering: pixelated; }
img { outline: 1px solid color-mix(in srgb, var(--soft) 25%, transparent); outline-offset: -1px; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(11.5rem, 1fr)); gap: 1.5rem 1.25rem; }
.attacks { width: auto; }
.attacks th { white-space: nowrap; vertical-align: middle; font-size: .875rem; }
.attacks td { padding: .2rem .3rem .2rem 0; min-width: 3.2rem; width: 5rem; border: 0; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 3px; }
.pair.three { grid-template-columns: 1fr 1fr 1fr; }

.scroll { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; }
th, td { text-align: left; padding: .55rem 1.2rem .55rem 0; vertical-align: baseline; }
th, td { border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-size: .8125rem; font-weight: 500; }
tbody th { font-weight: 400; }
.scores { min-width: 40rem; }
.scores th:not(:first-child), .scores td { text-align: right; white-space: nowrap; }
.scores td:last-child { color: var(--soft); }
.rates, .threat { min-width: 34rem; }
.rates td:last-child { color: var(--soft); }
.rates th, .rates td:nth-child(2), .threat th, .threat td:nth-child(2) { white-space: nowrap; }
.small { font-size: .8125rem; }
.small th, .small td { padding: .3rem 0; text-align: right; }
.small th:first-child { text-align: left; }
.small tr:last-child > * { border-bottom: 0; }
.chip {
  display: inline-block; padding: .05rem .55rem; border-radius: 1rem; border: 1px solid var(--rule);
  background: var(--card); color: var(--soft); font-size: .8125rem;
}
.chip.granted { color: var(--warm); border-color: currentColor; }
.chip.withheld { color: var(--calm); border-color: currentColor; }
.chip.hit { color: var(--hot); border-color: currentColor; margin-left: .45rem; font-size: .6875rem; line-height: 1.3; }

.settings { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: 1rem 2rem; }
.settings { margin: 0 0 1.75rem; }
dt, dd { margin: 0; overflow-wrap: anywhere; }
dt { color: var(--soft); font-size: .8125rem; }
pre {
  background: var(--well); border: 1px solid var(--rule); border-radius: .5rem; padding: .9rem 1.1rem;
  margin: .6rem 0 1rem; overflow-x: auto; font-size: .8125rem; line-height: 1.6;
}
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; font-size: .93em; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1.75rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 14px; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg polyline { fill: none; stroke-linejoin: round; }
svg .thin { stroke: var(--accent); stroke-width: 1; opacity: .35; }
svg .bold { stroke: var(--accent); stroke-width: 3; }
svg .dot { fill: var(--accent); stroke: none; }
svg .threshold { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 4; }
svg .mark { fill: var(--ink); }
svg .series { stroke-width: 2.5; }
svg .point { stroke: var(--card); stroke-width: 1; }
.s0 { --hue: var(--accent); } .s1 { --hue: var(--hot); } .s2 { --hue: var(--calm); }
.s3 { --hue: var(--warm); } .s4 { --hue: var(--soft); } .s5 { --hue: var(--pale); }
svg .series { stroke: var(--hue); }
svg .point, svg .dot.series { fill: var(--hue); }
i.swatch:is(.s0, .s1, .s2, .s3, .s4, .s5) { background: var(--hue); }
.with { fill: var(--pale); background: var(--pale); }
.hit { fill: var(--hot); }
i.hit { background: var(--hot); }
.without { fill: var(--blind); background: var(--blind); }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: .15em; margin-right: .35em; }
.key { white-space: nowrap; }
figcaption .key { margin-right: .9em; }

footer { margin-top: 3.5rem; padding-top: 1.1rem; border-top: 1px solid var(--rule); }
footer { color: var(--soft); font-size: .8125rem; }

@media screen and (max-width: 40rem) {
  .rates, .threat { min-width: 0; }
  :is(.rates, .threat) thead { position: absolute; clip-path: inset(50%); }
  :is(.rates, .threat) :is(tbody, tr, th, td) { display: block; }
  :is(.rates, .threat) tr { padding: .6rem 0; border-bottom: 1px solid var(--rule); }
  :is(.rates, .threat) :is(tbody th, td) { padding: .1rem 0; border: 0; white-space: normal; }
  .scores { min-width: 31rem; }
  .scores .note { display: none; }
  .scores b { white-space: nowrap; }
}

@media print {
  :root {
    --paper: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #ccc; --well: #f6f6f6;
    --accent: #2b7a84; --pale: #a9cfd3; --hot: #b8452b; --warm: #8a5608; --calm: #2f7d55; --blind: #b3b8c0;
  }
  @page { margin: 16mm; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  html { font-size: 10pt; }
  section { margin-top: 2rem; }
  h2, h3 { break-after: avoid; }
  .card, .verdict, tr, pre, .settings div { break-inside: avoid; }
  section > .note { break-after: avoid; }
  .tiles { grid-template-columns: repeat(4, 1fr); gap: 1rem; }
  .figures { grid-template-columns: 1fr 1fr; gap: 1rem; }
  .gallery { grid-template-columns: repeat(4, 1fr); gap: 1rem .8rem; }
  pre { white-space: pre-wrap; }
  img, .with, .hit, .without { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
