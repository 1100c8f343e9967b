// JupyterLab shows no difference between a cell to write in and a cell to run. This gives cells with the tags
// `exercise` and `check` a coloured edge. JupyterLab loads it as an extension; it needs no build.
//
// It also gives pictures the alternative text in their output's metadata (labkit/alt_text.py), which JupyterLab
// ignores: a screen reader would read nothing.

const EDGES = `
.labkit-exercise > .jp-Cell-inputWrapper .jp-InputArea-editor { border-left: 5px solid #8250df; }
.labkit-check > .jp-Cell-inputWrapper .jp-InputArea-editor { border-left: 5px dotted #8250df; }
[data-jp-theme-light="false"] :is(.labkit-exercise, .labkit-check) > .jp-Cell-inputWrapper .jp-InputArea-editor {
  border-left-color: #b392f0;
}
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

const plugin = {
  id: "allreduce-lab:marks",
  description: "Marks the cells of exercises, and describes pictures.",
  autoStart: true,
  activate: (app) => {
    const style = document.createElement("style");
    style.textContent = EDGES;
    document.head.append(style);
    app.docRegistry.addWidgetExtension("Notebook", {
      createNew: (panel) => {
        const again = () => mark(panel.content);
        panel.context.ready.then(again);
        panel.content.modelContentChanged.connect(again);
        const observer = new MutationObserver(() => describeAll(panel.content));
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
