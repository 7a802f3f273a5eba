"""How the documentation is built: `make docs`, where a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import api  # noqa: E402
import pages  # noqa: E402

from consilience.version import __version__  # noqa: E402

project = "consilience"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
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

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields in one list, not an entry each
add_module_names = False
suppress_warnings = ["ref.python"]  # a short name in an annotation may be that of a class in two rooms

pages.write(HERE)


def setup(app) -> None:  # type: ignore[no-untyped-def]
    api.setup(app)
    app.connect("source-read", lambda app, name, source: source.__setitem__(0, pages.adapt(name, source[0], HERE)))
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: ["index"])  # another page may be new
