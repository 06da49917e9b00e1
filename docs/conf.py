"""Sphinx configuration: `sphinx-build docs docs/_build`."""

project = "ReplaySSM adapters"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
