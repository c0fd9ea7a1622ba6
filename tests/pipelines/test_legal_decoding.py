"""Legal decoding of a vocabulary: its masks against the characters one by one, real tokenizers, a real local model."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.pipelines import cli
from littledragon.pipelines.legal_decoding import LegalTokens, Vocabulary, vocabulary_of
from littledragon.schemas import tsel
from littledragon.schemas.tsel import legal
from littledragon.schemas.tsel._states import State, Word

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = [
    (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n") + "\n"
    for name in ("labels/matmul.construct.xml", "labels/embedding_norm.refine.xml", "tsel/wmma.line.xml")
]
EMPTY = '<graph version="tsel/1" notation="line" tvm="0.25.0.post1">\n</graph>\n'


def pieces(draw: random.Random) -> list[str]:
    """Tokens as a tokenizer has them: every character, and pieces of texts across all borders."""
    found = {chr(code) for code in range(32, 127)} | {"\n", "é", "</", ">\n<", '">', "[1", ",1", "1]\n", "l1", "b0\n"}
    for _ in range(600):
        text = draw.choice(TEXTS)
        start = draw.randrange(len(text))
        found.add(text[start : start + draw.randint(1, 40)])
    return sorted(found)


VOCABULARY = pieces(random.Random(0))


def mask(vocabulary: Vocabulary, state: legal.Reader) -> list[bool]:
    found = np.zeros(len(vocabulary.texts), dtype=np.bool_)
    assert vocabulary.fill(found, state) == found.any()
    return [bool(one) for one in found]


SHARED = Vocabulary([*VOCABULARY, "<end>"], [len(VOCABULARY)])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 40))
def test_a_mask_is_what_each_token_by_itself_says(seed: int) -> None:
    """At a random place of a real text, or where a random walk of tokens comes to."""
    draw = random.Random(seed)
    text = draw.choice(TEXTS)
    state = legal.advance(legal.start(), text[: draw.randrange(len(text) + 1)])
    for _ in range(draw.choice((0, 3, 10))):
        assert state is not None
        tokens = [n for n, ok in enumerate(mask(SHARED, state)) if ok and n < len(VOCABULARY)]
        if tokens:
            state = legal.advance(state, VOCABULARY[draw.choice(tokens)])
    assert state is not None
    each = [legal.advance(state, token) is not None for token in VOCABULARY]
    assert mask(SHARED, state) == [*each, legal.complete(state)]


MAP = f'{EMPTY.splitlines()[0]}\n<map id="m0">'
SCOPE = f'{EMPTY.splitlines()[0]}\n<trace_sequence id="t0">\nb0 = block C\nl1-3 = loops b0\nb4 = cache_read b0 0 '
BEFORE_WORDS = (
    MAP, f"{MAP}i", f"{MAP}i ", f"{MAP}i j", f"{MAP}i jk", f"{MAP}b", f"{MAP}b1", f"{MAP}b1x", f"{MAP}{'n' * 57}",
    f"{MAP}ij i", f'{MAP}{{"in":["', f'{MAP}{{"in":["i', f'{MAP}{{"in":["i","j', f'{MAP}{{"in":["ij","i',
    f'{MAP}{{"in":["v', f"{SCOPE}s", f"{SCOPE}shared", f"{SCOPE}shared.", f"{SCOPE}shared.d", f"{SCOPE}{'n' * 61}",
    f"{SCOPE}s.{'N' * 58}", f"{SCOPE}n", f"{SCOPE}nul", f"{SCOPE}global\nunsafe_set_dtype b0 0 ",
    f"{SCOPE}global\nunsafe_set_dtype b0 0 f", f"{SCOPE}global\nunsafe_set_dtype b0 0 {'f' * 29}",
)  # fmt: skip
WORDS = [
    *(f"{letter}{n}" for letter in "ijv_A" for n in range(300)), *"ijkbvl_x09A. -,]\"\n", "ij", "l", "l9", "x" * 50,
    " j", " - ", " - i", " - j", "0 - i0", "0 - i", "k i - i", "k j - k i", " jk - jk", '","', '","j', 'k","i', 'j"],"',
    'k"],"let":{"$0":', '0"],"out":["i0"', '0"],"out":["i"', '"],"out":["i"]}</map>\n', '"]}', "1x", "-N", "N", ".N",
    "a.b", "a.B-1\n", "dyn\n", "N\nbind l1 ", "\nunroll", " consumers=b0", "l\n", "16\n",
    "loat32", "ull\n", "xxx\n", "</map>\n", "(", "i(", "\n\n",
]  # fmt: skip


@pytest.mark.parametrize("before", BEFORE_WORDS)
def test_names_and_scopes_are_masked_as_each_token_by_itself_says(before: str) -> None:
    """Also where a token names the variable that it ends, or a word comes near the longest that there is."""
    words = sorted(set(WORDS))
    vocabulary, state = Vocabulary([*words, "<end>"], [len(words)]), legal.advance(legal.start(), before)
    assert state is not None
    each = [legal.advance(state, word) is not None for word in words]
    assert mask(vocabulary, state) == [*each, False]
    assert any(each)


@pytest.mark.parametrize("before", [f"{MAP}i", f"{MAP}i j", f'{MAP}{{"in":["i","j', f"{SCOPE}shared.d"])
def test_a_name_costs_no_step_for_each_token_that_goes_on_with_it(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyz"]
    more = [" ", '"', "\n", "-" * 80, "<end>"]
    vocabulary, state = Vocabulary([*words, *more], [len(words) + 4]), legal.advance(legal.start(), before)
    assert state is not None
    steps, step = 0, Word.step

    def counted(self: Word, char: str) -> State | None:
        nonlocal steps
        steps += 1
        return step(self, char)

    monkeypatch.setattr(Word, "step", counted)
    assert sum(mask(vocabulary, state)) > len(words)
    assert steps < 10


def test_free_text_near_its_bound() -> None:
    state = legal.advance(legal.start(), f'{EMPTY.splitlines()[0]}\n<analysis id="a1">{"x" * (legal.PROSE - 20)}')
    assert state is not None
    found = mask(SHARED, state)
    each = [legal.advance(state, token) is not None for token in VOCABULARY]
    assert found == [*each, False]
    plain = [len(token) for token in VOCABULARY if set(token).isdisjoint("<>&\r")]
    assert sum(each) < len(plain)
    assert max(plain) > 20


def byte_level(texts: list[str]) -> Any:
    """A byte-level tokenizer of these pieces, beside all single bytes."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    spell = pre_tokenizers.ByteLevel(False)
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += ["".join(piece for piece, _ in spell.pre_tokenize_str(text)) for text in texts]
    bpe = Tokenizer(models.BPE({word: n for n, word in enumerate(dict.fromkeys(words))}, []))
    bpe.pre_tokenizer, bpe.decoder = spell, decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", clean_up_tokenization_spaces=False)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    return tokenizer


