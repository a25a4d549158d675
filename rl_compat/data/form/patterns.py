"""The forms that data sets come in, told by their columns: verl, TRL, Alpaca, ShareGPT, questions and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rl_compat.data.builtin import gsm8k, math_problems
from rl_compat.data.form.columns import Record, Task, columns_of, lookup
from rl_compat.data.form.turns import unpacked

Rewrite = Callable[[Record, int, str], Record | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What one file was taken for: the role of each of its columns that is used."""

    name: str
    title: str
    columns: Mapping[str, str]
    "role to column; a dotted column lies in a struct"
    rewrite: Rewrite | None = None
    "from a raw row, its number and the split to a row of verl's schema, None when it cannot be one"

    def sentence(self, name: str) -> str:
        """One line: the form, and which column is what."""
        used = ", ".join(f"{role} from `{column}`" for role, column in self.columns.items())
        return f"`{name}` looks like {self.title}: {used}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPattern:
    """How a form is recognised, and for which task."""

    name: str
    title: str
    tasks: tuple[Task, ...]
    needs: Mapping[str, tuple[str, ...]]
    "role to the names its column may have; a role without names needs one that the user gave"
    takes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    "the same, for columns that may be missing"
    fits: Callable[[Sequence[Record], Mapping[str, str]], bool] = lambda records, columns: True
    "whether the first rows hold what the names promise"
    rewrite: Rewrite | None = None
    wins: bool = False
    "over every other form that the columns would allow"
    last: bool = False
    "only when there is no other"


def _is_verl(records: Sequence[Record], columns: Mapping[str, str]) -> bool:
    return bool({"reward_model", "data_source"} & set(columns_of(records)))


def _is_gsm8k(records: Sequence[Record], columns: Mapping[str, str]) -> bool:
    return all(
        isinstance(record.get("question"), str) and gsm8k.MARKER in str(record.get("answer")) for record in records
    )


def _is_math(records: Sequence[Record], columns: Mapping[str, str]) -> bool:
    return all(math_problems.answer_in(str(record.get("solution"))) is not None for record in records)


def _has_turns(records: Sequence[Record], columns: Mapping[str, str]) -> bool:
    values = [unpacked(lookup(record, columns["prompt"])) for record in records]
    return all(isinstance(value, list) for value in values if value is not None)


def _has_responses(records: Sequence[Record], columns: Mapping[str, str]) -> bool:
    """Whether the turns of the first rows go on to the assistant's."""
    if not _has_turns(records, columns):
        return False
    last = [turns[-1] for record in records if (turns := unpacked(lookup(record, columns["prompt"])))]
    speakers = [turn.get("role") or turn.get("from") for turn in last if isinstance(turn, dict)]
    return bool(speakers) and all(speaker in ("assistant", "gpt") for speaker in speakers)


TURNS = ("messages", "conversations", "conversation")
PROMPT = ("prompt",)
QUESTION = ("question", "problem", "query")
INSTRUCTION = ("instruction",)
ANSWER = ("answer", "solution", "output", "response")
RESPONSE = ("completion", "response")
INPUT = {"input": ("input", "context"), "history": ("history",)}
SYSTEM = {"system": ("system", "system_prompt")}
PAIR = {"chosen": ("chosen",), "rejected": ("rejected",)}
LABEL = {"label": ("label", "kto_tag")}
TRUTH = {"answer": ("reward_model.ground_truth", "ground_truth", "answer")}
SOURCE = {"source": ("data_source",)}

