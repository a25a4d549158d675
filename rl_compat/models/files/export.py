"""Write trained weights as a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from rl_compat.errors import CheckpointError, ModelError, check_type, write_failure
from rl_compat.models.files.atomic import fill_folder
from rl_compat.models.files.folder import check_model_folder, read_json
from rl_compat.models.lora import LoraSettings, adapter_weights, merge_for_export, peft_config, unties

COPIED = (
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.model",
    "*.py",
    "LICENSE*",
)
"files of a model folder other than the config and the weights"


def export_model(
    weights: Mapping[str, Tensor] | nn.Module,
    *,
    source_folder: Path,
    output: Path,
    tokenizer_folder: Path | None = None,
    config_changes: Mapping[str, Any] | None = None,
    writes: bool = True,
) -> Path:
    """Write weights with the config and tokenizer of the model that they were trained from. The absolute folder.

    `weights` is a state dict with Hugging Face names and tied weights once, or a model, whose adapters are merged. The
    dtype of the weights is written to the config, together with `config_changes`. The folder appears complete or not at
    all. Of ranks that share a model one writes, and the others make this call without `writes`.

    Raises ModelError if the output exists and is not empty, CheckpointError if it cannot be written.
    """
    output = output.expanduser().absolute()
    changes = dict(config_changes or {})
    if writes:
        check_output(output)
    if isinstance(weights, nn.Module) and unties(weights):
        changes["tie_word_embeddings"] = False
    state = merge_for_export(weights, keeps=writes) if isinstance(weights, nn.Module) else dict(weights)
    if not writes:
        return output
    assert state

    def fill(folder: Path) -> None:
        _copy_files(source_folder, tokenizer_folder or source_folder, folder)
        config = _config(source_folder, state) | changes
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_torch_state_dict(state, folder, max_shard_size="5GB")

    _write(output, fill)
    check_model_folder(output)
    return output


def export_adapter(model: nn.Module, settings: LoraSettings, *, base: str, output: Path) -> Path:
    """Write the adapters of a model as a `peft` folder for the model `base`. The absolute folder.

    Raises ModelError if the output exists and is not empty, CheckpointError if it cannot be written.
    """
    output = output.expanduser().absolute()
    check_output(output)
    from peft import TaskType

    config = peft_config(settings)
    config.base_model_name_or_path, config.task_type, config.inference_mode = base, TaskType.CAUSAL_LM, True

    def fill(folder: Path) -> None:
        save_file(adapter_weights(model), folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(str(folder))

    _write(output, fill)
    return output


def _write(output: Path, fill: Callable[[Path], None]) -> None:
    try:
        fill_folder(output, fill)
    except (OSError, SafetensorError) as error:
        cause, remedy = write_failure(error)
        raise CheckpointError(f"cannot write the model to `{output}`: {cause}", hint=remedy) from error


def check_output(output: str | Path) -> None:
    """Raise ModelError if the folder exists and is not empty, ConfigError for anything but a path."""
    check_type("path", output, str, Path)
    output = Path(output).expanduser()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ModelError(f"`{output}` exists and is not empty", hint="choose a new folder")


def _config(source_folder: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config of the source with the dtype of the weights and without its quantization."""
    config = read_json(source_folder / "config.json")
    floating = next(tensor for tensor in state.values() if tensor.is_floating_point())
    for outdated in ("torch_dtype", "quantization_config"):
        config.pop(outdated, None)
    return config | {"dtype": str(floating.dtype).removeprefix("torch.")}


def _copy_files(source_folder: Path, tokenizer_folder: Path, folder: Path) -> None:
    """Copy tokenizer, license and code files. A file in both folders is taken from the tokenizer's."""
    for origin in (source_folder, tokenizer_folder):
        for pattern in COPIED:
            for file in origin.glob(pattern):
                if file.is_file():
                    shutil.copyfile(file, folder / file.name)
