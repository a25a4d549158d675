"""Hardware as JSON and back, so that any machine can be planned for anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rl_compat.errors import HardwareError, UsageError, nearest
from rl_compat.hardware.gpu.join import set_apart_other_vendors
from rl_compat.hardware.types import SCHEMA_VERSION, Hardware

Record = TypeVar("Record")

RECORD_AGAIN = "write a new one with `rlc probe --output FILE`"


def to_json(hardware: Hardware) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(hardware)))
    return plain


def from_json(values: Any) -> Hardware:
    """The hardware that `to_json` wrote. Raises HardwareError naming the field that is wrong."""
    hardware = decode(Hardware, values, schema=SCHEMA_VERSION, error=HardwareError, hint=RECORD_AGAIN)
    _check(hardware)
    return set_apart_other_vendors(hardware)


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
    return read_record(path, from_json, error=HardwareError, hint=RECORD_AGAIN)


def read_record(path: Path, parse: Callable[[Any], Record], *, error: type[UsageError], hint: str) -> Record:
    """What `parse` makes of a JSON file. Raises `error`, naming the file, if it is missing or malformed."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as failure:
        raise error(f"cannot read `{path}`: {failure.strerror}", hint=hint) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as failure:
        raise error(f"`{path}` is not JSON: {failure}", hint=hint) from None
    except error as failure:
        raise error(f"`{path}`: {failure.message}", hint=failure.hint) from None


def decode(kind: type[Record], values: Any, *, schema: int, error: type[UsageError], hint: str) -> Record:
    """A dataclass from the JSON of its fields. Raises `error` for another schema, or naming the field that is wrong."""
    name = kind.__name__.lower()
    found_schema = values.get("schema") if isinstance(values, dict) else None
    if found_schema != schema:
        raise error(f"the {name} has schema `{found_schema}` and this version reads `{schema}`", hint=hint)
    try:
        from pydantic import ConfigDict, TypeAdapter, ValidationError
    except ImportError:
        raise error(f"reading `{name}` needs the package `pydantic`", hint="pip install 'pydantic>=2.7'") from None
    adapter = TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid", strict=True))  # type: ignore[valid-type]
    try:
        (record,) = adapter.validate_json(json.dumps([values]))
    except ValidationError as found:
        wrong = min(found.errors(include_url=False), key=lambda item: item["type"] != "unexpected_keyword_argument")
        path = name + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in wrong["loc"][1:])
        if wrong["type"] == "missing":
            raise error(f"`{path}` is missing", hint=hint) from None
        if wrong["type"] == "unexpected_keyword_argument":
            schemas = adapter.json_schema()["$defs"].values()
            near = nearest(
                str(wrong["loc"][-1]), {field for schema in schemas for field in schema.get("properties", ())}
            )
            raise error(f"`{path}` is not a known field", hint=f"did you mean `{near}`" if near else hint) from None
        given = json.dumps(wrong["input"], ensure_ascii=False)
        raise error(f"`{path}` is `{given}`: {wrong['msg'][0].lower()}{wrong['msg'][1:]}", hint=hint) from None
    assert isinstance(record, kind)
    return record


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
