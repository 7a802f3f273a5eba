"""How the documentation is built: `make docs`, where a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pages  # noqa: E402

from consilience.version import __version__  # noqa: E402

project = "consilience"
release = __version__
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "consilience"
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c8f", "color-brand-content": "#0b5c8f"},
    "dark_css_variables": {"color-brand-primary": "#7cc0ee", "color-brand-content": "#7cc0ee"},
}
highlight_language = "none"  # an indented box is an algorithm, not Python
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "parts"]

pages.write(HERE)


def setup(app) -> None:  # type: ignore[no-untyped-def]
    app.connect("source-read", lambda app, name, source: source.__setitem__(0, pages.adapted(name, source[0], HERE)))
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: ["index"])  # another page may be new
