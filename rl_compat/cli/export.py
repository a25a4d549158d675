"""`rlc export`: write the trained model of a run as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines

app = new_app()


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one of its checkpoints.")],
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder for the model.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the LoRA adapter alone, as `peft` loads it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the trained model of a run as a Hugging Face folder: config, safetensors weights and tokenizer.

    A run folder exports its newest complete checkpoint. LoRA adapters are merged into the weights, so that the
    folder works with transformers, vLLM, `rlc eval` and `model.path`; `--adapter` writes them alone.

    Example: rlc export runs/gsm8k my-model
    """
    from rl_compat.trainer.tools.export import export_run

    folder, step = export_run(run, output, adapter=adapter)
    if as_json:
        print_json({"folder": str(folder), "step": step})
    else:
        print_lines([f"step {step} written to {folder}"])
