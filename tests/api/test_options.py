"""Options of every public call: typed like their settings, checked like them, and refused by name elsewhere."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from fakes.runs import cpu

import rl_compat
from rl_compat import (
    ActorModel,
    AlgorithmConfig,
    CriticModel,
    ExperienceSettings,
    OffPolicyConfig,
    ReferenceModel,
    ResourcePool,
    RewardModel,
    Session,
)
from rl_compat.config.options import option_keys
from rl_compat.config.settings import settings
from rl_compat.config.values import alternatives
from rl_compat.errors import ConfigError
from rl_compat.workers.options import OPTIONS

CPU = ResourcePool(gpus=[], hardware=cpu())
CALLS: dict[str, Callable[..., Any]] = {
    "ActorModel": lambda **options: ActorModel.from_pretrained("tiny", pool=CPU, **options),
    "CriticModel": lambda **options: CriticModel.from_pretrained("tiny", pool=CPU, **options),
    "ReferenceModel": lambda **options: ReferenceModel.from_pretrained("tiny", pool=CPU, **options),
    "RewardModel": lambda **options: RewardModel.from_pretrained("tiny", pool=CPU, **options),
    "RewardModel.from_functions": lambda **options: RewardModel.from_functions("arithmetic", **options),
    "Session.actor": lambda **options: Session().actor("tiny", pool=CPU, **options),
    "Session.critic": lambda **options: Session().critic("tiny", pool=CPU, **options),
    "Session.reference": lambda **options: Session().reference("tiny", pool=CPU, **options),
    "Session.reward": lambda **options: Session().reward("tiny", pool=CPU, **options),
    "train": lambda **options: rl_compat.train("tiny", **options),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="`learning_rat`") as caught:
        CALLS[name](learning_rat=1)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "option", "value", "user"),
    [
        ("ActorModel", "clip_value", 0.2, "CriticModel"),
        ("CriticModel", "clip_low", 0.2, "ActorModel"),
        ("CriticModel", "temperature", 1.0, "ActorModel"),
        ("ReferenceModel", "lr", 1e-6, "ActorModel"),
        ("ReferenceModel", "model_weight", 2.0, "RewardModel"),
        ("RewardModel", "lora_rank", 8, "CriticModel"),
        ("RewardModel.from_functions", "model_weight", 2.0, "RewardModel"),
        ("Session.critic", "kl_loss", "k3", "ActorModel"),
        ("Session.reference", "num_epochs", 2, "CriticModel"),
    ],
)
def test_an_option_of_another_role_names_that_role(name: str, option: str, value: Any, user: str) -> None:
    with pytest.raises(ConfigError, match=f"`{option}`") as caught:
        CALLS[name](**{option: value})
    assert f"`{user}`" in str(caught.value.hint)


def wrong(hint: Any) -> Any:
    """A value that no setting of this type takes."""
    return "x" if {int, float, bool} & {hint, *typing.get_args(hint)} and str not in typing.get_args(hint) else object()


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in OPTIONS for option in option_keys(OPTIONS[name])]
)
def test_a_value_of_the_wrong_type_is_refused_with_the_option(name: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"`{option}`"):
        CALLS[name](**{option: wrong(settings()[option_keys(OPTIONS[name])[option]].hint)})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("ActorModel", "lr", -1.0),
        ("ActorModel", "clip_low", 1.5),
        ("ActorModel", "policy_loss", "ppo_clp"),
        ("ActorModel", "algorithm", "sft"),
        ("CriticModel", "num_epochs", 0),
        ("ReferenceModel", "temperature", 0.0),
        ("RewardModel.from_functions", "weights", [1.0, 2.0]),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_option(name: str, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        CALLS[name](**{option: value})


@pytest.mark.parametrize("name", OPTIONS)
def test_the_types_of_options_are_those_of_their_settings(name: str) -> None:
    def plain(hint: Any) -> set[Any]:
        """The members of a type; sequences and mappings by their items."""
        found: set[Any] = set()
        for member in alternatives(hint):
            origin, given = typing.get_origin(member), typing.get_args(member)
            if origin is Literal:
                found |= set(given)
            elif origin in (tuple, Sequence):
                found.add(("several", given[0]))
            elif origin in (dict, Mapping):
                found.add("mapping")
            else:
                found.add(member)
        return found

    hints = typing.get_type_hints(OPTIONS[name])
    keys = option_keys(OPTIONS[name])
    assert {option: plain(hint) for option, hint in hints.items()} == {
        option: plain(settings()[key].hint) for option, key in keys.items()
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExperienceSettings(algorithm="gpro"),  # type: ignore[arg-type]
        lambda: ExperienceSettings(algorithm=AlgorithmConfig(name="gpro")),  # type: ignore[arg-type]
        lambda: ExperienceSettings(algorithm=AlgorithmConfig(gamma=2.0)),
        lambda: ExperienceSettings(off_policy=OffPolicyConfig(truncate=-1.0)),
        lambda: RewardModel.from_functions(3),  # type: ignore[arg-type]
        lambda: RewardModel.from_functions(),
        lambda: Session().reward(),
        lambda: Session().reward("tiny", "tiny"),
        lambda: Session().plan,
    ],
)
def test_objects_that_cannot_be_used_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_no_public_call_takes_options_without_a_type() -> None:
    untyped = []
    for name in rl_compat.__all__:
        public = getattr(rl_compat, name)
        methods = vars(public).items() if inspect.isclass(public) else [("", public)]
        for method, raw in methods:
            value = raw.__func__ if isinstance(raw, classmethod) else raw
            if method.startswith("_") or not inspect.isfunction(value):
                continue
            stars = [item for item in inspect.signature(value).parameters.values() if item.kind is item.VAR_KEYWORD]
            untyped += [f"{name}.{method}" for item in stars if "Unpack" not in str(item.annotation)]
    assert untyped == ["Batch.with_", "RewardModel.replace", "train."]


SNIPPET = """
    from typing import Unpack
    from rl_compat.workers.options import ActorOptions, CriticOptions

    def actor(path: str, **options: Unpack[ActorOptions]) -> None: ...
    def critic(path: str, **options: Unpack[CriticOptions]) -> None: ...

    actor("tiny", lr=1e-6, kl_loss="k3", stop_strings=["x"], clip_dual=None)
    actor("tiny", lr="x")
    actor("tiny", kl_loss="k9")
    critic("tiny", clip_low=0.2)
    critic("tiny", clip_value=0.2, num_epochs=2)
"""


def test_mypy_sees_a_wrong_option(tmp_path: Path) -> None:
    """Against a copy of what the snippet imports, so that nothing else of the package is checked."""
    package = Path(rl_compat.__file__).parent
    for name in ("workers/options.py", "algorithms/table.py", "config/types.py", "config/values.py"):
        copied = tmp_path / "rl_compat" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        (copied.parent / "__init__.py").touch()
        copied.write_text((package / name).read_text())
    (tmp_path / "rl_compat" / "__init__.py").touch()
    file, config = tmp_path / "snippet.py", tmp_path / "mypy.ini"
    file.write_text(textwrap.dedent(SNIPPET))
    config.write_text("[mypy]\nignore_missing_imports = true\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config), "--cache-dir", str(tmp_path)]
    checked = subprocess.run([*command, str(file)], capture_output=True, text=True, cwd=tmp_path, check=False)
    found = {
        (int(line.split(":")[1]), line.rsplit("[", 1)[1].rstrip("]"))
        for line in checked.stdout.splitlines()
        if line.startswith("snippet.py") and ": error:" in line
    }
    assert found == {(9, "arg-type"), (10, "arg-type"), (11, "call-arg")}, checked.stdout
