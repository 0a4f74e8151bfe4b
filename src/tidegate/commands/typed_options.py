"""Turn a function of a few values into a command: what is typed are the fields of the values."""

import inspect
from collections.abc import Callable
from typing import get_type_hints


def typed(function: Callable[..., None]) -> Callable[..., None]:
    """Typer wants one parameter for each option; ours stand together in frozen values."""
    kinds = {n: t for n, t in get_type_hints(function).items() if n != "return"}
    fields = {name: inspect.signature(kind).parameters for name, kind in kinds.items()}
    hints = {n: h for kind in kinds.values() for n, h in _hints(kind).items()}

    def command(**given: object) -> None:
        values = {
            name: kind(**{field: given[field] for field in fields[name]})
            for name, kind in kinds.items()
        }
        function(**values)

    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in fields.values()
        for name, parameter in each.items()
    ]
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return command


def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind, include_extras=True)
