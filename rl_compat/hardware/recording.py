"""Hardware as JSON and back, so that any machine can be planned for anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rl_compat.errors import HardwareError, nearest
from rl_compat.hardware.types import SCHEMA_VERSION, Hardware

RECORD_AGAIN = "write a new one with `rlc probe --output FILE`"


def to_json(hardware: Hardware) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(hardware)))
    return plain


def from_json(values: Any) -> Hardware:
    """The hardware that `to_json` described. Raises HardwareError naming the field that is wrong."""
    if not isinstance(values, dict):
        raise HardwareError(f"a recording is an object, this is `{_kind(values)}`", hint=RECORD_AGAIN)
    if values.get("schema") != SCHEMA_VERSION:
        raise HardwareError(
            f"the recording has schema `{values.get('schema')}`, this version reads {SCHEMA_VERSION}",
            hint=RECORD_AGAIN,
        )
    hardware = _decode(Hardware, values, "hardware")
    assert isinstance(hardware, Hardware)
    _check(hardware)
    return hardware


def save_recording(hardware: Hardware, path: Path) -> None:
    """Write the recording; a file that cannot be written raises HardwareError."""
    try:
        path.write_text(json.dumps(to_json(hardware), indent=2) + "\n")
    except OSError as error:
        raise HardwareError(
            f"cannot write `{path}`: {error.strerror}", hint="name a file in an existing folder"
        ) from None


def load_recording(path: Path) -> Hardware:
    """Read a recording; HardwareError with the file's name when it is missing or wrong."""
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise HardwareError(f"cannot read the recording `{path}`: {error.strerror}", hint=RECORD_AGAIN) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HardwareError(f"`{path}` is not JSON: {error}", hint=RECORD_AGAIN) from None
    try:
        return from_json(values)
    except HardwareError as error:
        raise HardwareError(f"`{path}`: {error.message}", hint=error.hint) from None


def _decode(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: a dataclass, an optional, a tuple, a mapping of strings or a plain type."""
    if is_dataclass(kind):
        return _decode_record(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        return _decode(next(item for item in arguments if item is not NoneType), value, where)
    if origin is tuple:
        return _decode_tuple(arguments, value, where)
    if origin is Mapping:
        _expect(dict, value, where)
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    _expect(kind, value, where)
    return value


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    _expect(dict, value, where)
    hints = get_type_hints(kind)
    unknown = [name for name in value if name not in hints]
    if unknown:
        near = nearest(unknown[0], hints)
        raise HardwareError(
            f"`{where}.{unknown[0]}` is not a known field", hint=f"did you mean `{near}`" if near else RECORD_AGAIN
        )
    known = {name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    try:
        return kind(**known)
    except TypeError:
        missing = [field.name for field in fields(kind) if field.name not in known and _required(field)]
        raise HardwareError(f"`{where}` lacks `{'`, `'.join(missing)}`", hint=RECORD_AGAIN) from None


def _decode_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(list, value, where)
    kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
    if len(kinds) != len(value):
        raise HardwareError(f"`{where}` has {len(value)} entries instead of {len(kinds)}", hint=RECORD_AGAIN)
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _required(field: Any) -> bool:
    return type(field.default).__name__ == "_MISSING_TYPE" and type(field.default_factory).__name__ == "_MISSING_TYPE"


def _expect(kind: type, value: Any, where: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise HardwareError(f"`{where}` is {_kind(value)} instead of {_NAMES[kind]}", hint=RECORD_AGAIN)


def _check(hardware: Hardware) -> None:
    """What a planner relies on: devices in order, memory that adds up."""
    indexes = [device.index for device in hardware.devices]
    if indexes != sorted(set(indexes)):
        raise HardwareError(f"the devices are numbered {indexes}, not in order", hint=RECORD_AGAIN)
    for device in hardware.devices:
        if not 0 <= device.memory_free_bytes <= device.memory_total_bytes:
            raise HardwareError(
                f"device {device.index} has {device.memory_free_bytes} bytes free of {device.memory_total_bytes}",
                hint=RECORD_AGAIN,
            )
    host = hardware.host
    if host.num_cores < 1 or not 0 <= host.ram_available_bytes <= host.ram_limit_bytes <= host.ram_total_bytes:
        raise HardwareError(
            f"the host has {host.num_cores} cores, {host.ram_available_bytes} bytes of RAM available, "
            f"{host.ram_limit_bytes} allowed, {host.ram_total_bytes} in all",
            hint=RECORD_AGAIN,
        )


_NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    bool: "true or false",
    float: "a number",
}


def _kind(value: Any) -> str:
    return "null" if value is None else _NAMES.get(type(value), type(value).__name__)
