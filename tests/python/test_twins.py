"""The files of a family's two modes say the same thing: with the mode words exchanged their code is equal."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cake_train

PACKAGE = Path(cake_train.__file__).parent
NONDET_FILES = sorted(
    str(path.relative_to(PACKAGE)) for folder in ("", "_backend") for path in (PACKAGE / folder).glob("*nondet*.py")
)
# What only a nondet package has: functions, and parameters wherever they occur.
NONDET_ONLY_FUNCTIONS = {
    "cake_kda_det_train_kcp_handoff_bytes",
    "cake_kda_det_train_kcp_handoff_stats",
    "handoff_stats",
}
NONDET_ONLY_PARAMETERS = {"checkpoint_handoff", "saved_rows"}


class _Neutral(ast.NodeTransformer):
    """Removes docstrings and what only nondet packages have."""

    def _visit_body(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        body = [x for x in node.body if getattr(x, "name", None) not in NONDET_ONLY_FUNCTIONS]  # type: ignore[attr-defined]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:] or [ast.Pass()]
        node.body = body  # type: ignore[attr-defined]
        return node

    visit_Module = visit_ClassDef = _visit_body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        arguments = node.args
        defaults = dict(zip([a.arg for a in arguments.kwonlyargs], arguments.kw_defaults))
        arguments.kwonlyargs = [a for a in arguments.kwonlyargs if a.arg not in NONDET_ONLY_PARAMETERS]
        arguments.kw_defaults = [defaults[a.arg] for a in arguments.kwonlyargs]
        arguments.args = [a for a in arguments.args if a.arg not in NONDET_ONLY_PARAMETERS]
        return self._visit_body(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [k for k in node.keywords if k.arg not in NONDET_ONLY_PARAMETERS]
        node.args = [a for a in node.args if not (isinstance(a, ast.Name) and a.id in NONDET_ONLY_PARAMETERS)]
        return node

    def visit_List(self, node: ast.List) -> ast.AST:
        self.generic_visit(node)
        node.elts = [e for e in node.elts
                     if not (isinstance(e, ast.Constant) and e.value in NONDET_ONLY_FUNCTIONS)]
        return node


def neutral(source: str) -> str:
    """The code of a file in det's words."""
    source = source.replace("nondet", "det").replace("Nondet", "Det")
    return ast.dump(_Neutral().visit(ast.parse(source)), indent=1)


@pytest.mark.parametrize("name", NONDET_FILES)
def test_twins_are_equal(name: str) -> None:
    """Every nondet file has its det twin."""
    twin = PACKAGE / name.replace("nondet", "det")
    assert twin.is_file()
    assert neutral((PACKAGE / name).read_text("utf-8")) == neutral(twin.read_text("utf-8"))


def test_differences_are_seen() -> None:
    """The comparison is not blind."""
    det = "def cake_kda_det(q, *, scale=None):\n    'doc'\n    return f(q, scale)\n"
    same = (
        "def cake_kda_nondet(q, *, scale=None, saved_rows='auto'):\n    'other'\n    return f(q, scale, saved_rows)\n"
    )
    assert neutral(det) == neutral(same)
    for change in ("scale=1", "return f(scale, q)", "def g(q"):
        old = {"scale=1": "scale=None", "return f(scale, q)": "return f(q, scale)", "def g(q": "def cake_kda_det(q"}[
            change
        ]
        assert neutral(det) != neutral(det.replace(old, change))
    assert len(NONDET_FILES) >= 3
