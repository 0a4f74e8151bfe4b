"""Talk to a Tidegate over HTTP: a client, its errors, and the keys of one that runs locally."""

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import httpx2
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tidegate.service.auth import TokenPolicy
from tidegate.service.keys import issue, new_keypair

V1, DESK = "/api/v1", "/api/v1/operator"
TIMEOUT_S = 30.0
AUDIT_S = 3600.0
PRIVATE, PUBLIC, TERMS = "private.pem", "jwks.json", "terms.json"

Answer: TypeAlias = dict[str, Any]


class ApiProblem(Exception):
    """Tidegate has answered no. `body` holds all it said: `req_id` and `state`, where one is."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(body.get("code", "UNKNOWN"))
        self.detail = str(body.get("detail", ""))
        self.request_id = body.get("request_id")
        self.retryable = bool(body.get("retryable", False))
        self.body = dict(body)
        super().__init__(f"{self.code}: {self.detail}" if self.detail else self.code)


class OutcomeUnknown(Exception):
    """Nobody knows what became of the request: ask again with the same cid."""


class Client:
    """`with Client(url, token) as client`; every method is one request."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx2.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # An owner's.

    def transfer(self, wish: Mapping[str, object], wait_s: int | None = None) -> Answer:
        """`wish` is {from, to, asset, amount, cid?, user_id?}. With a cid it can be repeated."""
        headers = {} if wait_s is None else {"Prefer": f"wait={wait_s}"}
        return self._ask("POST", f"{V1}/internal_transfer", wish, headers=headers)

    def batch(self, wishes: Sequence[Mapping[str, object]]) -> Answer:
        return self._ask("POST", f"{V1}/internal_transfers", {"transfers": list(wishes)})

    def get(self, id_: str) -> Answer:
        return self._ask("GET", f"{V1}/internal_transfer/{id_}")

    def list(self, **query: str | int | None) -> Answer:
        """By `limit`, `cursor` and `state`."""
        return self._ask("GET", f"{V1}/internal_transfer", query=query)

    def balances(self) -> Answer:
        return self._ask("GET", f"{V1}/balances")

    def assets(self) -> Answer:
        return self._ask("GET", f"{V1}/assets")

    def pool_transfer(self, wish: Mapping[str, object]) -> Answer:
        """`wish` is {guild_id, target_id, amount}, and perhaps reason, cid, expires_hours."""
        return self._ask("POST", f"{V1}/pool_transfers", wish)

    def pool_show(self, id_: str) -> Answer:
        return self._ask("GET", f"{V1}/pool_transfers/{id_}")

    def pool_list(self, **query: str | int | None) -> Answer:
        """By `guild_id`, `status`, `limit` and `offset`."""
        return self._ask("GET", f"{V1}/pool_transfers", query=query)

    # Those of who answers for the money.

    def deposit(self, crossing: Mapping[str, object]) -> Answer:
        """`crossing` is {user_id, account, asset, amount, cid}."""
        return self._ask("POST", f"{DESK}/deposit", crossing)

    def external_withdrawal(self, crossing: Mapping[str, object]) -> Answer:
        return self._ask("POST", f"{DESK}/external_withdrawal", crossing)

    def account_status(self, change: Mapping[str, object]) -> Answer:
        """`change` is {user_id, account, asset, status}."""
        return self._ask("POST", f"{DESK}/account_status", change)

    def set_asset(self, code: str, change: Mapping[str, object]) -> Answer:
        return self._ask("PATCH", f"{DESK}/assets/{code}", change)

    def search(self, **query: str | int | None) -> Answer:
        """By `owner`, `state`, `flow`, `stuck_s`, `limit` and `cursor`."""
        return self._ask("GET", f"{DESK}/transfers", query=query)

    def history(self, id_: str) -> Answer:
        """A transfer with every answer and attempt."""
        return self._ask("GET", f"{DESK}/transfers/{id_}")

    def retry(self, id_: str) -> Answer:
        return self._ask("POST", f"{DESK}/transfers/{id_}/retry", {})

    def resolve(self, id_: str, resolution: Mapping[str, object]) -> Answer:
        return self._ask("POST", f"{DESK}/transfers/{id_}/resolve", resolution)

    def confirm(self, id_: str) -> Answer:
        return self._ask("POST", f"{DESK}/resolutions/{id_}/confirm", {})

    def halt(self, reason: str) -> Answer:
        return self._ask("POST", f"{DESK}/halt", {"reason": reason})

    def resume(self, reason: str, halts: Sequence[int] | None = None) -> Answer:
        """Without numbers, every halt in force is ended; the answer lists them."""
        named = {} if halts is None else {"halts": list(halts)}
        return self._ask("POST", f"{DESK}/resume", {"reason": reason, **named})

    def halts(self) -> Answer:
        return self._ask("GET", f"{DESK}/halts")

    def audit(self, *, full: bool = True) -> Answer:
        """In full it reads every transfer there is, and takes its time."""
        asked = {"full": "true" if full else "false"}
        return self._send(
            self._http.build_request("GET", f"{DESK}/audit", params=asked, timeout=AUDIT_S)
        )

    def audit_progress(self) -> Answer:
        return self._ask("GET", f"{DESK}/audit/progress")

    def readiness(self) -> Answer | None:
        """What `/readyz` says, or None if nobody answers."""
        try:
            said = self._http.get("/readyz").json()
        except (httpx2.TransportError, ValueError):
            return None
        return said if isinstance(said, dict) else None

    def ready(self) -> bool:
        """Everything serves; a halt is a decision that was made, and not a lack of readiness."""
        said = self.readiness()
        if said is None:
            return False
        lanes = said.get("lanes")
        halted = said.get("halted") and lanes and "closed" not in lanes.values()
        return bool(said.get("status") == "ok" or halted)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str | int | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self._send(
            self._http.build_request(method, path, json=body, params=given, headers=headers)
        )

    def _send(self, request: httpx2.Request) -> Answer:
        try:
            response = self._http.send(request)
            said = response.json()
        except httpx2.TransportError as fault:
            raise OutcomeUnknown(f"{self.url} does not answer: {fault!s}") from fault
        except ValueError as fault:
            raise OutcomeUnknown(
                f"{self.url} answers in no language we know; is it Tidegate?"
            ) from fault
        answer: Answer = said if isinstance(said, dict) else {}
        if response.status_code >= 400:
            raise ApiProblem(response.status_code, answer)
        return answer


