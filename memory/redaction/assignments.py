"""Labelled secrets: settings, JSON fields, flags, tables and sentences, in several languages.

A rule finds a label by its core word ("token"), and judges it by the words around it ("max_").
`memory.redaction.values` judges the value that follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory.redaction.values import (
    CALL,
    Candidate,
    Family,
    Form,
    Span,
    are_chosen_words,
    is_secret,
)

#: "Is", or "was set to", in languages that write no blank before it.
_SAID = ("就是", "是", "为", "為", "改成", "改为", "改為", "设为", "設為", "设成", "设置为", "は", "が", "는", "은")

#: Between a label and its value. Bounded in each part: a label costs the same wherever it stands.
JOINT = re.compile(
    rb"""
    (?: [_-]? (?: [0-9]{1,2} | prod(?:uction)? | dev | test | staging | live | value | base | b(?:ase)?64 )
        (?![A-Za-z0-9_]) )?
    (?: (?P<closing> \\{0,15}["'`] ) \]? | [*_]{1,3} (?![A-Za-z0-9]) | \] )? \*{0,3}
    (?: [ ]? \( [^()\r\n]{1,48} \) | \xef\xbc\x88 (?:(?!\xef\xbc\x89)[^\r\n]){1,96} \xef\xbc\x89 )?
    (?P<aside> [ ] (?:for|of|to|on|at|in|f\xc3\xbcr) (?: [ ] [\w.@/'-]{1,32} ){1,4}? )?
    (?: [ \t]{0,8} (?: : [ ]? (?:str|string|secretstr|&(?:'static[ ])?str|text|optional\[str\]|str[ ]\|[ ]none)
            [ ]{0,4} = | (?<= [ ] ) [a-z]{3,8} [ ] = ) [ \t]{0,8} (?P<typed>)
      | [ \t]{0,8} (?: [!=]==? ) [ \t]{0,8} (?P<compared>)
      | (?: = | \xef\xbc\x9d ) (?! [ \t=>] ) (?P<tight>)
      | [ \t]{0,8} (?: => | :?= | \xef\xbc\x9d ) [ \t]{0,8} (?P<equals>)
      | [ \t]{0,8} (?: :(?!:) | -> | \xef\xbc\x9a ) [*_]{0,3} [ \t]{0,8} (?P<colon>)
      | [ \t]{1,4} (?:
            (?: (?: (?: is | was ) [ ] )? (?: now | set[ ]to | changed[ ]to ) | will[ ]be
              | is | was | ist | lautet | est | es | jest | er | \xc3(?:[\xa8\xa9] | \xa4r)
              ) (?: [ ]? : )? [ \t]{1,4} (?P<verb>)
          | (?: to | auf | \xc3\xa0 ) [ \t]{1,4} (?P<set>)
          | (?: - | \xe2\x80[\x93\x94] | \xe2\x86\x92 ) [ \t]{1,4} (?P<dash>)
        )
      | [ ]? (?= [\xe3-\xec] ) (?: SAID ) [ ]? (?: : | \xef\xbc\x9a )? [ ]? (?P<said>)
      | [ \t]{0,24} \| [ \t]{0,8} (?P<cell>)
      | [ \t]{0,4} \{ [^{}]{0,400}? \b default [ \t]{0,24} = [ \t]{0,4} (?= ["'] ) (?P<default>)
      | [ \t]{0,4} ,? \s{0,48} ["']? value ["']? [ ]? [:=] [ \t]{0,4} (?P<paired>)
      | [ \t]{0,4} , [ \t]{0,4} (?= ["'] ) (?P<argument>)
      | \( (?= ["'] ) (?P<call>)
      | > (?P<element>)
      | [ \t]{1,4} (?(aside)(?!)) (?= [^\s]{0,64}? [0-9] | [A-Za-z][^\s"'`]{7} | (?<= [ \t] ) ["'] ) (?P<space>)
    )
    """.replace(b"SAID", "|".join(_SAID).encode()),
    re.VERBOSE,
)

#: Form of a value by the last group of `JOINT`.
FORMS = {
    group: form
    for form, groups in {
        Form.SETTING: "tight element",
        Form.EQUALS: "typed equals default paired",
        Form.COLON: "colon",
        Form.VERB: "verb set said",
        Form.BESIDE: "dash space",
        Form.LISTED: "compared cell argument call",
    }.items()
    for group in groups.split()
}


class Core:
    """A core word. `needle` is looked for first, in the text in lower case; `word` is all of it that may be there.

    `before` must precede what is no longer than the needle ("pass", "key"), `not_before` must not precede anything.
    """

    def __init__(
        self, needle: str, family: Family, *, word: str = "", before: str = "", not_before: str = "(?!)"
    ) -> None:
        self.needle = needle.encode()
        self.family = family
        self.word = re.compile(word.encode()) if word else None
        self.before = re.compile(f"(?:{before})\\Z".encode())
        self.not_before = re.compile(f"(?:{not_before})\\Z".encode())


#: Keys that open something. Others are of tables, maps and caches, or public.
_OPENING = (
    "(?:api|access|secret|private|auth|account|encrypt(?:ion)?|decrypt(?:ion)?|sign(?:ing)?|master|service|client"
    "|admin|bot|webhook|wpa|wifi|wlan|deploy|app(?:lication)?|shared(?:access)?|storage|subscription|licen[cs]e|security|consumer"
    "|recovery|hmac|aes|jwt|cookie|session|root|openai|anthropic|voyage|gemini|google|groq|azure|aws|github|stripe"
    "|mistral|cohere|deepseek|openrouter|perplexity|tavily|brave|serper)[_. -]?"
)

#: Tokens of models, of pages and of counts.
_NOT_OPENING = (
    "(?:eos|bos|pad|unk|cls|sep|mask|next|page|continuation|stop|start|end|per|max|min|num|special|sync)[_. -]?"
)

CORES = (
    Core(
        "pass",
        Family.PASSWORD,
        word="pass(?:word|wd|phrase|code|wort|ord)?",
        before="[_-]|db|smtp|ftp|user|mysql|pg|root",
        not_before="(?:forgot|reset)[_-]?",
    ),
    Core("pw", Family.PASSWORD, word="pwd|(?<![a-z0-9])pw(?![a-z0-9])", before="[_-]", not_before="old"),
    Core("contrase", Family.PASSWORD, word="contrase(?:\xf1|n)a"),
    *(Core(needle, Family.PASSWORD) for needle in ("identified by", "kennwort", "mot de passe", "wachtwoord")),
    Core("secret", Family.SECRET, word="secrets?"),
    Core("credential", Family.SECRET, word="credentials?"),
    # kubeconfig's own key is `client-key-data`; other data of keys is public.
    Core("key", Family.KEY, word="key(?:(?<=client-key)-data)?", before=_OPENING),
    Core("_auth", Family.SECRET, before="^|[^a-z0-9.]"),
    Core("token", Family.TOKEN, not_before=_NOT_OPENING),
)

#: Only in texts that are not all ASCII; of French and Portuguese hardly any is.
OTHER_CORES = (
    Core("mdp", Family.PASSWORD, word="(?<![a-z0-9])mdp(?![a-z0-9])", before="[_-]"),
    Core("senha", Family.PASSWORD, not_before="[a-z]"),
    Core("密", Family.PASSWORD, word="密(?:码|碼)"),
    Core("lösenord", Family.PASSWORD, word="lösenord(?:et)?"),
    Core("كلمة", Family.PASSWORD, word="كلمة (?:المرور|السر)"),
    *(Core(needle, Family.PASSWORD) for needle in ("口令", "パスワード", "暗証番号", "비밀번호", "비번", "hasło")),
    *(Core(needle, Family.PASSWORD) for needle in ("şifre", "mật khẩu", "पासवर्ड", "пароль", "Пароль")),
    *(Core(needle, Family.KEY) for needle in ("密钥", "密鑰", "秘钥", "私钥")),
    Core("令牌", Family.TOKEN),
)


#: Bytes of a label before its core that are looked at.
_LABEL_BYTES = 48

_LABEL_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

#: A line's start, up to a setting's name.
_SETTING_START = re.compile(rb"(?:^|\n)[ \t>#*+-]{0,16}(?:export |set |ENV |ARG |-e |--env |\$env:|[\"'`])?$")

#: ... and the start of the body that curl sends.
_BODY_START = re.compile(rb" (?:-d|-F|--data(?:-[a-z]{3,9})?|--form)[ =]?\\{0,3}[\"']\Z")

#: `"password": {"value": `, after the colon.
_NESTED = re.compile(rb"\{\s{0,48}\\{0,15}[\"']value\\{0,15}[\"'][ \t]{0,4}:[ \t]{0,4}")

#: Words of a passphrase, up to the end of its line; the words of a sentence are no passphrase.
_PASSPHRASE = re.compile(rb"([a-z]{2,12}(?:[ -][a-z]{2,12}){3,11})[ \t.]{0,4}(?:[\r\n]|\Z)")

#: What people take for a password, and programs for no name.
_CHOSEN = re.compile(rb"(?=[^0-9]{0,40}[0-9])(?=[^A-Za-z]{0,40}[A-Za-z])[A-Za-z0-9!@#$%^&*+?~]{6,40}")

#: How a header's name begins, and its key that is no technical name.
_HEADER = (b"x-", b"X-")
_SHORT_KEY = re.compile(
    rb"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])(?!(?i:[a-z]*key|string|test|token|v)[0-9]*\Z)[A-Za-z0-9]{5,16}"
)

#: Joints after which a passphrase of words is looked for.
_SAYS = frozenset({"colon", "equals", "tight"})

#: "pass" and "pw" alone are words for other things, too.
_SHORT_WORDS = frozenset({b"pass", b"pw", b"mdp"})

#: "I set the password" before "to hunter2", in English, German and French.
_SETS = re.compile(
    rb"\b(?:set|chang|reset|updat|rotat|stell|setz|\xc3\xa4nder|mis )[a-z]{0,4} (?:[\w'-]{1,16} ){0,3}\Z"
)

_NETRC_LOGIN = re.compile(rb"\blogin[ \t]+\S{1,64}[ \t]+\Z")

_OPEN_QUOTE = re.compile(rb"[rRbBuU@]?(?P<quote>\\{0,15}(?:\"\"\"|[\"'`])|\xe2\x80[\x9c\x98]|\xe3\x80[\x8c\x8e])")
_CLOSE_QUOTE = {
    b"\xe2\x80\x9c": b"\xe2\x80\x9d",
    b"\xe2\x80\x98": b"\xe2\x80\x99",
    b"\xe3\x80\x8c": b"\xe3\x80\x8d",
    b"\xe3\x80\x8e": b"\xe3\x80\x8f",
}

#: Bytes of a quoted value at most, and of a bare value that are judged; the rest of a bare value is masked with them.
_QUOTED_BYTES = 1024
_JUDGED_BYTES = 256

#: A value without quotes ends at a blank, a quote, or a wide character (which is how Chinese punctuation is written).
_BARE = re.compile(rb"[^\s\x00\"'`<>\xe0-\xff]+")

#: ... or where the next setting, an escaped line end, or a cell begins.
_BARE_END = re.compile(rb"&[\w.-]{1,32}=|[,;][\w.-]{1,32}[=:]|;|\\+[nrt\"']|\|")

_TRAILING = b",;:.)]}|\\*_?"

_PLAIN_WORD = re.compile(rb"[A-Z]?[a-z]+[^A-Za-z0-9]{0,2}(?:\s|$)")
_AFTER_ALONE = re.compile(rb"[ \t.*_`\"'|)]*(?:\r?\n|\r?$)")
_AFTER_CODE = re.compile(rb"[\])}]*[ \t]*[,)}\];]")


def find_assignments(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the values of labels that announce a secret. `lowered`: the same text, its ASCII letters in lower case."""
    for core in CORES if data.isascii() else CORES + OTHER_CORES:
        position = lowered.find(core.needle)
        while position >= 0:
            following = position + len(core.needle)
            word = core.word.match(lowered, position) if core.word is not None else None
            end = word.end() if word is not None else following
            joint = JOINT.match(lowered, end) if word is not None or core.word is None else None
            span = _secret_after(core, data, lowered, position, joint) if joint is not None else None
            if span is not None:
                yield span
                following = span.end
            position = lowered.find(core.needle, following)


def _secret_after(core: Core, data: bytes, lowered: bytes, position: int, joint: re.Match[bytes]) -> Span | None:
    """Return the secret that a core word at `position` announces, None without one; `joint` stands between them."""
    how, at = str(joint.lastgroup), joint.end()
    before = data[max(0, position - _LABEL_BYTES) : position]
    start = position - (len(before) - len(before.rstrip(_LABEL_CHARACTERS)))
    is_flag = how == "space" and _is_flag(data, start)
    if how == "space" and not is_flag and _PLAIN_WORD.match(data, at):
        return None  # "the password flow": most labels in prose
    if core.needle == b"pass" and how in _SAYS and lowered.startswith(b"passphrase", position):
        words = _PASSPHRASE.match(data, at)
        if words is not None and are_chosen_words(words[1]):
            return Span(*words.span(1), core.family)
    if nested := _NESTED.match(data, at):
        at = nested.end()
    first, last, quoted = _value_at(data, at)
    if first == last or (not quoted and CALL.match(data, first, last)):
        return None
    bare = joint.start() == position + len(core.needle)
    if not _is_label(core, data, lowered, start, position, bare=bare) and not (
        bare and core.needle in _SHORT_WORDS and _is_login(data, start, position, first, last)
    ):
        return None
    if how == "set" and _SETS.search(lowered[max(0, start - _LABEL_BYTES) : start]) is None:
        return None
    if how in {"compared", "argument", "call"} and (not quoted or (how == "argument" and joint["closing"] is None)):
        return None
    following = last + (1 if quoted else 0)
    form = FORMS[how]
    if is_flag:
        form = Form.FLAG
    elif how == "tight" and data[start : joint.start("tight") - 1].isupper():
        form = Form.ENVIRONMENT
    elif how == "tight" and not _is_setting(data, start, following):
        form = Form.EQUALS
    elif form is Form.COLON and joint["aside"] is not None:
        form = Form.VERB
    value = data[first : min(last, first + _JUDGED_BYTES)]
    candidate = Candidate(
        value,
        # Nothing but a key stands in such a header, however short.
        Family.PASSWORD if data[start : start + 2] in _HEADER and _SHORT_KEY.fullmatch(value) else core.family,
        form,
        quoted=quoted,
        alone=_AFTER_ALONE.match(data, following) is not None,
        in_code=not quoted and _AFTER_CODE.match(data, last) is not None,
    )
    if not is_secret(candidate):
        return None
    if last == at + _JUDGED_BYTES and not quoted and (rest := _BARE.match(data, last)):
        last = rest.end() - len(rest[0]) + len(rest[0].rstrip(_TRAILING))
    return Span(first, last, core.family)


def _is_label(core: Core, data: bytes, lowered: bytes, start: int, position: int, *, bare: bool) -> bool:
    before = lowered[max(0, min(start, position - 12)) : position]
    if core.not_before.search(before):
        return False
    if not bare or core.before.search(before):
        return True
    # MY_KEY=: an environment's key that is of no table.
    name = data[start:position]
    return (
        core.needle == b"key"
        and name.endswith(b"_")
        and name.isupper()
        and not re.search(rb"(?:PUBLIC|PRIMARY|FOREIGN|SORT|CACHE|PARTITION|IDEMPOTENCY|OBJECT|INDEX|ROUTING)_\Z", name)
    )


def _is_login(data: bytes, start: int, position: int, first: int, last: int) -> bool:
    """Return True if "pass" alone is a password, not the outcome of a test: by what follows."""
    is_word = start == position and data[position : position + 4] != b"PASS"
    return is_word and _CHOSEN.fullmatch(data, first, last) is not None


def _is_flag(data: bytes, start: int) -> bool:
    """Return True if a label is a flag, or the password of a line of a .netrc file."""
    return data.startswith(b"--", start) or _NETRC_LOGIN.search(data[max(0, start - 80) : start]) is not None


def _is_setting(data: bytes, start: int, following: int) -> bool:
    """Return True if `name=value` is a setting rather than an argument of a call in a program."""
    name_before = data[max(0, start - 24) : start]
    if name_before[-1:] in {b"?", b"&", b";", b"/"} or data[start : start + 2] == b"--":
        return True
    if _SETTING_START.search(name_before) is None and not (
        name_before.endswith((b'"', b"'")) and _BODY_START.search(name_before)
    ):
        return False
    return data[following : following + 1] in {b"", b"\r", b"\n", b" ", b"&", b";", b'"', b"'", b"`"}


def _value_at(data: bytes, position: int) -> tuple[int, int, bool]:
    """Return start and end of a value, and True if it is in quotes; of one without them at most what is judged."""
    if (opened := _OPEN_QUOTE.match(data, position)) is not None:
        position = opened.end()
        end = _closing(data, _CLOSE_QUOTE.get(opened["quote"], opened["quote"]), position)
        if end >= 0:
            return position, end, True
    bare = _BARE.match(data, position, position + _JUDGED_BYTES)
    end = bare.end() if bare is not None else position
    if cut := _BARE_END.search(data, position + 1, end):
        end = cut.start()
    elif end == position + _JUDGED_BYTES:
        return position, end, False
    return position, position + len(data[position:end].rstrip(_TRAILING)), False


def _closing(data: bytes, quote: bytes, start: int) -> int:
    """Return the end of a quoted value on the same line, within `_QUOTED_BYTES`; -1 without one."""
    limit = min(len(data), start + _QUOTED_BYTES)
    position = data.find(quote, start, limit)
    while position > start and data[position - 1 : position] == b"\\" and not quote.startswith(b"\\"):
        position = data.find(quote, position + 1, limit)
    return -1 if data.find(b"\n", start, max(start, position)) >= 0 else position
