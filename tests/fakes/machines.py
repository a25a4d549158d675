"""Machines for tests that plan: recorded ones with changes, and small shapes to plan for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rl_compat.config.types import AlgorithmConfig, PlanConfig, RunConfig
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Device, Hardware, Host, Software, TorchBuild
from rl_compat.planning.fit import make_plan
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.measurements import Measurement
from rl_compat.planning.types import Plan, PoolPlan
from rl_compat.planning.workload import run_requests, run_workload
from rl_compat.units import GIB

RECORDINGS = Path(__file__).parent.parent / "recordings"

QWEN_05B = ModelShape.from_config(
    {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
)
LLAMA_7B = ModelShape.from_config(
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    }
)

PPO = RunConfig(algorithm=AlgorithmConfig(kl_in_reward="k1"))


def with_plan(**settings: object) -> RunConfig:
    """PPO with explicit settings of the plan."""
    return replace(PPO, plan=PlanConfig(**settings))  # type: ignore[arg-type]


def planned(
    config: RunConfig,
    hardware: Hardware,
    actor: ModelShape,
    *,
    critic: ModelShape | None = None,
    reward: ModelShape | None = None,
    cost: ModelShape | None = None,
    measured: Sequence[Measurement] = (),
) -> Plan:
    """The plan of a run; the other shapes are of models of their own."""
    shapes = {"actor": actor, "critic": critic, "reward": reward, "cost": cost}
    workload = run_workload(config, {role: shape for role, shape in shapes.items() if shape is not None})  # type: ignore[misc]
    return make_plan(workload, hardware, run_requests(config), measured=measured)


def only_pool(plan: Plan) -> PoolPlan:
    """The pool of a plan that has one."""
    (pool,) = plan.pools.values()
    return pool


def fits(plan: Plan) -> bool:
    return all(pool.peak_bytes <= pool.memory_available_bytes for pool in plan.pools.values())


def recorded(name: str) -> Hardware:
    """A recorded machine."""
    return load_recording(RECORDINGS / f"{name}.json")


def host(ram_bytes: int = 64 * GIB, **facts: object) -> Host:
    values: dict[str, object] = {
        "platform": "linux",
        "kernel": "6.8",
        "cpu_name": "a processor",
        "num_cores": 8,
        "ram_total_bytes": ram_bytes,
        "ram_limit_bytes": ram_bytes,
        "ram_available_bytes": ram_bytes,
        **facts,
    }
    return Host(**values)  # type: ignore[arg-type]


def gpu(name: str, capability: tuple[int, int], *, memory_bytes: int = 24 * GIB, index: int = 0) -> Device:
    return Device(
        index=index,
        name=name,
        compute_capability=capability,
        memory_total_bytes=memory_bytes,
        memory_free_bytes=memory_bytes,
    )


def machine(*devices: Device, ram_bytes: int = 64 * GIB, **packages: str) -> Hardware:
    """A machine with these devices, a torch that has code for them, and packages by name (`_` for `-`)."""
    arch_list = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    torch = TorchBuild(version="2.11.0+cu126", cuda="12.6", arch_list=arch_list, cuda_available=True)
    return Hardware(
        devices=tuple(replace(device, index=index) for index, device in enumerate(devices)),
        host=host(ram_bytes),
        software=Software(
            python="3.12",
            packages={name.replace("_", "-"): version for name, version in packages.items()},
            torch=torch if devices else TorchBuild(version="2.13.0+cpu"),
        ),
    )


P40 = gpu("Tesla P40", (6, 1))
P100 = gpu("Tesla P100-PCIE-16GB", (6, 0), memory_bytes=16 * GIB)
V100 = gpu("Tesla V100-SXM2-32GB", (7, 0), memory_bytes=32 * GIB)
T4 = gpu("Tesla T4", (7, 5), memory_bytes=15 * GIB)
GTX_1660 = gpu("NVIDIA GeForce GTX 1660 Ti", (7, 5), memory_bytes=6 * GIB)
A100 = gpu("NVIDIA A100-SXM4-80GB", (8, 0), memory_bytes=80 * GIB)
H200 = gpu("NVIDIA H200", (9, 0), memory_bytes=140 * GIB)
