"""Run a notebook in real kernels, and write down what it says: ``kernels.py NOTEBOOK RESULT``.

A cell with the tag ``restart`` begins a new kernel. It is a program of its own, since the client
of a kernel keeps sockets and threads to its end.
"""

from __future__ import annotations

import sys

import nbformat
from nbclient import NotebookClient

_LIMIT_S = 120


def parts(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """What one kernel runs, each."""
    found: list[nbformat.NotebookNode] = []
    for cell in notebook.cells:
        if not found or "restart" in cell.metadata.get("tags", ()):
            found.append(nbformat.v4.new_notebook(metadata=notebook.metadata))
        found[-1].cells.append(cell)
    return found


def run(source: str, result: str) -> None:
    """Run all parts; an error in a cell ends it."""
    notebook = nbformat.read(source, as_version=4)
    for part in parts(notebook):
        NotebookClient(part, timeout=_LIMIT_S, kernel_name="python3").execute()
    nbformat.write(notebook, result)


if __name__ == "__main__":
    run(*sys.argv[1:])
