"""Finding claims of a measured gain in prose, whatever they are dressed in.

An explanation may say what a schedule does and what that is expected to change ("should reduce loop
overhead"). It may not say that anything is faster, by how much, how long it takes, or that somebody measured
it: nothing in the tables that a teacher sees supports such a sentence.
"""

import re
from typing import Final

from littledragon.validators._prose import joined, skeleton

_NUMBER: Final = (
    r"(?:(?<!\d)\d[\d.,/]*+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty|"
    r"seventy|eighty|ninety|hundred|thousand|several|many|half|twice|a few|dozens?)"
)
_GAIN: Final = (
    r"(?:speed|performance|throughput|efficiency|gain|improvement|win|boost|faster|quicker|better|fast|quick)"
)
_TIME: Final = r"(?:latency|latencies|runtimes?|run-times?|time|times|durations?|delays?)"
_COST: Final = r"(?:latency|latencies|runtimes?|run-times?|time|durations?|delays?|costs?|cycles)"
_NTH: Final = (
    r"(?:half|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|twelfth|hundredth|thousandth|fraction)s?"
)
_PORTION: Final = (
    r"(?:portion|part|share|majority|bulk|most|much|chunk|slice|sliver|bit|rest|all|none|some|percentage)s?"
)
_BEFORE: Final = (
    r"before (?:graph a|the (?:default|prior|previous|supplied|parent|original|baseline|other (?:schedule|kernel)))"
)
_LESS: Final = r"(?:shorter|lower|less|reduced|smaller|better|improved|shortened|minimal|lowest|shortest)"
_CUT: Final = r"(?:sav|cut|reduc|halv|shorten|lower|shav|decreas|minimi|trim|slash|drop|improv)\w*"
_SEEN: Final = r"(?:observ|saw|see|found|find|record|show|prov|confirm|demonstrat)"
_REACH: Final = (
    r"(?:achiev|deliver|reach|meet|met|obtain|attain|reali[sz]|provid|guarant|promis|ensur|secur|fulfil|satisf|hit|"
    r"land|yield|fall|exceed|surpass)"
)
_THING: Final = r"(?:known|possible|ever|schedule|kernel|candidate|variant|version|found)"

