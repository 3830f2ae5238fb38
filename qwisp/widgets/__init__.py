"""Widgets for notebooks: a plain, tested state and a thin view. The only place with ipywidgets."""