def test_the_texts_of_a_real_tokenizer() -> None:
    given_ = [" l1", "é", "</graph>\n", "\n\n", "  "]
    tokenizer = byte_level(given_)
    vocabulary = vocabulary_of(tokenizer, [tokenizer.eos_token_id])
    assert len(vocabulary.texts) == len(tokenizer)
    assert vocabulary.texts[tokenizer.eos_token_id] == ""
    assert set(given_) <= set(vocabulary.texts)
    assert {text for text in vocabulary.texts if len(text) == 1 and text.isascii()} == {chr(n) for n in range(128)}
    assert vocabulary.texts.count("") == 128 + 1  # parts of characters, and the end
    text = TEXTS[0]
    assert "".join(vocabulary.texts[id] for id in tokenizer(text)["input_ids"]) == text


def test_rows_of_a_batch() -> None:
    torch = pytest.importorskip("torch")
    tokens = ["x", EMPTY[:20], EMPTY[20:], "<|end|>"]
    masks = LegalTokens(Vocabulary(tokens, [3]), 2)
    scores = torch.zeros(2, 6)  # a model's vocabulary may be padded
    ids = torch.tensor([[0, 0], [3, 0]])

    def allowed(*columns: list[int]) -> list[list[int]]:
        nonlocal ids
        if columns:
            ids = torch.cat([ids, torch.tensor(columns)], dim=1)
        return [row.isfinite().nonzero().flatten().tolist() for row in masks(ids, scores)]

    everything = list(range(6))
    assert allowed() == [[1], [1]]
    assert allowed([1], [1]) == [[2], [2]]
    assert allowed([2], [3]) == [[3], everything]  # the second was ended by another hand: it is left alone
    assert allowed([3], [0]) == [everything, everything]
    assert masks.stuck == set()
    dead = LegalTokens(Vocabulary(["x", "<|end|>"], [1]), 1)
    assert dead(torch.tensor([[0]]), torch.zeros(1, 2)).isfinite().tolist() == [[False, True]]
    assert dead.stuck == {0}
    filled = LegalTokens(Vocabulary(tokens, [3]), 2, wanted=1)
    ids = torch.tensor([[0, 0], [0, 0]])
    assert [row.isfinite().sum().item() for row in filled(ids, scores)] == [1, 6]  # the second fills the batch up


@pytest.mark.slow
def test_a_model_that_was_never_trained_writes_well_formed_texts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    from littledragon.pipelines.eval_models import generated
    from littledragon.pipelines.questions import Prompt, Settings, Source

    tags = ("evidence", "analysis", "effect", "map", "trace_sequence", "summary")
    tokenizer = byte_level([f"</{tag}>\n" for tag in tags] + ['<trace_sequence id="t0">\n'])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8192, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    asked = [{"role": "user", "content": "Schedule."}]
    prompts = {n: Prompt(n, "construct", "gemm", "w", "e", asked, "", 1.0, None) for n in ("x-1", "x-2")}
    source, gates = Source(model=str(tmp_path / "m")), {}
    for constrain, most in ((True, 300), (False, 40)):
        settings_ = Settings(samples=4, batch=8, max_tokens=most, constrain=constrain)
        texts = generated(source, prompts, tmp_path / f"{constrain}.jsonl", settings_)
        assert len({text.output for text in texts}) > 4
        ended = [text.output for text in texts if text.ended == "eos" or not constrain]
        gates[constrain] = [tsel.diagnose(text).gate for text in ended]
        assert f'"constrain": {str(constrain).lower()}' in (tmp_path / f"{constrain}.jsonl").read_text().splitlines()[0]
    assert len(gates[True]) > 2  # the others were cut
    assert gates == {True: [None] * len(gates[True]), False: ["parsed"] * 8}


@pytest.mark.parametrize("source", [["--baseline", "default"], ["--endpoint", "http://localhost:9", "--model", "m"]])
def test_only_a_local_model_can_be_constrained(
    source: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["eval", "--data", str(tmp_path), "--out", str(tmp_path / "r"), "--constrain", *source]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: --constrain masks the tokens of a local model")
