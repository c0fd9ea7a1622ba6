"""Token masks of legal TSEL for a local model: which tokens of a vocabulary may follow what has been written.

`schemas.tsel.legal` says it of characters; here the tokens of a vocabulary, as a trie of their texts, are walked along
with it. In free text, where nearly all tokens are legal, that is told once for each class of characters (`Trie.free`).
Tokens that are no whole characters (parts of UTF-8) are never legal.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from littledragon.schemas.tsel import legal
from littledragon.schemas.tsel._states import CLASSES, State

_ANCHOR: Final = "a"
"""A text before a token, as some decoders drop the white space that an answer begins with."""


class Trie:
    """Texts by their first character. ids: the tokens that end here. height: the most characters that follow."""

    __slots__ = ("_free", "_words", "height", "ids", "next")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.next: dict[str, Trie] = {}
        self.height = 0
        self._free: dict[str, tuple[Any, Trie]] = {}
        self._words: dict[tuple[str, str], tuple[Any, Any, Trie]] = {}

    def put(self, text: str, id: int) -> None:
        node = self
        for at, char in enumerate(text):
            node.height = max(node.height, len(text) - at)
            node = node.next.setdefault(char, Trie())
        node.ids.append(id)

    def texts(self) -> Iterator[tuple[str, int]]:
        """All texts and their tokens."""
        stack = [("", self)]
        while stack:
            text, node = stack.pop()
            yield from ((text, id) for id in node.ids)
            stack += [(text + char, child) for char, child in node.next.items()]

    def free(self, name: str) -> tuple[Any, "Trie"]:
        """The tokens of one class of characters alone; of the others what begins with the first that is not of it."""
        if name not in self._free:
            inside: list[int] = []
            rest = Trie()
            for text, id in self.texts():
                if end := CLASSES[name].search(text):
                    rest.put(text[end.start() :], id)
                elif text:
                    inside.append(id)
            self._free[name] = np.array(inside, dtype=np.intp), rest
        return self._free[name]

    def words(self, name: str, ends: str) -> tuple[Any, Any, "Trie"]:
        """The tokens of one class of characters alone, and how long each is; of the others, whole, those whose first
        character that is not of it is one of `ends`."""
        key = name, ends
        if key not in self._words:
            inside: list[int] = []
            sizes: list[int] = []
            rest = Trie()
            for text, id in self.texts():
                if end := CLASSES[name].search(text):
                    if end[0] in ends:
                        rest.put(text, id)
                elif text:
                    inside.append(id)
                    sizes.append(len(text))
            self._words[key] = np.array(inside, dtype=np.intp), np.array(sizes, dtype=np.intp), rest
        return self._words[key]

    def walk(self, state: State, mask: Any) -> None:
        """Set, in a numpy array, the tokens that may follow a state."""
        found: list[int] = []
        stack = [(self, state, False)]  # the last: the tokens of a word's class alone are told, and these go beyond
        while stack:
            node, at, beyond = stack.pop()
            loose = at.loose
            if loose and at.ends:
                if not beyond:
                    inside, sizes, node = node.words(loose, at.ends)
                    mask[inside[sizes <= at.room]] = True
                    beyond = True
                expected = at.expects()
            elif loose and at.room >= node.height:
                inside, node = node.free(loose)
                mask[inside] = True
                expected, beyond = at.exits(), False
            else:
                expected, beyond = at.expects(), False
            following = node.next
            for char in following if expected is None else expected:
                child = following.get(char)
                if child is not None and (after := at.step(char)) is not None:
                    found += child.ids
                    if child.next:
                        stack.append((child, after, beyond and not CLASSES[loose].match(char)))
        mask[found] = True


class Vocabulary:
    """The texts of a vocabulary's tokens; "" for those that are never legal.

    ends: tokens that end an answer.
    """

    def __init__(self, texts: Sequence[str], ends: Sequence[int]) -> None:
        self.ends = tuple(ends)
        self.texts = tuple("" if id in self.ends else text for id, text in enumerate(texts))

    @cached_property
    def trie(self) -> Trie:
        trie = Trie()
        for id, text in enumerate(self.texts):
            if text:
                trie.put(text, id)
        return trie

    def fill(self, mask: Any, state: legal.Reader) -> bool:
        """Set, in a numpy array of false, what may follow a state. Returns whether anything may."""
        if legal.complete(state):
            mask[list(self.ends)] = True
        if state.size <= legal.MAX_SIZE - self.trie.height:
            self.trie.walk(state.at, mask)
        return bool(mask.any())


def vocabulary_of(tokenizer: Any, ends: Sequence[int]) -> Vocabulary:
    """The vocabulary of a transformers tokenizer, as its decoder spells each token inside a text."""
    anchor = tokenizer(_ANCHOR, add_special_tokens=False)["input_ids"]
    before = tokenizer.decode(anchor, clean_up_tokenization_spaces=False)
    special = {*tokenizer.all_special_ids, *ends}
    spelled = tokenizer.batch_decode(
        [[*anchor, id] for id in range(len(tokenizer))], clean_up_tokenization_spaces=False
    )
    texts = [
        "" if id in special or "\ufffd" in text or not text.startswith(before) else text[len(before) :]
        for id, text in enumerate(spelled)
    ]
    return Vocabulary(texts, ends)


class LegalTokens:
    """A logits processor of `transformers` for one batch: tokens that are not legal get minus infinity.

    wanted: how many of its rows are looked at, all of them if not given; the others fill the batch up. A row that has
    ended is left alone. One where no token is legal must end, and its place is kept in `stuck`.
    """

    supports_continuous_batching = False

    def __init__(self, vocabulary: Vocabulary, prompt: int, wanted: int | None = None) -> None:
        self.vocabulary = vocabulary
        self.wanted = wanted
        self.read = prompt
        """Tokens that have been looked at: at first those of the prompt."""
        self.rows: list[legal.Reader | None] = []
        """None: it has ended."""
        self.stuck: set[int] = set()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        if not self.rows:
            count = input_ids.shape[0]
            wanted = count if self.wanted is None else self.wanted
            self.rows = [legal.start()] * wanted + [None] * (count - wanted)
        for token in input_ids[:, self.read :].T.tolist():
            self.rows = [
                None if row is None or id in self.vocabulary.ends else legal.advance(row, self.vocabulary.texts[id])
                for row, id in zip(self.rows, token, strict=True)
            ]
        self.read = input_ids.shape[1]
        mask = np.zeros(tuple(scores.shape), dtype=np.bool_)
        for place, (row, allowed) in enumerate(zip(self.rows, mask, strict=True)):
            if row is None:
                allowed[:] = True
            elif not self.vocabulary.fill(allowed, row):
                self.stuck.add(place)
                allowed[list(self.vocabulary.ends)] = True
        return scores.masked_fill(torch.from_numpy(~mask).to(scores.device), float("-inf"))
