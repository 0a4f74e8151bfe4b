"""The query parameters and headers of the routes: each is described once."""

from typing import Any, Literal, NamedTuple, TypeAlias

from tidegate.core.request import MAX_CID_CHARS

Json: TypeAlias = dict[str, Any]

MAX_LIMIT, DEFAULT_LIMIT = 100, 20
MAX_OFFSET = 10**6
MAX_STUCK_DIGITS = 9  # Thirty years, in seconds.
POOL_STATUSES = ("pending", "checking", "approved", "completed", "rejected")
WHOLE: Json = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}


class Parameter(NamedTuple):
    name: str
    where: Literal["query", "header"]
    schema: Json
    description: str


LIMIT = Parameter(
    "limit",
    "query",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "How many to list.",
)
CURSOR = Parameter(
    "cursor",
    "query",
    {"type": "string"},
    "The next_cursor of the previous page. Lists what is older than that transfer.",
)
STATE = Parameter(
    "state", "query", {"type": "string", "examples": ["COMMITTED"]}, "Only those in this state."
)
OFFSET = Parameter(
    "offset",
    "query",
    {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0},
    "How many to skip: the next_offset of the previous page.",
)
GUILD_ID = Parameter("guild_id", "query", WHOLE, "Only those in this guild.")
POOL_STATUS = Parameter(
    "status",
    "query",
    {"type": "string", "enum": list(POOL_STATUSES), "examples": ["checking"]},
    "Only those with this status.",
)
OWNER = Parameter("owner", "query", WHOLE, "Only those of this user.")
FLOW = Parameter(
    "flow", "query", {"type": "string", "examples": ["deposit"]}, "Only those of this flow."
)
STUCK_S = Parameter(
    "stuck_s",
    "query",
    {"type": "integer", "minimum": 0, "maximum": 10**MAX_STUCK_DIGITS - 1},
    "Only those that have not ended and have waited for longer. Other filters are ignored then.",
)
FULL = Parameter(
    "full",
    "query",
    {"enum": ["true", "false"], "default": "true"},
    "true: audit all transfers. false: only those since the last audit.",
)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": MAX_CID_CHARS, "pattern": "^[ -~]*$"},
    "The same as cid. If both are given, they must be equal.",
)
PREFER = Parameter(
    "Prefer",
    "header",
    {"type": "string", "examples": ["wait=5"]},
    "wait=N: wait up to N seconds for the end, at most 10. Without it the service's default.",
)

# The parts of a path that have a name, by the word before them where that matters.
IN_PATHS = {
    "id": "The transfer's id: a ULID, or the same 128 bits as a UUID.",
    "resolutions/id": "The number of the resolution, as the proposal returned it.",
    "code": "The asset's code.",
}
