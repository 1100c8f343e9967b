"""Build the book in build/book: the notebooks with their saved outputs, the pages of docs/, the API.

python tools/make_book.py
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import book_api
import book_figures
import book_taught

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "build" / "book"
FOLDERS = ("docs", "mpiwatch/docs", "notebooks", "examples", "labkit/reports/figures")
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "mpiwatch/README.md",
    "mpiwatch/CHANGELOG.md",
    "CITATION.cff",
    "labkit/data/digits.txt",
    ".github/workflows/test.yml",
)
LINK_TO_CELL = re.compile(r"(\w+)\.ipynb#cell-id=[\w-]+")


def stage(target: Path) -> None:
    """Copy what the book shows to an empty folder, so that no file of the build is among the sources."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for name in FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    for notebook in (target / "notebooks").glob("*.ipynb"):
        book_figures.describe(notebook)
        text = notebook.read_text(encoding="utf-8")
        # Links in a table of progress use JupyterLab's cell anchors, which a page of the book does not have.
        notebook.write_text(LINK_TO_CELL.sub(r"\1.html", text), encoding="utf-8")
    for name in "_config.yml", "_toc.yml":
        shutil.move(target / "docs" / "book" / name, target / name)
    (target / "_static").mkdir()  # whose style sheets Jupyter Book adds to every page
    shutil.move(target / "docs" / "book" / "book.css", target / "_static" / "book.css")
    (target / "docs" / "book" / "taught.md").write_text(book_taught.page(), encoding="utf-8")
    (target / "docs" / "api").mkdir()
    for name, text in book_api.pages().items():
        (target / "docs" / "api" / f"{name}.md").write_text(text, encoding="utf-8")


class Page(HTMLParser):
    """The links of a page and the names that links can point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's links and its name."""
        for name, value in attrs:
            if value and (name in ("href", "src") and tag in ("a", "img")):
                self.links.add(value)
            elif value and name in ("id", "name"):
                self.names.add(value)


def broken_links(html: Path) -> list[str]:
    """Return the links between pages whose page, file or anchor is missing."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in html.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # not of this book
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_missing = not to.exists() or (
                parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].names
            )
            if is_missing:
                broken.append(f"{path.relative_to(html.resolve())}: {link}")
    return broken


def main() -> None:
    """Build the book; exit with an error for any warning or broken link."""
    stage(BOOK)
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", BOOK, "--warningiserror", "--keep-going"]
    subprocess.run(command, check=True)
    html = BOOK / "_build" / "html"
    broken = broken_links(html)
    if broken:
        sys.exit("broken links:\n" + "\n".join(broken))
    print(f"The book: {html / 'index.html'}")


if __name__ == "__main__":
    main()
