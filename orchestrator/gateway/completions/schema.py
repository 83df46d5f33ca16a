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
_NAMES = {kind: name for name, kinds in reversed(TYPES.items()) for kind in kinds}
MAX_SCHEMAS = 1000
"""Schemas that are read for the types of one parameter. A parameter with more has no declared type."""
_MAX_DEPTH = 16  # depth of references to references
_TYPES_NAMED = 16  # types that are read in one list: there are seven


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
    return tuple(dict.fromkeys(_Types(schema).of(schema_of_parameter) or ()))


def of_type(value: Any, types: Sequence[str]) -> bool:
    """Whether `value` has one of `types`. A number without a fraction is an integer. A boolean is not, although Python counts it as an int."""
    if not types or not set(types) <= set(TYPES):
        return True
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True
    return any(isinstance(value, TYPES[name]) for name in types)


class _Types:
    """Reads the types of one parameter. A schema behind a reference is read once, and MAX_SCHEMAS at most: a tool of a rollout's own program may
    refer to itself in any number of places."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[int, list[str] | None] = {}  # by the identity of a schema; None while it is read
        self._left = MAX_SCHEMAS

    def of(self, schema: Any, depth: int = 0) -> list[str] | None:
        """The types of a schema; empty: it does not declare them; None: it is being read already, so it adds no type."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._left < 0:
            return []
        if isinstance(schema.get("$ref"), str):
            return self._behind(_resolved(schema["$ref"], self._root), depth + 1)
        found = _named(schema.get("type"))
        if not found:
            for union in ("anyOf", "oneOf"):
                if isinstance(schema.get(union), list):
                    found = self._any(schema[union], depth + 1)
            if not found and isinstance(schema.get("allOf"), list):
                found = next(
                    (names for member in schema["allOf"] if (names := self.of(member, depth + 1))), []
                )
            values = [schema["const"]] if "const" in schema else schema.get("enum")
            if not found and isinstance(values, list):
                found = [_NAMES.get(kind, "string") for kind in dict.fromkeys(map(type, values))]
        return [*found, "null"] if found and schema.get("nullable") is True else found

    def _behind(self, target: Any, depth: int) -> list[str] | None:
        if id(target) not in self._referred:
            self._referred[id(target)] = None
            self._referred[id(target)] = self.of(target, depth)
        return self._referred[id(target)]

    def _any(self, members: Sequence[Any], depth: int) -> list[str]:
        """The types of all members; none if one of them does not declare its own."""
        found: dict[str, None] = {}
        for member in members:
            names = self.of(member, depth)
            if names == []:
                return []
            found |= dict.fromkeys(names or ())
        return list(found)


def _named(names: Any) -> list[str]:
    """The types that a schema names itself."""
    if isinstance(names, str):
        return [names]
    return [str(name) for name in names[:_TYPES_NAMED]] if isinstance(names, list) else []


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """The target of a reference into the schema itself; None for any other reference."""
    at: Any = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        at = at.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at
