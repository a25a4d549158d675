from __future__ import annotations

from typing import Any

import pytest
from fakes.encoders import CharacterEncoder
from fakes.models import character_tokenizer

from rl_compat.data.encode.items import Encoding, ItemEncoder
from rl_compat.data.encode.prompts import Overlong, build_prompts, check_batch_size, cut
from rl_compat.data.form.rows import PreferenceRow, PromptRow, SupervisedRow, Text, ToolSchemas
from rl_compat.errors import DataError, ModelError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.tokenizer import describe_tokenizer

TEXTS = ("0123456789", "0123456789abcdef", "0123456789abcdefg")
"10, 16 and 17 tokens"


def _rows(texts: tuple[str, ...] = TEXTS) -> list[PromptRow]:
    return [PromptRow(prompt=text, data_source="mine", ground_truth=i, row=i) for i, text in enumerate(texts)]


def _texts(overlong: Overlong, *, limit: int = 16) -> list[str]:
    built = build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=limit, overlong=overlong)
    return ["".join(map(chr, prompt.token_ids)) for prompt in built.prompts]


def test_filter_keeps_a_prompt_of_exactly_the_limit_and_says_what_it_dropped() -> None:
    """A-DATA-05"""
    built = build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=16, overlong="filter")
    assert [prompt.row for prompt in built.prompts] == [0, 1]
    assert len(built.prompts) == 2
    assert len(built.notes) == 1 and all(part in built.notes[0] for part in ("1 of 3", "16", "17", "row 2"))


def test_error_names_the_row_and_both_lengths() -> None:
    """A-DATA-05"""
    with pytest.raises(DataError, match=r"row 2 .*\b17\b.*\b16\b") as error:
        build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=16, overlong="error")
    assert "data.max_prompt_length=17" in str(error.value.hint)


def test_left_right_and_middle_cut_where_they_say() -> None:
    """A-DATA-05"""
    assert _texts("left")[2] == "123456789abcdefg"
    assert _texts("right")[2] == "0123456789abcdef"
    assert _texts("middle")[2] == "01234567" + "9abcdefg"
    assert _texts("middle", limit=5) == ["01789", "01def", "01efg"]
    built = build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=16, overlong="left")
    assert len(built.prompts) == 3
    assert len(built.notes) == 1 and all(part in built.notes[0] for part in ("1 of 3", "left", "17", "row 2"))


def test_cutting_to_a_length_of_one_keeps_one_token() -> None:
    assert [cut([1, 2, 3], 1, keep=side) for side in ("left", "right", "middle")] == [[3], [1], [3]]  # type: ignore[arg-type]


def test_prompts_carry_their_row() -> None:
    row = PromptRow(prompt="abc", data_source="mine", ground_truth={"a": 1}, extra_info={"k": 2}, row=7)
    prompt = build_prompts([row], chat=CharacterEncoder(), max_prompt_length=16).prompts[0]
    assert (prompt.text, prompt.token_ids) == ("abc", (97, 98, 99))
    assert (prompt.data_source, prompt.ground_truth, prompt.extra_info, prompt.row) == ("mine", {"a": 1}, {"k": 2}, 7)


def test_dropping_every_row_is_an_error_that_counts_them() -> None:
    """A-DATA-11"""
    with pytest.raises(DataError, match=r"\b3 rows\b.*\b10\b.*\b4\b"):
        build_prompts(_rows(), chat=CharacterEncoder(), max_prompt_length=4, overlong="filter")


def test_fewer_rows_than_a_batch_is_an_error_with_the_largest_valid_batch() -> None:
    """A-DATA-11"""
    with pytest.raises(DataError, match=r"\b3 rows\b.*\b8\b") as error:
        check_batch_size(3, 8)
    assert "`trainer.batch_size=3`" in str(error.value.hint)
    with pytest.raises(DataError):
        check_batch_size(0, 8)
    check_batch_size(8, 8)


def test_a_row_without_tokens_is_named() -> None:
    class Silent:
        def encode(self, prompt: object, tools: object = ()) -> tuple[str, list[int]]:
            return "", []

    with pytest.raises(DataError, match="rows 0, 1, 2"):
        build_prompts(_rows(), chat=Silent(), max_prompt_length=16)


def test_a_row_that_the_template_refuses_is_named() -> None:
    class Refusing:
        def encode(self, prompt: object, tools: object = ()) -> tuple[str, list[int]]:
            raise ModelError("the chat template refuses role `tool`", hint="use another")

    with pytest.raises(DataError, match=r"`tool`.*rows 0, 1, 2") as error:
        build_prompts(_rows(), chat=Refusing(), max_prompt_length=16)
    assert str(error.value.hint).startswith("use another") and "`data.bad_rows=drop`" in str(error.value.hint)


def test_no_rows_are_no_prompts() -> None:
    assert build_prompts([], chat=CharacterEncoder(), max_prompt_length=16).prompts == ()


