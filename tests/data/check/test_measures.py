"""`rlc data check` and training measure the same rows with the same numbers, whatever their form."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from fakes.models import character_tokenizer

from rl_compat.data.check.file_check import FileCheck, FileReport, Tools
from rl_compat.data.encode.items import Encoding, ItemEncoder
from rl_compat.data.encode.prompts import build_prompts
from rl_compat.data.form.columns import Task
from rl_compat.data.read.reading import Reading, load_rows, open_rows
from rl_compat.data.read.records import as_source
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.tokenizer import describe_tokenizer

TEMPLATE = (
    "{% if tools %}{% for t in tools %}[{{ t['function']['name'] }}]{% endfor %}{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}({{ c['function']['name'] }}){% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REWRITING = TEMPLATE.replace("<|end|>", "{% if loop.last %}.{% endif %}<|end|>")
SUMMING = {"type": "function", "function": {"name": "sum"}}


class Writer:
    """Random rows, with lengths near the limits."""

    def __init__(self, seed: int, *, limit: int) -> None:
        self.random = random.Random(seed)
        self.limit = limit

    def text(self) -> str:
        length = self.random.choice([1, 2, *range(self.limit - 6, self.limit + 3)])
        return "".join(self.random.choice("abc ") for _ in range(length)) + "x"

    def turn(self, role: str) -> dict[str, Any]:
        if role == "assistant" and self.random.random() < 0.2:
            return {"role": role, "content": None, "tool_calls": [{"function": {"name": "sum", "arguments": "{}"}}]}
        return {"role": role, "content": self.text()}

    def turns(self) -> list[dict[str, Any]]:
        """Ends with the user; has turns of the user or of a tool in the middle."""
        roles = ["user"]
        while self.random.random() < 0.5:
            roles += ["assistant", self.random.choice(["user", "tool"])]
        return [self.turn(role) for role in roles]

    def prompt(self) -> dict[str, Any]:
        return {"prompt": self.random.choice([self.text(), [self.turn("user")], self.turns()])} | self.tools()

    def tools(self) -> dict[str, Any]:
        return {"tools": self.random.choice([None, [SUMMING], [SUMMING] * 3])}

    def conversation(self) -> dict[str, Any]:
        return {"messages": [*self.turns(), self.turn("assistant")]} | self.tools()

    def text_alone(self) -> dict[str, Any]:
        return {"text": self.text() + self.text()}

    def answered(self) -> dict[str, Any]:
        return self.prompt() | {"completion": self.random.choice([self.text(), [self.turn("assistant")]])}

    def pair(self) -> dict[str, Any]:
        return self.prompt() | {"chosen": self.text(), "rejected": self.text()}

    def conversation_pair(self) -> dict[str, Any]:
        """Two conversations with a common beginning."""
        shared = self.turns()
        return {key: [*shared, {"role": "assistant", "content": self.text()}] for key in ("chosen", "rejected")}

    def whole_texts(self) -> dict[str, Any]:
        shared = self.text()
        return {"chosen": shared + self.text(), "rejected": shared + self.text()}

    def labelled(self) -> dict[str, Any]:
        return self.answered() | {"label": self.random.random() < 0.5}


FORMS: list[tuple[str, Task, Callable[[Writer], dict[str, Any]]]] = [
    ("grpo", "prompts", Writer.prompt),
    ("sft", "supervised", Writer.conversation),
    ("sft", "supervised", Writer.answered),
    ("sft", "supervised", Writer.text_alone),
    ("dpo", "preference", Writer.pair),
    ("dpo", "preference", Writer.conversation_pair),
    ("dpo", "preference", Writer.whole_texts),
    ("reward_model", "preference", Writer.pair),
    ("reward_model", "preference", Writer.conversation_pair),
    ("reward_model", "preference", Writer.whole_texts),
    ("kto", "labelled", Writer.labelled),
    ("kto", "labelled", Writer.conversation_pair),
]


def checked(records: list[dict[str, Any]], task: Task, algorithm: str, encoding: Encoding) -> FileReport:
    encoder = None if task == "prompts" else ItemEncoder(algorithm, encoding)
    source = as_source(records)
    assert not isinstance(source, str)
    reading = Reading(task=task)
    form, _ = open_rows(source, reading)
    return FileCheck(source, reading, form, Tools(encoding=encoding, encoder=encoder, count_tokens=len)).run()


def trained(
    records: list[dict[str, Any]], task: Task, algorithm: str, encoding: Encoding
) -> tuple[set[int], list[tuple[int, ...]]]:
    """The rows and the sequences that a run trains on."""
    rows = load_rows([as_source(records)], task=task)
    if task == "prompts":
        limits = {"max_prompt_length": encoding.max_prompt_length, "overlong": encoding.overlong}
        prompts = build_prompts(rows, chat=encoding.chat, bad_rows="drop", **limits).prompts
        return {prompt.row for prompt in prompts}, [prompt.token_ids for prompt in prompts]
    items = ItemEncoder(algorithm, encoding).encode_all(rows).items
    examples = [example for item in items for example in item.examples]
    return {item.row for item in items}, [(*example.prompt_ids, *example.response_ids) for example in examples]


@pytest.mark.parametrize("template", [TEMPLATE, REWRITING])
@pytest.mark.parametrize("overlong", ["filter", "left"])
@pytest.mark.parametrize(("algorithm", "task", "write"), FORMS)
def test_a_check_counts_the_rows_and_tokens_that_a_run_trains_on(
    algorithm: str, task: Task, write: Callable[[Writer], dict[str, Any]], overlong: str, template: str
) -> None:
    chat = ChatEncoder(describe_tokenizer(character_tokenizer(chat_template=template)))
    encoding = Encoding(
        chat=chat,
        max_prompt_length=20,
        max_response_length=16,
        overlong=overlong,
        bad_rows="drop",  # type: ignore[arg-type]
    )
    writer = Writer(7, limit=16)
    records = [write(writer) for _ in range(20)]
    report = checked(records, task, algorithm, encoding)
    rows, sequences = trained(records, task, algorithm, encoding)
    assert 0 < len(rows) <= 20
    assert (report.num_usable, report.tokens_per_epoch) == (len(rows), sum(map(len, sequences)))
    found = {row for problem in report.problems if problem.spoils for row in problem.rows}
    assert set(range(20)) - rows <= found
    assert overlong == "left" or len(rows) < 20


def test_lengths_are_those_of_the_whole_response_with_the_turns_of_others_and_the_tools() -> None:
    chat = ChatEncoder(describe_tokenizer(character_tokenizer(chat_template=TEMPLATE)))
    encoding = Encoding(chat=chat, max_prompt_length=100, max_response_length=12)
    asked, said = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}
    long_middle = {"messages": [asked, said, {"role": "tool", "content": "x" * 9}, said], "tools": [SUMMING]}
    report = checked([long_middle], "supervised", "sft", encoding)
    assert report.lengths["prompt"].maximum == len("[sum]") + 1 + len("hi") + 1 + 1
    assert report.lengths["response"].maximum == 2 + len("<|tool|>") + 9 + 1 + 1 + 2
    assert [(item.kind, item.rows) for item in report.problems] == [("response-too-long", (0,))]
    assert (report.num_usable, report.tokens_per_epoch) == (0, 0)
