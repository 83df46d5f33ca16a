"""The types that a tool's JSON Schema allows for values, as far as reading calls needs them."""

from collections.abc import Mapping, Sequence
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_DEEPEST = 16  # depth of references to references


def parameters_of(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The schema of an offered tool's parameters; None when the request offers no tool of that name, or its schema is not an object."""
    functions = [tool.get("function", tool) for tool in tools]
    found = next((f.get("parameters") or {} for f in functions if f.get("name") == name), None)
    return found if isinstance(found, Mapping) else None


def fits(name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call names an offered tool, has its required parameters, and gives the declared types."""
    schema = parameters_of(name, tools)
    if schema is None:
        return False
    if any(key not in arguments for key in schema.get("required") or []):
        return False
    return all(of_type(value, declared(key, schema)) for key, value in arguments.items())


def declared(parameter: str, schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that a parameter may have, in the order of the schema; empty if the schema does not declare them."""
    properties = schema.get("properties")
    schema_of_parameter = properties.get(parameter) if isinstance(properties, Mapping) else None
    return tuple(dict.fromkeys(_types(schema_of_parameter, schema, 0)))


def of_type(value: Any, types: Sequence[str]) -> bool:
    """Whether `value` has one of `types`. A number without a fraction is an integer. A boolean is not, although Python counts it as an int."""
    if not types or not set(types) <= set(TYPES):
        return True
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True
    return any(isinstance(value, TYPES[name]) for name in types)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> list[str]:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return []
    if isinstance(schema.get("$ref"), str):
        return _types(_resolved(schema["$ref"], root), root, depth + 1)
    type_names = schema.get("type")
    found = (
        [type_names]
        if isinstance(type_names, str)
        else [str(name) for name in type_names]
        if isinstance(type_names, list)
        else []
    )
    if not found:
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list):
                each = [_types(member, root, depth + 1) for member in schema[union]]
                found = [name for names in each for name in names] if all(each) else []
        if not found and isinstance(schema.get("allOf"), list):
            found = next(
                (names for member in schema["allOf"] if (names := _types(member, root, depth + 1))), []
            )
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if not found and isinstance(values, list):
            found = [_name(value) for value in values]
    return [*found, "null"] if found and schema.get("nullable") is True else found


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, kinds in TYPES.items() if isinstance(value, kinds)), "string")


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """The target of a reference into the schema itself; None for any other reference."""
    at: Any = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        at = at.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at
