"""The table of known errors: whole, consistent, and with patterns that cannot run away."""

from __future__ import annotations

import re
import time
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from fakes.verl_settings import load_config
from fakes.work import growth

from rl_compat.config.settings import settings
from rl_compat.doctor.explain.matching import find_errors
from rl_compat.doctor.explain.patterns import SEVERITIES, KnownError, compile_pattern, known_errors
from rl_compat.doctor.explain.reading import Line
from rl_compat.doctor.findings import Certainty, Step
from rl_compat.doctor.table import CHECKS

ERRORS = known_errors()
IDS = {error.id for error in ERRORS}
PATTERNS = [(error, pattern) for error in ERRORS for pattern in error.patterns]
SHORTEST_LITERAL = 5
LONGEST_GAP = 4000


def test_ids_are_unique_and_every_row_is_whole() -> None:
    assert len(ERRORS) == len(IDS)
    for error in ERRORS:
        assert error.patterns and error.sample and error.cause and error.remedies and error.sources, error.id
        assert error.severity in SEVERITIES
        assert error.confidence in ("high", "medium-high", "medium")
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", error.date)


def test_the_59_errors_of_the_knowledge_base_are_there(messages: dict[str, str]) -> None:
    assert len(IDS) >= 59 + 40
    assert set(messages) <= IDS


def test_every_check_that_a_row_names_exists() -> None:
    known = {check.id for check in CHECKS}

    assert {(error.id, id) for error in ERRORS for id in error.checks if id not in known} == set()


def test_every_row_that_a_row_names_exists() -> None:
    named = {id for error in ERRORS for id in (*error.follows_from, *error.always_follows_from, *error.covers)}
    layers = {error.layer.id for error in ERRORS}
    behind = {id for error in ERRORS for id in (*error.layer.follows_from, *error.layer.always_follows_from)}

    assert named <= IDS
    assert behind <= layers


def test_layers_explain_only_higher_layers() -> None:
    depth = {error.layer.id: error.layer.depth for error in ERRORS}

    for error in ERRORS:
        for id in (*error.layer.follows_from, *error.layer.always_follows_from):
            assert depth[id] < error.layer.depth, (error.layer.id, id)


def test_texts_are_in_the_style_of_the_doctor() -> None:
    for error in ERRORS:
        for text in (error.title, error.cause, *(remedy.what for remedy in error.remedies)):
            assert not text.endswith("."), text
            assert text[0].islower() or not text[0].isalpha() or _is_a_name(text), text


def _is_a_name(text: str) -> bool:
    """Whether a text begins with a name that has a capital, such as CUDA or Ray."""
    names = "CUDA|DeepSpeed|NCCL|NVML|NaN|NumPy|Triton|TensorRT|Ray|RBF|NVIDIA|Weights|Python|Volta|Maxwell|Blackwell"
    return (
        re.match(rf"(?:{names}|Inductor|FlashAttention|FSDP|GPUs|InfiniBand|Kubernetes|NFS|NVLS)\b", text) is not None
    )


def test_steps_and_sureness_are_the_doctors() -> None:
    for error in ERRORS:
        for remedy in error.remedies:
            assert remedy.step.upper() in Step.__members__
            assert remedy.certainty.upper() in Certainty.__members__
            assert remedy.certainty != "ready" or not re.search(
                r"\b(?:IMAGE|HOST|SCRIPT|WATTS|SIZE|FILE)\b", str(remedy.commands)
            )


def test_every_setting_that_a_remedy_names_is_one_of_ours() -> None:
    known = settings()
    sections = {key.partition(".")[0] for key in known}
    verl = re.compile(r"^(?:trainer\.n|data\.train_batch|rollout\.n\b)")
    named = re.compile(r"`([a-z_]+\.[a-z_]+(?:=[^`]*)?)`")
    words = {word for error in ERRORS for text in _texts(error) for word in named.findall(text)}
    ours = {word for word in words if word.partition(".")[0] in sections and not verl.match(word)}

    assert len(ours) > 10
    for word in ours:
        key, _, value = word.partition("=")
        assert key in known, word
        if value and "file.py" not in value:
            load_config(None, [word, *(["model.lora_rank=8"] if "quantization=nf4" in word else [])])


def _texts(error: KnownError) -> list[str]:
    return [error.cause, *(remedy.what for remedy in error.remedies)]


def test_every_sample_and_every_message_of_the_knowledge_base_is_recognised_as_its_row_alone(
    messages: dict[str, str],
) -> None:
    texts = [*((error.id, error.sample) for error in ERRORS), *messages.items()]
    found = [(id, [match.error.id for match in find_errors([[Line(1, text)]], ERRORS).matches]) for id, text in texts]

    assert [(id, ids) for id, ids in found if ids != [id]] == []


