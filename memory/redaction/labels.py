"""Labels of secrets: the words that announce one, in several languages, and what may stand between them and it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from memory.redaction.values import Family, Form

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

#: What the last group of `JOINT` says of how a value is joined.
FORMS = {
    "typed": Form.EQUALS,
    "compared": Form.LISTED,
    "tight": Form.SETTING,
    "equals": Form.EQUALS,
    "colon": Form.COLON,
    "verb": Form.VERB,
    "set": Form.VERB,
    "dash": Form.BESIDE,
    "said": Form.VERB,
    "cell": Form.LISTED,
    "argument": Form.LISTED,
    "call": Form.LISTED,
    "element": Form.SETTING,
    "default": Form.EQUALS,
    "paired": Form.EQUALS,
    "space": Form.BESIDE,
}


@dataclass(frozen=True, slots=True)
class Core:
    """A core word. `needle` is looked for first, in the text in lower case; `word` is all of it that may be there.

    `before` must precede what is no longer than the needle ("pass", "key"), `not_before` must not precede anything.
    """

    needle: bytes
    word: re.Pattern[bytes] | None
    family: Family
    kind: str
    before: re.Pattern[bytes] | None = None
    not_before: re.Pattern[bytes] | None = None

    def end(self, lowered: bytes, position: int) -> int:
        """Where the word ends whose needle is at `position`; 0 when it is another one."""
        if self.word is None:
            return position + len(self.needle)
        found = self.word.match(lowered, position)
        return found.end() if found is not None else 0


def _core(
    needle: str,
    family: Family,
    kind: str,
    *,
    word: str | None = None,
    before: str | None = None,
    not_before: str | None = None,
) -> Core:
    return Core(
        needle.encode(),
        re.compile(word.encode()) if word else None,
        family,
        kind,
        re.compile(before.encode()) if before else None,
        re.compile(not_before.encode()) if not_before else None,
    )


#: Keys that open something. Others are of tables, maps and caches, or public.
_OPENING = (
    "(?:api|access|secret|private|auth|account|encrypt(?:ion)?|decrypt(?:ion)?|sign(?:ing)?|master|service|client"
    "|admin|bot|webhook|wpa|wifi|wlan|deploy|app(?:lication)?|shared(?:access)?|storage|subscription|licen[cs]e|security|consumer"
    "|recovery|hmac|aes|jwt|cookie|session|root|openai|anthropic|voyage|gemini|google|groq|azure|aws|github|stripe"
    "|mistral|cohere|deepseek|openrouter|perplexity|tavily|brave|serper)[_. -]?\\Z"
)

CORES = (
    _core(
        "pass",
        Family.PASSWORD,
        "password",
        word="pass(?:word|wd|phrase|code|wort|ord)?",
        before="[_-]\\Z|(?:db|smtp|ftp|user|mysql|pg|root)\\Z",
        not_before="(?:forgot|reset)[_-]?\\Z",
    ),
    _core(
        "pw",
        Family.PASSWORD,
        "password",
        word="pwd|(?<![a-z0-9])pw(?![a-z0-9])",
        before="[_-]\\Z",
        not_before="old\\Z",
    ),
    _core("identified by", Family.PASSWORD, "password"),
    _core("kennwort", Family.PASSWORD, "password"),
    _core("contrase", Family.PASSWORD, "password", word="contrase(?:\xf1|n)a"),
    _core("mot de passe", Family.PASSWORD, "password"),
    _core("wachtwoord", Family.PASSWORD, "password"),
    _core("secret", Family.SECRET, "secret", word="secrets?"),
    _core("credential", Family.SECRET, "secret", word="credentials?"),
    # kubeconfig's own key is `client-key-data`; other data of keys is public.
    _core("key", Family.SECRET, "key", word="key(?:(?<=client-key)-data)?", before=_OPENING),
    _core("_auth", Family.SECRET, "secret", before="(?:^|[^a-z0-9.])\\Z"),
    _core(
        "token",
        Family.TOKEN,
        "token",
        not_before="(?:eos|bos|pad|unk|cls|sep|mask|next|page|continuation|stop|start|end|per|max|min|num|special|sync)"
        "[_. -]?\\Z",
    ),
)

#: Only in texts that are not all ASCII; of French and Portuguese hardly any is.
OTHER_CORES = (
    _core("mdp", Family.PASSWORD, "password", word="(?<![a-z0-9])mdp(?![a-z0-9])", before="[_-]\\Z"),
    _core("senha", Family.PASSWORD, "password", not_before="[a-z]\\Z"),
    _core("密", Family.PASSWORD, "password", word="密(?:码|碼)"),
    _core("口令", Family.PASSWORD, "password"),
    _core("パスワード", Family.PASSWORD, "password"),
    _core("暗証番号", Family.PASSWORD, "password"),
    _core("비밀번호", Family.PASSWORD, "password"),
    _core("비번", Family.PASSWORD, "password"),
    _core("hasło", Family.PASSWORD, "password"),
    _core("lösenord", Family.PASSWORD, "password", word="lösenord(?:et)?"),
    _core("şifre", Family.PASSWORD, "password"),
    _core("mật khẩu", Family.PASSWORD, "password"),
    _core("كلمة", Family.PASSWORD, "password", word="كلمة (?:المرور|السر)"),
    _core("पासवर्ड", Family.PASSWORD, "password"),
    _core("пароль", Family.PASSWORD, "password"),
    _core("Пароль", Family.PASSWORD, "password"),
    _core("密钥", Family.SECRET, "key"),
    _core("密鑰", Family.SECRET, "key"),
    _core("秘钥", Family.SECRET, "key"),
    _core("私钥", Family.SECRET, "key"),
    _core("令牌", Family.TOKEN, "token"),
)
