from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fakes.models import SPECIAL, character_tokenizer

from rl_compat.errors import ModelError
from rl_compat.models.tokenizer import check_same_words, describe_tokenizer, load_tokenizer, turn_end_ids

ENDLESS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def test_a_pad_token_is_used_as_it_is() -> None:
    bundle = describe_tokenizer(character_tokenizer())
    assert (bundle.pad_token_id, bundle.notes) == (0, ())


def test_without_a_pad_token_the_end_token_pads_and_the_tokenizer_stays_unchanged() -> None:
    """A-DATA-09, A-GEN-03."""
    tokenizer = character_tokenizer(pad_token=None)
    bundle = describe_tokenizer(tokenizer)
    assert bundle.pad_token_id == tokenizer.eos_token_id == 1
    assert bundle.stop_token_ids == (1,)
    (note,) = bundle.notes
    assert "`<|end|>`" in note
    assert tokenizer.pad_token is None
    assert tokenizer.padding_side == "right"


def test_without_pad_and_end_the_unknown_token_pads() -> None:
    tokenizer = character_tokenizer(pad_token=None, chat_template=ENDLESS)
    tokenizer.eos_token = None
    bundle = describe_tokenizer(tokenizer)
    assert bundle.pad_token_id == SPECIAL.index("<|unk|>")
    assert bundle.stop_token_ids == ()
    assert "`data.max_response_length`" in bundle.notes[1]


def test_without_any_special_token_id_0_pads() -> None:
    tokenizer = character_tokenizer(pad_token=None, chat_template=ENDLESS)
    tokenizer.eos_token = tokenizer.unk_token = None
    assert describe_tokenizer(tokenizer).pad_token_id == 0


@pytest.mark.parametrize(
    ("listed", "stops"), [([12, 18, 19], (1, 12, 18, 19)), (12, (1, 12)), ([1], (1,)), (None, (1,)), (-1, (1,))]
)
def test_every_listed_end_token_stops(listed: list[int] | int | None, stops: tuple[int, ...]) -> None:
    """A-GEN-04."""
    bundle = describe_tokenizer(character_tokenizer(), generation_config={"eos_token_id": listed})
    assert bundle.stop_token_ids == stops


@pytest.mark.parametrize("unknown", [99_999, -7])
def test_an_end_id_that_no_token_has_is_named_and_ends_nothing(unknown: int) -> None:
    bundle = describe_tokenizer(character_tokenizer(), generation_config={"eos_token_id": [1, unknown]})
    assert bundle.stop_token_ids == (1,)
    assert any(f"`{unknown}`" in note and str(bundle.num_tokens) in note for note in bundle.notes)
    assert describe_tokenizer(character_tokenizer(), generation_config={"eos_token_id": [1]}).notes == ()


@pytest.mark.parametrize("listed", ["</s>", ["2"], [1.0], [True], [[1]]])
def test_end_ids_that_are_not_ids_are_refused(listed: object) -> None:
    with pytest.raises(ModelError, match="eos_token_id"):
        describe_tokenizer(character_tokenizer(), generation_config={"eos_token_id": listed})


def test_the_token_that_ends_a_turn_stops_though_the_tokenizer_names_another() -> None:
    tokenizer = character_tokenizer()
    tokenizer.eos_token = "<|pad|>"
    assert describe_tokenizer(tokenizer).stop_token_ids == (0, 1)


@pytest.mark.parametrize("template", [ENDLESS, None, "{{ broken", "{{ raise_exception('no') }}"])
def test_a_template_that_ends_turns_with_no_special_token_adds_no_stop(template: str | None) -> None:
    assert turn_end_ids(character_tokenizer(), template) == []


def test_generation_config_is_read_from_the_models_folder(llama_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama_folder, tmp_path / "model"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 9]}))
    assert load_tokenizer(folder).stop_token_ids == (1, 9)
    assert load_tokenizer(llama_folder, model_folder=folder).stop_token_ids == (1, 9)
    assert load_tokenizer(llama_folder).stop_token_ids == (1,)


def test_ids_are_counted_up_to_the_largest(llama_folder: Path) -> None:
    """A-GEN-05."""
    bundle = load_tokenizer(llama_folder)
    assert bundle.num_tokens == len(bundle.tokenizer)


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        load_tokenizer(tmp_path)
    assert f"`{tmp_path}`" in error.value.message


def test_a_damaged_tokenizer_is_an_error_with_its_folder(llama_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama_folder, tmp_path / "model"))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError) as error:
        load_tokenizer(folder)
    assert str(folder) in error.value.message


def words_of(folder: Path, to: Path, change: dict[str, str]) -> Path:
    """A copy of a tokenizer in which some characters trade places."""
    shutil.copytree(folder, to)
    file = to / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    for one, other in change.items():
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(content))
    return to


@pytest.mark.parametrize(("change", "num_ids", "refused"), [({}, 97, None), ({"0": "1"}, 97, "2"), ({}, 96, "96")])
def test_a_model_whose_ids_mean_other_words_is_refused(
    llama_folder: Path, tmp_path: Path, change: dict[str, str], num_ids: int, refused: str | None
) -> None:
    other = words_of(llama_folder, tmp_path / "other", change)

    def check() -> None:
        own = load_tokenizer(llama_folder)
        check_same_words(own, other, role="critic", num_ids=num_ids, trust_remote_code=False)

    if refused is None:
        check()
        (other / "tokenizer.json").unlink()
        check()
        return
    with pytest.raises(ModelError) as error:
        check()
    assert refused in error.value.message.split()
