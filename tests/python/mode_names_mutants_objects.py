"""Mutants of the mode-name checker, rules 3 and 4 and the whole check; rows as in `mode_names_mutants_names`."""
OBJECTS, OLD, CHILD = "_same_object.py", "_old_names.py", "_old_names_child.py"
MAIN, KEYWORD = "mode_names.py", "_keyword.py"

CLAUSES = [
    ("one object, one name: what keeps its name passes", "case_same_names_pass", OBJECTS, [
        ('module.__name__.rpartition(".")[2]', "module.__name__"),
        ("if allowed and name not in allowed:", "if allowed:"),
    ]),
    ("the facade binds an object only under its name", "case_aliases_in_the_facade", OBJECTS, [
        ("failures += names.add(name, vars(module)[name])", "pass"),
        ("if known and known[2] and name not in known[1]:", "if False:"),
        ("for space in spaces:", "for space in spaces[1:]:"),
        ("if allowed and name not in allowed:", 'if allowed and name not in allowed and name[:1] != "_":'),
    ]),
    ("namespaces bind an object only under its name", "case_aliases_in_namespaces", OBJECTS, [
        ("for space in spaces:", "for space in spaces[:1]:"),
        ("value.__func__ if isinstance(value, (staticmethod, classmethod)) else value", "value"),
        ("(space if isinstance(space, Mapping) else vars(space))", "vars(space)"),
    ]),
    ("namespaces bind an object only under its name", "case_plain_values_have_no_identity", OBJECTS, [
        ("type(obj) not in _SHARED and ", ""),
        (" and typing.get_origin(obj) is None", ""),
        ("tuple, frozenset, range,", "tuple, frozenset, range, list,"),
    ]),
    ("the facade module itself is tracked", "case_the_facade_module_is_tracked", OBJECTS, [
        ('names.add(module.__name__.rpartition(".")[2], module)', "pass"),
    ]),
    ("the objects of forwards are tracked", "case_forwards", OBJECTS, [
        ("failures += names.add(name, obj)", "pass"),
        ("if name not in public:\n            failures.append(", "if False:\n            failures.append("),
        ("if known and known[2] and name not in known[1]:", "if False:"),
    ]),
    ("every function of their wrapper chains is tracked", "case_wrapper_chains", OBJECTS, [
        ("for inner in _wrapped(obj):", "for inner in ():"),
        ('("__wrapped__", "__func__")', '("__wrapped__",)'),
        ('("__wrapped__", "__func__")', '("__func__",)'),
        ("inner.append(layer.func)", "pass"),
        ("todo.append(each)", "pass"),
    ]),
    ("every function of their wrapper chains is tracked", "case_shared_inner_functions", OBJECTS, [
        ("if not entry[2]:", "if True:"),
        ("(obj, {name}, True)", "(obj, {name, *(known[1] if known else ())}, True)"),
        ("if not entry[2]:", "if not entry[1]:"),
    ]),
    ("lazy public names of the facade count", "case_lazy_names_count", OBJECTS, [
        ("failures += _resolve(module, name, names)", "pass"),
        ("return names.add(name, value)", "return [] if names.add(name, value) else []"),
        (', *(row.key for row in tables[0] if row.key[:1] != "_")', ""),
    ]),
    ("lazy public names of the facade count", "case_broken_lazy_names_fail", OBJECTS, [
        ("except AttributeError:", "except (AttributeError, ImportError):"),
        ("except Exception as error:", "except ImportError as error:"),
    ]),
    ("lazy public names of the facade count", "case_rows_that_expose_supplied_objects", OBJECTS, [
        ("except AttributeError:", "except KeyError:"),
    ]),
    ("backends are never looked up by path", "case_backends_are_not_looked_up", OBJECTS, [
        ("    attr = row.attr or row.key\n", "    attr = row.attr or row.key\n    import importlib\n    try:\n"
         "        importlib.import_module(row.target)\n    except ImportError:\n        pass\n"),
        ("supplied = [*spaces, ", "import sys\n    supplied = [*spaces, *(sys.modules.get(row.target)"
         " for rows in tables.values() for row in rows), "),
    ]),
    ("rows of _LAZY_EXPORTS are checked statically", "case_rows_with_two_names", OBJECTS, [
        ("failures += _row_failures(_label(spaces[i]), row, public, supplied, names)", "pass"),
        ("(row.key in public or row.attr in public)", "row.key in public"),
        ("(row.key in public or row.attr in public)", "row.attr in public"),
        (" and (row.key in public or row.attr in public)", ""),
        ("enumerate(spaces)}", "enumerate(spaces[:1])}"),
    ]),
    ("rows of _LAZY_EXPORTS are checked statically", "case_rows_are_read", OBJECTS, [
        ('value.split(":") if isinstance(value, str) else value', "value"),
        ("len(parts) not in (1, 2) or ", ""),
        ("not isinstance(parts, (list, tuple)) or ", ""),
        (" or not isinstance(parts[0], str)", ""),
        ("if not isinstance(table, Mapping):", "if False:"),
    ]),
    ("rows of _LAZY_EXPORTS are checked statically", "case_rows_that_name_the_facade", OBJECTS, [
        ("obj.__name__ == row.target and not offers", "obj.__name__ == row.target"),
        ("obj.__name__ == row.target and not offers", "False"),
        ('obj.__name__ == f"{row.target}.{row.attr}"', "False"),
        (" or obj is supplied[0] and row.key in public", ""),
        (" or obj is supplied[0] and row.key in public", " or row.key in public"),
    ]),
    ("also rows that target a supplied backend", "case_rows_that_expose_supplied_objects", OBJECTS, [
        ("hit = hit or any(obj is each for each in exposed)", "pass"),
        (", *(obj for _, obj in forwards if isinstance(obj, types.ModuleType))]", "]"),
        ('importlib.util.resolve_name(parts[0], package) if parts[0].startswith(".") else parts[0]', "parts[0]"),
        (" and space.__name__ == row.target]", "]"),
        ("row.attr or row.key", "row.attr"),
    ]),
    ("also rows that target a supplied backend", "case_rows_that_name_a_forwarded_object", OBJECTS, [
        ('(getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)) == (row.target, attr)', "False"),
        ('(getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)) == (row.target, attr)',
         'getattr(obj, "__module__", None) == row.target'),
    ]),
    ("before anything is imported", "case_rows_come_before_resolution", OBJECTS, [
        ("    # The rows come", "    for name in public:\n        if name not in vars(module):\n"
         "            _resolve(module, name, names)\n    # The rows come"),
        ("[] if isinstance(obj, types.ModuleType) else [obj]", "[obj]"),
    ]),

    ("old names are tried in a fresh sys.executable", "case_a_fresh_interpreter_is_asked", OLD, [
        ("status = _run(paths, cwd, timeout)", "child = {'__name__': 'child'}\n"
         "        exec(_CHILD.read_text(), child)\n        child['main'](*paths[:2])\n"
         "        Path(paths[2]).touch()\n        status = 0"),
        ("cwd=cwd, stdin", "stdin"),
    ]),
    ("an old module must raise ModuleNotFoundError", "case_old_modules_must_raise_module_not_found", CHILD, [
        ("if not name and not isinstance(error, ModuleNotFoundError):", "if False:"),
        ("if raised_inside(error, module):", "if False:"),
        ("if not own and not code.co_filename", "if False and not code.co_filename"),
        ('return f"{what} raises {_text(error)}, which is no absence"', "return None"),
    ]),
    ("an old module must raise ModuleNotFoundError", "case_missing_dependencies_are_told_by_name", CHILD, [
        ('isinstance(error, ModuleNotFoundError) and not (missing and f"{module}.".startswith(f"{missing}."))',
         "False"),
        ('f"{module}.".startswith(f"{missing}.")', "module.startswith(missing)"),
        ('(missing and f"{module}.".startswith(f"{missing}."))', "(missing == module)"),
        ('(missing and f"{module}.".startswith(f"{missing}."))', '(f"{module}.".startswith(f"{missing or module}."))'),
    ]),
    ("an old module must raise ModuleNotFoundError", "case_present_names_fail", CHILD, [
        ('return None if leftover(found) else f"{what} still works"', "return None"),
        ('for module in asked["modules"]]', 'for module in asked["modules"][1:]]'),
        ("not isinstance(found, type(sys)) or ", ""),
        (' or "__path__" not in vars(found)', ""),
    ]),
    ("every old pair must raise ImportError", "case_present_names_fail", CHILD, [
        ('for module, name in asked["names"]]', 'for module, name in asked["names"][1:]]'),
        ('statement = f"from {module} import {name} as found" if name else', "statement ="),
    ]),
    ("every old pair must raise ImportError", "case_absent_names_pass", CHILD, [
        ("if not name and not isinstance(error, ModuleNotFoundError):",
         "if not isinstance(error, ModuleNotFoundError):"),
        ("own = step.tb_frame.f_globals is globals() or code.co_filename == _PROBE", "own = False"),
        ("own = step.tb_frame.f_globals is globals() or code", "own = code"),
        (" or code.co_filename == _PROBE", ""),
    ]),
    ("every old pair must raise ImportError", "case_other_errors_are_no_absence", CHILD, [
        ('except BaseException as error:\n        return f"{what} raises {_text(error)}, which',
         'except Exception as error:\n        return f"{what} raises {_text(error)}, which'),
        ('return f"{what} raises {_text(error)}, which is no absence"', "return None"),
    ]),
    ("a leftover directory with only caches counts as gone", "case_leftover_caches_are_gone", CHILD, [
        ("return all(_only_caches(folder) for folder in found.__path__)", "return False"),
        ('each != "__pycache__" and ', ""),
        (' and not (each[0] == "." and "cache" in each)', ""),
        ('return None if leftover(found) else f"{what} still works"', 'return f"{what} still works"'),
    ]),
    ("one with an importable descendant does not", "case_live_descendants_are_there", CHILD, [
        ("return all(_only_caches(folder) for folder in found.__path__)", "return True"),
        ("in os.walk(folder):", "in [next(os.walk(folder))]:"),
        (" or any(os.path.islink(os.path.join(root, each)) for each in folders)", ""),
        ("if files or any", 'if any(file.endswith(".py") for file in files) or any'),
    ]),
    ("one with an importable descendant does not", "case_a_package_with_an_init_is_there", CHILD, [
        ("if not os.path.isdir(folder):\n        return False", "if not os.path.isdir(folder):\n        return True"),
    ]),
    ("an ImportError inside a lazy backend is a failure", "case_broken_lazy_backends_are_failures", CHILD, [
        ("if raised_inside(error, module):", "if False:"),
        ("if raised_inside(error, module):",
         "if isinstance(error, ModuleNotFoundError) and raised_inside(error, module):"),
        ("return _hidden_failure(what, module, name) if name else None", "return None"),
        (" and not looked_up", ""),
        ("cause = error.__cause__ or error.__context__", "cause = error.__cause__"),
    ]),
    ("the top-level package must still import", "case_top_level_packages_must_import", OLD, [
        ("[top for top in tops if top not in modules]", "[]"),
        ("[top for top in tops if top not in modules]", "list(tops)"),
        (", *(module for module, _ in names)]", "]"),
    ]),
    ("the top-level package must still import", "case_top_level_packages_must_import", CHILD, [
        ("leftover directory\" if leftover(found) else None", "leftover directory\" if False else None"),
        ('return f"the top-level package {module} does not import: {_text(error)}"', "return None"),
    ]),
    ("a child that exits non-zero is reported with status and stderr", "case_child_that_fails_after_its_result", OLD, [
        ("elif status != 0:", "elif False:"),
        ('tail = f"; stderr: {stderr}" if stderr else "; nothing on stderr"', 'tail = ""'),
        ("exited {status} after", "failed after"),
    ]),
    ("together with what it had already found", "case_child_that_ends_early", OLD, [
        ('failures = [record["failure"] for record', 'failures = [] if status else [record["failure"] for record'),
        (' if stderr else "; nothing on stderr"', ' if False else "; nothing on stderr"'),
    ]),
    ("together with what it had already found", "case_child_that_ends_early", CHILD, [("result.flush()", "pass")]),
    ("a child that ends with no result is reported with its status", "case_child_that_ends_early", OLD, [
        ('elif not any("done" in record for record in records):', "elif False:"),
        ('elif not any("done" in record for record in records):',
         'elif status and not any("done" in record for record in records):'),
        ("exited {status} without", "ended without"),
    ]),
    ("a timeout is one failure among the others", "case_child_that_takes_too_long", OLD, [
        ("except subprocess.TimeoutExpired:\n            return None",
         "except subprocess.TimeoutExpired:\n            raise"),
        ("except subprocess.TimeoutExpired:\n            return None",
         "except subprocess.TimeoutExpired:\n            return 0"),
        ("    if status is None:\n", "    if status is None:\n        failures = []\n"),
    ]),
    ("the result is the child's own", "case_noise_is_no_result", OLD, [('"-B", ', "")]),
    ("the result is the child's own", "case_noise_is_no_result", CHILD, [
        ("arguments, sys.argv[1:] = sys.argv[1:], []", "arguments = sys.argv[1:]"),
    ]),
    ("arguments that are no lists of names are refused", "case_wrong_arguments", OLD, [
        ("if isinstance(value, str):", "if False:"),
        ("not isinstance(module, str) or ", ""),
        (" or not _DOTTED.fullmatch(module)", ""),
        ("isinstance(pair, str) or ", ""),
        ("len(pair) != 2 or ", ""),
        (" or not all(isinstance(part, str) for part in pair)", ""),
        ("not _DOTTED.fullmatch(pair[0]) or ", ""),
        (" or not pair[1].isidentifier()", ""),
    ]),

    ("assert_cake_mode_module makes every check, in one AssertionError", "case_everything_at_once", MAIN, [
        ("failures = _name_failures(module, mode, None, stem, stem_exceptions)", "failures = []"),
        ("    failures += same_object_failures(module, namespaces, forwards)\n", ""),
        ("same_object_failures(module, namespaces, forwards)\n    objects",
         "same_object_failures(module, (), forwards)\n    objects"),
        ("same_object_failures(module, namespaces, forwards)\n    objects",
         "same_object_failures(module, namespaces, ())\n    objects"),
        ("missing + keyword_failures(objects + forwards)", "missing"),
        ("missing + keyword_failures(objects + forwards)", "missing + keyword_failures(objects)"),
        ("missing + keyword_failures(objects + forwards)", "keyword_failures(objects + forwards)"),
        ("failures += old_name_failures(old_modules, old_names, cwd",
         "failures += old_name_failures((), old_names, cwd"),
        ("failures += old_name_failures(old_modules, old_names, cwd",
         "failures += old_name_failures(old_modules, (), cwd"),
        ("    # Before the keyword check", "    _report(module.__name__, failures)\n    # Before the keyword check"),
        ("    forwards = list(forwards)\n", ""),
    ]),
    ("assert_cake_mode_module passes its arguments on", "case_everything_passes_arguments_on", MAIN, [
        ("_name_failures(module, mode, None, stem, stem_exceptions)\n    # ",
         "_name_failures(module, mode, None, True, stem_exceptions)\n    # "),
        ("_name_failures(module, mode, None, stem, stem_exceptions)\n    # ",
         "_name_failures(module, mode, None, stem, ())\n    # "),
        ("_name_failures(module, mode, None, stem, stem_exceptions)\n    # ",
         "_name_failures(module, None, None, stem, stem_exceptions)\n    # "),
        ("cwd=cwd, timeout=timeout)\n    _report(module", "cwd=None, timeout=timeout)\n    _report(module"),
        ("cwd=cwd, timeout=timeout)\n    _report(module", "cwd=cwd, timeout=3)\n    _report(module"),
        ("list(dict.fromkeys(failures))", "failures"),
    ]),
    ("neither torch nor the package is imported, the standard library alone", "case_standard_library_only", KEYWORD, [
        ("import functools\n", "import functools\ntry:\n    import torch\nexcept ImportError:\n    pass\n"),
        ("import functools\n",
         "import functools\ntry:\n    from cake_train import kernels\nexcept ImportError:\n    pass\n"),
    ]),
]
