from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from fakes.gguf import save_gguf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl_compat.errors import ModelError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.files.gguf import cache_name, convert_gguf, quantization_note
from rl_compat.models.files.registry import resolve_model
from rl_compat.models.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("gguf")
    state = save_gguf(folder / "model.gguf")
    (folder / "model").mkdir()
    convert_gguf(folder / "model.gguf", folder / "model")
    return folder / "model", state


def test_a_full_precision_file_keeps_every_weight(converted: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder, state = converted
    saved = load_file(folder / "model.safetensors")
    assert saved.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(saved[name], tensor, rtol=0, atol=0, msg=name)


def test_the_folder_loads_as_an_ordinary_tied_model(converted: tuple[Path, dict[str, torch.Tensor]]) -> None:
    model = AutoModelForCausalLM.from_pretrained(converted[0])
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "quantization_config" not in json.loads((converted[0] / "config.json").read_text())


@pytest.mark.parametrize("text", ["the   3 12s", "é 漢\n\n  7", " <|start|>x"])
def test_text_survives_the_converted_tokenizer(converted: tuple[Path, dict[str, torch.Tensor]], text: str) -> None:
    tokenizer = load_tokenizer(converted[0]).tokenizer
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_stand_alone_so_that_the_spaces_before_them_merge(
    converted: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    tokenizer = load_tokenizer(converted[0]).tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("he  12")["input_ids"]) == ["he", "ĠĠ", "1", "2"]


def test_special_tokens_and_chat_template_are_those_of_the_file(
    converted: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    bundle = load_tokenizer(converted[0])
    assert (bundle.stop_token_ids, bundle.pad_token_id, bundle.num_tokens) == ((2,), 2, 261)
    text, ids = ChatEncoder(bundle).encode("he")
    assert text == "<|start|>user\nhe<|end|>\n<|start|>assistant\n"
    assert [ids[0], ids.count(1), ids.count(2)] == [1, 2, 1]


def test_a_quantized_file_becomes_fp16_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "cache"))
    state = save_gguf(tmp_path / "small.gguf", quantized=True)
    source = resolve_model(str(tmp_path / "small.gguf"))
    assert (source.kind, source.name) == ("gguf", "small")
    (note,) = source.notes
    assert "`Q8_0`" in note
    saved = load_file(source.folder / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float16}
    worst = max(float((saved[name].float() - state[name]).abs().max()) for name in state)
    assert 0 < worst < 0.02


def test_a_file_is_converted_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "small.gguf"
    save_gguf(file)
    first = resolve_model(str(file)).folder
    made_at = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(file)).folder == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made_at
    os.utime(file, ns=(0, 0))
    assert cache_name(file) != first.name
    assert quantization_note(first) == ()


def test_a_file_of_another_kind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bad.gguf").write_bytes(b"version https://git-lfs")
    with pytest.raises(ModelError) as error:
        resolve_model(str(tmp_path / "bad.gguf"))
    assert f"`{tmp_path / 'bad.gguf'}`" in error.value.message
    assert not list((tmp_path / "cache" / "models").glob("[!.]*"))
    assert not list((tmp_path / "cache" / "models").glob(".partial*"))


def test_a_cut_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    save_gguf(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError) as error:
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "model")
    assert f"`{tmp_path / 'cut.gguf'}`" in error.value.message
