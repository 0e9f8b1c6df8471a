"""Sphinx: `make docs` builds docs/_build/index.html."""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parents[1]))

import pdla
from docs import notebooks

project = "pdla"
version = release = pdla.__version__
author = "pdla contributors"
project_copyright = "2026, pdla contributors"
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_html_meta = {"description": "Distributed dense linear algebra for Python, over MPI, over threads, and dry."}
myst_heading_anchors = 3  # so that one page can point into another
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pdla {version}"
html_math_renderer = "mathml"  # by the browser itself: no script, no network
copybutton_exclude = ".linenos, .gp, .go"  # of a session or a console, the commands alone
html_static_path = ["_static"]
html_css_files = ["wide.css"]
templates_path = ["_templates"]
default_role = "py:obj"  # a link where the reference has a page of that name, else as code
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["torch"]  # pdla.torch needs it, its page does not
napoleon_google_docstring = False
napoleon_use_param = False  # parameters that are described together stay so
napoleon_use_rtype = False
napoleon_preprocess_types = True
napoleon_custom_sections = [  # by itself it drops all but the first of several errors, and says Variables
    ("Raises", "returns_style"), ("Attributes", "params_style"),
]

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
    "pdla.Machine": "load, known, text",
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
# Classes that pdla makes and no user calls: without a signature, and which of its parameters are shown, as attributes (None: all).
MADE = {
    "pdla.Communicator": "rank, size, axis",
    "pdla.DistMatrix": "shape, grid, layout",
    "pdla.Ledger": None,
    "pdla.Plan": "dtype, algorithm, schedule, grid, native, roles, panel, machine, words, moved, bound",
    "pdla.Stack": "shape, grid, layout, axis, dtype",
    "pdla.comm.ledger.Event": None,
    "pdla.comm.pending.Pending": "",
    "pdla.config.Settings": None,
    "pdla.indices.IndexSet": None,
    "pdla.linalg.FactorPlan": "name, dtype, shape, block",
    "pdla.linalg.plan.predict.FactorPrediction": None,
    "pdla.matmul.native_layouts.Native": None,
    "pdla.matmul.predict.Prediction": None,
    "pdla.model.cost.Cost": None,
    "pdla.nn.MicroBatch": "",
    "pdla.simulate.Found": None,
    "pdla.simulate.Point": None,
    "pdla.simulate.all_ranks.AllRanks": "results, ledgers",
    "pdla.simulate.critical_path.Path": None,
    "pdla.simulate.critical_path.Step": None,
}

# Functions of one family: each one's page points to the others.
FAMILIES = """
    pdla.run pdla.world pdla.dry_run pdla.dry_run_all
    pdla.zeros pdla.ones pdla.eye pdla.random pdla.from_function pdla.from_global pdla.from_local pdla.load
    pdla.load pdla.save
    pdla.hstack pdla.vstack pdla.block
    pdla.tril pdla.triu pdla.fill_diagonal
    pdla.ProcessGrid pdla.balanced_shape pdla.tiled_order
    pdla.Layout pdla.Balanced pdla.Cyclic pdla.Cuts
    pdla.matmul pdla.gemm pdla.plan_matmul pdla.predict_matmul pdla.matmul_words pdla.native_layouts
    pdla.matmul pdla.matvec pdla.batched_matmul pdla.multi_dot pdla.einsum
    pdla.syrk pdla.herk pdla.symm pdla.hemm pdla.syrk_words pdla.linalg.syr2k pdla.linalg.her2k
    pdla.stack pdla.batched_matmul pdla.einsum
    pdla.matvec pdla.matvec_words
    pdla.record pdla.tagged pdla.Ledger
    pdla.linalg.solve pdla.linalg.solve_triangular pdla.linalg.cho_solve pdla.linalg.lu_solve pdla.linalg.inv
    pdla.linalg.cholesky pdla.linalg.cho_factor pdla.linalg.cho_solve pdla.linalg.plan_cholesky pdla.linalg.predict_cholesky
    pdla.linalg.lu pdla.linalg.lu_factor pdla.linalg.lu_solve pdla.linalg.plan_lu pdla.linalg.predict_lu
    pdla.linalg.solve pdla.linalg.plan_solve
    pdla.linalg.solve_triangular pdla.linalg.trsm pdla.linalg.trmm pdla.linalg.plan_solve_triangular
    pdla.linalg.qr pdla.linalg.qr_multiply pdla.linalg.orth pdla.linalg.plan_qr pdla.linalg.predict_qr
    pdla.linalg.lstsq pdla.linalg.pinv pdla.linalg.solve pdla.linalg.qr pdla.linalg.plan_lstsq pdla.linalg.predict_lstsq
    pdla.linalg.orth pdla.linalg.null_space pdla.linalg.matrix_rank
    pdla.linalg.svd pdla.linalg.svdvals pdla.linalg.polar pdla.linalg.eigh
    pdla.linalg.polar pdla.linalg.newton_schulz pdla.linalg.signm pdla.linalg.plan_polar pdla.linalg.predict_polar
    pdla.linalg.sqrtm pdla.linalg.logm pdla.linalg.funm pdla.linalg.inverse_root pdla.linalg.expm
    pdla.linalg.lu_factor pdla.linalg.cho_factor pdla.linalg.save_factors pdla.linalg.load_factors
    pdla.torch.from_dtensor pdla.torch.to_dtensor
    pdla.linalg.predict_cholesky pdla.linalg.predict_lu pdla.linalg.predict_qr pdla.linalg.predict_solve_triangular
    pdla.linalg.cholesky_words pdla.linalg.lu_words pdla.linalg.qr_words pdla.linalg.eigh_words
    pdla.linalg.eigh pdla.linalg.eigvalsh pdla.linalg.plan_eigh pdla.linalg.predict_eigh
    pdla.linalg.det pdla.linalg.slogdet
    pdla.linalg.norm pdla.linalg.cond
    pdla.scalapack.from_descriptor pdla.scalapack.to_descriptor pdla.scalapack.Descriptor
    pdla.simulate.Product pdla.simulate.Transformer pdla.simulate.scaling
    pdla.nn.Megatron1D pdla.nn.Summa2D pdla.nn.Tesseract pdla.nn.Cube3D pdla.nn.Tensor3D pdla.nn.Serial
    pdla.nn.LayerNorm pdla.nn.RMSNorm pdla.nn.GroupNorm
    pdla.nn.SGD pdla.nn.AdamW pdla.nn.Shampoo pdla.nn.clip
"""
autosummary_context = {"listed": MEMBERS}  # `members` is a name of autosummary's own, which wins

