"""How many files of the program one transfer goes through: few enough to read them all."""

import sys
from pathlib import Path
from types import FrameType
from typing import Self

import tidegate
from tests.service.rig import ApiClient, Run

SOURCES = str(Path(tidegate.__file__).parent) + "/"
MOST_FILES = 57  # The aim is fewer: decision 34.


class Files:
    """The files of the program whose functions are called while this is on."""

    def __init__(self) -> None:
        self.functions: dict[str, set[str]] = {}

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCES):
            self.functions.setdefault(code.co_filename.removeprefix(SOURCES), set()).add(
                code.co_qualname
            )


def test_one_internal_transfer_goes_through_few_files(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        body = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}
        await api.transfer(body | {"cid": "first"})  # What is loaded and cached once.
        with Files() as files:
            reply = await api.transfer(body | {"cid": "second"})
        assert reply.body["state"] == "COMMITTED"
        listing = "\n".join(f"{name}: {len(found)}" for name, found in files.functions.items())
        assert len(files.functions) <= MOST_FILES, listing

    run(scenario)
