"""Sphinx settings. Builds offline; warnings are errors (`make docs`).

Notebooks are not executed here: `make docs` has run them through nbconvert into `_notebooks/`.
"""

from __future__ import annotations

import re
import textwrap

import qwisp

project = "qwisp"
author = "The qwisp authors"
copyright = "The qwisp authors, Apache-2.0"
version = release = qwisp.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = f"qwisp {version}"
html_show_sourcelink = False

myst_heading_anchors = 3
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # the default loads scripts from the network
autosummary_generate = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True


def _markdown_to_rst(app, what, name, obj, options, lines: list[str]) -> None:
    """Make valid RST of a docstring, which is plain text with `code`, for reading anywhere."""
    if lines[0].startswith("Alias for field number"):  # what a named tuple says of its own accord
        lines.clear()
        return
    blocks = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(_block(block) for block in blocks).split("\n")


def _block(block: str) -> str:
    """Return a paragraph, list, doctest or verbatim block as RST."""
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return block
    if fence := re.fullmatch(r"```(\w*)\n(.*)\n```", block.strip(), re.DOTALL):
        return f".. code-block:: {fence[1] or 'text'}\n\n" + textwrap.indent(fence[2], "   ")
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
    """Register the docstring reader."""
    app.connect("autodoc-process-docstring", _markdown_to_rst)