WRITES_ALL = (
    "{% for t in tools or [] %}[{{ t['function']['name'] }}]{% endfor %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}({{ c['function']['name'] }}{{ c['function']['arguments']['a'] }})"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DROPS = {
    "tools": WRITES_ALL.replace("tools or []", "[]"),
    "tool_calls": WRITES_ALL.replace("m['tool_calls'] or []", "[]"),
    "`tool`": WRITES_ALL.replace("in messages", "in messages if m['role'] != 'tool'"),
    "`system`": WRITES_ALL.replace("in messages", "in messages if m['role'] != 'system'"),
}
ARGUMENTS = "c['function']['arguments']"
WANTS_TEXT = WRITES_ALL.replace(f"{{{{ {ARGUMENTS}['a'] }}}}", f"{{{{ '<' + {ARGUMENTS} + '>' }}}}")
PRINTS = WRITES_ALL.replace(f"{ARGUMENTS}['a']", ARGUMENTS)
WANTS_OBJECT = WRITES_ALL.replace(f"{ARGUMENTS}['a']", f"{ARGUMENTS} | tojson")
ITERATES = WRITES_ALL.replace(
    f"{{{{ {ARGUMENTS}['a'] }}}}", f"{{% for k, v in {ARGUMENTS}.items() %}}{{{{ k }}}}={{{{ v }}}}{{% endfor %}}"
)
TOOLS: ToolSchemas = ({"type": "function", "function": {"name": "add"}},)
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 3}}}],
}
BEFORE = [{"role": "system", "content": "S"}, {"role": "user", "content": "3+4?"}]
AFTER = [CALLED, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "7."}]


def encoding(template: str) -> Encoding:
    chat = ChatEncoder(describe_tokenizer(character_tokenizer(chat_template=template)))
    return Encoding(chat=chat, max_prompt_length=200, max_response_length=100)


def texts(algorithm: str, template: str, tools: ToolSchemas = TOOLS) -> list[str]:
    """The whole text of each example that an algorithm trains on."""
    how = encoding(template)
    other: Text = [*AFTER[:2], {"role": "assistant", "content": "8."}]
    if algorithm == "grpo":
        row = PromptRow(prompt=[*BEFORE, *AFTER[:2]], tools=tools)
        return [prompt.text for prompt in build_prompts([row], chat=how.chat, max_prompt_length=200).prompts]
    rows: Any = [SupervisedRow(prompt=BEFORE, response=AFTER, tools=tools)]
    if algorithm in ("dpo", "reward_model"):
        rows = [PreferenceRow(prompt=BEFORE, chosen=AFTER, rejected=other, tools=tools)]
    items = ItemEncoder(algorithm, how).encode_all(rows).items
    decode = how.chat.bundle.tokenizer.decode  # type: ignore[attr-defined]
    return [decode([*e.prompt_ids, *e.response_ids]) for item in items for e in item.examples]


@pytest.mark.parametrize("algorithm", ["grpo", "sft", "dpo", "reward_model"])
def test_tools_and_calls_reach_the_text(algorithm: str) -> None:
    for text in texts(algorithm, WRITES_ALL):
        assert text.startswith("[add]<|system|>S<|end|><|user|>3+4?<|end|><|assistant|>(add3)<|end|><|tool|>7<|end|>")
    assert all(not text.startswith("[") for text in texts(algorithm, WRITES_ALL, tools=()))


@pytest.mark.parametrize("algorithm", ["grpo", "sft", "dpo", "reward_model"])
@pytest.mark.parametrize("what", DROPS)
def test_what_a_template_drops_is_refused_with_the_row(what: str, algorithm: str) -> None:
    with pytest.raises(DataError) as error:
        texts(algorithm, DROPS[what])
    assert what in error.value.message and "row 0" in error.value.message
    assert "`model.chat_template`" in str(error.value.hint)
    if what == "tools":
        assert texts(algorithm, DROPS[what], tools=())


def test_only_the_turns_of_the_policy_are_learned_around_calls() -> None:
    how = encoding(WRITES_ALL)
    row = SupervisedRow(prompt=BEFORE, response=AFTER, tools=TOOLS)
    (item,) = ItemEncoder("sft", how).items(row)
    (example,) = item.examples
    decode = how.chat.bundle.tokenizer.decode  # type: ignore[attr-defined]
    pairs = list(zip(example.response_ids, example.learned, strict=True))
    assert decode([token for token, learned in pairs if learned]) == "(add3)<|end|>7.<|end|>"
    assert decode([token for token, learned in pairs if not learned]) == "<|tool|>7<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (WANTS_TEXT, '<{"city": "Bern", "a": 3}>'),
        (PRINTS, '{"city": "Bern", "a": 3}'),
        (WANTS_OBJECT, '{"city": "Bern", "a": 3}'),
        (ITERATES, "city=Berna=3"),
    ],
)
@pytest.mark.parametrize("algorithm", ["grpo", "sft", "dpo"])
def test_the_arguments_of_a_call_have_the_type_that_the_template_takes(
    template: str, written: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = {"name": "add", "arguments": {"city": "Bern", "a": 3}}
    monkeypatch.setitem(CALLED, "tool_calls", [{"type": "function", "function": function}])
    for text in texts(algorithm, template):
        assert f"(add{written})" in text
    assert function["arguments"] == {"city": "Bern", "a": 3}


@pytest.mark.parametrize("template", [WANTS_TEXT, PRINTS, WANTS_OBJECT])
def test_arguments_given_as_text_and_as_an_object_render_alike(template: str) -> None:
    chat = encoding(template).chat

    def rendered(arguments: Any) -> str:
        call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
        return chat.encode([*BEFORE, {"role": "assistant", "content": "", "tool_calls": [call]}])[0]

    assert rendered({"a": 3}) == rendered('{"a": 3}')
    assert '{"a": 3}' in rendered('{"a": 3}')