class KeysNotFound(Exception):
    """There are no keys where a local Tidegate keeps them, or they are not what they should be."""


class Keyring(NamedTuple):
    """The key that a local Tidegate believes, for tokens of any role."""

    private: bytes
    kid: str
    terms: TokenPolicy

    def token(self, subject: str, role: str, now: float) -> str:
        return issue(self.private, self.kid, self.terms.claims(subject, [role], now))


def make_keyring(directory: Path, terms: TokenPolicy) -> Path:
    """Put a key there if there is none, readable by its owner only; return the public side."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (directory / PRIVATE).exists():
        _write_private(directory / PRIVATE, new_keypair()[0])
    _write_private(directory / TERMS, msgspec.json.encode(terms))
    raw, kid = _identify(directory / PRIVATE)[1:]
    x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "alg": "EdDSA", "use": "sig"}
    _write_private(directory / PUBLIC, msgspec.json.encode({"keys": [jwk]}))
    return directory / PUBLIC


def load_keyring(directory: Path) -> Keyring:
    private, _, kid = _identify(directory / PRIVATE)
    try:
        terms = msgspec.json.decode((directory / TERMS).read_bytes(), type=TokenPolicy)
    except (OSError, msgspec.DecodeError) as fault:
        raise KeysNotFound(
            f"{directory / TERMS} cannot be read: start `tidegate up` there"
        ) from fault
    return Keyring(private, kid, terms)


def _identify(path: Path) -> tuple[bytes, bytes, str]:
    """A private key, its public half, and the name that follows from it."""
    try:
        private = path.read_bytes()
        key = serialization.load_pem_private_key(private, password=None)
    except FileNotFoundError as fault:
        raise KeysNotFound(f"there is no {path}: start `tidegate up` there once") from fault
    except (OSError, ValueError) as fault:
        raise KeysNotFound(f"{path} cannot be read as a private key: {fault}") from fault
    if not isinstance(key, Ed25519PrivateKey):
        raise KeysNotFound(f"{path} is not an Ed25519 key: remove it, and another is made")
    raw = key.public_key().public_bytes_raw()
    return private, raw, hashlib.sha256(raw).hexdigest()[:16]


def _write_private(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
