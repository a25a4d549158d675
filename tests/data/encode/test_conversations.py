"""What is learned of a conversation, whatever template writes it."""

from __future__ import annotations

import pytest
from fakes.models import character_tokenizer

from rl_compat.data.encode.conversations import APART, REWRITES, Conversations, Example, learn_everything
from rl_compat.errors import DataError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.tokenizer import describe_tokenizer

USER = {"role": "user", "content": "3+4="}
FOLLOW_UP = [{"role": "assistant", "content": "7"}, {"role": "user", "content": "ok?"}]
LAST = {"role": "assistant", "content": "yes"}
NEWLINE_AFTER_A_TURN = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THOUGHTS_OF_THE_LAST_TURN = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' and loop.last %}#{% endif %}{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PROMPT_WITH_AN_OPENING = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>#{% endif %}"
)


def conversations(template: str | None = None, tmp_path=None) -> Conversations:
    tokenizer = character_tokenizer() if template is None else character_tokenizer(chat_template=template)
    return Conversations(ChatEncoder(describe_tokenizer(tokenizer)))


def plain() -> Conversations:
    return Conversations(ChatEncoder(describe_tokenizer(character_tokenizer()), "plain"))


def texts(found: Conversations, example: Example) -> tuple[str, str, str]:
    """The prompt, the learned tokens and the others of the response, as text."""
    tokenizer = found.chat.bundle.tokenizer
    pairs = list(zip(example.response_ids, example.learned, strict=True))
    return (
        tokenizer.decode(list(example.prompt_ids)),
        tokenizer.decode([token for token, learned in pairs if learned]),
        tokenizer.decode([token for token, learned in pairs if not learned]),
    )


def test_a_response_is_learned_with_the_token_that_ends_it() -> None:
    found = conversations()
    (example,) = found.examples([USER], "7")
    assert texts(found, example) == ("<|user|>3+4=<|end|><|assistant|>", "7<|end|>", "")


def test_what_a_template_writes_after_a_turn_is_not_learned() -> None:
    found = conversations(NEWLINE_AFTER_A_TURN)
    (example,) = found.examples([USER], "7")
    assert texts(found, example)[1:] == ("7<|end|>", "")


def test_only_the_turns_of_the_assistant_are_learned() -> None:
    found = conversations(NEWLINE_AFTER_A_TURN)
    (example,) = found.examples([USER], [*FOLLOW_UP, LAST])
    assert texts(found, example) == (
        "<|user|>3+4=<|end|>\n<|assistant|>",
        "7<|end|>yes<|end|>",
        "\n<|user|>ok?<|end|>\n<|assistant|>",
    )
    assert found.notes() == []


def test_a_turn_of_the_user_after_the_last_response_is_left_out() -> None:
    found = conversations()
    (example,) = found.examples([USER], FOLLOW_UP)
    assert texts(found, example)[1:] == ("7<|end|>", "")


def test_a_template_that_rewrites_earlier_turns_gives_an_example_for_each_response() -> None:
    found = conversations(THOUGHTS_OF_THE_LAST_TURN)
    first, second = found.examples([USER], [*FOLLOW_UP, LAST])
    assert texts(found, first)[:2] == ("<|user|>3+4=<|end|><|assistant|>", "#7<|end|>")
    assert texts(found, second)[:2] == (
        "<|user|>3+4=<|end|><|assistant|>7<|end|><|user|>ok?<|end|><|assistant|>",
        "#yes<|end|>",
    )
    assert dict(found.counts) == {REWRITES: 1} and len(found.notes()) == 1


def test_a_prompt_that_is_no_beginning_of_the_conversation_is_kept_as_it_is_generated_from() -> None:
    found = conversations(PROMPT_WITH_AN_OPENING)
    (example,) = found.examples([USER], "7")
    assert texts(found, example) == ("<|user|>3+4=<|end|><|assistant|>#", "7<|end|>", "")
    assert dict(found.counts) == {REWRITES: 1}


def test_a_template_without_ends_gets_the_end_token_in_place_of_its_space() -> None:
    found = plain()
    (example,) = found.examples([USER], "7")
    assert texts(found, example) == ("Question: 3+4=\nAnswer:", " 7<|end|>", "")


class OneTokenForFive:
    """A tokenizer that has one token for `:7`, so that a prompt's end falls into a token."""

    stop_token_ids = (0,)
    end_token_id = 0

    def render(self, messages: list[dict[str, str]], *, opens_response: bool, tools: object = ()) -> str:
        text = "".join(f"{m['role'][0]}:{m['content']};" for m in messages)
        return f"{text}a:" if opens_response else text

    def tokenize(self, text: str, *, is_whole: bool = False) -> list[int]:
        ids, position = [], 0
        while position < len(text):
            merged = text.startswith(":7", position)
            ids.append(999 if merged else ord(text[position]))
            position += 2 if merged else 1
        return ids


def test_a_token_across_the_end_of_the_prompt_is_taken_apart() -> None:
    found = Conversations(OneTokenForFive())
    (example,) = found.examples([USER], "7")
    assert example.prompt_ids == tuple(map(ord, "u:3+4=;a:"))
    assert example.response_ids == (*map(ord, "7;"), 0)
    assert dict(found.counts) == {APART: 1}


@pytest.mark.parametrize("response", ["", [{"role": "assistant", "content": ""}]])
def test_an_empty_response_is_refused(response: object) -> None:
    for found in (conversations(), plain()):
        with pytest.raises(DataError):
            found.examples([USER], response)


def test_a_response_without_the_assistant_is_refused() -> None:
    with pytest.raises(DataError):
        conversations().examples([USER], [{"role": "user", "content": "7"}])


def test_plain_text_is_learned_from_its_second_token_to_its_end() -> None:
    found = conversations()
    assert texts(found, found.plain_text("abc")) == ("a", "bc<|end|>", "")
    with pytest.raises(DataError):
        found.plain_text("")


def test_everything_but_the_first_token_can_be_learned() -> None:
    found = conversations()
    (example,) = found.examples([USER], "7")
    assert texts(found, learn_everything(example)) == ("<|user|>", "3+4=<|end|><|assistant|>7<|end|>", "")


def test_a_whole_conversation_is_what_a_reward_model_reads() -> None:
    found = conversations(NEWLINE_AFTER_A_TURN)
    assert found.whole([USER], "7") == found.chat.encode_conversation([USER], "7")[1]