def test_every_pattern_recognises_what_it_describes() -> None:
    wrong = []
    for error, pattern in PATTERNS:
        text = _example(parser.parse(pattern.text))
        for line in (text, f"[rank0]: {text} " if pattern.whole_line else f"RuntimeError: {text} "):
            found = find_errors([[Line(1, line)]], [error])
            wrong += [(error.id, line)] if [match.error.id for match in found.matches] != [error.id] else []

    assert wrong == []


def test_a_pattern_has_bounded_gaps_and_a_text_that_it_needs() -> None:
    for error, pattern in PATTERNS:
        tree, place = parser.parse(pattern.text), f"{error.id}: {pattern.text}"

        assert len(pattern.literal) >= SHORTEST_LITERAL, place
        assert len(tree) > 1 or tree[0][0] is not constants.BRANCH, f"alternatives at the top of {place}"
        _check_repeats(tree, place, inside=False)


def _check_repeats(tree: Any, place: str, *, inside: bool) -> None:
    """Anything may repeat without bound only as one character class, and never inside another repeat."""
    for kind, content in tree:
        if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            _, most, repeated = content
            unbounded = most is constants.MAXREPEAT
            single = len(repeated) == 1 and repeated[0][0] in (constants.IN, constants.LITERAL)
            assert not (unbounded and inside), f"a repeat inside of a repeat in {place}"
            assert not unbounded or single, f"a gap without bound in {place}"
            assert unbounded or most <= LONGEST_GAP, place
            _check_repeats(repeated, place, inside=inside or most > 1)
        elif kind is constants.SUBPATTERN:
            _check_repeats(content[3], place, inside=inside)
        elif kind is constants.BRANCH:
            for option in content[1]:
                _check_repeats(option, place, inside=inside)


def _growth_of_search(regex: re.Pattern[str], text: str) -> float:
    """Of the time for four times the text; 0 for a search so short that only noise would be compared."""

    def search(size: int) -> None:
        regex.search(text * (size // len(text)))

    started = time.process_time()
    search(20_000)
    return growth(search, small=10_000) if time.process_time() - started > 0.01 else 0.0


def test_no_pattern_runs_away_on_long_lines() -> None:
    slow = {}
    for error in ERRORS:
        for pattern in error.patterns:
            example = "".join(_example(parser.parse(pattern.text)).split())
            for text in (example[:-1], pattern.literal, "a"):
                times = _growth_of_search(pattern.regex, text)
                if times > 8:
                    slow[pattern.text] = times

    assert slow == {}


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("out of memory", "outofmemory", True),
        ("out of memory", "OutOfMemory", True),
        (r"exit ?code ?: ?-9(?!\d)", "exitcode:-95", False),
        (r"Xid.{0,60}: 79,", "Xid(PCI:0000:01:00):79,GPU", True),
    ],
)
def test_white_space_of_a_pattern_stands_for_any_amount(pattern: str, text: str, matches: bool) -> None:
    assert (compile_pattern(pattern).regex.search(text) is not None) == matches


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("No available kernel", "noavailablekernel"),
        (r"(?:one|two) long text", "longtext"),
        (r"colou?r of the lamp", "rofthelamp"),
        (r"Found \d+ cards", "found"),
        (r"\[Errno 28\]", "[errno28]"),
        (r"a{2,3}bcdef", "bcdef"),
    ],
)
def test_the_text_that_a_match_needs_leaves_out_what_is_optional(pattern: str, literal: str) -> None:
    assert compile_pattern(pattern).literal == literal


def _example(tree: Any) -> str:
    """A text that the pattern matches: the first option everywhere, what is optional left out."""
    return "".join(_example_of(kind, content) for kind, content in tree)


def _example_of(kind: Any, content: Any) -> str:
    if kind is constants.LITERAL:
        return chr(content)
    if kind is constants.NOT_LITERAL or kind is constants.ANY:
        return "x"
    if kind is constants.IN:
        return _one_of(content)
    if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT):
        return _example(content[2]) * content[0]
    if kind is constants.SUBPATTERN:
        return _example(content[3])
    if kind is constants.BRANCH:
        return _example(content[1][0])
    assert kind in (constants.ASSERT_NOT, constants.AT), kind
    return ""


def _one_of(content: Any) -> str:
    kind, value = content[0]
    if kind is constants.NEGATE:
        return "x"
    if kind is constants.RANGE:
        return chr(value[0])
    if kind is constants.CATEGORY:
        return {constants.CATEGORY_DIGIT: "7", constants.CATEGORY_SPACE: " "}.get(value, "w")
    return chr(value)