PATTERNS: tuple[FormPattern, ...] = (
    FormPattern(
        name="labelled",
        title="labelled responses",
        tasks=("labelled",),
        needs={"prompt": (*PROMPT, *QUESTION, *INSTRUCTION), "response": (*RESPONSE, "output", "answer"), **LABEL},
        takes={**INPUT, **SYSTEM, **SOURCE},
        wins=True,
    ),
    FormPattern(
        name="labelled-turns",
        title="labelled conversations",
        tasks=("labelled",),
        needs={"prompt": TURNS, **LABEL},
        takes={**SYSTEM, **SOURCE},
        fits=_has_turns,
        wins=True,
    ),
    FormPattern(
        name="preference",
        title="preference pairs",
        tasks=("preference", "labelled"),
        needs=PAIR,
        takes={
            "prompt": (*PROMPT, *QUESTION, *INSTRUCTION, *TURNS),
            **INPUT,
            **SYSTEM,
            "margin": ("margin",),
            **SOURCE,
        },
        wins=True,
    ),
    FormPattern(
        name="turns",
        title="conversations",
        tasks=("prompts",),
        needs={"prompt": ()},
        takes={**TRUTH, **SYSTEM, **SOURCE},
        fits=_has_responses,
        wins=True,
    ),
    FormPattern(
        name="turns",
        title="conversations",
        tasks=("supervised",),
        needs={"prompt": ()},
        takes={**SYSTEM, **SOURCE},
        fits=_has_responses,
        wins=True,
    ),
    FormPattern(
        name="verl",
        title="verl's schema",
        tasks=("prompts",),
        needs={"prompt": PROMPT},
        takes={**TRUTH, **SOURCE},
        fits=_is_verl,
        wins=True,
    ),
    FormPattern(
        name="prompt",
        title="prompts",
        tasks=("prompts",),
        needs={"prompt": PROMPT},
        takes={**TRUTH, **SYSTEM, **SOURCE},
        wins=True,
    ),
    FormPattern(
        name="prompt-response",
        title="prompts with responses",
        tasks=("supervised",),
        needs={"prompt": PROMPT, "response": (*RESPONSE, "extra_info.answer", "extra_info.solution")},
        takes={**SYSTEM, **SOURCE},
    ),
    FormPattern(
        name="gsm8k",
        title="raw GSM8K",
        tasks=("prompts", "supervised"),
        needs={"question": ("question",), "solution": ("answer",)},
        fits=_is_gsm8k,
        rewrite=gsm8k.from_raw,
    ),
    FormPattern(
        name="math",
        title="raw MATH",
        tasks=("prompts", "supervised"),
        needs={"question": ("problem",), "solution": ("solution",)},
        takes={"answer": ("answer",)},
        fits=_is_math,
        rewrite=math_problems.from_raw,
    ),
    FormPattern(
        name="question-answer",
        title="questions and answers",
        tasks=("prompts",),
        needs={"prompt": QUESTION},
        takes={"answer": (*TRUTH["answer"], *ANSWER), **SYSTEM, **SOURCE},
    ),
    FormPattern(
        name="question-answer",
        title="questions and answers",
        tasks=("supervised",),
        needs={"prompt": QUESTION, "response": ANSWER},
        takes={**SYSTEM, **SOURCE},
    ),
    FormPattern(
        name="alpaca",
        title="Alpaca instructions",
        tasks=("prompts",),
        needs={"prompt": INSTRUCTION},
        takes={"answer": (*TRUTH["answer"], "output", "response"), **INPUT, **SYSTEM, **SOURCE},
    ),
    FormPattern(
        name="alpaca",
        title="Alpaca instructions",
        tasks=("supervised",),
        needs={"prompt": INSTRUCTION, "response": ("output", "response")},
        takes={**INPUT, **SYSTEM, **SOURCE},
    ),
    FormPattern(
        name="turns",
        title="conversations",
        tasks=("prompts",),
        needs={"prompt": TURNS},
        takes={**TRUTH, **SYSTEM, **SOURCE},
        fits=_has_turns,
    ),
    FormPattern(
        name="turns",
        title="conversations",
        tasks=("supervised",),
        needs={"prompt": TURNS},
        takes={**SYSTEM, **SOURCE},
        fits=_has_turns,
    ),
    FormPattern(
        name="pair-prompts",
        title="prompts of preference pairs",
        tasks=("prompts",),
        needs=PAIR,
        takes={**SYSTEM, **SOURCE},
        last=True,
    ),
    FormPattern(
        name="text",
        title="plain text",
        tasks=("supervised",),
        needs={"response": ("text",)},
        takes=SOURCE,
        last=True,
    ),
)
"in the order in which they are tried"
