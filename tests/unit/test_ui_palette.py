"""The colours can be told apart from what is behind them, on light pages and on dark ones."""

import pytest

from culm.ui import palette
from culm.ui.style import CSS

TEXT, MARK = 4.5, 3.0  # WCAG 2.2: 1.4.3 and 1.4.11


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("behind", [palette.PAGE, palette.SURFACE], ids=["page", "surface"])
def test_text_can_be_read(scheme: str, behind: palette.Colour) -> None:
    for colour in (palette.INK, palette.MUTED, *palette.MEANINGS.values()):
        assert palette.contrast(colour.on(scheme), behind.on(scheme)) >= TEXT, colour


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_curves_and_bars_can_be_seen(scheme: str) -> None:
    for colour in (palette.TRAINED, palette.EVALUATED, *palette.USES.values(), *palette.RUNS):
        assert palette.contrast(colour.on(scheme), palette.PAGE.on(scheme)) >= MARK, colour


def test_the_contrast_is_that_of_the_standard() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_a_meaning_has_one_colour_in_each_scheme() -> None:
    for scheme in ("light", "dark"):
        told = [colour.on(scheme) for colour in palette.MEANINGS.values()]
        assert len(set(told)) == len(told)


def test_both_themes_have_the_same_options() -> None:
    settings = palette.theme_settings()
    light = {name.removeprefix("theme.light.") for name in settings if name.startswith("theme.light.")}
    dark = {name.removeprefix("theme.dark.") for name in settings if name.startswith("theme.dark.")}
    assert light == dark
    assert "theme.primaryColor" not in settings


def test_the_style_sheet_asks_nobody_for_anything() -> None:
    assert "url(" not in CSS
    assert "@import" not in CSS
