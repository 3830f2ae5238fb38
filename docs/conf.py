"""Sphinx settings. Builds offline; warnings are errors (`make docs`).

Notebooks are not executed here: `make docs` has run them through nbconvert into `_notebooks/`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shutil
import textwrap
from pathlib import Path

import qwisp

project = "qwisp"
author = "The qwisp authors"
copyright = "The qwisp authors, Apache-2.0"
version = release = qwisp.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"qwisp {version}"
html_show_sourcelink = False

myst_heading_anchors = 3
suppress_warnings = ["ref.python"]  # a name in two modules is no mistake
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # the default loads scripts from the network
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "ignore-module-all": True,  # what a package re-exports is described where it is defined
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# Used by hand, not imported: the command line, HTTP and widgets speak for themselves.
WITHOUT_API = {"qwisp.cli", "qwisp.server", "qwisp.widgets", "qwisp.__main__"}


def _api_pages() -> None:
    """Write one page a package, with every module of it: many small pages are slow to theme."""
    folder = Path(__file__).with_name("_api")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for package in pkgutil.iter_modules(qwisp.__path__, "qwisp."):
        name = package.name
        if name in WITHOUT_API:
            continue
        modules = [name]
        if package.ispkg:
            path = importlib.import_module(name).__path__
            modules += [module.name for module in pkgutil.walk_packages(path, f"{name}.")]
        sections = [
            f"## {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n```\n" for module in modules
        ]
        (folder / f"{name}.md").write_text(f"# {name}\n\n" + "\n".join(sections))


def _markdown_to_rst(app, what, name, obj, options, lines: list[str]) -> None:
    """Make valid RST of a docstring, which is plain text with `code`, for reading anywhere."""
    if lines and lines[0].startswith("Alias for field number"):  # named tuples say it themselves
        lines.clear()
        return
    parts = re.split(r"```(\w*)\n(.*?)\n```", "\n".join(lines), flags=re.DOTALL)
    out = []
    for prose, language, code in zip(
        parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True
    ):
        out += [_block(block) for block in prose.split("\n\n")]
        if code:
            out.append(f".. code-block:: {language or 'text'}\n\n{textwrap.indent(code, '   ')}")
    lines[:] = "\n\n".join(out).split("\n")


def _block(block: str) -> str:
    """Return a paragraph, list, doctest or verbatim block as RST."""
    lines = block.strip("\n").split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return block
    out: list[str] = []
    in_list = verbatim = False
    for line in lines:
        starts_item = bool(re.match(r"\s*[*-] ", line))
        if starts_item and not in_list:
            out.append("")
        in_list |= starts_item
        indented = line.startswith(" ") and not in_list
        if indented and not verbatim:
            out += ["", "::", ""]
        elif verbatim and not indented:
            out.append("")
        verbatim = indented
        out.append(line if indented else _inline(line))
    return "\n".join(out)


def _inline(line: str) -> str:
    """Return one line of prose: what stood in backticks is literal, all else is plain text.

    The escaped spaces let a literal touch the characters beside it.
    """
    bullet = re.match(r"\s*(?:[*-] )?", line)[0]
    parts = re.split(r"`+", line[len(bullet) :])
    parts[::2] = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"\\ ``{part}``\\ " for part in parts[1::2]]
    return bullet + "".join(parts)


def setup(app) -> None:
    """Write the reference and register the docstring reader."""
    _api_pages()
    app.connect("autodoc-process-docstring", _markdown_to_rst)
