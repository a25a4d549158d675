from __future__ import annotations

from pathlib import Path

import pytest
from fakes.models import character_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rl_compat.errors import ModelError
from rl_compat.models.chat import PLAIN_NOTE, ChatEncoder
from rl_compat.models.tokenizer import TokenizerBundle, describe_tokenizer

QUESTION = [{"role": "user", "content": "12+3=?"}]


def bundle(**options: str | None) -> TokenizerBundle:
    return describe_tokenizer(character_tokenizer(**options))


def pair_tokenizer(*, chat_template: str | None) -> PreTrainedTokenizerFast:
    """Ids: 0 unknown, 1 begin (added by default), 2 end, 3 `a`, 4 `b`, 5 `h`, 6 `i`, 7 space, 8 newline, 9 `ab`."""
    vocabulary = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", "a", "b", "h", "i", "Ġ", "Ċ", "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=chat_template
    )


def test_the_tokenizers_template_is_used_with_the_generation_prompt() -> None:
    encoder = ChatEncoder(bundle())
    text, ids = encoder.encode(QUESTION)
    assert text == "<|user|>12+3=?<|end|><|assistant|>"
    assert encoder.bundle.tokenizer.convert_ids_to_tokens(ids)[:4] == ["<|user|>", "1", "2", "+"]
    assert encoder.notes == ()


def test_a_plain_string_is_one_user_turn() -> None:
    encoder = ChatEncoder(bundle())
    assert encoder.encode("12+3=?") == encoder.encode(QUESTION)


def test_the_begin_token_is_there_once_when_the_template_writes_it() -> None:
    """A-DATA-10."""
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    encoder = ChatEncoder(describe_tokenizer(pair_tokenizer(chat_template=template)))
    assert encoder.bundle.tokenizer("hi")["input_ids"] == [1, 5, 6]
    assert encoder.encode("hi") == ("<s>hi", [1, 5, 6])


def test_the_begin_token_is_there_once_with_the_plain_template() -> None:
    """A-DATA-10."""
    encoder = ChatEncoder(describe_tokenizer(pair_tokenizer(chat_template=None)))
    text, ids = encoder.encode("hi")
    assert text == "<s>Question: hi\nAnswer:"
    assert (ids[0], ids.count(1)) == (1, 1)


def test_a_tokenizer_without_a_template_gets_the_plain_one_and_says_so() -> None:
    """A-DATA-08."""
    encoder = ChatEncoder(bundle(chat_template=None))
    assert encoder.notes == (PLAIN_NOTE,)
    assert encoder.encode(QUESTION)[0] == "Question: 12+3=?\nAnswer:"


def test_plain_can_be_asked_for_and_writes_every_role() -> None:
    encoder = ChatEncoder(bundle(), "plain")
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    assert encoder.encode(messages)[0] == "be brief\n\nQuestion: 1\nAnswer: 2\n\nQuestion: 3\nAnswer:"
    assert encoder.notes == ()


def test_a_template_comes_from_a_file_and_its_turn_end_stops(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for m in messages %}[{{ m['content'] }}<|user|>{% endfor %}")
    encoder = ChatEncoder(bundle(), str(tmp_path / "t.jinja"))
    assert encoder.encode("1")[0] == "[1<|user|>"
    assert encoder.stop_token_ids == (1, 2)


def test_a_template_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ModelError) as error:
        ChatEncoder(bundle(), "nowhere.jinja")
    assert "`model.chat_template`" in error.value.message
    assert "`nowhere.jinja`" in error.value.message
    assert "`plain`" in error.value.message


def test_a_broken_template_is_an_error_with_jinjas_message_before_any_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for m in messages %}")
    with pytest.raises(ModelError) as error:
        ChatEncoder(bundle(), str(tmp_path / "t.jinja"))
    assert "end of template" in error.value.message  # jinja2's words
    assert "`model.chat_template`" in str(error.value.hint)


def test_a_template_that_refuses_the_messages_is_an_error_with_its_words() -> None:
    template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ messages[0]['content'] }}"
    )
    encoder = ChatEncoder(bundle(chat_template=template))
    with pytest.raises(ModelError) as error:
        encoder.encode([{"role": "system", "content": "x"}, *QUESTION])
    assert "`system, user`" in error.value.message


def test_decoding_gives_the_reward_its_text_and_leaves_the_ids_alone() -> None:
    """A-GEN-06: ids 3, 4 read `ab`, which encodes as 9; the text is only read, never encoded again."""
    encoder = ChatEncoder(describe_tokenizer(pair_tokenizer(chat_template=None)))
    sampled = (3, 4, 2)
    assert encoder.decode(sampled) == encoder.decode((9, 2)) == "ab"
    assert encoder.bundle.tokenizer("ab", add_special_tokens=False)["input_ids"] == [9]
    assert sampled == (3, 4, 2)


def test_special_tokens_and_ids_beyond_the_tokenizer_give_no_text() -> None:
    """A-GEN-05."""
    encoder = ChatEncoder(bundle())
    ids = [*encoder.bundle.tokenizer("1 + 2")["input_ids"], 1, encoder.bundle.num_tokens + 7]
    assert encoder.decode(ids) == "1 + 2"


def test_spaces_before_punctuation_are_kept() -> None:
    encoder = ChatEncoder(bundle())
    assert encoder.decode(encoder.bundle.tokenizer("a , b !")["input_ids"]) == "a , b !"


def test_the_tokens_that_end_a_response_are_named_with_their_ids() -> None:
    (note,) = ChatEncoder(describe_tokenizer(character_tokenizer(), generation_config={"eos_token_id": [0, 1]})).ends()
    assert "`<|end|>` (1)" in note and "`<|pad|>` (0)" in note
    assert ChatEncoder(pair_bundle(eos=None)).ends() == ()


def pair_bundle(*, eos: str | None) -> TokenizerBundle:
    tokenizer = pair_tokenizer(chat_template=None)
    tokenizer.eos_token = eos
    return describe_tokenizer(tokenizer)


def test_special_tokens_that_are_kept_stay_in_the_text() -> None:
    encoder = ChatEncoder(pair_bundle(eos="</s>"))
    assert encoder.decode((1, 3, 4, 2)) == "ab"
    assert encoder.decode((1, 3, 4, 2), keeps=("<s>",)) == "<s>ab"
    assert encoder.decode((3, 4, 2), keeps=("<s>",)) == "ab"
