"""How Sphinx builds the site: `make docs`. The sources are gathered by `_ext/site_pages.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from site_pages import CHAPTERS, COURSES  # noqa: E402

import polyfuse  # noqa: E402

project = "polyfuse"
version = release = polyfuse.__version__
copyright = "the authors of polyfuse"

extensions = [
    "site_pages",
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["course/*.rst", "sg_execution_times.rst"]
default_role = "py:obj"
# Dashes of options stay, and text without a language is no Python.
smartquotes = False
highlight_language = "none"
nitpicky = True
# Types in signatures are names of modules that have no page.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_mock_imports = ["torch", "jax", "jaxlib"]
numpydoc_show_class_members = False
python_use_unqualified_type_names = True

# What takes long is run by `make docs-all` only.
_SLOW = os.environ.get("POLYFUSE_DOCS_SLOW", "")
sphinx_gallery_conf = {
    "examples_dirs": [str(CHAPTERS / f) for f in COURSES],
    "gallery_dirs": list(COURSES),
    "filename_pattern": "" if _SLOW else r"/(?!slow_)",
    "within_subsection_order": "FileNameSortKey",
    "capture_repr": ("_repr_html_", "__repr__"),
    "image_scrapers": ("matplotlib",),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "inspect_global_variables": False,
    "remove_config_comments": True,
    "log_level": {"backreference_missing": "info"},
}

html_theme = "pydata_sphinx_theme"
html_title = "polyfuse"
html_static_path = [str(HERE / "_ext" / "static")]
html_css_files = ["polyfuse.css"]
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": True,
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc", "edit-this-page", "sourcelink"],
}
# "Edit" leads to a code host where one is named: POLYFUSE_DOCS_EDIT=https://host/edit/main
_EDIT = os.environ.get("POLYFUSE_DOCS_EDIT", "")
html_context = {"edit_page_url_template": "{{ edit_root }}/docs/{{ file_name }}", "edit_root": _EDIT}
html_theme_options["use_edit_page_button"] = bool(_EDIT)
