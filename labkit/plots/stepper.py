"""Figures to step through in a notebook: one is shown at a time, and all of them where no script runs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from matplotlib.figure import Figure

# Turns the pictures before it, which all stand there, into one picture with a slider and buttons. JupyterLab
# removes scripts from notebooks that it does not trust, and so does GitHub; both then show all pictures.
# `data-lm-suppress-shortcuts` keeps JupyterLab from taking keys as commands, the arrows to select cells.
# Every focusable element needs this attribute: JupyterLab checks the focused element itself, not its parents.
SCRIPT = """
(() => {
    const box = document.currentScript.parentElement;
    const images = [...box.querySelectorAll("img")];
    const last = images.length - 1;
    const make = (tag, attributes, text = "") => {
        const element = document.createElement(tag);
        Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
        element.textContent = text;
        return element;
    };
    const keys = {"data-lm-suppress-shortcuts": "true"};
    const look = "font: inherit; color: inherit; background: transparent; cursor: pointer; "
        + "border: 1px solid; border-radius: 4px; padding: 2px 12px";
    const back = make("button", {type: "button", "aria-label": "previous round", style: look, ...keys}, "◀");
    const slider = make("input", {type: "range", min: 0, max: last, value: 0, "aria-label": "round",
        style: "flex: 0 1 16em; min-width: 0", ...keys});
    const next = make("button", {type: "button", "aria-label": "next round", style: look, ...keys}, "▶");
    const words = make("output", {style: "white-space: nowrap"});
    const bar = make("div", {role: "group", "aria-label": "rounds",
        style: "display: flex; align-items: center; gap: 8px; margin: 4px 0"});
    bar.append(back, slider, next, words);
    const show = () => {
        const round = Number(slider.value);
        images.forEach((image, k) => { image.hidden = k != round; });
        words.textContent = `round ${round} of ${last}`;
        slider.setAttribute("aria-valuetext", images[round].alt);
        back.style.opacity = round == 0 ? 0.4 : 1;
        next.style.opacity = round == last ? 0.4 : 1;
    };
    const step = by => { slider.value = Number(slider.value) + by; show(); };
    slider.addEventListener("input", show);
    back.addEventListener("click", () => step(-1));
    next.addEventListener("click", () => step(+1));
    images.forEach(image => { image.style.width = "608px"; });
    box.prepend(bar);
    show();
})();
"""


class Stepper:
    """Figures to step through in a notebook; `texts` says in words what each of them shows."""

    def __init__(self, figures: Sequence[Figure], texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.images = [_png(figure) for figure in figures]

    def __repr__(self) -> str:
        return "\n".join(self.texts)

    def _repr_html_(self) -> str:
        style = "width: 49%; max-width: 100%; min-width: 300px; height: auto; vertical-align: top"
        images = "\n".join(
            f'<img alt="{escape(text)}" style="{style}" src="data:image/png;base64,{image}">'
            for text, image in zip(self.texts, self.images, strict=True)
        )
        return f"<div>\n{images}\n<script>{SCRIPT}</script>\n</div>"


def _png(figure: Figure) -> str:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=80)
    return base64.b64encode(image.getvalue()).decode()
