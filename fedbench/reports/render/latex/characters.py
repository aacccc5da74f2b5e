r"""Any text as LaTeX that prints it literally, in plain ASCII and with no package beyond those that `packages` names.

Superscripts, subscripts and fractions are set as such, accents by their commands, Greek and mathematical characters in
math mode. A character that LaTeX's standard fonts lack is set as its code, such as [U+732B], and named by `unset`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "`": r"\textquoteleft{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
#: Commands of text.
_TEXT = {
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "―": r"\textemdash{}",
    "‐": "-",
    "‑": r"\mbox{-}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "\u00a0": "~",
    "⁄": "/",
    "ß": r"\ss{}",
    "Æ": r"\AE{}",
    "æ": r"\ae{}",
    "Œ": r"\OE{}",
    "œ": r"\oe{}",
    "Ø": r"\O{}",
    "ø": r"\o{}",
    "Ł": r"\L{}",
    "ł": r"\l{}",
    "ı": r"\i{}",
    "ȷ": r"\j{}",
    "§": r"\S{}",
    "¶": r"\P{}",
    "©": r"\textcopyright{}",
    "®": r"\textregistered{}",
    "£": r"\pounds{}",
    "€": r"\texteuro{}",
    "¥": r"\textyen{}",
    "¢": r"\textcent{}",
    "‰": r"\textperthousand{}",
    "¿": r"\textquestiondown{}",
    "¡": r"\textexclamdown{}",
}
#: Commands of text that only the font encoding T1 has.
_T1 = {
    "Đ": r"\DJ{}",
    "đ": r"\dj{}",
    "Ð": r"\DH{}",
    "ð": r"\dh{}",
    "Þ": r"\TH{}",
    "þ": r"\th{}",
    "Ŋ": r"\NG{}",
    "ŋ": r"\ng{}",
    "«": r"\guillemotleft{}",
    "»": r"\guillemotright{}",
    "„": r"\quotedblbase{}",
    "‚": r"\quotesinglbase{}",
}
_MATH = {
    "±": r"\pm",
    "∓": r"\mp",
    "×": r"\times",
    "÷": r"\div",
    "−": "-",
    "·": r"\cdot",
    "⋅": r"\cdot",
    "…": r"\ldots",
    "⋯": r"\cdots",
    "≤": r"\le",
    "≥": r"\ge",
    "≪": r"\ll",
    "≫": r"\gg",
    "≠": r"\neq",
    "≈": r"\approx",
    "≃": r"\simeq",
    "≅": r"\cong",
    "≡": r"\equiv",
    "∼": r"\sim",
    "∝": r"\propto",
    "†": r"\dagger",
    "‡": r"\ddagger",
    "°": r"^{\circ}",
    "∘": r"\circ",
    "○": r"\circ",
    "◦": r"\circ",
    "●": r"\bullet",
    "•": r"\bullet",
    "ℵ": r"\aleph",
    "★": r"\star",
    "⋆": r"\star",
    "✓": r"\surd",
    "✔": r"\surd",
    "√": r"\surd",
    "✗": r"\times",
    "✘": r"\times",
    "→": r"\to",
    "←": r"\leftarrow",
    "↔": r"\leftrightarrow",
    "↑": r"\uparrow",
    "↓": r"\downarrow",
    "⇒": r"\Rightarrow",
    "⇐": r"\Leftarrow",
    "⇔": r"\Leftrightarrow",
    "↦": r"\mapsto",
    "∞": r"\infty",
    "∂": r"\partial",
    "∇": r"\nabla",
    "∑": r"\sum",
    "∏": r"\prod",
    "∫": r"\int",
    "∈": r"\in",
    "∉": r"\notin",
    "∋": r"\ni",
    "⊂": r"\subset",
    "⊃": r"\supset",
    "⊆": r"\subseteq",
    "⊇": r"\supseteq",
    "∪": r"\cup",
    "∩": r"\cap",
    "∖": r"\setminus",
    "∅": r"\emptyset",
    "∀": r"\forall",
    "∃": r"\exists",
    "¬": r"\neg",
    "∧": r"\wedge",
    "∨": r"\vee",
    "⊕": r"\oplus",
    "⊗": r"\otimes",
    "⊙": r"\odot",
    "⊥": r"\perp",
    "∥": r"\parallel",
    "‖": r"\|",
    "∣": r"\mid",
    "⟨": r"\langle",
    "⟩": r"\rangle",
    "⌈": r"\lceil",
    "⌉": r"\rceil",
    "⌊": r"\lfloor",
    "⌋": r"\rfloor",
    "ℓ": r"\ell",
    "ℏ": r"\hbar",
    "′": "'",
    "″": "''",
    "∗": r"\ast",
    "△": r"\triangle",
    "□": r"\Box",
    "◇": r"\diamond",
    "ϑ": r"\vartheta",
    "ϕ": r"\phi",
    "ϵ": r"\epsilon",
    "ϱ": r"\varrho",
    "ϖ": r"\varpi",
    "ϰ": r"\kappa",
    "ς": r"\varsigma",
    "ε": r"\varepsilon",
    "φ": r"\varphi",
    "ο": "o",
}
#: Greek letters with a command, small and capital.
_GREEK = {
    *("alpha", "beta", "gamma", "delta", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"),
    *("xi", "pi", "rho", "sigma", "tau", "upsilon", "chi", "psi", "omega"),
    *("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega"),
}
#: Greek capital letters that look like Latin ones.
_ALIKE = {
    "Alpha": "A",
    "Beta": "B",
    "Epsilon": "E",
    "Zeta": "Z",
    "Eta": "H",
    "Iota": "I",
    "Kappa": "K",
    "Mu": "M",
    "Nu": "N",
    "Omicron": "O",
    "Rho": "P",
    "Tau": "T",
    "Chi": "X",
}
#: Combining mark -> (command of text, of mathematics, or "" where it has none). \k is of the font encoding T1.
_ACCENTS = {
    "\u0300": (r"\`", r"\grave"),
    "\u0301": (r"\'", r"\acute"),
    "\u0302": (r"\^", r"\hat"),
    "\u0303": (r"\~", r"\tilde"),
    "\u0304": (r"\=", r"\bar"),
    "\u0306": (r"\u", r"\breve"),
    "\u0307": (r"\.", r"\dot"),
    "\u0308": (r"\"", r"\ddot"),
    "\u030a": (r"\r", r"\mathring"),
    "\u030b": (r"\H", ""),
    "\u030c": (r"\v", r"\check"),
    "\u0323": (r"\d", ""),
    "\u0326": (r"\textcommabelow", ""),
    "\u0327": (r"\c", ""),
    "\u0328": (r"\k", ""),
    "\u0331": (r"\b", r"\underline"),
    "\u20d7": ("", r"\vec"),
}
#: Word in the name of a mathematical letter -> its alphabet.
_ALPHABETS = {
    "DOUBLE-STRUCK": r"\mathbb",
    "FRAKTUR": r"\mathfrak",
    "BLACK-LETTER": r"\mathfrak",
    "SCRIPT": r"\mathcal",
    "MONOSPACE": r"\mathtt",
    "SANS-SERIF": r"\mathsf",
    "BOLD": r"\mathbf",
}
#: Command -> the package that has it.
_PACKAGES = {r"\mathbb": "amssymb", r"\mathfrak": "amssymb", r"\Box": "amssymb"}
_UNSET = re.compile(r"\{\[\}U\+([0-9A-F]{4,6})\{\]\}")


def escape(text: str) -> str:
    """Text that LaTeX prints literally; what stands between backticks is typed."""
    parts = re.split("`([^`]+)`", unicodedata.normalize("NFC", text))  # odd parts were between backticks: code
    escaped = ["".join(_parts(part)).replace("--", "{-}{-}") for part in parts]
    return "".join(rf"\texttt{{{part}}}" if k % 2 else part for k, part in enumerate(escaped))


def unset(latex: str) -> list[str]:
    """A line that names the characters which `escape` could only set as their codes; empty if there are none."""
    codes = dict.fromkeys(_UNSET.findall(latex))
    named = (f"U+{code} ({unicodedata.name(chr(int(code, 16)), 'without a name')})" for code in codes)
    return [f"Not in LaTeX's standard fonts, so set as codes: {', '.join(named)}."] if codes else []


def packages(latex: str) -> list[str]:
    """The packages that the characters of a text made by `escape` need."""
    return sorted(
        {package for command, package in _PACKAGES.items() if command + "{" in latex or command + "$" in latex}
    )


def _parts(text: str) -> Iterator[str]:
    """The LaTeX of each character with its combining marks, of each run of superscripts or of subscripts, and of each
    root."""
    at = 0
    while at < len(text):
        if text[at] == "√" and (root := re.compile(r"[0-9.]+|[^\W\d_]").match(text, at + 1)):
            yield rf"$\sqrt{{{root[0] if root[0].isascii() else _in_math(root[0]) or ''}}}$"
            at = root.end()
            continue
        end = at + 1
        for kind, sign in (("<super>", "^"), ("<sub>", "_")):
            end = at
            while end < len(text) and unicodedata.decomposition(text[end]).startswith(kind) and text[end] not in _TEXT:
                end += 1
            if end > at:
                yield f"${sign}{{{_raised(unicodedata.normalize('NFKC', text[at:end]))}}}$"
                break
        else:
            end = at + 1
            while end < len(text) and unicodedata.combining(text[end]):
                end += 1
            yield _character(text[at:end])
        at = end


def _raised(text: str) -> str:
    """The text of a superscript or subscript, in math mode."""
    signs = "".join(
        "-" if c == "−" else c if c.isascii() and c not in _SPECIAL else _in_math(c) or _code(c) for c in text
    )
    return rf"\mathrm{{{signs}}}" if len(text) > 1 and text.isalpha() else signs


def _character(text: str) -> str:
    """The LaTeX of one character and its combining marks."""
    c, marks = text[0], text[1:]
    if marks:
        return _accented(c, marks)
    if c in _SPECIAL:
        return _SPECIAL[c]
    if c.isascii():
        return c if c.isprintable() else " "
    if c in _TEXT:
        return _TEXT[c]
    if c in _T1:
        return _in_t1(_T1[c])
    if math := _in_math(c):
        return f"${math}$"
    kind, *parts = unicodedata.decomposition(c).split()[:1] or [""], unicodedata.normalize("NFD", c)
    if len(parts[0]) > 1:
        return _accented(parts[0][0], parts[0][1:])
    (named,) = kind
    compatible = unicodedata.normalize("NFKC", c)
    if named == "<fraction>":
        above, _, below = compatible.partition("⁄")
        return rf"$\frac{{{above}}}{{{below}}}$"
    if compatible == c:
        return _code(c)
    plain = "".join(_parts(compatible))
    return rf"\textcircled{{{plain}}}" if named == "<circle>" else plain


def _in_math(c: str) -> str:
    """The character in math mode; "" if it is none of mathematics."""
    if c in _MATH:
        return _MATH[c]
    name = unicodedata.name(c, "")
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", name)
    if greek:
        word = {"LAMDA": "LAMBDA"}.get(greek[2], greek[2])
        command = word.lower() if greek[1] == "SMALL" else word.title()
        if command in _GREEK:
            return f"\\{command}"
        return rf"\mathrm{{{_ALIKE[command]}}}" if command in _ALIKE else ""
    if unicodedata.decomposition(c).startswith("<font>"):
        base = unicodedata.normalize("NFKC", c)
        inner = base if base.isascii() else _in_math(base)
        alphabet = next((command for word, command in _ALPHABETS.items() if word in name), "")
        if alphabet in (r"\mathcal", r"\mathbb") and not base.isupper():
            alphabet = r"\mathbf" if alphabet == r"\mathbb" else ""  # these have capitals only
        return rf"{alphabet}{{{inner}}}" if alphabet else inner
    return ""


def _accented(base: str, marks: str) -> str:
    """A character with combining marks: by a command of text, or in math mode where the character or several marks need
    it. A mark without a command follows as its code."""
    known = [mark for mark in marks if mark in _ACCENTS]
    rest = "".join(_code(mark) for mark in marks if mark not in _ACCENTS)
    math = _in_math(base)
    if (math or len(known) > 1 or not all(_ACCENTS[mark][0] for mark in known)) and all(
        _ACCENTS[mark][1] for mark in known
    ):
        inner = math or rf"\mathrm{{{base}}}" if math or (base.isalpha() and base.isascii()) else ""
        if inner:
            for mark in known:
                inner = rf"{_ACCENTS[mark][1]}{{{inner}}}"
            return f"${inner}${rest}"
    inner = rf"\{base}" if base in ("i", "j") and any(mark < "\u0323" for mark in known) else _character(base)
    for mark in known:
        command = _ACCENTS[mark][0]
        inner = f"{command}{{{inner}}}" if command else inner + _code(mark)
        inner = _in_t1(inner) if command == r"\k" else inner
    return inner + rest


def _in_t1(text: str) -> str:
    return rf"{{\fontencoding{{T1}}\selectfont {text}}}"


def _code(c: str) -> str:
    return f"{{[}}U+{ord(c):04X}{{]}}"
