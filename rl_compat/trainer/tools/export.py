"""Export of a run's trained model as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.load import load_config
from rl_compat.config.types import RunConfig
from rl_compat.errors import ConfigError
from rl_compat.models.files.export import check_output, export_adapter, export_model
from rl_compat.models.files.registry import resolve_model
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.models.lora import trainable_parameters
from rl_compat.models.scalar import classifier_of, load_scoring_model
from rl_compat.models.tokenizer import load_tokenizer
from rl_compat.planning.serialize import load_plan
from rl_compat.planning.types import RolePlan
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.trainer.tools.evaluate import hold_checkpoint, run_of
from rl_compat.training.state import load_trained_weights
from rl_compat.workers.setup import lora_settings, tokenizer_folder


def export_run(run: str, output: Path, *, adapter: bool = False) -> tuple[Path, int]:
    """Write the actor of a run or checkpoint with adapters merged, or the adapter alone as a `peft` folder.

    Returns the new folder and the step. Runs on the CPU, independently of the run's plan. Raises ConfigError if `run`
    is neither or has no adapters, CheckpointError if it has no complete checkpoint, ModelError if its model no longer
    exists or `output` is not empty.
    """
    folder = run_of(run)
    if folder is None:
        raise ConfigError(
            f"`{run}` is neither a run folder nor one of its checkpoints", hint="a run folder holds a `run.toml`"
        )
    check_output(output)
    config = load_config(folder.settings, []).config
    source = resolve_model(config.model.path, needs=("config", "weights"))
    lora = lora_settings(config.model)
    if adapter and (lora is None or ALGORITHMS[config.algorithm.name].scores):
        fact = "has no adapters" if lora is None else "trains a reward model, whose head is not an adapter"
        raise ConfigError(
            f"`--adapter` exports the adapter of a run, and `{run}` {fact}", hint="export the whole model"
        )
    with hold_checkpoint(run, folder) as checkpoint:
        assert checkpoint.path is not None
        weights, changes = _trained(config, source.folder, role_on_cpu(folder), checkpoint.path / "actor")
    if adapter and lora is not None and isinstance(weights, nn.Module):
        base = str(source.folder) if source.kind != "hub" else config.model.path
        return export_adapter(weights, lora, base=base, output=output), checkpoint.step
    written = export_model(
        weights,
        source_folder=source.folder,
        output=output,
        tokenizer_folder=tokenizer_folder(config.model, source.folder),
        config_changes=changes,
    )
    return written, checkpoint.step


def _trained(
    config: RunConfig, folder: Path, role: RolePlan, state: Path
) -> tuple[dict[str, Tensor] | nn.Module, dict[str, Any]]:
    """The weights of a saved state, as a model or by name, and changes to the model config."""
    model = config.model
    settings = LoadSettings(
        folder=folder, role=role, lora=lora_settings(model), trust_remote_code=model.trust_remote_code
    )
    if not ALGORITHMS[config.algorithm.name].scores:
        policy = load_causal_lm(settings)
        load_trained_weights(state, trainable_parameters(policy))
        return policy, {}
    scoring = load_scoring_model(settings)
    load_trained_weights(state, trainable_parameters(scoring))
    tokenizer = load_tokenizer(tokenizer_folder(model, folder), model_folder=folder)
    return classifier_of(scoring, folder, pad_token_id=tokenizer.pad_token_id)


def role_on_cpu(run: RunFolder) -> RolePlan:
    """The run's plan for the actor's weights, on the CPU of this machine."""
    role = load_plan(run.plan).roles["actor"]
    return replace(
        role, device="cpu", compute_dtype="fp32", attention="eager", repeat_kv=False, gradient_checkpointing=False
    )
