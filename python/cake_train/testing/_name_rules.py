"""Whether one public name obeys the naming rules: a pure function of the name and of its module's name.

Nothing is imported and no object is looked at, so that the Python checker and the C++ checker can share the rules and
their test vectors (`tests/data/mode_names.json`).
"""
from __future__ import annotations

import re
from typing import NamedTuple, Optional

MODES = ("det", "nondet")
# Modules whose objects serve both modes: none of their names carries a mode, so none is judged.
NEUTRAL_MODULES = ("cake_kcp",)

_MODULE = re.compile(r"cake_([a-z0-9]+(?:_[a-z0-9]+)*)_(det|nondet)_train(?:_kcp)?")
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*")
_SNAKE = re.compile(r"cake_(?=[^_])")
_CAMEL = re.compile(r"Cake(?=[A-Z0-9])")
# A word ends at `_`, before a capital after anything else, and before the last capital of an acronym (`KDA|Det`).
_BORDER = re.compile(r"_+|(?<=[^A-Z_])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][^A-Z0-9_])")

REASONS = {
    # verdict "ok"
    "op_and_mode": "starts with the op, directly followed by the mode",
    "support_query": "is a support query of the module",
    "constant": "is a constant",
    "neutral_module": "belongs to a module that serves both modes",
    "qualified": "stands in the namespace of the module",
    "mode_word": "carries the mode word, and its order is not asked for",
    # verdict "bad"
    "bad_module": "belongs to a module whose own name is not cake_<op>_<mode>_train[_kcp] of this mode",
    "foreign_mode": "carries the other mode's word",
    "missing_mode": "carries no mode word",
    "wrong_prefix": "starts with neither `cake_` nor `Cake`",
    "wrong_op": "does not name the module's op",
    "wrong_order": "does not have the mode word directly after the op",
    "wrong_namespace": "stands in the namespace of another module",
}


class Verdict(NamedTuple):
    """What the rules say: `verdict` is "ok" or "bad", `reason` a key of `REASONS`."""

    verdict: str
    reason: str


class ModuleName(NamedTuple):
    """The parts of a module name; `op` and `mode` are None where the name does not tell them."""

    leaf: str
    op: Optional[str]
    mode: Optional[str]

    @property
    def neutral(self) -> bool:
        """Whether the module serves both modes."""
        return self.leaf in NEUTRAL_MODULES


class _Word(NamedTuple):
    text: str
    start: int
    end: int


def split_name(name: str) -> list[str]:
    """The words of a name, split at `_` and at CamelCase borders: `CakeKDADet_x` is Cake, KDA, Det, x."""
    return [word.text for word in _words(name)]


def read_module_name(module: str) -> ModuleName:
    """Op and mode of a dotted module name, read from its last part that is a module name of the rules.

    A name without such a part gives its last part with op and mode None: what that means is the caller's matter.
    """
    parts = module.split(".")
    for part in reversed(parts):
        if part in NEUTRAL_MODULES:
            return ModuleName(part, None, None)
        match = _MODULE.fullmatch(part)
        # An op that holds a mode word would put that word into every name of the module.
        if match and not any(_bare(word) in MODES for word in split_name(match[1])):
            return ModuleName(part, match[1], match[2])
    return ModuleName(parts[-1], None, None)


