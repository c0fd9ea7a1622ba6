"""Random texts that `tsel.legal` lets through, a character at a time."""

import random

from littledragon.schemas.tsel import legal

LETTERS = [chr(code) for code in range(32, 127)] + ["\n", "é", "\u2028", "\x85", "\t", "\r", "\ud800", "\ufffe"]
CLOSING = '<"/>\n ]}'
NAMES = "0123456789blv["


def walk(seed: int, before: str = "", most: int = 6000, last: str = "") -> tuple[str, bool]:
    """A random legal text that begins so, and whether it came to its end within so many characters.

    last: characters that stand only where no other may.

    Raises:
        AssertionError: no character was legal before the end.
    """
    draw = random.Random(seed)
    state = legal.advance(legal.start(), before)
    assert state is not None, before
    text = before
    while len(text) < most:
        if legal.complete(state) and draw.random() < 0.5:
            return text, True
        chosen = draw.choice((CLOSING, NAMES, "", ""))  # towards an end, or another reference
        letters = [*draw.sample(chosen, len(chosen)), *draw.sample(LETTERS, len(LETTERS))]
        letters.sort(key=lambda letter: letter in last)
        after = next(filter(None, (legal.advance(state, letter) and letter for letter in letters)), None)
        if after is None:
            assert legal.complete(state), text[-200:]
            return text, True
        text += after
        state = legal.advance(state, after)
        assert state is not None
    return text, False
