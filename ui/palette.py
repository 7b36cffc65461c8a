"""The dashboard's colours, by what they mean. Each meaning has one colour on a light page and one on a dark page.

Knows nothing about Streamlit. Text needs a contrast of 4.5 to what is behind it, a line or a mark 3 (WCAG 2.2, 1.4.3
and 1.4.11): a test computes both for every pair.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    light: str
    dark: str

    def on(self, scheme: str) -> str:
        """On a page of this scheme, "light" or "dark"."""
        return self.dark if scheme == "dark" else self.light


# ---- pages and text --------------------------------------------------------------------------------------------------
PAGE = Colour("#ffffff", "#12161a")
SURFACE = Colour("#f4f6f3", "#1a2025")  # behind figures, heads of tables, widgets
LINE = Colour("#dde1dc", "#333b43")
INK = Colour("#1c2420", "#e8ece9")
MUTED = Colour("#56615b", "#a6b1ab")

# ---- what happens to the run, its nodes and its numbers --------------------------------------------------------------
GOOD = Colour("#1b7a4f", "#52c48c")  # goes on, active, done
BAD = Colour("#bd2f45", "#ff8391")  # lost, failed, stalled
LEAVING = Colour("#8f5b00", "#e3b04b")  # handed over, draining, warned, exposed
COMING = Colour("#2a63b3", "#7db4f7")  # joining, waiting, informative
APART = Colour("#7d46a3", "#cc9cec")  # detached, rolled back, another coordinator
RESTING = Colour("#5c6873", "#9aa6b1")  # spare, ended without a word

MEANINGS = {
    "good": GOOD, "bad": BAD, "leaving": LEAVING, "coming": COMING, "apart": APART, "resting": RESTING,
}  # fmt: skip

STATES = {
    "active": GOOD, "spare": RESTING, "draining": LEAVING, "joining": COMING, "detached": APART, "lost": BAD,
}  # fmt: skip
INCIDENTS = {
    "lost": BAD, "handover": LEAVING, "rollback": APART, "differed": BAD, "coordinator": APART, "stall": BAD,
}  # fmt: skip

# ---- curves and shares -----------------------------------------------------------------------------------------------
TRAINED = Colour("#2a63b3", "#7db4f7")
EVALUATED = Colour("#b4540a", "#f2a25c")
USES = {
    "forward": Colour("#1b7a4f", "#52c48c"),
    "backward": Colour("#1d7f8c", "#5cc3d1"),
    "redundant": Colour("#7d46a3", "#cc9cec"),
    "apply": Colour("#2a63b3", "#7db4f7"),
    "bubble": Colour("#b4540a", "#f2a25c"),
    "idle": Colour("#7a858e", "#818c96"),
}
# What else a timetable shows of a compute thread. Waiting is the page's own colour, a little darker.
WORK = {
    **{use: USES[use] for use in ("forward", "backward", "redundant", "apply")},
    "weights": Colour("#0b6e99", "#7cc7ea"),
    "load": Colour("#7a6500", "#e3cf5a"),
    "reduce": Colour("#a8327b", "#f29ac9"),
    "sum": Colour("#84265f", "#d676ad"),
    "state": Colour("#6f6152", "#c4b5a2"),
}
RUNS = (TRAINED, EVALUATED, GOOD, APART, BAD, LEAVING, RESTING)  # of runs that are compared, in turn


def contrast(one: str, other: str) -> float:
    """From 1, none, to 21, black on white."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    def linear(channel: str) -> float:
        value = int(channel, 16) / 255
        return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def css_variables() -> str:
    """Declarations for one rule: the browser takes the colour of its page's scheme."""
    named = {"page": PAGE, "surface": SURFACE, "line": LINE, "ink": INK, "muted": MUTED, **MEANINGS}
    named |= {f"state-{state}": colour for state, colour in STATES.items()}
    return "".join(f"--culm-{name}: light-dark({c.light}, {c.dark});" for name, c in named.items())


def theme_settings() -> dict[str, str]:
    """Streamlit's options for both themes. One theme.primaryColor for both would switch dark pages off."""
    shared = {
        "headingFontSizes": '["1.5rem", "1.2rem", "1.02rem", "1rem", "0.9rem", "0.85rem"]',
        "headingFontWeights": "[600, 600, 600, 600, 600, 600]",
        "baseRadius": "0.35rem",
        "showWidgetBorder": "true",
    }
    coloured = {
        "primaryColor": GOOD,
        "backgroundColor": PAGE,
        "secondaryBackgroundColor": SURFACE,
        "textColor": INK,
        "linkColor": COMING,
        "borderColor": LINE,
        "dataframeBorderColor": LINE,
        "dataframeHeaderBackgroundColor": SURFACE,
        "dataframeHeaderTextColor": MUTED,
        "greenColor": GOOD,
        "redColor": BAD,
        "orangeColor": LEAVING,
        "blueColor": COMING,
        "violetColor": APART,
        "grayColor": RESTING,
        "greenTextColor": GOOD,
        "redTextColor": BAD,
        "orangeTextColor": LEAVING,
        "yellowTextColor": LEAVING,
        "blueTextColor": COMING,
        "violetTextColor": APART,
        "grayTextColor": MUTED,
    }
    found = {"theme.baseFontSize": "15"}
    for scheme in ("light", "dark"):
        found |= {f"theme.{scheme}.{name}": value for name, value in shared.items()}
        found |= {f"theme.{scheme}.{name}": colour.on(scheme) for name, colour in coloured.items()}
    return found
