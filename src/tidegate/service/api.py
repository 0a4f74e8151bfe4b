"""The HTTP application: finds the route of a request and serves it."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidegate.core.refusals import Refusal
from tidegate.service.http import CLOSE, HttpReply, HttpRequest
from tidegate.service.problem import METHOD_NOT_ALLOWED, NOT_FOUND, SYSTEM_ERROR, problem
from tidegate.service.routes import ROUTES
from tidegate.service.routing import Route, ServiceContext, guarded

Methods: TypeAlias = Mapping[str, Route]


class Api:
    """Finds the route of a request and serves it."""

    def __init__(self, service: ServiceContext, routes: Sequence[Route] = ROUTES) -> None:
        self._service = service
        by_path: dict[str, dict[str, Route]] = defaultdict(dict)
        for route in routes:
            by_path[route.path][route.method] = route
            if route.method == "GET":
                by_path[route.path]["HEAD"] = route
        self.routes: Mapping[str, Methods] = by_path
        self._fixed = {path: methods for path, methods in by_path.items() if "{" not in path}
        self._named = [
            (re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)), methods)
            for path, methods in by_path.items()
            if "{" in path
        ]

    async def __call__(self, request: HttpRequest) -> HttpReply:
        methods = self._fixed.get(request.path) or self._find(request)
        if methods is None:
            return problem(NOT_FOUND, self._service.new_id())
        route = methods.get(request.method)
        if route is None:
            allowed = {"Allow": ", ".join(sorted(methods))}
            return problem(METHOD_NOT_ALLOWED, self._service.new_id(), headers=allowed)
        return await guarded(self._service, route, request)

    def _find(self, request: HttpRequest) -> Methods | None:
        for pattern, methods in self._named:
            if found := pattern.fullmatch(request.path):
                request.named = found.groupdict()
                return methods
        return None

    def turned_away(self) -> HttpReply:
        """The reply on a connection beyond the limit."""
        return problem(Refusal.OVERLOADED, self._service.new_id(), headers=CLOSE)

    def failed(self) -> HttpReply:
        """The reply when an endpoint has failed with a bug."""
        return problem(SYSTEM_ERROR, self._service.new_id(), headers=CLOSE)
