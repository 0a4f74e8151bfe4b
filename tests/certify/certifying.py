"""Run the command and the plugin in a separate process, as a user does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str, directory: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )


def certify(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("tidegate.cli", "certify", *arguments)