def judge_name(name: str, module: str, *, mode: str | None = None, stem: bool = True) -> Verdict:
    """Judges one public name of a module, both given as text.

    `module` may be dotted; its name gives the op and, unless `mode` is given, the mode. With `stem=False` the name
    must carry the mode's word and not the other's, wherever it stands. A `name` with `::` is judged as a qualified
    C++ name: its namespace must be the module's, and no part may carry the other mode's word. A module whose name
    gives no op (then `mode` must be given) accepts any op.

    Raises ValueError when `mode` is neither None, "det" nor "nondet".
    """
    if mode not in (None, *MODES):
        raise ValueError(f"mode must be 'det', 'nondet' or None, not {mode!r}")
    place = read_module_name(module)
    if place.neutral:
        return Verdict("ok", "neutral_module")
    mode = mode or place.mode
    if mode is None or place.mode not in (None, mode):
        return Verdict("bad", "bad_module")
    if "::" in name:
        return _judge_qualified(name.removeprefix("::").split("::"), place, mode, stem)
    if _CONSTANT.fullmatch(name):
        return Verdict("ok", "constant")
    if _carries_other(name, mode):
        return Verdict("bad", "foreign_mode")
    if not _carries(name, mode):
        return Verdict("bad", "missing_mode")
    if not stem:
        return Verdict("ok", "mode_word")
    query = f"is_{place.leaf}"
    if name == query or name.startswith(query + "_"):
        return Verdict("ok", "support_query")
    return _judge_order(name, place.op, mode)


def _words(name: str) -> list[_Word]:
    words, start = [], 0
    for border in [*((match.start(), match.end()) for match in _BORDER.finditer(name)), (len(name), len(name))]:
        if border[0] > start:
            words.append(_Word(name[start:border[0]], start, border[0]))
        start = border[1]
    return words


def _bare(word: str) -> str:
    """A word without case and without its trailing number, which hides no mode word: `Nondet2` is nondet."""
    return word.lower().rstrip("0123456789")


def _carries(name: str, mode: str) -> bool:
    return any(word.lower() == mode for word in split_name(name))


def _carries_other(name: str, mode: str) -> bool:
    """Whether the other mode's word is in the name."""
    other = MODES[1 - MODES.index(mode)]
    words = [_bare(word) for word in split_name(name)]
    # `NonDet` and `non_det` split into two words but say nondet, so a det name may not hold them. (A nondet name may
    # not either: it would carry `det`.)
    spelled_out = any(pair == ("non", "det") for pair in zip(words, words[1:]))
    return other in words or spelled_out


def _judge_order(name: str, op: str | None, mode: str) -> Verdict:
    snake = _SNAKE.match(name)
    prefix = snake or _CAMEL.match(name)
    if prefix is None:
        return Verdict("bad", "wrong_prefix")
    words = _words(name[prefix.end():])
    if op is None:
        at = next((i for i, word in enumerate(words) if word.text.lower() == mode), 0)
    else:
        at = _op_end(words, op)
        if at is None:
            elsewhere = any(_op_end(words[i:], op) for i in range(1, len(words)))
            return Verdict("bad", "wrong_order" if elsewhere else "wrong_op")
    if at == 0 or at == len(words):
        return Verdict("bad", "wrong_order")
    # Directly after: one `_` in snake_case, nothing in CamelCase.
    word, gap = words[at], 1 if snake else 0
    if word.text != (mode if snake else mode.capitalize()) or word.start != words[at - 1].end + gap:
        return Verdict("bad", "wrong_order")
    return Verdict("ok", "op_and_mode")


def _op_end(words: list[_Word], op: str) -> int | None:
    """How many words at the beginning spell the op, without case and `_`; None if they do not."""
    spelled, wanted = "", op.replace("_", "")
    for i, word in enumerate(words):
        spelled += word.text.lower()
        if spelled == wanted:
            return i + 1
    return None


def _judge_qualified(parts: list[str], place: ModuleName, mode: str, stem: bool) -> Verdict:
    if _CONSTANT.fullmatch(parts[-1]):
        return Verdict("ok", "constant")
    if any(_carries_other(part, mode) for part in parts):
        return Verdict("bad", "foreign_mode")
    if not any(_carries(part, mode) for part in parts):
        return Verdict("bad", "missing_mode")
    if not stem:
        return Verdict("ok", "mode_word")
    if parts[0] != "cake":
        return Verdict("bad", "wrong_prefix")
    if len(parts) < 3 or parts[1] != place.leaf.removeprefix("cake_"):
        return Verdict("bad", "wrong_namespace")
    return Verdict("ok", "qualified")
