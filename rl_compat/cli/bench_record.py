"""The machine of a benchmark, and its rows as the measurements that the planner uses to choose an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_compat.cli.render import print_note, print_warning

if TYPE_CHECKING:
    from rl_compat.hardware.types import Hardware
    from rl_compat.planning.speed.measurements import Measurement

MEASURED_BY = "`rlc bench rollout` on this machine"


def machine_facts(machine: Hardware) -> dict[str, Any]:
    """The card or processor, its memory, and the package versions that affect speed."""
    from rl_compat.capability.devices import capability_text, on_cpu, torch_version
    from rl_compat.capability.rollout_engines import vllm_package

    packages, package = machine.software.packages, vllm_package(machine)
    device = None if on_cpu(machine) else machine.devices[0]
    return {
        "card": machine.host.cpu_name if device is None else device.name,
        "compute_capability": None if device is None else capability_text(device),
        "memory_bytes": machine.host.ram_limit_bytes if device is None else device.memory_total_bytes,
        "num_cores": machine.host.num_cores,
        "torch": torch_version(machine),
        "transformers": packages.get("transformers"),
        "vllm": None if package is None else packages[package],
    }


def title(facts: Mapping[str, Any]) -> str:
    """The machine in one line, the title of the table."""
    versions = [f"{name} {facts[name]}" for name in ("torch", "transformers", "vllm") if facts[name]]
    return ", ".join([str(facts["card"]), f"{facts['num_cores']} cores", *versions])


def measurements_of(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, Any], *, model: str) -> list[Measurement]:
    """Measurements of the engines that a plan can choose, from rows with responses of at least `SHORTEST_RESPONSE`."""
    from rl_compat.bench.options import ENGINES
    from rl_compat.capability.rollout_engines import ENGINES as KINDS
    from rl_compat.planning.speed.measurements import SHORTEST_RESPONSE, Measurement

    return [
        Measurement(
            measured_by=MEASURED_BY,
            card=facts["card"],
            compute_capability=facts["compute_capability"],
            torch=facts["torch"] or "",
            vllm=facts["vllm"],
            model=model,
            num_parameters=row["num_parameters"],
            prompt_tokens=row["prompt_tokens"],
            new_tokens=row["new_tokens"],
            engine=ENGINES[row["engine"]][0],
            dtype=row["dtype"],
            batch=row["batch"],
            tokens_per_second=row["tokens_per_second"],
        )
        for row in rows
        if "case" in row and ENGINES[row["engine"]][0] in KINDS and row["new_tokens"] >= SHORTEST_RESPONSE
    ]


def keep(measurements: Sequence[Measurement]) -> str | None:
    """Save measurements for the planner. The path, or None if there is nothing to save or it cannot be written."""
    from rl_compat.planning.speed.comparison import LARGEST_FACTOR
    from rl_compat.planning.speed.measurements import SHORTEST_RESPONSE, own_file, save_measurements

    if not measurements:
        print_note(f"nothing saved for the planner: no engine generated responses of {SHORTEST_RESPONSE} tokens")
        return None
    try:
        path = str(save_measurements(measurements))
    except OSError as error:
        print_warning(f"cannot write `{own_file()}`, so the planner cannot use these speeds: {error.strerror}")
        return None
    millions = measurements[0].num_parameters / 1e6
    print_note(
        f"saved in `{path}`: with `rollout.engine=auto` the planner uses these speeds on {measurements[0].card} for "
        f"models of {millions / LARGEST_FACTOR:.0f} to {millions * LARGEST_FACTOR:.0f} million parameters"
    )
    return path
