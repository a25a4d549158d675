"""A run's trained actor as an ordinary Hugging Face folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rl_compat.errors import ConfigError
from rl_compat.models.export import check_output, export_model
from rl_compat.models.load import load_causal_lm
from rl_compat.models.lora import trainable_parameters
from rl_compat.models.registry import resolve_model
from rl_compat.planning.serialize import load_plan
from rl_compat.planning.types import RolePlan
from rl_compat.trainer.evaluate import checkpoint_of, run_of, settings_of
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.training.state import load_trained_weights
from rl_compat.workers.setup import lora_settings, tokenizer_folder


def export_run(run: str, output: Path) -> tuple[Path, int]:
    """Write the actor of a run, or of one of its checkpoints, adapters merged; the new folder and the step.

    Works on the CPU, whatever the run was planned for. Raises ConfigError when `run` is neither, CheckpointError when
    it has no complete checkpoint, ModelError when its model is gone or `output` is not empty.
    """
    folder = run_of(run)
    if folder is None:
        raise ConfigError(
            f"`{run}` is neither a run folder nor one of its checkpoints", hint="a run folder holds a `run.toml`"
        )
    check_output(output)
    checkpoint = checkpoint_of(run, folder)
    assert checkpoint.path is not None
    config = settings_of(folder)
    source = resolve_model(config.model.path, needs=("config", "weights"))
    model = load_causal_lm(
        source.folder,
        role=role_on_cpu(folder),
        lora=lora_settings(config.model),
        trust_remote_code=config.model.trust_remote_code,
    )
    load_trained_weights(checkpoint.path / "actor", trainable_parameters(model))
    written = export_model(
        model,
        source_folder=source.folder,
        output=output,
        tokenizer_folder=tokenizer_folder(config.model, source.folder),
    )
    return written, checkpoint.step


def role_on_cpu(run: RunFolder) -> RolePlan:
    """How the run kept its actor's weights, on this machine's CPU."""
    role = load_plan(run.plan).roles["actor"]
    return replace(
        role, device="cpu", compute_dtype="fp32", attention="eager", repeat_kv=False, gradient_checkpointing=False
    )
