"""Turn a function of frozen values into a command whose options are the fields of the values."""

import inspect
from collections.abc import Callable
from typing import get_type_hints


def typed(function: Callable[..., None]) -> Callable[..., None]:
    """Typer needs one parameter per option; our functions take several options in one value."""
    kinds = {n: t for n, t in get_type_hints(function).items() if n != "return"}
    fields = {name: inspect.signature(kind).parameters for name, kind in kinds.items()}
    hints = {n: h for kind in kinds.values() for n, h in _hints(kind).items()}

    def command(**options: object) -> None:
        values = {
            name: kind(**{field: options[field] for field in fields[name]})
            for name, kind in kinds.items()
        }
        function(**values)

    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for group in fields.values()
        for name, parameter in group.items()
    ]
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return command


def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind, include_extras=True)
