"""Finding claims of a measured gain in prose, whatever they are dressed in.

An explanation may say what a schedule does and what that is expected to change ("should reduce loop
overhead"). It may not say that anything is faster, by how much, how long it takes, or that somebody measured
it: nothing in the tables that a teacher sees supports such a sentence.
"""

import re
from typing import Final

from littledragon.validators._prose import joined, skeleton

_NUMBER = (
    r"(?:\d[\d.,/]*|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty|"
    r"seventy|eighty|ninety|hundred|thousand|several|many|half|twice|a few|dozens?)"
)
_GAIN = r"(?:speed|performance|throughput|efficiency|gain|improvement|win|boost|faster|quicker|better|fast|quick)"
_TIME = r"(?:time|times|duration|runtime|run-time|latency|latencies|cost|cycles)"

_RULES: Final[tuple[tuple[str, str], ...]] = (
    (r"\bspeed[\s-]*(?:s|ed|ing)?[\s-]*(?:it|this|the \w+|things|execution|\w+)?[\s-]*up", "a speed-up"),
    (r"\bup[\s-]*speed|\bsped\b|\bspeedier\b|\bspeediest\b|\bspeeds\b|\bspeeding\b", "a speed-up"),
    (r"\bfast(?:er|est)\b|\bquick(?:er|est)\b|\bswift(?:er|est)\b|\brapid(?:er|est)\b|\bsnappier\b", "faster"),
    (r"\bslow(?:er|est|ed|s|down|downs)?\b|\bslow[\s-]down", "slower"),
    (r"\bas (?:fast|quick|quickly|slow|performant)\b|\bfast as\b", "a comparison of speed"),
    (r"\baccelerat(?:e|es|ed|ing|ion)\b|\bturbo", "an acceleration"),
    (r"\boutperform|\bout-perform|\boutpac|\bbeats?\b|\bsurpass|\bwins? over\b", "a comparison of speed"),
    (r"\b(?:more|most|highest|best|better|top|peak)[\s-]perform", "a comparison of speed"),
    (rf"\bperformance (?:gains?|improvements?|boosts?|wins?|increases?|uplift|is (?:better|higher|improved))", "a gain"),
    (r"\b(?:gain|improv|boost|increas|rais|lift|enhanc|doubl|tripl)\w* (?:\w+ ){0,3}?(?:performance|speed)\b", "a gain"),
    (r"\b(?:performance|speed|throughput) (?:\w+ ){0,3}?(?:doubl|tripl|quadrupl|improv|increas|ris|rose|gain)", "a gain"),
    (rf"{_NUMBER}[\s-]*(?:x|×|times|fold)[\s-]*(?:\w+ ){{0,2}}?{_GAIN}\b", "a factor"),
    (rf"\b{_GAIN}s?\b (?:\w+ ){{0,2}}?(?:by|of|to) (?:\w+ ){{0,3}}?{_NUMBER}", "a gain by a number"),
    (rf"\b(?:twice|double|triple|thrice|half|quarter) (?:\w+ ){{0,3}}?(?:speed|performance|throughput|{_TIME})\b", "a factor"),
    (rf"{_NUMBER}[\s-]*(?:%|percent|per cent|pct|percentage points?)", "a percentage"),
    (r"\b(?:percent|per cent|percentage)\b", "a percentage"),
    (r"\bfold\b|\w+fold (?:gain|improvement|increase|reduction|decrease|drop)", "a factor"),
    (r"\borders? of magnitude\b|\bfactor of (?:\w+ )?(?:improvement|gain|speed)", "a factor"),
    (rf"{_NUMBER}\s*(?:us|usec|ms|msec|ns|nsec|microsec\w*|millisec\w*|nanosec\w*|sec|secs|seconds?|minutes?)\b", "a time"),
    (r"\b(?:micro|milli|nano)[\s-]?seconds?\b|\bseconds\b|\busecs?\b|\bmsecs?\b", "a time"),
    (r"\b(?:[kmgtp]|giga|tera|peta|mega)?flop/?s\b(?=\s*(?:/|per|rate|achiev|reach))", "a rate"),
    (r"\b(?:[gtp]|giga|tera|peta)flops?(?:/s)?\b|\bflops?/s\b|\bflops per second\b|\b[gtp]ops\b", "a rate"),
    (r"\b[kmgt]i?b/s\b|\b[gt]bps\b|\bbytes per second\b|\bper second\b|\btokens/s\b", "a rate"),
    (r"\b(?:shorter|lower|less|reduced|smaller|better|improved|higher|shortened|minimal|lowest|shortest) (?:\w+ ){0,2}?"
     r"(?:latency|latencies|runtime|time|times|throughput)\b", "a change of time"),
    (rf"\b(?:sav|cut|reduc|halv|shorten|lower|shav|decreas|minimi|trim|slash|drop|improv)\w* (?:\w+ ){{0,4}}?"
     r"(?:latency|latencies|runtime|run-time|time|times|duration)\b", "a change of time"),
    (r"\b(?:latency|latencies|runtime|duration|time) (?:\w+ ){0,3}?"
     r"(?:fall|fell|drop|shrink|shrank|decreas|improv|halv|reduc|lower|shorter|better|less)", "a change of time"),
    (r"\b(?:execution|elapsed|wall|wall[\s-]clock|kernel|running|compute|inference)[\s-]?times?\b", "a time"),
    (r"\btakes? (?:only )?(?:\w+ ){0,2}?(?:less|half|fewer|shorter)\b|\bruns? in (?:\w+ ){0,2}?\d", "a time"),
    (r"\bmeasur(?:e|ed|es|ing|ement|ements|ably)\b|\bbenchmark|\bprofil(?:ed|er|ing|es)\b|\btimed\b|\btimings?\b", "a measurement"),
    (r"\b(?:empirical|empirically|experiment|experiments|experimental|experimentally)\b", "a measurement"),
    (r"\b(?:we|i|tests?|runs?|results?|data|trials?) (?:have |has )?(?:observ|saw|see|found|find|record|show|prov|confirm|demonstrat)", "a measurement"),
    (r"\b(?:observed|recorded|proven|demonstrated|confirmed) (?:\w+ ){0,3}?(?:gain|improvement|benefit|win|result)", "a measurement"),
    (r"\b(?:achiev|deliver|reach|meet|met|obtain|attain|reali[sz]|provid|guarant|promis|ensur|secur|fulfil|satisf|hit|land|yield|fall)\w* "
     r"(?:\w+ ){0,6}?(?:gain|improvement|band)\b", "the gain band as reached"),
    (r"\b(?:gain|improvement|band)s? (?:\w+ ){0,3}?(?:is|was|are|were|has been|have been|will be) (?:\w+ ){0,2}?"
     r"(?:achiev|deliver|reach|met|obtain|attain|reali[sz]|guarant|fulfil|satisf|hit|secur)", "the gain band as reached"),
    (rf"\b(?:gain|improvement|boost|win|benefit)s? of (?:\w+ ){{0,3}}?{_NUMBER}", "a gain by a number"),
    (rf"\b(?:improv|gain|boost|better)\w* (?:\w+ ){{0,4}}?by (?:\w+ ){{0,3}}?{_NUMBER}", "a gain by a number"),
    (r"\b(?:fast|quick|optimal|best)[\s-](?:known|possible|ever|schedule|kernel|candidate|variant|version|found)\b", "a ranking"),
)  # fmt: skip
_COMPILED: Final = tuple((re.compile(pattern), what) for pattern, what in _RULES)
_CORE = re.compile(
    r"speedup|\bfaster|fastest|\bslower|quicker|outperform|benchmark|\baccelerat(?:e|es|ed|ing|ion)\b|gflop|tflop"
)
_CITATION = re.compile(r"\[\s*(?:in|out)\.[^\[\]\n]*(?:\[[^\[\]\n]*\][^\[\]\n]*)?\]", re.IGNORECASE)


def speedup(text: str) -> str | None:
    """The words of a text that claim a measured gain, and what they claim; None where there are none.

    Citations are left out first, so the gain band that a refinement prompt asks for can be named by citing it.
    """
    plain = skeleton(_CITATION.sub(" # ", text))
    for pattern, what in _COMPILED:
        match = pattern.search(plain)
        if match:
            return f"'{match.group().strip()[:60]}' claims {what}"
    match = _CORE.search(joined(plain))
    return f"'{match.group()}' claims a gain" if match else None
