"""Sphinx: `make docs` builds docs/_build/index.html."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "pdla"
author = "pdla contributors"
project_copyright = "2026, pdla contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # so that one page can point into another
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "pdla"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
templates_path = ["_templates"]
default_role = "py:obj"  # a link where the reference has a page of that name, else as code
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["torch"]  # pdla.torch needs it, its page does not
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False  # parameters that are described together stay so
napoleon_use_rtype = False
napoleon_preprocess_types = True
napoleon_custom_sections = [("Raises", "returns_style")]  # by itself it drops all but the first of several errors

# What the reference has of a class, on the class's own page (_templates/autosummary/class.rst).
MEMBERS = {
    "pdla.Communicator": "bcast, reduce, allreduce, allgather, reduce_scatter, alltoall, shift, send, recv, barrier, split, share, "
                         "same, close",
    "pdla.comm.pending.Pending": "wait",
    "pdla.simulate.all_ranks.AllRanks": "seconds, path, save_trace",
    "pdla.simulate.critical_path.Path": "seconds, by_kind, by_tag, by_rank",
    "pdla.simulate.Product": "flops, shapes, lower_bound, grown, fastest",
    "pdla.simulate.Transformer": "flops, lower_bound, grown, fastest",
    "pdla.simulate.Found": "not_looked_at, words",
    "pdla.simulate.Point": "rate",
    "pdla.ProcessGrid": "default, default_layout, __getitem__, size, active, order, rank_of, coords_of, holders, group, close",
    "pdla.Layout": "T, axes, summed, check, indices, local_shape, owner, same_cuts, draw",
    "pdla.show.Drawing": "save",
    "pdla.indices.IndexSet": "indices, overlay, select",
    "pdla.DistMatrix": "__getitem__, __setitem__, local, dtype, ndim, size, indices, T, H, conj, real, imag, copy, astype, "
                       "redistribute, shared, gather, diagonal, norm, sum, mean, max, min, trace, check_copies",
    "pdla.scalapack.Descriptor": "read, shape, words, layout",
    "pdla.Plan": "__call__, free, predicted, explain",
    "pdla.linalg.FactorPlan": "__call__, predicted, at_most, explain",
    "pdla.Machine": "load, known, text, seconds",
    "pdla.Stack": "indices, T, H, conj, matrices, gather",
    "pdla.Ledger": "bytes_received, bytes_from_far, messages, flops, by_axis, by_verb, by_tag, total, save_trace",
    "pdla.nn.Scheme": "shard, residual",
    "pdla.nn.Layer": "forward, backward, parameters, gradients, kept_bytes, state_dict, load_state_dict, forward_local, "
                     "backward_local, forward_async, backward_async, check_input",
    "pdla.nn.Parameter": "value",
    "pdla.nn.MicroBatch": "save, saved, rows, add_gradient",
    "pdla.nn.CrossEntropy": "forward, backward",
    "pdla.nn.MeanSquaredError": "forward, backward",
    "pdla.nn.SGD": "step, state_dict, load_state_dict",
    "pdla.nn.AdamW": "step, state_dict, load_state_dict",
}
autosummary_context = {"listed": MEMBERS}  # `members` is a name of autosummary's own, which wins

RULE = re.compile(r"^-{4,}$", re.MULTILINE)  # below the heading of a section
COLUMNS = re.compile(r"\S {2,}\S|^ {2,}")


def as_written(app, what, name, obj, options, lines):
    """Docstrings without sections are plain text: paragraphs with columns or indented lines are set as written, others as prose."""
    if RULE.search("\n".join(lines)):
        return
    paragraphs = [text.split("\n") for text in re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))]
    lines[:] = [line for paragraph in paragraphs for line in (*_set(paragraph), "")]


def _set(paragraph):
    if any(COLUMNS.search(line) for line in paragraph):
        return [".. code-block:: text", "", *("   " + line for line in paragraph)]
    code = re.compile(r"(`[^`]*`)")
    return ["".join(_prose(part) for part in code.split(line)) for line in paragraph]


def _prose(part):
    return part if part.startswith("`") else re.sub(r"([*|]|_\b)", r"\\\1", part)


def as_exported(app, env, node, contnode):
    """Link a type or an error to its page: docstrings name what pdla exports, signatures the module that defines it."""
    room, _, name = node["reftarget"].rpartition(".")
    if node["refdomain"] != "py" or not (room + ".").startswith(("pdla.", ".")):
        return None
    py, given = env.domains["py"], (env, node["refdoc"], app.builder, "obj")
    found = (py.resolve_xref(*given, f"{face}.{name}", node, contnode) for face in ("pdla", "pdla.errors"))
    return next(filter(None, found), None)


def setup(app):
    app.connect("missing-reference", as_exported)
    app.connect("autodoc-process-docstring", as_written, priority=400)  # before napoleon
