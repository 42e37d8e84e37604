"""Mutants of the mode-name checker, rules 1 and 2, by the clause of the specification that each of them breaks.

A row: the clause, the case of the self-test that must fail, the file, and replacements (text, new text); each
replacement alone is one mutant, and its text must stand in the file exactly once.
"""
RULES, PUBLIC, KEYWORD, MAIN = "_name_rules.py", "_public_names.py", "_keyword.py", "mode_names.py"

CLAUSES = [
    ("modules are cake_<op>_<det|nondet>_train[_kcp]", "case_vectors", RULES, [
        ("_train(?:_kcp)?", "_train"),
        ("_(det|nondet)_train(?:_kcp)?", "_(det|nondet)(?:_train(?:_kcp)?)?"),
        ('r"cake_([a-z0-9]+', 'r"(?:cake_)?([a-z0-9]+'),
        ("if match and not any(_bare(word) in MODES for word in split_name(match[1])):", "if match:"),
    ]),
    ("snake_case names start cake_, CamelCase names Cake", "case_vectors", RULES, [
        ('r"cake_(?=[^_])"', 'r"(?:cake_)?(?=[^_])"'),
        ('r"cake_(?=[^_])"', 'r"cake_"'),
        ('r"Cake(?=', 'r"(?:Cake)?(?='),
    ]),
    ("a support query starts is_<module>", "case_vectors", RULES, [
        ('query = f"is_{place.leaf}"', 'query = f"is_cake_{place.op}_{mode}"'),
        ('name.startswith(query + "_")', "name.startswith(query)"),
        ('if name == query or name.startswith(query + "_"):', "if False:"),
    ]),
    ("the mode begins immediately after the op", "case_vectors", RULES, [
        ("at = _op_end(words, op)",
         "at = next((i for i, word in enumerate(words) if word.text.lower() == mode), None)"),
        (" or word.start != words[at - 1].end + gap", ""),
        ("word.text != (mode if snake else mode.capitalize())", "word.text.lower() != mode"),
    ]),
    ("a name never carries the other mode's word", "case_vectors", RULES, [
        ("if _carries_other(name, mode):", "if False:"),
        ("return other in words or spelled_out", "return other in words"),
        ('return word.lower().rstrip("0123456789")', "return word.lower()"),
    ]),
    ("nondet is one token and never counts as det", "case_vectors", RULES, [
        ('re.compile(r"_+|', 're.compile(r"(?<=non)(?=det)|_+|'),
        ("return other in words or", "return any(word.endswith(other) for word in words) or"),
    ]),
    ("names are split at _ and at CamelCase borders", "case_vectors", RULES, [
        ("|(?<=[^A-Z_])(?=[A-Z])", ""),
        ("|(?<=[A-Z])(?=[A-Z][^A-Z0-9_])", ""),
        ('r"_+|', 'r"__+|'),
    ]),
    ("ALL_CAPS constants are exempt", "case_vectors", RULES, [
        ("if _CONSTANT.fullmatch(name):", "if False:"),
        ("if _CONSTANT.fullmatch(parts[-1]):", "if False:"),
        ('r"_*[A-Z][A-Z0-9_]*"', 'r"_*[A-Za-z][A-Z0-9_a-z]*"'),
    ]),
    ("the neutral cake_kcp is exempt", "case_vectors", RULES, [
        ('NEUTRAL_MODULES = ("cake_kcp",)', "NEUTRAL_MODULES = ()"),
    ]),
    ("the neutral cake_kcp is exempt", "case_vectors", MAIN, [("not place.neutral and ", "")]),
    ("the op part is matched without case and _", "case_vectors", RULES, [
        ("spelled += word.text.lower()", "spelled += word.text"),
        ('op.replace("_", "")', "op"),
    ]),
    ("in C++ the qualified name is judged", "case_vectors", RULES, [
        ('if "::" in name:', "if False:"),
        ("any(_carries_other(part, mode) for part in parts)", "any(_carries_other(part, mode) for part in parts[:-1])"),
        ("any(_carries_other(part, mode) for part in parts)", "any(_carries_other(part, mode) for part in parts[-1:])"),
        ("if not any(_carries(part, mode) for part in parts):", "if False:"),
        ('if parts[0] != "cake":', "if False:"),
        (' or parts[1] != place.leaf.removeprefix("cake_")', ""),
        ("len(parts) < 3 or ", ""),
    ]),
    ("the mode is read from the module name when not given", "case_mode_comes_from_the_module_name", MAIN, [
        ("(mode or place.mode) is None", "mode is None"),
        ("if not place.neutral and (mode or place.mode) is None:", "if False:"),
    ]),
    ("the mode can be given", "case_mode_can_be_given", MAIN, [
        ("module.__name__, mode=mode, stem", "module.__name__, stem"),
        ("if mode and place.mode and mode != place.mode:", "if False:"),
        ("if mode not in (None, *MODES):", "if False:"),
    ]),
    ("the mode can be given", "case_mode_can_be_given", RULES, [
        ("if mode not in (None, *MODES):", "if False:"),
    ]),
    ("names can be given", "case_names_can_be_given", MAIN, [
        ("public_names(module) if names is None else names", "public_names(module)"),
        ("public_names(module) if names is None else names", "names or public_names(module)"),
        ("isinstance(names, str) or ", ""),
        (" or isinstance(stem_exceptions, str)", ""),
    ]),
    ("stem=False drops the order check alone", "case_without_stem_the_mode_is_still_checked", RULES, [
        ('if not stem:\n        return Verdict("ok", "mode_word")\n    query', "query"),
        ("if not _carries(name, mode):", "if False:"),
        ("if _carries_other(name, mode):", "if not stem:\n        pass\n    elif _carries_other(name, mode):"),
    ]),
    ("stem_exceptions skip the order check, never the mode check", "case_stem_exceptions_skip_the_order_alone", MAIN, [
        ("stem and name not in exceptions", "stem"),
        ("stem and name not in exceptions", "stem and not exceptions"),
        ('if verdict.verdict != "ok":', 'if verdict.verdict != "ok" and name not in exceptions:'),
    ]),
    ("every wrong name is reported", "case_every_name_is_reported", MAIN, [
        ('failures.append(f"{module.__name__}: {name} {REASONS[verdict.reason]}")',
         'return [f"{module.__name__}: {name} {REASONS[verdict.reason]}"]'),
        ('*(f"- {failure}" for failure in failures)]', 'f"- {failures[0]}"]'),
    ]),
    ("public_names: __all__", "case_all_is_the_list", PUBLIC, [
        ('vars(module).get("__all__")', "None"),
        ("list(dict.fromkeys(declared))", "sorted(declared)"),
        ("not isinstance(declared, (list, tuple)) or ", ""),
        (" or not all(isinstance(name, str) for name in declared)", ""),
    ]),
    ("public_names: else the public attributes defined in the module", "case_without_all_defined_names_count", PUBLIC, [
        ('not name.startswith("_") and ', ""),
        ('getattr(value, "__module__", None) == module.__name__ or ', ""),
        ("return home is None or not any(bound is value for bound in vars(home).values())", "return False"),
    ]),
    ("public_names: imported objects do not count", "case_imported_objects_do_not_count", PUBLIC, [
        ("if isinstance(value, types.ModuleType):\n        return False",
         "if isinstance(value, types.ModuleType):\n        return True"),
        ("if inspect.isroutine(value) or inspect.isclass(value):", "if inspect.isclass(value):"),
        ("inspect.isclass(value):\n        return False", "inspect.isclass(value):\n        return True"),
        ("return home is None or not any(bound is value for bound in vars(home).values())", "return True"),
    ]),
    ("public_names: imported objects do not count", "case_source_tells_imported_values", PUBLIC, [
        ("return name not in imported", "return True"),
        ("alias.asname or ", ""),
        ("elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):", "else:"),
    ]),
    ("public_names: a local wrapper counts despite functools.wraps", "case_local_wrappers_count", PUBLIC, [
        (' or getattr(value, "__globals__", None) is vars(module):', ":"),
        ('getattr(value, "__module__", None) == module.__name__ or ', ""),
        ('return any(getattr(member, "__globals__", None) is vars(module) for member in members.values())',
         "return False"),
        ('return _is_local(module, members["__wrapped__"])', "return False"),
    ]),
    ("the checker does not import the package under test", "case_public_names_resolves_nothing", PUBLIC, [
        ('vars(module).get("__all__")', 'getattr(module, "__all__", None)'),
    ]),

    ("functions accept no keyword deterministic", "case_functions", KEYWORD, [
        ("failures += _call_failures(label, obj)", "pass"),
        ("    except TypeError:\n        return False\n    return True",
         "    except TypeError:\n        return False\n    return False"),
        ("signature.bind_partial(", "signature.bind("),
        ("return named or (", "return ("),
    ]),
    ("every finding is reported", "case_every_object_is_reported", KEYWORD, [
        ("return list(dict.fromkeys(failures))", "return failures[:1]"),
    ]),
    ("class constructors accept no deterministic", "case_constructors", KEYWORD, [
        ('failures += _call_failures(f"the constructor of {label}", cls)', "pass"),
        ('_CONSTRUCTORS = ("__new__", "__init__")', '_CONSTRUCTORS = ("__new__",)'),
        ("failures += _named_failures(f\"{label}'s metaclass\", getattr(type(cls), \"__call__\"))", "pass"),
    ]),
    ("no field is named deterministic", "case_fields", KEYWORD, [
        ("WORD in vars(base) or WORD in _annotations(base)", "WORD in _annotations(base)"),
        ("WORD in vars(base) or WORD in _annotations(base)", "WORD in vars(base)"),
        ("WORD in _annotations(base) for base in cls.__mro__",
         "WORD in _annotations(base) for base in cls.__mro__[:1]"),
    ]),
    ("forward and backward of autograd Functions accept none", "case_autograd_functions", KEYWORD, [
        ('for part in ("forward", "backward"):', 'for part in ("forward",):'),
        ('for part in ("forward", "backward"):', 'for part in ("backward",):'),
        ('failures += _call_failures(f"{label}.{part}", getattr(cls, part))',
         'failures += _named_failures(f"{label}.{part}", getattr(cls, part))'),
        ("(not autograd or any(part in vars(base) for part in _CONSTRUCTORS for base in own))", "True"),
        ("(not autograd or any(part in vars(base) for part in _CONSTRUCTORS for base in own))", "not autograd"),
    ]),
    ("inherited forward and backward, too", "case_autograd_functions", KEYWORD, [
        ("            if any(part in vars(base) for base in own):\n                failures += _call",
         "            if part in vars(cls):\n                failures += _call"),
        ("            if any(part in vars(base) for base in own):\n                failures += _call",
         "            if True:\n                failures += _call"),
        ("autograd = len(own) < len(cls.__mro__)",
         "autograd = any(base.__name__ == 'Function' for base in cls.__bases__)"),
    ]),
    ("autograd Functions are recognised by module and name", "case_autograd_functions", KEYWORD, [
        ('("torch.autograd", "torch.autograd.function")', '("torch.autograd",)'),
        ('("torch.autograd", "torch.autograd.function")', '("torch.autograd.function",)'),
    ]),
    ("autograd Functions are recognised by module and name", "case_other_functions_are_no_autograd", KEYWORD, [
        (' and base.__name__ == "Function"', ""),
        ('base.__module__ in ("torch.autograd", "torch.autograd.function") and ', ""),
    ]),
    ("a public method has no parameter named deterministic", "case_methods", KEYWORD, [
        ('failures += _named_failures(f"{label}.{name}", member)', "pass"),
        ('if name == WORD or name.startswith("_") and name != "__call__":', "if name == WORD:"),
        (' and name != "__call__"', ""),
        ("failures += _member_failures(label, type(obj), seen)", "pass"),
        ("failures += _class_failures(f\"{label}.{name}\", member, seen)",
         "failures += _named_failures(label, member)"),
        (' and member.__qualname__ == f"{cls.__qualname__}.{member.__name__}"', ""),
    ]),
    ("inherited methods and factories included", "case_methods", KEYWORD, [
        ("for name in dir(cls):", "for name in vars(cls):"),
        ("isinstance(member, (staticmethod, classmethod))", "isinstance(member, staticmethod)"),
        ("(functools.partialmethod, functools.singledispatchmethod)", "functools.partialmethod"),
        ("(functools.partialmethod, functools.singledispatchmethod)", "functools.singledispatchmethod"),
    ]),
    ("a **kwargs method passes", "case_methods", KEYWORD, [
        ('failures += _named_failures(f"{label}.{name}", member)',
         'failures += _call_failures(f"{label}.{name}", member)'),
    ]),
    ("every layer of a functools.wraps chain is inspected", "case_wrapper_layers", KEYWORD, [
        ("enumerate(_layers(obj))", "enumerate([obj])"),
        ("enumerate(_layers(obj))", "enumerate([obj, inspect.unwrap(obj)])"),
        ("todo.append(layer.__wrapped__)", "pass"),
        ("return named or (", "return ("),
    ]),
    ("an ordinary wraps(*args, **kwargs) layer is no finding", "case_wrapper_layers", KEYWORD, [
        ("if WORD in inspect.signature(layer, follow_wrapped=False).parameters:",
         "if {WORD, 'kwargs'} & set(inspect.signature(layer, follow_wrapped=False).parameters):"),
        ("signature = inspect.signature(obj)", "signature = inspect.signature(obj, follow_wrapped=False)"),
    ]),
    ("a callable with no inspectable signature is skipped, both errors", "case_no_signature_is_skipped", KEYWORD, [
        ("    except (TypeError, ValueError):\n        return False", "    except TypeError:\n        return False"),
        ("    except (TypeError, ValueError):\n        return False", "    except ValueError:\n        return False"),
        ("    except (TypeError, ValueError):\n        return False",
         "    except (TypeError, ValueError):\n        return True"),
        ("    except (TypeError, ValueError):\n        pass", "    except TypeError:\n        pass"),
        ("    except (TypeError, ValueError):\n        pass", "    except ValueError:\n        pass"),
    ]),
    ("a type alias is skipped at module level and among members", "case_aliases", KEYWORD, [
        ("if _is_alias(obj) or isinstance(obj, types.ModuleType):", "if isinstance(obj, types.ModuleType):"),
        ("if _is_alias(member) or not callable(member):", "if not callable(member):"),
    ]),
    ("a public class is checked even if an alias subscripts it", "case_aliases", KEYWORD, [
        ("    for label, obj in objects:\n", "    objects = list(objects)\n    for label, obj in objects:\n"
         "        if any(typing.get_origin(other) is obj for _, other in objects):\n            continue\n"),
        ("return typing.get_origin(obj) is not None",
         "return hasattr(obj, '__class_getitem__') or hasattr(obj, '__origin__')"),
    ]),
    ("a keyword-only __signature__ is honoured", "case_signature_is_honoured", KEYWORD, [
        ("signature = inspect.signature(obj)", "signature = inspect.signature(type(obj)(obj.__code__, {})\n"
         "        if inspect.isfunction(obj) and not hasattr(obj, '__wrapped__') else obj)"),
        ("if WORD in inspect.signature(layer, follow_wrapped=False).parameters:\n            return True",
         "if WORD in inspect.signature(layer, follow_wrapped=False).parameters:\n            return False"),
        ("return code is not None and WORD", "return False and WORD"),
        (" + code.co_kwonlyargcount", ""),
        ("[:code.co_argcount + code.co_kwonlyargcount]", ""),
        ("if not inspect.isclass(layer) and isinstance(call, types.FunctionType):", "if False:"),
    ]),
]
