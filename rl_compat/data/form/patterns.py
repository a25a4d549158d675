"""The forms of datasets, recognised by their columns: verl, TRL, Alpaca, ShareGPT, questions and answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rl_compat.data.builtin import gsm8k, math_problems
from rl_compat.data.form.columns import Record, Task, columns_of, lookup
from rl_compat.data.form.turns import unpacked
from rl_compat.errors import quoted

Rewrite = Callable[[Record, int, str], Record | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of one file: which column has which role."""

    name: str
    title: str
    columns: Mapping[str, str]
    "role to column; a dotted column is a field of a struct"
    rewrite: Rewrite | None = None
    "from a raw record, its number and the split to a record in verl's schema, None without a final answer"
    unused: tuple[str, ...] = ()
    "columns without a role, in tasks other than prompts, whose rewards get every column"

    def sentence(self, name: str) -> str:
        """One line with the form and its columns."""
        used = ", ".join(f"{role} from `{column}`" for role, column in self.columns.items())
        rest = f"; not used: {quoted(self.unused)}" if self.unused else ""
        return f"`{name}` is read as {self.title}: {used}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPattern:
    """How a form is recognised, and the tasks it serves."""

    name: str
    title: str
    tasks: tuple[Task, ...]
    needs: Mapping[str, tuple[str, ...]]
    "role to possible column names; a role without names must be named in the settings"
    takes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    "the same for optional columns"
    truth: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    "the same for optional columns that only prompts have"
    fits: Callable[[Sequence[Record], Mapping[str, str], Task], bool] = lambda records, columns, task: True
    "whether the first rows have the values that the column names suggest"
    rewrite: Rewrite | None = None
    wins: bool = False
    "takes precedence over every other form that fits"
    last: bool = False
    "applies only where no other form fits"


def _ends_in(column: str, answer: Callable[[str], object]) -> Callable[..., bool]:
    """Whether the solutions of the first rows have final answers.

    A prompt needs one: where some rows have it, the others cannot be used. A response is learned without it.
    """

    def fits(records: Sequence[Record], columns: Mapping[str, str], task: Task) -> bool:
        final = [answer(str(record.get(column))) is not None for record in records]
        return any(final) if task == "prompts" else all(final)

    return fits


_GSM8K_END = re.compile(r"####[^\n]*\s*$")


def _has_turns(records: Sequence[Record], columns: Mapping[str, str], task: Task) -> bool:
    values = [unpacked(lookup(record, columns["prompt"])) for record in records]
    return all(isinstance(value, list) for value in values if value is not None)


def _has_responses(records: Sequence[Record], columns: Mapping[str, str], task: Task) -> bool:
    """Whether the conversations of the first rows end with an assistant turn."""
    if not _has_turns(records, columns, task):
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
TOOLS = {"tools": ("tools", "functions")}
SYSTEM = {"system": ("system", "system_prompt"), **TOOLS}
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
        tasks=("prompts", "supervised"),
        needs={"prompt": ()},
        truth=TRUTH,
        takes={**SYSTEM, **SOURCE},
        fits=_has_responses,
        wins=True,
    ),
    FormPattern(
        name="verl",
        title="verl's schema",
        tasks=("prompts",),
        needs={"prompt": PROMPT},
        takes={**TRUTH, **TOOLS, **SOURCE},
        fits=lambda records, columns, task: bool({"reward_model", "data_source"} & {*columns_of(records)}),
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
        fits=_ends_in("answer", _GSM8K_END.search),
        rewrite=gsm8k.from_raw,
    ),
    FormPattern(
        name="math",
        title="raw MATH",
        tasks=("prompts", "supervised"),
        needs={"question": ("problem",), "solution": ("solution",)},
        takes={"answer": ("answer",)},
        fits=_ends_in("solution", math_problems.answer_in),
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
        tasks=("prompts", "supervised"),
        needs={"prompt": TURNS},
        truth=TRUTH,
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
        name="text", title="plain text", tasks=("supervised",), needs={"response": ("text",)}, takes=SOURCE, last=True
    ),
)
"in the order in which they are tried"
