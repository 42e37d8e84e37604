"""Self-test of `cake_train.testing.mode_names`: its cases on the checker itself, and on a mutant for every clause.

The cases use synthetic modules and packages, and the standard library only. A mutant is the checker with one text of
its source replaced; the case that its clause names must fail on it, so a mutant that survives fails the test.
"""
import inspect
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import mode_names_keyword_cases
import mode_names_mutants_names
import mode_names_mutants_objects
import mode_names_name_cases
import mode_names_object_cases
import mode_names_old_cases
from mode_names_support import PACKAGE, VECTORS, cases, checker_copy

from cake_train.testing import mode_names

CASES = cases(mode_names_name_cases, mode_names_keyword_cases, mode_names_object_cases, mode_names_old_cases)
CLAUSES = mode_names_mutants_names.CLAUSES + mode_names_mutants_objects.CLAUSES
MUTANTS = [(clause, case, file, old, new) for clause, case, file, edits in CLAUSES for old, new in edits]


@pytest.mark.parametrize("name", CASES)
def test_checker(name, tmp_path):
    CASES[name](mode_names, tmp_path)


def test_signatures_are_those_of_the_specification():
    def text(parameter):
        star = "*" if parameter.kind is parameter.KEYWORD_ONLY else ""
        return star + str(parameter.replace(annotation=parameter.empty))
    plain = {name: ", ".join(map(text, inspect.signature(getattr(mode_names, name)).parameters.values()))
             for name in mode_names.__all__}
    assert plain == {
        "public_names": "module",
        "assert_mode_names": "module, mode=None, *names=None, *stem=True, *stem_exceptions=()",
        "assert_no_deterministic_keyword": "objs",
        "assert_same_object_same_name": "module, namespaces=(), *forwards=()",
        "assert_old_names_fail": "old_modules=(), old_names=(), *cwd=None, *timeout=600",
        "assert_cake_mode_module": "module, mode=None, *namespaces=(), *forwards=(), *old_modules=(), *old_names=(), "
                                   "*stem=True, *stem_exceptions=(), *cwd=None, *timeout=600",
        "judge_name": "name, module, *mode=None, *stem=True",
    }


def test_vectors_are_many_and_use_every_reason():
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    assert len(vectors) >= 60
    assert len({(vector["name"], vector["module"]) for vector in vectors}) == len(vectors)
    assert all(set(vector) == {"name", "module", "verdict", "reason"} for vector in vectors)
    reasons = checker_reasons()
    assert {vector["reason"] for vector in vectors} == reasons - {"mode_word"}  # the answer to stem=False alone


def checker_reasons():
    from cake_train.testing import _name_rules
    return set(_name_rules.REASONS)


def test_every_case_and_every_file_has_a_mutant():
    unused = set(CASES) - {case for _, case, _, _, _ in MUTANTS}
    assert not unused, f"no mutant shows that these cases can fail: {sorted(unused)}"
    assert {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"} == {file for _, _, file, _, _ in MUTANTS}
    assert all(edits for _, _, _, edits in CLAUSES)


@pytest.mark.parametrize("clause, case, file, old, new", MUTANTS,
                         ids=[f"{number}-{clause}" for number, (clause, *_) in enumerate(MUTANTS)])
def test_mutant_is_killed(clause, case, file, old, new, tmp_path):
    source = (PACKAGE / file).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{file} holds {old!r} {source.count(old)} times: the mutant is out of date"
    mutant = checker_copy(tmp_path / "copy", {file: source.replace(old, new)})
    (tmp_path / "work").mkdir()
    try:
        CASES[case](mutant, tmp_path / "work")
    except AssertionError:
        return
    pytest.fail(f"survives {case}: {clause}: {old!r} -> {new!r}")
