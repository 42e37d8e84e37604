"""The facades of the packages: names, signatures of the design, docstrings, twins; on every facade that there is."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pathlib
import re
import typing
from types import ModuleType
from typing import Any

import pytest

import cake_train
from cake_train.testing import mode_names

PACKAGE = pathlib.Path(cake_train.__file__).parent
SINGLE = ["cake_kda_det_train", "cake_kda_nondet_train"]
KCP = [name + "_kcp" for name in SINGLE]
HAS_KCP = all(importlib.util.find_spec(f"cake_train.{name}") for name in KCP)
MODULES = SINGLE + (KCP if HAS_KCP else [])
FAMILIES = ["cake_kda_{}_train"] + (["cake_kda_{}_train_kcp"] if HAS_KCP else [])

GATES = ("use_gate_in_kernel=False, A_log=None, dt_bias=None, lower_bound=None, use_qk_l2norm_in_kernel=False, "
         "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False")
SIZED = "S, num_docs, H, device=None, *"
# design/packages.md: what a signature starts with, up to "..." where the design leaves more open.
DESIGN = {
    "cake_kda_{}": "q, k, v, g, beta, cu_seqlens=None, *, scale=None, initial_state=None, output_final_state=False, "
                   f"workspace=None, save_mode=None, arena=None, doc_lengths=None, out=None, {GATES}",
    "cake_kda_{}_train_forward": "q, k, v, g, beta, cu_seqlens=None, *, save_for_backward=True, scale=None, "
                                 "initial_state=None, output_final_state=False, workspace=None, save_mode=None, "
                                 f"arena=None, doc_lengths=None, out=None, {GATES}, ...",
    "cake_kda_{}_train_backward": "q, k, v, g, beta, cu_seqlens, dout, *, saved=None, d_final_state=None, scale=None, "
                                  "initial_state=None, workspace=None, save_mode=None, arena=None, doc_lengths=None, "
                                  f"{GATES}, ...",
    "cake_kda_{}_train_prepare": f"q, k, v, g, beta, cu_seqlens=None, *, out, dout=None, {GATES}, ...",
    "cake_kda_{}_train_workspace": f"{SIZED}, backward=True, save_mode=None, HV=None, K=128, V=128, ...",
    "cake_kda_{}_train_workspace_bytes": f"{SIZED}, backward=True, save_mode=None, HV=None, K=128, V=128, ...",
    "cake_kda_{}_train_saved_bytes": f"{SIZED}, save_mode=None, HV=None, K=128, V=128, ...",
    "cake_kda_{}_train_arena": "*, lean=False, tail_passes=1, batch_tokens=None, max_docs_per_batch=None",
    "is_cake_kda_{}_train_supported": "device=None",
}
DESIGN_KCP = {
    "cake_kda_{}_train_kcp_partition": "cu_seqlens_global_cpu, world_size, layout='contiguous', fragments=None, *, "
                                       "cut_points=None",
    "cake_kda_{}_train_kcp_build_context": "partition, group, rank, device='cpu', conv_kernel_size=4, *, heads=None, "
                                           "stream=None",
    "cake_kda_{}_train_kcp_forward": "q, k, v, g, beta, ctx, *, scale=None, initial_state=None, "
                                     "output_final_state=False, save_for_backward=True, save_mode=None, "
                                     f"workspace=None, exchange='auto', save_transfer=None, {GATES}, ...",
    "cake_kda_{}_train_kcp_backward": f"q, k, v, g, beta, ctx, dout, *, saved=None, d_final_state=None, {GATES}, ...",
    "cake_kda_{}_kcp": "q, k, v, g, beta, ctx, *, scale=None, initial_state=None, output_final_state=False, "
                       "workspace=None, save_mode=None, exchange='auto', save_transfer=None, recompute_handle=None, "
                       f"checkpoint_keep=None, gate_param_grads='local', {GATES}, ...",
    "cake_kda_{}_train_kcp_workspace_bytes": "ctx, *, H, ...",
    "cake_kda_{}_train_kcp_saved_bytes": "ctx, *, H, ...",
    "cake_kda_{}_train_kcp_comm_bytes": "ctx, *, H, ...",
    "cake_kda_{}_train_kcp_reduce_gate_param_grads": "ctx, gate_partials",
    "is_cake_kda_{}_train_kcp_supported": "device=None",
}
CLASSES = {"cake_kda_{}_train": ("Saved", "Workspace", "Arena", "Plan"),
           "cake_kda_{}_train_kcp": ("KcpSaved", "KcpWorkspace")}
SIGNATURES = [(module, name, text) for module, rows in (("cake_kda_{}_train", DESIGN),
              *([("cake_kda_{}_train_kcp", DESIGN_KCP)] if HAS_KCP else [])) for name, text in rows.items()]


def load(name: str) -> ModuleType:
    """A module of the package."""
    return importlib.import_module(f"cake_train.{name}")


def mode_of(name: str) -> str:
    """The mode word of a module name."""
    return "nondet" if "_nondet_" in name else "det"


def backend_of(module: ModuleType) -> ModuleType:
    """The backend of a facade, by its table of lazy exports."""
    names = {row[0] for row in module._LAZY_EXPORTS.values()}
    found = [importlib.import_module(name, "cake_train") for name in sorted(names)]
    return next(backend for backend in found if mode_of(module.__name__ + "_") in backend.__name__)


def plain(function: Any) -> str:
    """A signature without annotations."""
    text, before = [], inspect.Parameter.POSITIONAL_OR_KEYWORD
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and before is not p.KEYWORD_ONLY:
            text.append("*")
        text.append(str(p.replace(annotation=p.empty)))
        before = p.kind
    return ", ".join(text)


def split(signature: str) -> tuple[list[str], list[str]]:
    """Positional parameters in order, and those that are given by keyword only."""
    parameters = signature.split(", ")
    star = parameters.index("*") if "*" in parameters else len(parameters)
    return parameters[:star], parameters[star + 1:]


@pytest.mark.parametrize("name", MODULES)
def test_names(name):
    module = load(name)
    backend = backend_of(module)
    forwards = [(public, getattr(backend, public)) for public in module.__all__ if hasattr(backend, public)]
    mode_names.assert_cake_mode_module(module, namespaces=[cake_train, backend], forwards=forwards)
    assert len(forwards) >= len(module._LAZY_EXPORTS)
    with pytest.raises(AssertionError):
        mode_names.assert_cake_mode_module(module, "det" if mode_of(name) == "nondet" else "nondet")
    second = ModuleType("cake_train.elsewhere")
    second.another_name = getattr(module, module.__all__[-1])
    with pytest.raises(AssertionError, match="another_name"):
        mode_names.assert_cake_mode_module(module, namespaces=[second])


@pytest.mark.parametrize("mode", ["det", "nondet"])
@pytest.mark.parametrize(("module", "name", "text"), SIGNATURES, ids=[name for _, name, _ in SIGNATURES])
def test_signatures_are_those_of_the_design(module, name, text, mode):
    module, name = load(module.format(mode)), name.format(mode)
    assert name in module.__all__
    expected, open_ended = text.removesuffix(", ..."), text.endswith("...")
    got = plain(getattr(module, name))
    (positional, keywords), (our_positional, our_keywords) = split(expected), split(got)
    assert our_positional == positional
    assert set(keywords) <= set(our_keywords), f"missing: {sorted(set(keywords) - set(our_keywords))}"
    extra = set(our_keywords) - set(keywords)
    assert open_ended or not extra, f"not of the design: {sorted(extra)}"


@pytest.mark.parametrize("family", FAMILIES)
def test_modes_have_one_interface(family):
    det, nondet = load(family.format("det")), load(family.format("nondet"))

    def neutral(text: str) -> str:
        return text.replace("nondet", "det").replace("Nondet", "Det")
    # Over ranks, nondet alone keeps rows between the recompute and the backward (design/packages.md).
    only = {name for name in nondet.__all__ if "handoff" in name}
    assert {neutral(name) for name in nondet.__all__ if name not in only} == set(det.__all__)
    assert not only or family.endswith("kcp")
    for name in nondet.__all__:
        if name in only or not inspect.isfunction(getattr(nondet, name)):
            continue
        signatures = [re.sub(r", (checkpoint_handoff|saved_rows)=[^,]*", "", neutral(plain(getattr(m, n))))
                      for m, n in ((nondet, name), (det, neutral(name)))]
        assert signatures[0] == signatures[1], name
        notes = [{key: neutral(str(value)) for key, value in getattr(m, n).__annotations__.items()
                  if key not in ("checkpoint_handoff", "saved_rows")}
                 for m, n in ((nondet, name), (det, neutral(name)))]
        assert notes[0] == notes[1], name


@pytest.mark.parametrize("name", MODULES)
def test_classes(name):
    module, mode = load(name), mode_of(name)
    for word in CLASSES[name.replace(mode, "{}", 1)]:
        public = f"CakeKDA{mode.capitalize()}{word}"
        assert public in module.__all__
        found = getattr(module, public)
        assert found.__name__ == public and found is getattr(module, public), "resolved once"
        kind = {"Arena": "workspace"}.get(word, word.removeprefix("Kcp").lower())
        assert found.tag == f"cake/kda/{mode}/{'kcp/' if 'Kcp' in word else ''}{kind}/v1"
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        module.missing
    assert set(module.__all__) <= set(dir(module)) and sorted(module.__all__) == list(module.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_type_hints_resolve(name):
    module = load(name)
    for public in module.__all__:
        if inspect.isfunction(getattr(module, public)):
            names = {n: getattr(module, n) for n in module.__all__}
            hints = typing.get_type_hints(getattr(module, public), localns=names)
            assert hints.keys() == {*inspect.signature(getattr(module, public)).parameters, "return"}, public


def documented(module: ModuleType) -> dict[str, str]:
    """The docstrings of a facade: its own, of its public objects, of the public members of its classes."""
    found = {module.__name__: module.__doc__ or ""}
    for name in module.__all__:
        value = getattr(module, name)
        found[name] = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
        if inspect.isclass(value):
            for member, x in inspect.getmembers(value, lambda m: inspect.isroutine(m) or isinstance(m, property)):
                if not member.startswith("_"):
                    found[f"{name}.{member}"] = x.__doc__
    return found


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_say_what_is_needed(name):
    module, mode = load(name), mode_of(name)
    found = documented(module)
    assert not [public for public, text in found.items() if not text or len(text.split()) < 3]
    own = found[module.__name__]
    assert all(word in own for word in ("`[", "float32", "bfloat16", "float16", "CPU")), "shapes, dtypes and device"
    tail = "_kcp" if name.endswith("_kcp") else ""
    main, forward, backward = (re.sub(r"\s+", " ", found[n]) for n in
                               (f"cake_kda_{mode}{tail}", f"{name}_forward", f"{name}_backward"))
    for text in (main, forward, backward):
        assert "`[" in text, "shapes"
        assert "alert" in text or "use_deterministic_algorithms" in text, "what the determinism switch does"
        assert any(word in text for word in ("Raises", "errors as", "Errors as")), "errors"
    assert ("never alerts" in main.lower() if mode == "det" else "RuntimeError" in main)
    words = " ".join(found.values())
    parameters = {p for public in module.__all__ if inspect.isfunction(getattr(module, public))
                  for p in inspect.signature(getattr(module, public)).parameters}
    unnamed = {p for p in parameters if not re.search(rf"(?<![A-Za-z_]){re.escape(p)}(?![a-z_])", words)}
    # The buffers between the first and the last are named by these two.
    assert unnamed <= {"dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias"}, f"arguments no docstring names: {unnamed}"


def undocumented(path: pathlib.Path) -> list[str]:
    """Public functions, classes and methods of a file, and the file, without a docstring."""
    tree = ast.parse(path.read_text("utf-8"))
    found = [] if ast.get_docstring(tree) or not tree.body else [path.name]
    todo: list[tuple[ast.AST, str]] = [(tree, path.name)]
    while todo:
        node, where = todo.pop()
        for child in getattr(node, "body", []):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name[0] != "_":
                name = f"{where}:{child.name}"
                if not ast.get_docstring(child):
                    found.append(name)
                if isinstance(child, ast.ClassDef):
                    todo.append((child, name))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_everything_public_has_a_docstring(path):
    assert not undocumented(path)


def test_a_missing_docstring_is_seen(tmp_path):
    file = tmp_path / "module.py"
    doc, empty = '"""Doc."""\n', "(self):\n        pass\n"
    file.write_text(f"{doc}def good():\n    {doc}def bad():\n    pass\nclass Good:\n    {doc}    def bad{empty}"
                    f"    def _private{empty}")
    assert sorted(undocumented(file)) == ["module.py:Good:bad", "module.py:bad"]


def test_facades_and_package_import_no_backend_at_module_level():
    for path in [PACKAGE / "__init__.py", *(PACKAGE / f"{name}.py" for name in MODULES)]:
        for node in ast.parse(path.read_text("utf-8")).body:  # what TYPE_CHECKING guards is inside an `if`
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                assert not [n for n in names if re.search("_backend|torch|numpy|tvm_ffi", n)], path.name
    for path in (PACKAGE / "_backend").glob("*.py"):
        assert not re.search(r"^\s*from \.\.?(cake_|\s*import cake_kda)|import_module", path.read_text("utf-8"), re.M)
