"""The peers' own environments below bench/.peers: pinned, and never part of the project's lock."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HOME = Path(__file__).parents[1] / ".peers"
INSTALL_S = 600
RESTATE_SERVER = "@restatedev/restate-server@1.7.12"

# What Tidegate's client of the trading core needs, in each of them.
COMMON = (
    "httpx2==2.16.0",
    "msgspec==0.22.0",
    "prometheus-client==0.26.0",
    "psycopg[binary]==3.3.8",
    "psycopg-pool==3.3.3",
    "pyjwt[crypto]==2.15.1",
    "python-ulid==4.1.0",
    "rich==15.0.0",
    "starlette==1.10.0",
    "structlog==26.1.0",
    "typer==0.29.0",
    "uvicorn==0.54.0",
)
PACKAGES = {
    "literal": ("asyncpg==0.32.0", "fastapi==0.162.4", "httptools==0.9.0", "uvloop==0.23.0"),
    "dbos": ("dbos==3.3.0",),
    "restate": ("restate-sdk==1.2.0", "hypercorn==0.18.0"),
    "procrastinate": ("procrastinate==3.10.0",),
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0"),
}


def python(environment: str) -> str:
    """The interpreter that runs a case: a peer's, or ours."""
    return str(HOME / environment / "bin" / "python") if environment else sys.executable


def restate_server() -> Path:
    return HOME / "restate-server" / "node_modules" / ".bin" / "restate-server"


def install(wanted: set[str], tell: Callable[[str], None] = print) -> dict[str, str]:
    """Install what is not there yet; of each peer that cannot be had, why not."""
    missing: dict[str, str] = {}
    for name in sorted(wanted):
        try:
            _install(name, tell)
        except (OSError, subprocess.SubprocessError) as fault:
            missing[name] = _reason(fault)
    return missing


def _install(name: str, tell: Callable[[str], None]) -> None:
    packages = (*PACKAGES[name], *COMMON)
    pinned = [*packages, *([RESTATE_SERVER] if name == "restate" else [])]
    mark = hashlib.sha256(json.dumps(pinned).encode()).hexdigest()
    home = HOME / name
    ready = home / "ready"
    if ready.exists() and ready.read_text() == mark:
        return
    tell(f"installing {' '.join(PACKAGES[name])} into {home}")
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(home)])
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *packages])
    if name == "restate":
        place = HOME / "restate-server"
        place.mkdir(exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place)]
        _run([*npm, RESTATE_SERVER])
        _run([str(restate_server()), "--version"])
    ready.write_text(mark)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)


def _reason(fault: Exception) -> str:
    """The last thing that the installer said."""
    said = getattr(fault, "stderr", None) or str(fault)
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return lines[-1] if lines else type(fault).__name__