RULE = re.compile(r"^-{4,}$", re.MULTILINE)  # below the heading of a section
COLUMNS = re.compile(r"\S {2,}\S|^ {2,}")


def as_written(app, what, name, obj, options, lines):
    """Docstrings without sections are plain text: paragraphs with columns or indented lines are set as written, others as prose."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # of a first line with a colon, napoleon takes what is before it for a type
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


SECTION = re.compile(r"^(Parameters|Notes|Examples)\n-+\n(.*?)(?=^\w[\w ]*\n---+\n|\Z)", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^(?=\S)(.+?) : .*\n(?:[ ].*\n|\n)*", re.MULTILINE)


def as_given(app, what, name, obj, options, lines):
    """Of a class that pdla makes, parameters are attributes; parameters of pdla's own, which begin with "_", are told nowhere."""
    shown = MADE.get(name)
    kept = None if shown is None else shown.split(", ")

    def section(match):
        if match[1] != "Parameters":
            return match[0]
        entries = [entry for entry in ENTRY.finditer(match[2]) if not entry[1].startswith("_")]
        entries = [entry[0] for entry in entries if kept is None or {*entry[1].split(", ")} & {*kept}]
        heading = "Attributes" if name in MADE else "Parameters"
        return f"{heading}\n{'-' * len(heading)}\n" + "".join(entries) if entries else ""

    lines[:] = SECTION.sub(section, "\n".join(lines) + "\n").split("\n")


def as_called(app, what, name, obj, options, signature, returned):
    """No signature of a class that no user calls; of others no parameters of pdla's own."""
    if name in MADE:
        return "", returned
    return signature and re.sub(r", _\w+: [^()]*? = None", "", signature), returned


def see_also(app, what, name, obj, options, lines):
    """The others of its families: after those that the docstring itself names, or else before the notes and examples."""
    families = [family.split() for family in FAMILIES.strip().split("\n")]
    others = [other for family in families if name in family for other in family if other != name]
    text = "\n".join(lines) + "\n"
    told = re.search(r"^See Also\n-+\n(.+\n)+", text, re.MULTILINE)
    others = [other for other in dict.fromkeys(others) if not told or other.rpartition(".")[2] not in told[0].split()]
    place = told.end() if told else min((m.start() for m in SECTION.finditer(text) if m[1] != "Parameters"), default=len(text))
    heading = "" if told else "See Also\n--------\n"
    if others:
        lines[:] = f"{text[:place]}{heading}{', '.join(others)}\n\n{text[place:]}".split("\n")


def as_notebook(app, docname, source):
    """A page that is a notebook, too, offers it below its title."""
    if docname.startswith("notebooks/"):
        name = docname.removeprefix("notebooks/")
        source[0] = source[0].replace("\n\n", f"\n\n{{download}}`Download as a Jupyter notebook <{name}.ipynb>`\n\n", 1)


def mathematics(self, node):
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (mathematics, None), (mathematics, None))
    notebooks.write()
    app.connect("source-read", as_notebook)
    app.connect("autodoc-process-signature", as_called)
    for changed in (as_given, see_also):
        app.connect("autodoc-process-docstring", changed, priority=300)
    app.connect("missing-reference", as_exported)
    app.connect("autodoc-process-docstring", as_written, priority=400)  # before napoleon
