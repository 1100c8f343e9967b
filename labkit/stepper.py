"""A slider with buttons, for outputs of a notebook that are stepped through: rounds of a schedule, events.

JupyterLab removes scripts from notebooks that it does not trust, and so does GitHub. So an output is complete
without its script.
"""

from __future__ import annotations

# `makeStepper(box, last, noun, show, start)` puts the bar at the top of `box`. `show(step)` shows a step and
# returns it in words. The arrow keys, Home and End move the slider.
# `data-lm-suppress-shortcuts` keeps JupyterLab from treating keys as commands: arrow keys select cells.
# Every focusable element needs this attribute: JupyterLab checks the focused element itself, not its parents.
MAKE_STEPPER = """
    const makeStepper = (box, last, noun, show, start = 0) => {
        const make = (tag, attributes, text = "") => {
            const element = document.createElement(tag);
            Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
            element.textContent = text;
            return element;
        };
        const keys = {"data-lm-suppress-shortcuts": "true"};
        const look = "font: inherit; color: inherit; background: transparent; cursor: pointer; "
            + "border: 1px solid; border-radius: 4px; padding: 2px 12px";
        const back = make("button",
            {type: "button", "aria-label": `previous ${noun}`, style: look, ...keys}, "◀");
        const slider = make("input", {type: "range", min: 0, max: last, value: start, "aria-label": noun,
            style: "flex: 0 1 16em; min-width: 0", ...keys});
        const next = make("button",
            {type: "button", "aria-label": `next ${noun}`, style: look, ...keys}, "▶");
        const words = make("output", {style: "white-space: nowrap"});
        const bar = make("div", {role: "group", "aria-label": `${noun}s`,
            style: "display: flex; align-items: center; gap: 8px; margin: 4px 0"});
        bar.append(back, slider, next, words);
        const update = () => {
            const step = Number(slider.value);
            words.textContent = `${noun} ${step} of ${last}`;
            slider.setAttribute("aria-valuetext", show(step));
            back.style.opacity = step == 0 ? 0.4 : 1;
            next.style.opacity = step == last ? 0.4 : 1;
        };
        const go = by => { slider.value = Number(slider.value) + by; update(); };
        slider.addEventListener("input", update);
        back.addEventListener("click", () => go(-1));
        next.addEventListener("click", () => go(+1));
        box.prepend(bar);
        update();
    };
"""
