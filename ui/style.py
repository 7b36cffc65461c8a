"""The pages' style sheet: one identity over Streamlit's own. Colours come from the palette alone."""

from culm.ui.palette import MEANINGS, css_variables

_TONES = "".join(f".culm-{name}{{--tone:var(--culm-{name})}}" for name in MEANINGS)

CSS = (
    f"""
.stApp {{ {css_variables()} font-variant-numeric: tabular-nums; }}
{_TONES}
"""
    + """
/* Streamlit's own: less room, no fading while a part is drawn again, notes that can be read. */
.stMainBlockContainer { padding: 4.2rem 2rem 2rem; max-width: 1500px; }
[data-testid="stElementContainer"][data-stale="true"], [data-stale="true"] { opacity: 1 !important; }
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] * { color: var(--culm-muted); opacity: 1; }
[data-testid="stVerticalBlock"] { gap: 0.7rem; }
[data-testid="stHeadingWithActionElements"] h2, [data-testid="stHeadingWithActionElements"] h3 { padding: 0.5rem 0 0; }
[data-testid="stVegaLiteChart"] { min-width: 0; }
/* The run in one line. */
.culm-head { display: flex; flex-wrap: wrap; gap: 0.2rem 0.7rem; align-items: baseline; line-height: 1.5; }
.culm-head + [role="status"], .culm-head + .culm-firing { margin-top: 0.5rem; }
.st-key-wide-ring { align-items: center; }
.culm-head strong { font-weight: 600; overflow-wrap: anywhere; }
.culm-head > span:last-child { color: var(--culm-muted); }
.culm-pill { color: var(--tone); border: 1px solid var(--tone); border-radius: 1rem; padding: 0 0.6rem;
  font-size: 0.85rem; font-weight: 600; white-space: nowrap; }
.culm-bar { height: 4px; background: var(--culm-line); border-radius: 2px; overflow: hidden; margin-top: 0.35rem; }
.culm-bar > div { height: 100%; background: var(--tone); }
.culm-alert { border-left: 3px solid var(--tone); background: var(--culm-surface); padding: 0.35rem 0.7rem;
  margin: 0 0 0.35rem; border-radius: 0 0.3rem 0.3rem 0; overflow-wrap: anywhere; }
.culm-bar + div, .culm-bar + ul { margin-top: 0.45rem; }
ul.culm-firing { list-style: none; padding: 0; margin-bottom: 0; margin-left: 0; }
ul.culm-firing li { display: flex; flex-wrap: wrap; gap: 0.1rem 0.7rem; align-items: baseline; }
ul.culm-firing li strong { font-weight: 600; }
ul.culm-firing li > span:last-child { color: var(--culm-muted); font-size: 0.87rem; }
ul.culm-firing code { background: none; color: inherit; padding: 0; font-size: 0.92em; }
.culm-note { color: var(--culm-muted); font-size: 0.87rem; margin: 0; overflow-wrap: anywhere; }
/* Figures. */
dl.culm-figures { display: grid; grid-template-columns: repeat(var(--across), minmax(0, 1fr)); margin: 0; padding: 0;
  border: 1px solid var(--culm-line); border-radius: 0.4rem; overflow: hidden; }
dl.culm-figures > div { box-shadow: 1px 1px 0 var(--culm-line); padding: 0.5rem 0.8rem 0.55rem; }
dl.culm-figures dt { color: var(--culm-muted); font-size: 0.82rem; font-weight: 400; margin: 0; }
dl.culm-figures dd { margin: 0; display: flex; flex-direction: column; }
dl.culm-figures b { font-size: 1.28rem; font-weight: 600; line-height: 1.35; overflow-wrap: anywhere; }
dl.culm-figures dd span { color: var(--culm-muted); font-size: 0.82rem; overflow-wrap: anywhere; }
dl.culm-facts { margin: 0; padding: 0; }
dl.culm-facts > div { display: grid; grid-template-columns: minmax(110px, 190px) 1fr; gap: 0.9rem; padding: 0.22rem 0;
  border-bottom: 1px solid var(--culm-line); }
dl.culm-facts dt { color: var(--culm-muted); font-weight: 400; margin: 0; }
dl.culm-facts dd { margin: 0; overflow-wrap: anywhere; }
h3.culm-chart { font-size: 0.92rem; font-weight: 600; padding: 0.2rem 0 0; margin: 0; }
h3.culm-chart span { color: var(--culm-muted); font-weight: 400; margin-left: 0.4rem; }
.culm-title { display: flex; flex-wrap: wrap; gap: 0.1rem 0.8rem; align-items: baseline; }
.culm-title h2 { font-size: 1.3rem; font-weight: 600; padding: 0; margin: 0; }
/* Tables. */
.culm-scroll { overflow-x: auto; }
table.culm-table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
table.culm-table caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
table.culm-table th, table.culm-table td { text-align: left; padding: 0.28rem 0.9rem 0.28rem 0; border: 0;
  border-bottom: 1px solid var(--culm-line); vertical-align: top; font-weight: 400; white-space: nowrap; }
table.culm-table td:last-child:not(.culm-number) { white-space: normal; min-width: 16rem; }
table.culm-table thead th { color: var(--culm-muted); font-size: 0.82rem; }
table.culm-table tbody th { font-weight: 600; }
table.culm-table .culm-number { text-align: right; }
/* Log lines. */
.culm-log { display: flex; flex-direction: column-reverse; /* so it stands at its end */
  max-height: 21rem; overflow-y: auto; border: 1px solid var(--culm-line); border-radius: 0.4rem;
  background: var(--culm-surface); padding: 0.35rem 0.7rem; }
.culm-log ol { list-style: none; margin: 0; padding: 0; font-family: "Source Code Pro", ui-monospace, monospace;
  font-size: 0.82rem; line-height: 1.55; }
.culm-log li { display: grid; grid-template-columns: 4.6rem minmax(3rem, 8rem) 4.4rem 1fr; gap: 0.7rem; margin: 0;
  padding: 0; font-size: inherit; }
.culm-log + .culm-note { margin-top: 0.3rem; }
.culm-log li > span { overflow-wrap: anywhere; }
.culm-log li > span:nth-child(1) { color: var(--culm-muted); }
.culm-log li > span:nth-child(2) { font-weight: 600; }
.culm-log li > span:nth-child(3) { color: var(--tone); }
.culm-log li > span:nth-child(4) { white-space: pre-wrap; }
ol.culm-events { list-style: none; margin: 0; padding: 0; }
ol.culm-events li { border-bottom: 1px solid var(--culm-line); padding: 0.35rem 0; margin: 0; font-size: 0.92rem; }
ol.culm-events li span { color: var(--culm-muted); font-size: 0.85rem; }
ol.culm-events b { font-weight: 600; margin-left: 0.4rem; }
ol.culm-events p { margin: 0; font-size: inherit; overflow-wrap: anywhere; }
/* Time lines of incidents. */
ol.culm-line { list-style: none; margin: 0; padding: 0; }
ol.culm-line li { display: grid; grid-template-columns: minmax(118px, 190px) 1fr minmax(66px, auto); gap: 0.9rem;
  align-items: center; padding: 0.2rem 0; margin: 0; border-bottom: 1px solid var(--culm-line); }
ol.culm-line li > span:last-child { text-align: right; font-weight: 600; }
.culm-lane { position: relative; height: 12px; }
.culm-lane i { position: absolute; top: 0; height: 100%; min-width: 3px; background: var(--tone); border-radius: 2px; }
/* Who runs what. */
.culm-legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; color: var(--culm-muted); font-size: 0.85rem; }
.culm-legend i { display: inline-block; width: 0.75rem; height: 0.75rem; border-radius: 2px; margin-right: 0.4rem;
  vertical-align: -1px; background: color-mix(in srgb, var(--state) 24%, transparent);
  border: 1.5px solid var(--state); }
.culm-stages { display: grid; grid-template-columns: repeat(auto-fill, minmax(var(--least), 1fr)); gap: 0.5rem; }
.culm-stages.culm-bands { grid-template-columns: 1fr; gap: 0; }
.culm-stage { border: 1px solid var(--culm-line); border-radius: 0.35rem; padding: 0.35rem 0.45rem; min-width: 0; }
.culm-bands .culm-stage { display: grid; grid-template-columns: 92px 1fr; gap: 0.6rem; border: 0; border-radius: 0;
  border-bottom: 1px solid var(--culm-line); padding: 0.45rem 0; }
.culm-stage h4 { font-size: 0.82rem; font-weight: 400; color: var(--culm-muted); margin: 0 0 0.25rem; padding: 0; }
.culm-bands .culm-cells { display: grid; grid-template-columns: repeat(auto-fill, minmax(var(--cell), 1fr)); }
.culm-chunks .culm-cells { align-content: center; }
.culm-cells { display: flex; flex-wrap: wrap; gap: 0.28rem; }
.culm-cell { display: block; flex: 0 1 auto; font-size: 0.84rem; line-height: 1.4; padding: 0.08rem 0.42rem;
  border-radius: 0.28rem; border: 1.5px solid var(--state); color: var(--culm-ink); max-width: 100%;
  overflow-wrap: anywhere; background: color-mix(in srgb, var(--state) 15%, transparent); }
.culm-cell.culm-stands { border-style: dashed; background: none; }
.culm-cell.culm-seeds { border-style: dotted; background: none; }
.culm-cell small { color: var(--culm-muted); font-size: 0.95em; }
[class*="st-key-narrow-"] { display: none; }
@media (max-width: 1100px) { dl.culm-figures { grid-template-columns: repeat(4, minmax(0, 1fr)); } }
@media (max-width: 720px) {
  .stMainBlockContainer { padding: 4.3rem 0.9rem 1.5rem; }
  dl.culm-figures { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  dl.culm-figures b { font-size: 1.15rem; }
  ol.culm-line li { grid-template-columns: 118px 1fr 62px; gap: 0.5rem; font-size: 0.9rem; }
  dl.culm-facts > div { grid-template-columns: 118px 1fr; }
  .culm-log li { grid-template-columns: auto auto 1fr; gap: 0 0.6rem; padding: 0.15rem 0; }
  .culm-log li > span:nth-child(4) { grid-column: 1 / -1; }
  .culm-bands .culm-stage { grid-template-columns: 1fr; gap: 0.1rem; }
  [class*="st-key-wide-"] { display: none; }
  [class*="st-key-narrow-"] { display: flex; }
}
"""
)
