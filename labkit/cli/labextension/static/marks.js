// JupyterLab shows no difference between a cell to write in and a cell to run. This gives cells with the tags
// `exercise` and `check` a coloured edge. JupyterLab loads it as an extension; it needs no build.

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

const plugin = {
  id: "allreduce-lab:marks",
  description: "Marks the cells of exercises.",
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
