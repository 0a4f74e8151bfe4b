"""A client for Tidegate's HTTP API, and the signing key of a local Tidegate."""

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

V1, OPERATOR = "/api/v1", "/api/v1/operator"
TIMEOUT_S = 30.0
AUDIT_S = 3600.0
PRIVATE, PUBLIC, POLICY = "private.pem", "jwks.json", "terms.json"

Answer: TypeAlias = dict[str, Any]


class ApiProblem(Exception):
    """The API replied with an error. `body` is the reply, with `req_id` and `state` if any."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(body.get("code", "UNKNOWN"))
        self.detail = str(body.get("detail", ""))
        self.request_id = body.get("request_id")
        self.retryable = bool(body.get("retryable", False))
        self.body = dict(body)
        super().__init__(f"{self.code}: {self.detail}" if self.detail else self.code)


class OutcomeUnknown(Exception):
    """The result of the request is unknown: repeat it with the same cid."""


class Client:
    """Use it as `with Client(url, token) as client`. Every method sends one request."""

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

    # For users.

    def transfer(self, request: Mapping[str, object], wait_s: int | None = None) -> Answer:
        """`request` is {from, to, asset, amount, cid?, user_id?}. It can be repeated by its cid."""
        headers = {} if wait_s is None else {"Prefer": f"wait={wait_s}"}
        return self._request("POST", f"{V1}/internal_transfer", request, headers=headers)

    def batch(self, requests: Sequence[Mapping[str, object]]) -> Answer:
        return self._request("POST", f"{V1}/internal_transfers", {"transfers": list(requests)})

    def get(self, id_: str) -> Answer:
        return self._request("GET", f"{V1}/internal_transfer/{id_}")

    def list(self, **query: str | int | None) -> Answer:
        """Filters: `limit`, `cursor` and `state`."""
        return self._request("GET", f"{V1}/internal_transfer", query=query)

    def balances(self) -> Answer:
        return self._request("GET", f"{V1}/balances")

    def assets(self) -> Answer:
        return self._request("GET", f"{V1}/assets")

    def pool_transfer(self, request: Mapping[str, object]) -> Answer:
        """`request` is {guild_id, target_id, amount, reason?, cid?, expires_hours?}."""
        return self._request("POST", f"{V1}/pool_transfers", request)

    def pool_show(self, id_: str) -> Answer:
        return self._request("GET", f"{V1}/pool_transfers/{id_}")

    def pool_list(self, **query: str | int | None) -> Answer:
        """Filters: `guild_id`, `status`, `limit` and `offset`."""
        return self._request("GET", f"{V1}/pool_transfers", query=query)

    # For operators, approvers and auditors.

    def deposit(self, request: Mapping[str, object]) -> Answer:
        """`request` is {user_id, account, asset, amount, cid}."""
        return self._request("POST", f"{OPERATOR}/deposit", request)

    def external_withdrawal(self, request: Mapping[str, object]) -> Answer:
        """`request` is that of `deposit`."""
        return self._request("POST", f"{OPERATOR}/external_withdrawal", request)

    def account_status(self, change: Mapping[str, object]) -> Answer:
        """`change` is {user_id, account, asset, status}."""
        return self._request("POST", f"{OPERATOR}/account_status", change)

    def set_asset(self, code: str, change: Mapping[str, object]) -> Answer:
        return self._request("PATCH", f"{OPERATOR}/assets/{code}", change)

    def search(self, **query: str | int | None) -> Answer:
        """Filters: `owner`, `state`, `flow`, `stuck_s`, `limit` and `cursor`."""
        return self._request("GET", f"{OPERATOR}/transfers", query=query)

    def history(self, id_: str) -> Answer:
        """Return a transfer with all its answers and attempts."""
        return self._request("GET", f"{OPERATOR}/transfers/{id_}")

    def retry(self, id_: str) -> Answer:
        return self._request("POST", f"{OPERATOR}/transfers/{id_}/retry", {})

    def resolve(self, id_: str, resolution: Mapping[str, object]) -> Answer:
        return self._request("POST", f"{OPERATOR}/transfers/{id_}/resolve", resolution)

    def confirm(self, id_: str) -> Answer:
        return self._request("POST", f"{OPERATOR}/resolutions/{id_}/confirm", {})

    def halt(self, reason: str) -> Answer:
        return self._request("POST", f"{OPERATOR}/halt", {"reason": reason})

    def resume(self, reason: str, halts: Sequence[int] | None = None) -> Answer:
        """End these halts, or all if none are given. The reply lists the halts that ended."""
        numbers = {} if halts is None else {"halts": list(halts)}
        return self._request("POST", f"{OPERATOR}/resume", {"reason": reason, **numbers})

    def halts(self) -> Answer:
        return self._request("GET", f"{OPERATOR}/halts")

    def audit(self, *, full: bool = True) -> Answer:
        """Run an audit. A full one reads every transfer and can take long."""
        query = {"full": "true" if full else "false"}
        return self._send(
            self._http.build_request("GET", f"{OPERATOR}/audit", params=query, timeout=AUDIT_S)
        )

    def audit_progress(self) -> Answer:
        return self._request("GET", f"{OPERATOR}/audit/progress")

    def readiness(self) -> Answer | None:
        """Return the reply of `/readyz`, or None if the API does not answer."""
        try:
            reply = self._http.get("/readyz").json()
        except (httpx2.TransportError, ValueError):
            return None
        return reply if isinstance(reply, dict) else None

    def ready(self) -> bool:
        """True if all parts work. A halt does not count: an operator or the audit decided it."""
        reply = self.readiness()
        if reply is None:
            return False
        lanes = reply.get("lanes")
        halted = reply.get("halted") and lanes and "closed" not in lanes.values()
        return bool(reply.get("status") == "ok" or halted)

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str | int | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        params = {name: value for name, value in (query or {}).items() if value is not None}
        return self._send(
            self._http.build_request(method, path, json=body, params=params, headers=headers)
        )

    def _send(self, request: httpx2.Request) -> Answer:
        try:
            response = self._http.send(request)
            reply = response.json()
        except httpx2.TransportError as fault:
            raise OutcomeUnknown(f"{self.url} does not answer: {fault!s}") from fault
        except ValueError as fault:
            raise OutcomeUnknown(
                f"the reply of {self.url} is not JSON: check that the address is a Tidegate API"
            ) from fault
        answer: Answer = reply if isinstance(reply, dict) else {}
        if response.status_code >= 400:
            raise ApiProblem(response.status_code, answer)
        return answer


class KeysNotFound(Exception):
    """The keys of a local Tidegate are missing or invalid."""


class Keyring(NamedTuple):
    """The signing key of a local Tidegate: it trusts tokens of any role signed with it."""

    private: bytes
    kid: str
    policy: TokenPolicy

    def token(self, subject: str, role: str, now: float) -> str:
        return issue(self.private, self.kid, self.policy.claims(subject, [role], now))


def make_keyring(directory: Path, policy: TokenPolicy) -> Path:
    """Create a key if the directory has none, readable by its owner only.

    Return the path of the JWKS file with the public key.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (directory / PRIVATE).exists():
        _write_private(directory / PRIVATE, new_keypair()[0])
    _write_private(directory / POLICY, msgspec.json.encode(policy))
    raw, kid = _read_key(directory / PRIVATE)[1:]
    x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "alg": "EdDSA", "use": "sig"}
    _write_private(directory / PUBLIC, msgspec.json.encode({"keys": [jwk]}))
    return directory / PUBLIC


def load_keyring(directory: Path) -> Keyring:
    private, _, kid = _read_key(directory / PRIVATE)
    try:
        policy = msgspec.json.decode((directory / POLICY).read_bytes(), type=TokenPolicy)
    except (OSError, msgspec.DecodeError) as fault:
        raise KeysNotFound(
            f"{directory / POLICY} cannot be read: `tidegate up` writes it again"
        ) from fault
    return Keyring(private, kid, policy)


def _read_key(path: Path) -> tuple[bytes, bytes, str]:
    """Return a private key, its public key, and the kid: a hash of the public key."""
    try:
        private = path.read_bytes()
        key = serialization.load_pem_private_key(private, password=None)
    except FileNotFoundError as fault:
        raise KeysNotFound(f"{path} does not exist: `tidegate up` creates it") from fault
    except (OSError, ValueError) as fault:
        raise KeysNotFound(f"{path} cannot be read as a private key: {fault}") from fault
    if not isinstance(key, Ed25519PrivateKey):
        raise KeysNotFound(
            f"{path} is not an Ed25519 key: remove it, and `tidegate up` makes a new one"
        )
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
