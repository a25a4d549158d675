"""What a template drops is refused, and what it writes reaches the tokens."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.models import character_tokenizer

from rl_compat.data.encode.items import Encoding, ItemEncoder
from rl_compat.data.encode.prompts import build_prompts
from rl_compat.data.form.rows import PreferenceRow, PromptRow, SupervisedRow, Text, ToolSchemas
from rl_compat.errors import DataError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.tokenizer import describe_tokenizer

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
