"""Kernels of notebooks: `%%px` says what to do without engines, and tracebacks are legible.

Installed as etc/ipython/ipython_kernel_config.py of the environment, for any home folder and profile. Engines
do not read this file; labkit.cluster.engine_setup sets the same colours there.
"""

c = get_config()  # noqa: F821  (given by traitlets)

c.InteractiveShellApp.extensions.append("labkit.cluster")
# Loaded if a cell uses one of these before connect(), or a Client of ipyparallel's, has registered it.
c.MagicsManager.lazy_magics.update(
    dict.fromkeys(("px", "autopx", "pxconfig", "pxresult", "replay"), "labkit.cluster.no_engines")
)
# JupyterLab shows an error on pink in its light theme and on dark red in its dark one. No single colour has a
# contrast of 4.5 : 1 on both, so tracebacks have the colour of the theme's text.
c.InteractiveShell.colors = "nocolor"
