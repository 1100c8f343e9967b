// JupyterLab shows no difference between a cell to write in and a cell to run. This gives cells with the tags
// `exercise` and `check` a coloured edge. JupyterLab loads it as an extension; it needs no build.
//
// It also gives pictures the alternative text in their output's metadata (labkit/alt_text.py), which JupyterLab
// ignores: a screen reader would read nothing. It gives the stars below a heading words: a screen reader would
// read "black star" five times. The key H leads from a cell to the hints below the last verdict above.

// JupyterLab's frame of the cell that one writes in would hide the edge there.
const EDGES = `
.labkit-exercise > .jp-Cell-inputWrapper .jp-InputArea-editor { border-left: 5px solid #8250df !important; }
.labkit-check > .jp-Cell-inputWrapper .jp-InputArea-editor { border-left: 5px dotted #8250df !important; }
[data-jp-theme-light="false"] :is(.labkit-exercise, .labkit-check) > .jp-Cell-inputWrapper .jp-InputArea-editor {
  border-left-color: #b392f0 !important;
}
.jp-Notebook .labkit-verdict > details > summary::after { content: " · key H"; }
`;
const MARKED = ["exercise", "check"];

function mark(notebook) {
  for (const cell of notebook.widgets) {
    const tags = cell.model.getMetadata("tags") ?? [];
    for (const tag of MARKED) {
      cell.toggleClass(`labkit-${tag}`, tags.includes(tag));
    }
  }
}

function describe(notebook, image) {
  const cell = notebook.widgets.find((one) => one.node.contains(image));
  const area = cell?.outputArea;
  const place = area?.widgets.findIndex((output) => output.node.contains(image)) ?? -1;
  if (place < 0) {
    return;
  }
  const metadata = area.model.get(place)?.metadata ?? {};
  image.alt = metadata["image/png"]?.alt ?? "Figure of this cell";
}

function describeAll(notebook) {
  for (const image of notebook.node.querySelectorAll(".jp-RenderedImage img:not([alt])")) {
    describe(notebook, image);
  }
}

const SYMBOLS = /([★☆]{2,}|[●○]{2,})/;

function inWords(symbols) {
  const filled = [...symbols].filter((symbol) => "★●".includes(symbol)).length;
  const what = symbols.match(/[★☆]/) ? "difficulty " : "";
  return `${what}${filled} of ${symbols.length}`;
}

function giveWords(notebook) {
  for (const paragraph of notebook.node.querySelectorAll(".jp-RenderedMarkdown p")) {
    for (const text of [...paragraph.childNodes]) {
      if (text.nodeType !== Node.TEXT_NODE || !SYMBOLS.test(text.data)) {
        continue;
      }
      const parts = text.data.split(SYMBOLS).map((part) => {
        if (!SYMBOLS.test(part)) {
          return part;
        }
        const image = document.createElement("span");
        image.setAttribute("role", "img");
        image.setAttribute("aria-label", inWords(part));
        image.title = inWords(part);
        image.textContent = part;
        return image;
      });
      text.replaceWith(...parts);
    }
  }
}

// In a window that is narrower than this (a phone, a laptop's at 150 %), the list of files leaves a notebook too
// little room. A click on the folder's icon shows it.
const NARROW = "(max-width: 900px)";

function makeRoom(app) {
  if (window.matchMedia(NARROW).matches) {
    app.shell.collapseLeft?.();
  }
}

const TO_HINTS = "allreduce-lab:go-to-hints";

function goToHints(notebook) {
  const above = notebook.widgets.slice(0, notebook.activeCellIndex + 1).reverse();
  const verdict = above.map((cell) => cell.node.querySelector(".labkit-verdict summary")).find(Boolean);
  if (verdict) {
    const titles = [...verdict.closest(".labkit-verdict").querySelectorAll("summary")];
    const closed = titles.find((title) => title.checkVisibility() && !title.parentElement.open);
    (closed ?? verdict).focus();
    (closed ?? verdict).scrollIntoView({ block: "nearest" });
  }
}

const plugin = {
  id: "allreduce-lab:marks",
  description: "Marks the cells of exercises, describes pictures and stars, and leads to hints.",
  autoStart: true,
  activate: (app) => {
    const style = document.createElement("style");
    style.textContent = EDGES;
    document.head.append(style);
    app.restored.then(() => makeRoom(app));
    window.matchMedia(NARROW).addEventListener("change", () => makeRoom(app));
    app.commands.addCommand(TO_HINTS, {
      label: "Go to the Hints of the Last Check",
      execute: () => {
        const notebook = app.shell.currentWidget?.content;
        if (notebook?.activeCell) {
          goToHints(notebook);
        }
      },
    });
    app.commands.addKeyBinding({
      command: TO_HINTS,
      keys: ["H"],
      selector: ".jp-Notebook.jp-mod-commandMode:not(.jp-mod-readWrite) :focus",
    });
    app.docRegistry.addWidgetExtension("Notebook", {
      createNew: (panel) => {
        const again = () => mark(panel.content);
        panel.context.ready.then(again);
        panel.content.modelContentChanged.connect(again);
        const observer = new MutationObserver(() => {
          describeAll(panel.content);
          giveWords(panel.content);
        });
        observer.observe(panel.content.node, { childList: true, subtree: true });
        panel.disposed.connect(() => observer.disconnect());
      },
    });
  },
};

// What webpack would write: a container with one module.
window._JUPYTERLAB = window._JUPYTERLAB ?? {};
window._JUPYTERLAB["allreduce-lab"] = {
  init: () => {},
  get: () => Promise.resolve(() => ({ __esModule: true, default: plugin })),
};
