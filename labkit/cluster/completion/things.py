"""What can be known of a value without running any code of its class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HIDDEN = "_"  # names that begin so are offered only if the word does


@dataclass(frozen=True)
class Page:
    """What the help of a thing says. `source` is shown in place of the documentation for `name??`."""

    type_name: str
    signature: str = ""
    documentation: str = ""
    details: tuple[tuple[str, str], ...] = ()
    source: str = ""
    file: str = ""

    def text(self, expression: str, detail: int) -> str:
        """Return the page as text; `detail` is 1 for `name??`, else 0."""
        rows = []
        if self.signature:
            rows.append(f"Signature: {expression}{self.signature}")
        rows += [f"{label + ':':<10} {value}" for label, value in self.details]
        if detail and self.source:
            rows.append(f"Source:\n{self.source.rstrip()}")
        elif self.documentation or not self.details:
            rows.append(f"Docstring:\n{self.documentation.strip() or '<no docstring>'}")
        if self.file:
            rows.append(f"File:      {self.file}")
        rows.append(f"Type:      {self.type_name}")
        return "\n".join(rows)


class Thing:
    """A value of which nothing is known. Others are derived from it."""

    kind = "instance"  # as JupyterLab shows it beside a name: function, class, module, instance, property …
    signature = ""  # "(a, b=1)", empty if it cannot be called or is not known
    is_callable = False

    def names(self) -> dict[str, str]:
        """Return the names of its attributes, and the kind of each."""
        return {}

    def attribute(self, name: str) -> Thing | None:
        """Return an attribute, None if there is none."""
        return None

    def item(self, key: object) -> Thing | None:
        """Return the value of `thing[key]`; of `thing[i]` with an unknown index if the key is None."""
        return None

    def keys(self) -> Iterable[str]:
        """Return the keys of a dict that are texts."""
        return ()

    def result(self) -> Thing | None:
        """Return what a call of it returns, None if that is not known."""
        return None

    def instance(self) -> Thing | None:
        """Return what is known of an object of this class; None if this is no class."""
        return None

    def page(self) -> Page | None:
        """Return its help, None if there is nothing to say."""
        return None
