"""Labelled secrets: settings, JSON fields, flags, tables and sentences, in several languages.

An assignment is a label, a joint and a value. A label is found by its core word ("token") and judged by the words
around it ("max_"); `memory.redaction.values` judges the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from memory.redaction.values import Form, Span, any_of, is_placeholder, is_secret

#: Text between a label and its joint: a suffix, a closing quote or bracket, a remark.
_LABEL_END = r"""
    (?: [_-]? [0-9]{1,2} | [_-] (?: prod(?:uction)? | dev | test | staging | live | value | base | b(?:ase)?64 ) )?
    (?! [A-Za-z0-9_] )
    (?: (?P<closing> \\{0,15}["'`] ) \]? | [*_]{1,3} (?![A-Za-z0-9]) | \] )? \*{0,3}
    (?: [ ]? \( [^()\r\n]{1,48} \) | （ (?:(?!）)[^\r\n]){1,96} ） )?
    (?P<aside> [ ]
      (?: (?:for|of|to|on|at|in|für|del?|du|d[ao]|od|ke?) (?: [ ] [\w.@/'-]{1,32} ){1,4}?
      | (?P<owner> (?:от|для|к|на|від|до) (?: [ ] [\w\x80-\xff.@/'-]{1,48} ){1,2}? )
        (?: (?: [ ] [\w\x80-\xff.@/'-]{1,48} ){1,2} (?=:) )? ) )?
"""

#: Joints by name, with their form, in the order of trial. Each part is bounded, so that every label costs the same.
#: Some languages write no blank before "is".
_JOINTS = re.findall(
    r"^ +(\w+) +([A-Z]+) +(.+)$",
    r"""
    typed    EQUALS  [ ]? : [ ]? (?:&(?:'static[ ])?|secret|optional\[)?str(?:ing|\]|[ ]\|[ ]none)? [ ]{0,4} = [ ]{0,8}
    declared EQUALS  [ \t]{1,8} (?<= [ ] ) [a-z]{3,8} [ ] = [ \t]{0,8}
    compared LISTED  [ \t]{0,8} [!=]==? [ \t]{0,8} (?= \\{0,15}["'`] )
    tight    SETTING (?:=|＝) (?! [ \t=>] )
    equals   EQUALS  [ \t]{0,8} (?: => | :?= | ＝ ) [ \t]{0,8}
    nested   COLON   [ \t]{0,8} : [ \t]{0,8} \{ \s{0,48} \\{0,15}["']value\\{0,15}["'] [ \t]{0,4} : [ \t]{0,4}
    colon    COLON   [ \t]{0,8} (?: :(?!:) | -> | ： ) [*_]{0,3} [ \t]{0,8}
    changed  VERB    [ \t]{1,4} (?: (?:is|was)[ ] )? (?: now | set[ ]to | changed[ ]to | will[ ]be ) [ \t]{1,4}
    verb     VERB    [ \t]{1,4} (?: ist?|was|lautet|este?|es|je|jest|er|é|è|är|la|là|adalah ) (?: [ ]? : )? [ \t]{1,4}
    set      VERB    [ \t]{1,4} (?: to | auf | à ) [ \t]{1,4}
    dash     BESIDE  [ \t]{1,4} (?: - | – | — | → ) [ \t]{1,4}
    said     VERB    [ ]? (?: (?:就)?是|は|が|는|은|为|為|คือ|это|είναι|היא|هي ) [ ]? (?: : | ： )? [ ]?
    becomes  VERB    [ ]? (?: 改|设|設 ) (?:置)? (?: 成|为|為 ) [ ]? (?: ： )? [ ]?
    cell     LISTED  [ \t]{0,24} \| [ \t]{0,8}
    default  EQUALS  [ \t]{0,4} \{ [^{}]{0,400}? \b default [ \t]{0,24} = [ \t]{0,4} (?= ["'] )
    paired   EQUALS  [ \t]{0,4} ,? \s{0,48} ["']? value ["']? [ ]? [:=] [ \t]{0,4}
    argument LISTED  (?(closing)|(?!)) [ \t]{0,4} , [ \t]{0,4} (?= ["'] )
    call     LISTED  \( (?= ["'] )
    element  SETTING >
    owned    BESIDE  [ \t]{1,4} (?(owner)|(?!)) (?! \S{1,48} (?: @[\w-]{1,32}\.[a-z] | :\s ) ) (?= [!-~]{0,64}? [0-9] )
    space    BESIDE  [ \t]{1,4} (?(aside)(?!)) (?= [^\s]{0,64}? [0-9] | [A-Za-z][^\s"'`]{7} | (?<= [ \t] ) ["'] )
    """,
    re.MULTILINE,
)
_FORMS = {name: Form[form] for name, form, _ in _JOINTS}
_JOINT = re.compile(
    f"{_LABEL_END}(?:{'|'.join(f'{pattern}(?P<{name}>)' for name, _, pattern in _JOINTS)})".encode(), re.VERBOSE
)

#: Bytes of a bare value, and of any value that is judged.
_MOST_BYTES = 8192
_JUDGED_BYTES = 256

#: A value in quotes, which may be escaped or typographic.
_QUOTED = re.compile(
    rb"""[rRbBuU@]?(?:(?P<quote>\"\"\"|[\"'`])(?P<quoted>(?:[^\\\r\n\"'`]|\\[^\r\n]|(?!(?P=quote))[\"'`]){0,1024})(?P=quote)"""
    rb"""|(?P<escaped>\\{1,15}[\"'`])(?P<nested>[^\r\n]{0,1024}?)(?P=escaped)"""
    rb"""|(?:\xe2\x80[\x9c\x98]|\xe3\x80[\x8c\x8e])(?P<typeset>[^\r\n]{0,1024}?)(?:\xe2\x80[\x9d\x99]|\xe3\x80[\x8d\x8f]))"""
)

#: A bare value ends at a blank, a quote, or a wide character (as Chinese punctuation is), or where the
#: next setting, an escaped line end, or a cell begins. Its opening quote may lack the closing one.
_BARE = re.compile(
    rb"""(?:[rRbBuU@]?\\{0,15}[\"'`])?(?P<bare>[^\s\x00\"'`<>\xe0-\xff]"""
    rb"""(?:[^\s\x00\"'`<>\xe0-\xff&,;|\\]+|&(?![\w.-]{1,32}=)|,(?![\w.-]{1,32}[=:])|\\+(?![\\nrt\"']))*)"""
)
_TRAILING = b",;:.)]}|\\*_?"

#: Code in a secret's place: `getenv(...)`, `environ[...]`, `!vault`.
_CALL = re.compile(
    rb":{0,2}[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.)[A-Za-z_$][\w$]*)*[(\[{]|process\.env\.|!(?:vault|Ref|Sub|ImportValue|secret)\b"
)

_PLAIN_WORD = re.compile(rb"[A-Z]?[a-z]+[^A-Za-z0-9]{0,2}(?:\s|$)")
_AFTER_ALONE = re.compile(rb"[ \t.*_`\"'|)]*(?:\r?\n|\r?$)")
_AFTER_CODE = re.compile(rb"[\])}]*[ \t]*[,)}\];]")


class _Label(NamedTuple):
    """Label of a family. `needle` is searched first, in the text in lower case; `word` is the whole core word.

    `before` must precede a core word no longer than the needle ("pass", "key"). `not_before` must not precede any.
    """

    needle: bytes
    kind: str
    word: re.Pattern[bytes] | None = None
    before: re.Pattern[bytes] = re.compile(b"")
    not_before: re.Pattern[bytes] = re.compile(b"(?!)")


#: Keys that open something. Others are of tables, maps and caches, or public.
_OPENING = re.compile(
    rb"(?:api|access|secret|private|auth|account|encrypt(?:ion)?|decrypt(?:ion)?|sign(?:ing)?|master|service|client"
    rb"|admin|bot|webhook|wpa|wifi|wlan|deploy|app(?:lication)?|shared(?:access)?|storage|subscription|licen[cs]e"
    rb"|security|consumer|recovery|hmac|aes|jwt|cookie|session|root|openai|anthropic|voyage|gemini|google|groq|azure"
    rb"|aws|github|stripe|mistral|cohere|deepseek|openrouter|perplexity|tavily|brave|serper)[_. -]?\Z"
)

#: Tokens of models, of pages and of counts.
_NOT_OPENING = re.compile(
    rb"(?:eos|bos|pad|unk|cls|sep|mask|next|page|continuation|stop|start|end|per|max|min|num|special|sync)[_. -]?\Z"
)

#: Postal and dialling codes in Greek.
_POSTAL = re.compile("(?:ομικ(?:ό|ο)ς|φωνικ(?:ό|ο)ς|ΟΜΙΚΟΣ) \\Z".encode())

_LABELS = (
    _Label(
        b"pass",
        "password",
        word=re.compile(rb"pass(?:word|wd|phrase|code|wort|ord|e(?<=palavra-passe))?"),
        before=re.compile(rb"(?:[_-]|db|smtp|ftp|user|mysql|pg|root)\Z"),
    ),
    _Label(b"pw", "password", word=re.compile(rb"pwd|(?<![a-z0-9])pw(?![a-z0-9])"), before=re.compile(rb"[_-]\Z")),
    _Label(b"contrase", "password", word=re.compile(rb"contrase(?:\xc3[\xb1\x91]|n)a")),
    _Label(b"parola", "password", word=re.compile(rb"parola(?:si|m| d'ordine)?"), before=re.compile(rb"[_-]\Z")),
    _Label(b"sifre", "password", word=re.compile(rb"sifre(?:si|m)?"), not_before=re.compile(rb"[a-z]\Z")),
    _Label(b"senha", "password", not_before=re.compile(rb"[a-z]\Z")),
    _Label(b"mdp", "password", word=re.compile(rb"(?<![a-z0-9])mdp(?![a-z0-9])"), before=re.compile(rb"[_-]\Z")),
    _Label(b"secret", "secret", word=re.compile(rb"secrets?")),
    _Label(b"credential", "secret", word=re.compile(rb"credentials?")),
    # kubeconfig's own key is `client-key-data`; other data of keys is public.
    _Label(b"key", "key", word=re.compile(rb"key(?:(?<=client-key)-data)?"), before=_OPENING),
    _Label(b"_auth", "secret", before=re.compile(rb"(?:^|[^a-z0-9.])\Z")),
    _Label(b"token", "token", not_before=_NOT_OPENING),
    *(
        _Label(written.replace("_", " ").encode().lower(), kind, not_before=_POSTAL)
        for kind, labels in {
            "password": "identified_by kennwort mot_de_passe wachtwoord heslo haslo kata_sandi kata_laluan mat_khau"
            " adgangskode adgangskoden kodeord kodeordet salasana losenord jelszo"
            " hasło şifre ŞİFRE şifresi şifrem parolası parolă mật_khẩu lösenord lösenordet jelszó jelszava jelszavam"
            " пароль κωδικός κωδικος κωδικός_πρόσβασης κωδικος_προσβασης συνθηματικό συνθηματικο"
            " סיסמה סיסמא كلمة_المرور كلمة_السر رمز_عبور کلمه_عبور گذرواژه पासवर्ड รหัสผ่าน"
            " 密码 密碼 口令 パスワード 暗証番号 비밀번호 비번",
            "key": "密钥 密鑰 秘钥 私钥",
            "token": "令牌",
        }.items()
        for label in labels.split()
        for written in dict.fromkeys((label, label.capitalize(), label.title(), label.upper()))
    ),
)
_BY_NEEDLE = {label.needle: label for label in _LABELS}
_NEEDLES = any_of(_BY_NEEDLE)
_ASCII_NEEDLES = any_of(filter(bytes.isascii, _BY_NEEDLE))

#: Bytes of a label, and of the words before its core, that are examined.
_LABEL_BYTES = 48
_BEFORE_BYTES = 24
_LABEL_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

#: MY_ of MY_KEY=, a key in the environment, not of a table.
_ENVIRONMENT_KEY = re.compile(
    rb"-?(?!(?:[A-Z0-9]+_)*(?:PUBLIC|PRIMARY|FOREIGN|SORT|CACHE|PARTITION|IDEMPOTENCY|OBJECT|INDEX|ROUTING)_\Z)[A-Z0-9_]+_\Z"
)

#: "pass", "pw" and the Italian "parola" alone have other meanings, too.
#: Only a value with the look of a password counts after them.
_SHORT_WORDS = frozenset({b"pass", b"pw", b"mdp", b"parola"})
_CHOSEN = re.compile(rb"(?!-)(?=[^0-9]{0,40}[0-9])(?=[^A-Za-z]{0,40}[A-Za-z])[A-Za-z0-9!@#$%^&*+?~-]{6,40}")

#: "the first pass is finished7": a turn of something.
_TURN = re.compile(
    rb"\b(?:first|second|third|fourth|next|last|final|another|other|one|each|every|single|[0-9]th)[ -]\Z"
)

#: "I set the password" before "to hunter2", in English, German and French.
_SETS = re.compile(
    rb"\b(?:set|chang|reset|updat|rotat|stell|setz|\xc3\xa4nder|mis )[a-z]{0,4} (?:[\w'-]{1,16} ){0,3}\Z"
)

#: The start of a line, or of the body that curl sends, up to the name of a setting; what follows its value.
_SETTING_START = re.compile(
    rb"(?:\A|\n)[ \t>#*+-]{0,16}(?:export |set |ENV |ARG |-e |--env |\$env:|[\"'`])?\Z"
    rb"| (?:-d|-F|--data(?:-[a-z]{3,9})?|--form)[ =]?\\{0,3}[\"']\Z"
)
_SETTING_END = re.compile(rb"[\r\n &;\"'`]|\Z")


#: Text between a name and its value, and between two values of a list.
_TELLS = (
    rb"""[ ]? (?: \( [^()\r\n]{1,48} \) )? ["'`*_]{0,3} (?: [ ]? [:=] | [ ](?:is|are|was|ist|lautet|sind|es|est)\b )"""
)
_BETWEEN = rb"""(?: [\s,;|*"'`:] | -[ ] | \b[0-9]{1,2}[.)] )"""
_ENDS = rb"(?![\w.:/-]{0,40}[\w/])"
_CODE = rb"(?: (?= [a-z-]{0,24}[0-9] ) (?= [a-z0-9-]{6,40} " + _ENDS + rb" ) [a-z0-9]{3,12} (?: -[a-z0-9]{3,12} ){0,4}"
_CODE += rb" | [0-9]{4}[ ][0-9]{4} " + _ENDS + rb" )"

#: Secrets that only their names distinguish from numbers and words.
_PIN = re.compile(rb"(?:[ -]?(?:code|number))?" + _TELLS + rb"\s{0,3} ([0-9]{4,8}) (?![\w.,:/-]{0,8}\w)", re.VERBOSE)
_SEED = re.compile(
    rb"(?:[ _-]?(?:phrase|words?|key|mnemonic|list))?"
    + (
        _TELLS
        + _BETWEEN
        + rb"{0,12} \b ([a-z]{3,8} (?: "
        + _BETWEEN.replace(b"`:]", b"`]")  # behind a colon is another value
        + rb"{1,8} [a-z]{3,8}\b ){11,24})(?![\s,;|*\"'`:-]{0,8}\0)"
    ),
    re.VERBOSE,
)
_CODES = re.compile(
    _TELLS + _BETWEEN + rb"{0,12} (" + _CODE + rb"(?:" + _BETWEEN + rb"{1,8}" + _CODE + rb"){1,31} )", re.VERBOSE
)
_EACH_CODE = re.compile(_CODE, re.VERBOSE)

#: Text before the name of a person's PIN, and of backup codes; any text.
_OWNED = re.compile(rb"\b(?:my|your|his|her|our|their|sim|card|phone|bank|door|alarm|meine?|mon|mi|la)[ ]\Z")
_BACKUP = re.compile(rb"(?:backup|recovery|emergency|scratch|2fa)[ _-]?\Z")
_ANY = re.compile(b"")

#: Words of sentences that no seed phrase has, and the numbers of words that one has (BIP 39).
_NO_SEED_WORD = re.compile(rb"\b(?:the|and|for|are|was|were|with|from|not|but|has|had|its|our|should|must|can|each)\b")
_SEED_WORDS = (12, 15, 18, 21, 24)


def find_named(lowered: bytes) -> Iterator[Span]:
    """Yield PINs, seed phrases and lists of backup codes after their names."""
    for pin in _named(lowered, b"pin", _PIN, after=_OWNED):
        if not is_placeholder(pin[1]):
            yield Span(*pin.span(1), "pin")
    for seed in chain.from_iterable(_named(lowered, name, _SEED) for name in (b"seed", b"recovery", b"mnemonic")):
        if len(re.findall(rb"[a-z]+", seed[1])) in _SEED_WORDS and not _NO_SEED_WORD.search(seed[1]):
            yield Span(*seed.span(1), "seed-phrase")
    for codes in _named(lowered, b"codes", _CODES, after=_BACKUP):
        yield from (Span(*code.span(), "backup-code") for code in _EACH_CODE.finditer(lowered, *codes.span(1)))


def _named(
    lowered: bytes, name: bytes, pattern: re.Pattern[bytes], *, after: re.Pattern[bytes] = _ANY
) -> Iterator[re.Match[bytes]]:
    """Yield the matches of a pattern behind a name that stands `after` another pattern."""
    position = lowered.find(name)
    while position >= 0:
        following = position + len(name)
        match = pattern.match(lowered, following)
        if match is not None and after.search(lowered, max(0, position - _BEFORE_BYTES), position):
            yield match
            following = match.end()
        position = lowered.find(name, following)


def find_assignments(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the values of labels that announce a secret. `lowered`: the same text, its ASCII letters in lower case."""
    done: dict[bytes, int] = {}
    for needles in _ASCII_NEEDLES if data.isascii() else _NEEDLES:
        needle = needles.search(lowered)
        while needle is not None:
            label = _BY_NEEDLE[needle[0]]
            position, following = needle.span()
            word = label.word.match(lowered, position) if label.word is not None else None
            end = word.end() if word is not None else following
            # Most matches are parts of other words, some are parts of a secret.
            is_part = lowered[end : end + 1].isalpha() or position < done.get(label.needle, 0)
            joint = None if is_part else _JOINT.match(lowered, end)
            if joint is not None and (span := _secret_after(label, data, lowered, position, joint)) is not None:
                yield span
                done[label.needle] = span.end
            needle = needles.search(lowered, following)


def _secret_after(label: _Label, data: bytes, lowered: bytes, position: int, joint: re.Match[bytes]) -> Span | None:
    """Return the secret that a label's core word at `position` announces; `joint` stands between them."""
    joint_name, at = str(joint.lastgroup), joint.end()
    before = data[max(0, position - _LABEL_BYTES) : position]
    start = position - len(before) + len(before.rstrip(_LABEL_CHARACTERS))
    is_flag = joint_name == "space" and data.startswith(b"--", start)
    if joint_name == "space" and not is_flag and _PLAIN_WORD.match(data, at):
        return None
    match = _QUOTED.match(data, at) or _BARE.match(data, at, at + _MOST_BYTES)
    if match is None:
        return None
    first, last = match.span(str(match.lastgroup))
    quoted = match.re is _QUOTED
    if not quoted:
        last = first + len(data[first:last].rstrip(_TRAILING))
    if first == last or (not quoted and _CALL.match(data, first, last)):
        return None
    if not _is_label(label, data, lowered, start, position, value=data[first:last], ends_at=joint.start()):
        return None
    if joint_name == "set" and not _SETS.search(lowered, max(0, start - _LABEL_BYTES), start):
        return None
    following = match.end() if quoted else last
    form = _FORMS[joint_name]
    if is_flag:
        form = Form.FLAG
    elif joint_name == "tight" and data[start : at - 1].isupper():
        form = Form.ENVIRONMENT
    elif joint_name == "tight" and not _is_setting(data, start, following):
        form = Form.EQUALS
    elif form is Form.COLON and joint["aside"] is not None:
        form = Form.VERB
    found_secret = is_secret(
        data[first:last][:_JUDGED_BYTES],
        label.kind,
        form,
        quoted=quoted,
        alone=_AFTER_ALONE.match(data, following) is not None,
        in_code=not quoted and _AFTER_CODE.match(data, last) is not None,
    )
    return Span(first, last, label.kind) if found_secret else None


def _is_label(
    label: _Label, data: bytes, lowered: bytes, start: int, position: int, *, value: bytes, ends_at: int
) -> bool:
    """Return True if the words around a core word, which begins at `position` in a name from `start` on, fit it."""
    around = max(0, position - _BEFORE_BYTES), position
    if label.not_before.search(lowered, *around):
        return False
    if ends_at > position + len(label.needle) or label.before.search(lowered, *around):
        return True
    if label.kind == "key":
        return _ENVIRONMENT_KEY.fullmatch(data, start, position) is not None
    is_word = label.needle in _SHORT_WORDS and start == position and not data.startswith(b"PASS", start)
    # "pass: step-12" is of a test or a build.
    is_word = is_word and not (label.needle == b"pass" and (b"-" in value or _TURN.search(lowered, *around)))
    return is_word and _CHOSEN.fullmatch(value) is not None


def _is_setting(data: bytes, start: int, following: int) -> bool:
    """Return True if `name=value` is a setting rather than an argument of a call in a program."""
    if data.startswith((b"--", b"?", b"&", b";", b"/"), max(0, start - 1)) or data.startswith(b"--", start):
        return True
    line_start = _SETTING_START.search(data, max(0, start - 24), start)
    return line_start is not None and _SETTING_END.match(data, following) is not None
