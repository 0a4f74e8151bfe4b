"""The command and the plugin as a user runs them: in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str, where: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )


def certify(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("tidegate.cli", "certify", *arguments)