_RULES: Final[dict[str, tuple[str, ...]]] = {
    "a speed-up": (
        r"\bspeed[\s-]*(?:s|ed|ing)?[\s-]*(?:it|this|the \w+|things|execution|\w+)?[\s-]*up",
        r"\bup[\s-]*speed|\bsped\b|\bspeedier\b|\bspeediest\b|\bspeeds\b|\bspeeding\b",
        r"\baccelerat(?:e|es|ed|ing|ion)\b|\bturbo",
    ),
    "a comparison of speed": (
        r"\bfast(?:er|est)\b|\bquick(?:er|est)\b|\bswift(?:er|est)\b|\brapid(?:er|est)\b|\bsnappier\b",
        r"\bslow(?:er|est|ed|s|down|downs)?\b|\bslow[\s-]down",
        r"\bfast\b(?! (?:memory|storage|cache|local|on-chip|path))|\b(?:speedy|swift|rapid|quick)(?:ly)?\b|\bspeed\b",
        r"\bas (?:fast|quick|quickly|slow|performant)\b|\bfast as\b",
        r"\bsooner\b|\b(?:finish|complet|end|done|ready|over)\w* (?:\w+ )?earlier\b",
        rf"\b(?:finish|complet|end|done|ready|over)\w* (?:\w+ ){{0,2}}?{_BEFORE}\b",
        r"\bbrisk|\bnimbl|\bzipp(?:y|ier|iest)|\bhast(?:e|en|ens|ened|y|ier)\b|\bexpedit|\bspeedily\b|\bhurr(?:y|ies)\b",
        r"\b(?:improv|exceed|better|top)\w* (?:on |upon |over )?"
        r"(?:graph a|the (?:prior|previous|supplied|parent|default))\b",
        r"\b(?:schedule|script|kernel|candidate|variant|version) is (?:\w+ )?(?:optimal|better|best)\b",
        r"\boutperform|\bout-perform|\boutpac|\bbeats?\b|\bsurpass|\bwins? over\b",
        r"\b(?:more|most|highest|best|better|top|peak)[\s-]perform",
        rf"\b(?:fast|quick|optimal|best)[\s-]{_THING}\b",
    ),
    "a gain": (
        r"\bsuperior\b|\b(?:more|most) efficient|\bbetter than\b|\bimproves? (?:on|upon|over)\b|\bworse\b",
        r"\bperforms? (?:\w+ )?(?:better|well|best)|\b(?:higher|better|good|great|high|peak|best) performance",
        r"\b(?:large|big|huge|clear|significant|substantial|considerable|notable|major|net) (?:\w+ )?"
        r"(?:gain|win|improvement|boost)",
        r"\bperformance (?:gains?|improvements?|boosts?|wins?|increases?|uplift|is (?:better|higher|improved))",
        r"\b(?:gain|improv|boost|increas|rais|lift|enhanc|doubl|tripl)\w* (?:\w+ ){0,3}?"
        r"(?:performance|speed|throughput)\b",
        r"\b(?:performance|speed|throughput) (?:\w+ ){0,3}?(?:doubl|tripl|quadrupl|improv|increas|ris|rose|gain)",
    ),
    "a gain by a number": (
        rf"{_NUMBER}[\s-]*(?:x|×|times|fold)[\s-]*(?:\w+ ){{0,2}}?{_GAIN}\b",
        rf"\b{_GAIN}s?\b (?:\w+ ){{0,2}}?(?:by|of|to) (?:\w+ ){{0,3}}?{_NUMBER}",
        rf"\b(?:gain|improvement|boost|win|benefit)s? of (?:\w+ ){{0,3}}?[x×]?\s?{_NUMBER}",
        rf"\b(?:improv|gain|boost|better)\w* (?:\w+ ){{0,4}}?by (?:\w+ ){{0,3}}?{_NUMBER}",
        r"\bfold\b|\w+fold (?:gain|improvement|increase|reduction|decrease|drop)",
        r"\borders? of magnitude\b|\bfactor of (?:\w+ )?(?:improvement|gain|speed)",
        r"\b(?:twice|double|triple|thrice|half|quarter) (?:\w+ ){0,3}?(?:speed|performance|throughput|cost|cycles)\b",
        rf"\b(?:twice|double|triple|thrice|half|quarter) (?:\w+ ){{0,3}}?{_TIME}\b",
    ),
    "a part of the time": (
        rf"\b{_NTH} (?:of )?(?:\S+ ){{0,2}}?{_COST}\b",
        rf"\b{_PORTION} of (?:\S+ ){{0,2}}?{_TIME}\b",
        rf"\b{_COST} (?:\S+ ){{0,3}}?(?:is|are|to|by|becomes?|stays?|remains?|at|only|just) (?:\w+ ){{0,2}}?"
        rf"(?:an?|one|two|three) (?:\w+ )?{_NTH}\b",
        rf"\b{_NTH} (?:as long|cheaper|shorter|lower|less|longer)\b|\b(?:times|nowhere near) as long\b",
        rf"\b(?:costs?|takes?|needs?|pays?) (?:\w+ ){{0,2}}?(?:an?|one) (?:\w+ )?{_NTH} of (?:what|that|graph|its)\b",
    ),
    "a percentage": (
        rf"{_NUMBER}[\s-]*(?:%(?!\s*[\d(#])|percent|per cent|pct|percentage points?)",
        r"\b(?:percent|per cent|percentage)\b",
    ),
    "a time": (
        rf"{_NUMBER}\s*(?:us|usec|ms|msec|ns|nsec|sec|secs|seconds?|minutes?)\b",
        r"\b(?:micro|milli|nano)[\s-]?sec|\bseconds\b|\busecs?\b|\bmsecs?\b",
        r"\b(?:execution|elapsed|wall|wall[\s-]clock|kernel|running|compute|inference)[\s-]?times?\b",
        r"\btakes? (?:only )?(?:\w+ ){0,2}?(?:less|half|fewer|shorter)\b(?! (?:\w+ )?(?:memory|space|room|storage)\b)",
        r"\b(?:takes?|took|lasts?|lasted|needs?|runs?) (?:\w+ ){0,2}?(?:no|not as|not so|any|much|far) long(?:er)?\b",
        r"\bin (?:\w+ ){0,2}?no time\b",
        r"\b(?:little|(?:hardly|scarcely|barely) any|next to no|no) time\b(?! (?:do|does|is there))",
        r"\b(?:shorter|briefer) (?:span|while|period|wait)\b",
        r"\bwait(?:s|ing)? (?:\w+ ){0,2}?(?:shorter|less|shrinks?|drops?)\b",
        r"\btime (?:is |are |gets )?(?:\w+ )?saved\b|\btime[\s-]sav(?:ing|er)|\b(?:clock|watch) (?:\w+ ){0,2}?less\b",
        r"\bruns? in (?:\w+ ){0,2}?\d",
        r"\b(?:fewer|less) (?:clock |processor )?cycles\b",
    ),
    "a change of time": (
        rf"\b{_LESS} (?:\w+ ){{0,2}}?{_TIME}\b|\b(?:higher|better|improved|more) (?:\w+ ){{0,2}}?throughput\b",
        rf"\b{_CUT} (?:\w+ ){{0,4}}?{_TIME}\b",
        rf"\b{_TIME} (?:\w+ ){{0,3}}?"
        r"(?:fall|fell|drop|shrink|shrank|decreas|improv|halv|reduc|lower|shorter|better|less|smaller|vanish|disappear|"
        r"dwindl|declin|sink|sank|plummet|diminish|(?:go|goes|went|comes|came) (?:\w+ )?(?:down|away))",
    ),
    "a rate": (
        r"\b(?:[gtp]|giga|tera|peta)flops?(?:/s)?\b|\bflops?/s\b|\bflops per second\b|\b[gtp]ops\b",
        r"\b(?:[gtp]|giga|tera|peta)flop",
        r"\b[kmgt]i?b/s\b|\b[gt]bps\b|\bbytes per second\b|\bper second\b|\btokens/s\b",
    ),
    "a measurement": (
        r"\bmeasur\w*|\bbenchmark|\bprofil(?:ed|er|ing|es)\b|\btimed\b|\btimings?\b",
        r"\b(?:empirical|empirically|experiment|experiments|experimental|experimentally)\b",
        rf"\b(?:we|i|tests?|runs?|results?|data|trials?) (?:have |has )?{_SEEN}",
        r"\b(?:observed|recorded|proven|demonstrated|confirmed) (?:\w+ ){0,3}?(?:gain|improvement|benefit|win|result)",
    ),
    "that the gain band is reached": (
        rf"\b{_REACH}\w* (?:\S+ ){{0,6}}?(?:gain|improvement|band)\b",
        r"\b(?:gain|improvement|band)s? (?:\S+ ){0,3}?(?:is|was|are|were|has been|have been|will be) (?:\w+ ){0,2}?"
        rf"{_REACH}",
        r"\b(?:is|are|lies?|sits?|stays?|comes?) (?:\w+ ){0,2}?(?:within|inside|in|beyond|above) (?:\S+ ){0,4}?band\b",
    ),
}
_COMPILED: Final = tuple((re.compile(pattern), what) for what, patterns in _RULES.items() for pattern in patterns)
_CORE = re.compile(
    r"speedup|\bfaster|fastest|\bslower|quicker|outperform|benchmark|\baccelerat(?:e|es|ed|ing|ion)\b|gflop|tflop"
)
_BAND = re.compile(r"\[\s*in\.request\.gain_band\s*=[^\[\]\n]*\]", re.IGNORECASE)
_BAND_WORD: Final = "requestedband"
_ASKED = re.compile(r"\b(?:request(?!edband)|ask|aim|seek|sought|want|call)")
_CITATION = re.compile(r"\[\s*(?:in|out)\.[^\[\]\n]*(?:\[[^\[\]\n]*\][^\[\]\n]*)?\]", re.IGNORECASE)


def speedup(text: str) -> str | None:
    """The words of a text that claim a measured gain, and what they claim; None where there are none.

    Citations are left out first, so the gain band that a refinement prompt asks for can be named by citing it, in a
    sentence that says that it is asked for.
    """
    banded = skeleton(_CITATION.sub(" # ", _BAND.sub(f" {_BAND_WORD} ", text)))
    for sentence in re.split(r"[.;!?](?:\s|$)", banded):
        if _BAND_WORD in sentence and not _ASKED.search(sentence):
            return f"'{sentence.replace(_BAND_WORD, '[…]').strip()[:60]}' claims that the gain band is reached"
    plain = banded.replace(_BAND_WORD, "#")
    for pattern, what in _COMPILED:
        match = pattern.search(plain)
        if match:
            return f"'{match.group().strip()[:60]}' claims {what}"
    match = _CORE.search(joined(plain))
    return f"'{match.group()}' claims a gain" if match else None
