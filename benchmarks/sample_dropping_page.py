"""docs/sample_dropping.md and its picture, from the results of ``benchmarks.sample_dropping``."""

from pathlib import Path
from typing import Any

from benchmarks.sample_dropping import (
    CONTEXT,
    HELD_OUT,
    OUT_SECONDS,
    PIPELINES,
    RATES,
    SHARES,
    STAGES,
    mean_loss,
    name_of,
    paired,
    share_of,
)
from benchmarks.tables import table

PAGE = Path(__file__).parent.parent / "docs" / "sample_dropping.md"
PICTURE = Path(__file__).with_name("sample_dropping.svg")
EXACT = "culm: nothing dropped"

HEAD = """# What dropped samples cost

Made by `python -m benchmarks.sample_dropping`, in some minutes on two cores. Its words are in
`benchmarks/sample_dropping_page.py`: change them there.

Bamboo (NSDI 2023) tells of a simple way to live with lost machines: the pipeline that lost one adds nothing for a
while, so its samples of these steps are dropped, and the learning rate is taken down in ratio to the samples that are
left. Here that is trained for real, beside Culm, which drops nothing: whatever is lost, its curve is that of one
undisturbed process, to the bit.
"""


def what(results: dict[str, Any]) -> str:
    return f"""
## What was trained

- The byte-level GPT of `examples/stdlib_gpt.py`, with two blocks of width 64 and windows of {CONTEXT} bytes; AdamW at
  a rate of 0.003. {PIPELINES} pipelines with eight samples each, {results["steps"]} steps, {results["seeds"]} seeds.
  The loss is that of {HELD_OUT} windows that are not trained on.
- **A chance for an hour as a share of samples.** With 48 machines in {PIPELINES} pipelines, one of a pipeline's
  {STAGES} is lost {STAGES} x -ln(1 - chance) times an hour. The pipeline is then out for {OUT_SECONDS:.0f} s, as in
  the [simulated markets](value.md). Each pipeline misses each step with that share for a chance. That favours dropping:
  a pipeline that waits for a machine to come is out for longer. Two larger shares stand beside, whatever leads to them.
- **After as many steps**: as much time, if steps take as long. **After as many samples**: the run with dropped samples
  takes more steps until it has had as many.
- Differences are taken seed by seed, with their standard error. The text is that of Python's own library, so the
  figures are those of this version of Python, of torch {results["torch"]} and of this type of processor.

## What came out
"""


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    named = [(f"{rate:g} an hour", share_of(rate)) for rate in RATES] + [("", share) for share in SHARES]
    exact = mean_loss(results, "exact")[-1]
    rows = [["nothing dropped: Culm", "0 %", f"{exact[2]:.3f}", "", "", f"{exact[0]:.0f}"]]
    for chance, share in named:
        name = name_of(share)
        by_steps, by_samples = paired(results, name, by_samples=False), paired(results, name, by_samples=True)
        at = next(loss for steps, _, loss in mean_loss(results, name) if steps == results["steps"])
        steps = sum(curve[-1][0] for curve in results["curves"][name]) / results["seeds"]
        rows.append(
            [chance, f"{100 * share:.1f} %", f"{at:.3f}", _signed(by_steps), _signed(by_samples), f"{steps:.0f}"]
        )
    columns = ["chance to lose a machine", "samples dropped", f"loss after {results['steps']} steps"]
    columns += ["more than Culm's", "more after as many samples", "steps to as many samples"]
    picture = "![The loss on held-out text over steps and over samples](../benchmarks/sample_dropping.svg)"
    return "\n".join([HEAD.rstrip("\n"), what(results), *table(columns, rows), "", picture, ""])


def _signed(of: tuple[float, float]) -> str:
    return f"{of[0]:+.3f} ± {of[1]:.3f}"


def picture(results: dict[str, Any]) -> dict[str, Any]:
    """The Vega-Lite specification: the mean loss over steps, and over samples."""
    from benchmarks.value_pictures import CONFIG, VEGA_LITE

    shown = [(EXACT, "exact"), *((f"{100 * s:.1f} % dropped", name_of(s)) for s in (*map(share_of, RATES), *SHARES))]
    colours = ["#2a9150", "#2f81d6", "#7a5cc9", "#d9a13b", "#9a6a3a", "#e07b39", "#d9434e"]
    points = [
        {"run": words, "steps": steps, "samples": samples, "loss": loss}
        for words, name in shown
        for steps, samples, loss in mean_loss(results, name)
    ]
    legend = {"orient": "bottom", "title": None, "columns": 4, "labelLimit": 220, "symbolStrokeWidth": 3}
    colour = {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": [words for words, _ in shown], "range": colours},
        "legend": legend,
    }
    loss = {"field": "loss", "type": "quantitative", "title": "loss on held-out text", "scale": {"zero": False}}
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.split('.')[0]}.json",
        "data": {"values": points},
        "hconcat": [
            {
                "title": f"over {over}",
                "mark": {"type": "line", "opacity": 0.85, "clip": True},
                "width": 330,
                "height": 240,
                "encoding": {
                    "x": {"field": over, "type": "quantitative", "title": over, "scale": {"domain": [0, end]}},
                    "y": loss,
                    "color": colour,
                    "strokeWidth": {"condition": {"test": f"datum.run === '{EXACT}'", "value": 3.5}, "value": 1.5},
                },
            }
            for over, end in (("steps", results["steps"]), ("samples", points[-1]["samples"]))
        ],
        "background": None,
        "config": CONFIG,
    }


def write(results: dict[str, Any]) -> None:
    """The page, and the picture beside the results."""
    from benchmarks.value_pictures import draw

    PAGE.write_text(page(results))
    PICTURE.write_text(draw(picture(results)))
