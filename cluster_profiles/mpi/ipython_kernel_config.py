"""Kernels of notebooks: `%%px` says what to do when there are no engines yet. Engines do not read this file.

Installed as etc/ipython/ipython_kernel_config.py of the environment, for any home folder and profile.
"""

c = get_config()  # noqa: F821  (given by traitlets)

c.InteractiveShellApp.extensions.append("labkit.cluster")
