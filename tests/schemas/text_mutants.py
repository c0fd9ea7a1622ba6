"""Mutants of texts, in either notation: small wrong changes (`TEXTS`), spoilt encodings (`BYTEWISE`), and texts that
aim at a reader's time, memory or stack (`HOSTILE`)."""

import random
import re
from collections.abc import Callable

BYTES = 1 << 20
"""The longest text that the language reads."""
_NAME = re.compile(r"(?<![\w.])(?:[blvB]\d+(?:-\d+)?|t\d+\.\d+\.\d+|\.\d+\.\d+)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_LIST = re.compile(r"\[-?\d{1,20}(?:, ?-?\d{1,20})*\]")
_STRING = re.compile(r'"[^"<>\n]*"')
_WORD = re.compile(r"(?<![\w.<])[A-Za-z][A-Za-z_]{2,}")
_EDIT = re.compile(r"<trace_sequence\b.*?</trace_sequence>\n?", re.DOTALL)
_NODE = re.compile(r"<(evidence|analysis|map|effect|trace_sequence)\b.*?</\1>\n?|<[a-z]+ [^<>]*/>\n?", re.DOTALL)
_ATTRIBUTE = re.compile(r' [a-z]+="[^"]*"')
_DECISION = re.compile(r',"d":(?:\{[^{}]*\}|-?\d+)|(?<= )(?:\[[\d,]*\]|-?\d+)(?=\n)')
_KIND = re.compile(r'"k":"(\w+)"|(?:(?<== )|(?<=\n))[a-z_]+(?= )')
_SUMMARY = re.compile(r"<summary>.*?</summary>")
_MAP = re.compile(r"<map id=\"m\d+\">.*?</map>")

_NAMES = (
    *("b0", "l1", "v5", "l4-10", "l4-4000000", "l99-3", "b", "l", "l-1", "L4", "x3", "l01", "l1e3", "l１７"),
    *("l٣", "l²", "t0.0.0", ".0.0", ".9.9", "t999999.0.0", "t0.0.00000", "b0-0", "l5-"),
    *("v99999999999999999999", '"b0"', "none"),
)
_NUMBERS = (
    *("0", "-1", "1", "2", "3", "64", "2147483647", "2147483648", "-2147483649", "9223372036854775808"),
    *("1e999", "9" * 25, "9" * 5000, "0.5", "-0", "-0.0", "007", "+5", "5.", "1_000", "0x10", "５", "1١"),
    *("NaN", "Infinity", "null", "true", "false", '"4"', "[]", "{}", "[1]", '{"int":5}'),
    *('{"IntImm:int64":5}', '{"IntImm:int8":500}', '{"float":1e400}', '{"FloatImm:float16":1}'),
    *('{"str":"b3"}', '{"map":"m0"}', '{"dict":{"a":1}}', "1e-5000"),
)
_WORDS = (
    *("tile", "split", "reorder", "fuse", "bind", "block", "loops", "categorical", "annotate"),
    *("cache_read", "merge", "enter_postproc", "location", "compute_at", "transform_layout", "blockize"),
    *("tensorize", "children", "rfactor", "GetSBlock", "GetLoops", "Fuse", "Split", "Reorder", "Bind"),
    *("SamplePerfectTile", "EnterPostproc", "Tile", "x"),
)
_STRINGS = (
    *('""', '"root"', '"main"', '"tsel/2"', '"line"', '"json"', '"xml"', '"m0"', '"m99"', '"t0"', '"t1"'),
    *('"e0"', '"\\""', '"\\ud800"', '"\\u0000"', '"None"', '"{}"', '"\\n"', '"&quot;"', '"b0"', '"l17"'),
    *("'x'", '"a=b"', '"[1]"', '"# x"'),
)
_ODD = (
    *("\u202e", "\u2066", "\u200b", "\ufeff", "\xa0", "\u2028", "\x85", "\x0b", "\x7f", "\x00", "\x1b"),
    *("\ufffe", "\ud800", "\t", "\r", "\r\n", "  ", "\n\n", "\n ", " \n", ",", ",,", "=", "#", "]", "["),
    *("}", "{", '"', "'", "\\", "<", ">", "&", "&lt;", "&#0;", "&#x110000;", "&#xd800;", "&#108;", "&a;"),
    *("<!-- -->", "<![CDATA[x]]>", "]]>", "<?x y?>"),
)
_NODES = (
    '<postproc rules="cuda" version="1"/>',
    '<postproc rules="cuda-tensorcore" version="1"/>',
    '<postproc rules="llvm" version="01"/>',
    '<postproc rules="llvm" version="99999999999999999999"/>',
    '<postproc rules="no-such" version="1"/>',
    '<postproc version="1"/>',
    '<supports from="e0" to="a0"/>',
    '<predicts from="t0" to="p9"/>',
    '<trace_sequence id="t0" kind="x"></trace_sequence>',
    '<trace_sequence id="t77777777" kind="x">\nb0 = block root\n</trace_sequence>',
    '<map id="m0">{"in":["i0"],"out":["i0"]}</map>',
    '<map id="m7">{"in":["i0"],"let":{"$0":["+","i0","$0"]},"out":["$0","$0"]}</map>',
    '<map id="m8">{"in":["i0"],"out":[["//","i0",0]]}</map>',
    "<summary>x</summary>",
    '<graph version="tsel/1"/>',
    "<evil/>",
    "text",
    "</graph>",
    "<graph>",
)


def _at(draw: random.Random, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """A match at a random place."""
    return pattern.search(text, draw.randrange(len(text) + 1)) or pattern.search(text)


def _over(text: str, match: re.Match[str] | None, put: str) -> str:
    return text if match is None else text[: match.start()] + put + text[match.end() :]


def _name(draw: random.Random, text: str) -> str:
    other = _at(draw, _NAME, text)
    put = other[0] if other and draw.random() < 0.6 else draw.choice(_NAMES)
    return _over(text, _at(draw, _NAME, text), put)


def _letter(draw: random.Random, text: str) -> str:
    match = _at(draw, _NAME, text)
    return _over(text, match, draw.choice("blvxB") + match[0][1:]) if match else text


def _near(draw: random.Random, text: str) -> str:
    """A number that is a little off, wherever it stands."""
    match = _at(draw, re.compile(r"\d{1,9}"), text)
    return _over(text, match, str(max(0, int(match[0]) + draw.choice((-1, 1, 2, 7))))) if match else text


def _swap(draw: random.Random, text: str) -> str:
    pattern = draw.choice((_NAME, _NUMBER, _STRING, _WORD))
    first, second = _at(draw, pattern, text), _at(draw, pattern, text)
    if first is None or second is None or first.start() == second.start():
        return text
    if first.start() > second.start():
        first, second = second, first
    return text[: first.start()] + second[0] + text[first.end() : second.start()] + first[0] + text[second.end() :]


def _number(draw: random.Random, text: str) -> str:
    return _over(text, _at(draw, _NUMBER, text), draw.choice(_NUMBERS))


def _factors(draw: random.Random, text: str) -> str:
    """Factors in another order, doubled, halved, or a wrong number of them."""
    match = _at(draw, _LIST, text)
    if match is None:
        return text
    values = [int(value) for value in match[0][1:-1].split(",")]
    change = draw.randrange(5)
    at = draw.randrange(len(values))
    if change == 0:
        draw.shuffle(values)
    elif change == 1:
        values[at] *= 2
    elif change == 2:
        values[at] //= 2
    elif change == 3:
        del values[at]
    else:
        values.append(draw.choice((0, 1, 2, -1)))
    return _over(text, match, f"[{','.join(map(str, values))}]")


def _line(draw: random.Random, text: str) -> str:
    """A line away, twice, elsewhere, in two, joined to the next, or in another's place."""
    lines = text.split("\n")
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
    change = draw.randrange(6)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(to, lines[at])
    elif change == 2:
        lines.insert(to, lines.pop(at))
    elif change == 3:
        cut = draw.randint(0, len(lines[at]))
        lines[at : at + 1] = [lines[at][:cut], lines[at][cut:]]
    elif change == 4:
        lines[at : at + 2] = ["".join(lines[at : at + 2])]
    else:
        lines[at] = lines[to]
    return "\n".join(lines)


def _node(draw: random.Random, text: str) -> str:
    """A whole node away, twice, elsewhere, or a new one."""
    match = _at(draw, _NODE if draw.random() < 0.5 else _EDIT, text)
    if match is None:
        return text
    change = draw.randrange(5)
    if change == 0:
        return _over(text, match, "")
    if change == 1:
        return _over(text, match, match[0] * 2)
    if change == 2:
        return _over(text, match, match[0] + draw.choice(_NODES) + "\n")
    if change == 3:
        return text.replace("</graph>", draw.choice(_NODES) + "\n</graph>")
    without = _over(text, match, "")
    other = _at(draw, _NODE, without)
    return _over(without, other, match[0] + other[0]) if other else text


def _decision(draw: random.Random, text: str) -> str:
    return _over(
        text, _at(draw, _DECISION, text), draw.choice(("", "", "0", "-1", ',"d":0', ',"d":null', "[1,1]", "7"))
    )


def _kind(draw: random.Random, text: str) -> str:
    match = _at(draw, _KIND, text)
    if match is None:
        return text
    other = _at(draw, _KIND, text) if draw.random() < 0.7 else None
    word = other[0] if other else draw.choice(_WORDS)
    return _over(text, match, word if match[0][0] != '"' or word[0] == '"' else f'"k":"{word}"')


def _word(draw: random.Random, text: str) -> str:
    return _over(text, _at(draw, _WORD, text), draw.choice(_WORDS))


def _string(draw: random.Random, text: str) -> str:
    return _over(text, _at(draw, _STRING, text), draw.choice(_STRINGS))


def _attribute(draw: random.Random, text: str) -> str:
    match = _at(draw, _ATTRIBUTE, text)
    if match is None:
        return text
    put = ("", match[0] * 2, match[0] + ' x="1"', match[0].replace('="', '=" '), match[0].upper(), match[0] + " y")
    return _over(text, match, draw.choice(put))


def _odd(draw: random.Random, text: str) -> str:
    at = draw.randint(0, len(text))
    if draw.random() < 0.5 and (match := _at(draw, re.compile(r"\W"), text)):
        at = match.start()
    return text[:at] + draw.choice(_ODD) + text[at + draw.choice((0, 0, 1)) :]


def _escaped(draw: random.Random, text: str) -> str:
    """A character by its number: another spelling of the same text, where it stands in a node."""
    at = draw.randrange(len(text)) if text else 0
    return text[:at] + "".join(f"&#{ord(c)};" for c in text[at : at + 1]) + text[at + 1 :]


def _cut(draw: random.Random, text: str) -> str:
    at = draw.randint(0, len(text))
    return draw.choice((text[:at], text[at:], text[:at] + text[at + draw.randint(1, 200) :]))


def _space(draw: random.Random, text: str) -> str:
    """White space that may or may not matter."""
    old, new = draw.choice((("\n", "\r\n"), ("\n", "\n\n"), (" ", "  "), ("\n", " \n"), ("\n", "\n  "), (",", ", ")))
    return text.replace(old, new) if draw.random() < 0.4 else text.replace(old, new, draw.randint(1, 5))


def _head(draw: random.Random, text: str) -> str:
    put = (
        "\ufeff",
        " ",
        "\n",
        "<?xml version='1.0'?>",
        '<?xml version="1.0" encoding="utf-16"?>',
        "<!-- x -->",
        "<?p?>",
    )
    put += ('<!DOCTYPE graph [<!ENTITY a "b">]>', '<!DOCTYPE graph SYSTEM "file:///etc/hostname">', "x", "\x00", "&lt;")
    return draw.choice(put) + text if draw.random() < 0.7 else text + draw.choice(put)


def _notation(draw: random.Random, text: str) -> str:
    if draw.random() < 0.5:
        return (
            text.replace('notation="line"', 'notation="json"') if '"line"' in text else text.replace('"json"', '"line"')
        )
    return re.sub(r'tvm="[^"]*"', draw.choice(('tvm="0.25.0"', 'tvm="0.27.0.post1"', 'tvm=""')), text, count=1)


def _summary(draw: random.Random, text: str) -> str:
    put = ("", "<summary></summary>", "<summary>x &lt; y</summary>", "<summary><b/></summary>", "<summary>\n</summary>")
    if draw.random() < 0.5:
        return _over(text, _at(draw, re.compile(r'kind="\w+">'), text), 'kind="x">' + draw.choice(put))
    return _over(text, _at(draw, _SUMMARY, text), draw.choice(put))


def _map(draw: random.Random, text: str) -> str:
    match = _at(draw, _MAP, text)
    if match is None:
        return text
    inner = draw.choice((_name, _number, _string, _near, _swap))(draw, match[0][13:-6])
    return _over(text, match, match[0][:13] + inner + match[0][-6:])


TEXTS: list[tuple[str, Callable[[random.Random, str], str]]] = [
    *(("text name", _name), ("text name", _name), ("text letter", _letter), ("text near", _near), ("text swap", _swap)),
    *(("text number", _number), ("text number", _number), ("text factors", _factors), ("text factors", _factors)),
    *(("text line", _line), ("text line", _line), ("text node", _node), ("text node", _node), ("text map", _map)),
    *(("text decision", _decision), ("text kind", _kind), ("text word", _word), ("text string", _string)),
    *(("text attribute", _attribute), ("text odd", _odd), ("text odd", _odd), ("text escaped", _escaped)),
    *(("text cut", _cut), ("text space", _space), ("text head", _head), ("text notation", _notation)),
    ("text summary", _summary),
]


# What is no text at all.

_INVALID = (b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x00", b"\xef\xbb\xbf")


def _spoilt(draw: random.Random, text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    at = draw.randint(0, len(data))
    return data[:at] + draw.choice(_INVALID) + data[at + draw.choice((0, 1)) :]


def _flipped(draw: random.Random, text: str) -> bytes:
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw.choice((1, 1, 2, 8)) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def _recoded(draw: random.Random, text: str) -> bytes:
    return text.encode(draw.choice(("utf-16", "utf-32", "utf-16-be")), "replace")


def _noise(draw: random.Random, text: str) -> bytes:
    return draw.randbytes(draw.randint(0, 300))


BYTEWISE: list[tuple[str, Callable[[random.Random, str], bytes]]] = [
    ("bytes spoilt", _spoilt),
    ("bytes flipped", _flipped),
    ("bytes flipped", _flipped),
    ("bytes recoded", _recoded),
    ("bytes noise", _noise),
]


# What aims at time, memory or the stack.


def _deep(draw: random.Random, text: str) -> str:
    """JSON nested thousands deep where a value stands."""
    depth = draw.choice((10, 47, 49, 1000, 5000, 100_000))
    opening, closing = draw.choice((("[", "]"), ('{"dict":{"a":', "}}"), ('["+",', ",1]"), ('{"a":', "}")))
    return _over(text, _at(draw, _NUMBER, text), opening * depth + "1" + closing * depth * draw.choice((0, 1)))


def _bomb(draw: random.Random, text: str) -> str:
    levels = draw.choice((2, 9, 40))
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(levels))
    kind = draw.choice(("ENTITY e0", "ENTITY % e0", "ATTLIST graph x CDATA", "NOTATION n SYSTEM"))
    return f'<!DOCTYPE graph [<!{kind} "aaaaaaaaaa">{entities}]>' + text.replace("<trace", f"&e{levels};<trace", 1)


def _long(draw: random.Random, text: str) -> str:
    """A very long name, number or string."""
    size = draw.choice((500, 9000, 200_000, BYTES - len(text) - 100))
    pattern = draw.choice((_NAME, _NUMBER, _STRING, _WORD))
    unit = draw.choice(("9", "a", "é", "[", '"', "\\", "0 ", "l1 ", "1,", "-", ".0", "l1-2 "))
    match = _at(draw, pattern, text)
    return _over(text, match, (match[0] if match else "") + unit * (size // len(unit.encode())))


def _wide(draw: random.Random, text: str) -> str:
    """One instruction, node, attribute or edge very many times."""
    left = BYTES - len(text.encode("utf-8", "replace")) - 10
    match = _at(draw, draw.choice((re.compile(r".+\n"), _NODE, _ATTRIBUTE, _EDIT)), text)
    if match is None:
        return text
    unit = draw.choice(
        (match[0], match[0], "b0 = block root\n", '{"k":"EnterPostproc"}\n', "enter_postproc\n", "<a>", "\n")
    )
    return _over(text, match, match[0] + unit * (max(left, 0) // len(unit.encode("utf-8", "replace"))))


def _ranges(draw: random.Random, text: str) -> str:
    """Short spellings of very much."""
    many = draw.choice(("l4-4000000", "l0-99999999999", "l4-515", "l4-516", "b0-600", "l4-3", "l4-4"))
    line = draw.choice((f"{many} = loops b0\n", f"reorder {many}\n", f"reorder {many} {many}\n", f"{many} = split\n"))
    return _over(text, _at(draw, re.compile(r".+\n"), text), line * draw.choice((1, 1, 20_000)))


def _nested(draw: random.Random, text: str) -> str:
    unit = draw.choice(("<graph>", "<a>", "<trace_sequence>", "<summary>", "<a b='c'>"))
    return text.replace("<trace", unit * draw.choice((3, 1000, 100_000)) + "<trace", 1)


def _padded(draw: random.Random, text: str) -> str:
    """Just at the largest size, or one over it."""
    size = BYTES - len(text.encode("utf-8", "replace")) + draw.choice((-1, 0, 1, 1000))
    pad = draw.choice((" ", "\n", "\t", "\r"))
    return text.replace("</graph>", pad * size + "</graph>") if draw.random() < 0.5 else text + pad * size


def _lets(draw: random.Random, text: str) -> str:
    """Maps whose short text stands for very much."""
    levels = draw.choice((5, 31, 33, 3000))
    lets = ",".join(f'"${n}":["*","${n - 1}","${n - 1}"]' if n else '"$0":1' for n in range(levels))
    deep = f'<map id="m0">{{"in":["i"],"let":{{{lets}}},"out":["${levels - 1}","${levels - 1}"]}}</map>\n'
    outs = ",".join(['["+","i",1]'] * draw.choice((100, 1000, 1365, 5000)))
    wide = f'<map id="m0">{{"in":["i"],"out":[{outs}]}}</map>\n'
    json = '{"k":"TransformBlockLayout","i":["t0.0.0"],"a":[{"map":"m0"}]}\n'
    uses = draw.choice(("transform_layout b0 m0\n", "transform_block_layout b0 m0\n", json))
    text = re.sub(r'<map id="m0">.*</map>\n', "", text)
    text = text.replace("<trace", draw.choice((deep, wide)) + "<trace", 1)
    return text.replace("</trace", uses * draw.choice((1, 50, 5000)) + "</trace", 1)


HOSTILE: list[tuple[str, Callable[[random.Random, str], str]]] = [
    ("hostile deep", _deep),
    ("hostile bomb", _bomb),
    ("hostile long", _long),
    ("hostile wide", _wide),
    ("hostile ranges", _ranges),
    ("hostile nested", _nested),
    ("hostile padded", _padded),
    ("hostile lets", _lets),
]
