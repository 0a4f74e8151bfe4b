"""Texts that the database cannot store are refused, and other requests are not affected."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.engine.rig import Play, Rig, made, request
from tidegate.core.kind import Party
from tidegate.core.refusals import Refusal
from tidegate.core.request import MAX_BOOK_CHARS, MAX_TOTAL_TEXT_CHARS

pytestmark = pytest.mark.slow

ODD = {
    "half of a character": "\ud800",
    "a NUL": "a\0b",
    "too long": "x" * (MAX_TOTAL_TEXT_CHARS + 1),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_a_text_that_cannot_be_stored_is_refused_and_others_go_on(play: Play, text: str) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            odd = [
                replace(request("in", 1), trace=text),
                replace(request("in", 1), detail={"memo": text}),
                replace(request("in", 1), detail={text: "memo"}),
                replace(request("in", 1), terms={"from": text}),
                replace(request("in", 1), terms={text: "x"}),
            ]
            results = await asyncio.gather(*(engine.submit(wanted) for wanted in odd))
            assert results == [Refusal.INVALID_REQUEST] * len(odd)
            assert (await made(engine, request("in", 1))).state == "TARGET_PENDING"
            assert not engine.died.done()

    play(scene)


@pytest.mark.parametrize("book", ["\ud800", "a\0b", "x" * (MAX_BOOK_CHARS + 1)])
def test_a_book_name_that_cannot_be_stored_is_refused_and_others_go_on(
    play: Play, book: str
) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            plain = request("in", 1)
            odd = {**plain.parties, "target": Party("venue", book, plain.owner)}
            assert await engine.submit(replace(plain, parties=odd)) is Refusal.INVALID_PARTIES
            assert (await made(engine, plain)).state == "TARGET_PENDING"
            assert not engine.died.done()

    play(scene)


def test_texts_of_any_language_are_stored(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            wanted = replace(request("in", 1), detail={"備註": "謝謝 🙏"}, trace="é" * 9)
            transfer = await made(engine, wanted)
            [found] = await rig.store.find([transfer.id])
            assert (found.detail, found.trace) == ({"備註": "謝謝 🙏"}, "é" * 9)

    play(scene)
