"""The base of every table of the configuration."""

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from orchestrator.contracts.numbers import as_written


class Section(BaseModel):
    """The form of tables that people write: frozen, unknown keys refused. A number is a number: neither text in quotes, nor true, nor nan or
    infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        schema = handler(source)
        as_written(schema)
        return schema
