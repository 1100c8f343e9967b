"""The contrast of text as a page shows it, by the formula of the Web Content Accessibility Guidelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator

# For each element with text of its own: the text, its colour, and the colours of the backgrounds from the
# element outwards, up to the first that is opaque.
COLOURS = """
box => [box, ...box.querySelectorAll("*")].flatMap(element => {
    const text = [...element.childNodes].filter(n => n.nodeType == 3).map(n => n.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest("script, style")) return [];
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const behind = [];
    for (let at = element; at; at = at.parentElement) {
        const colour = numbers(getComputedStyle(at).backgroundColor);
        behind.push(colour);
        if (colour.length == 3 || colour[3] == 1) break;
    }
    return [{text, ink: numbers(getComputedStyle(element).color), behind}];
})
"""


def over(colour: list[float], below: list[float]) -> list[float]:
    """Return the colour that is seen where a colour, perhaps translucent, lies over an opaque one."""
    alpha = colour[3] if len(colour) > 3 else 1.0
    return [alpha * c + (1 - alpha) * b for c, b in zip(colour[:3], below[:3], strict=True)]


def luminance(colour: list[float]) -> float:
    """Return the relative luminance of an sRGB colour with components from 0 to 255."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: dict[str, Any]) -> float:
    """Return the contrast of a text: 1 is invisible, 21 is black on white."""
    ground = [255.0, 255.0, 255.0]
    for colour in reversed(one["behind"]):
        ground = over(colour, ground)
    dark, light = sorted((luminance(over(one["ink"], ground)), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def lowest_contrast(box: Locator) -> float:
    """Return the lowest contrast of all texts in an element; fail if there is no text."""
    texts = box.evaluate(COLOURS)
    assert texts, "no text to look at"
    return min(contrast(one) for one in texts)
