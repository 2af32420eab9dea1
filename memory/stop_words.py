"""Words that say nothing about what a person looks for. Queries drop them; the index keeps them."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: English function words, lower case, and what an apostrophe leaves behind ("what's" -> "s").
ENGLISH_STOP_WORDS = _words(
    """
    a about above after again against all also am an and any are as at be because been before being below
    between both but by can cannot could d did do does doing don down during each either else etc few for
    from further get got had has have having he her here hers herself him himself his how i if in into is it
    its itself just ll let m me might more most must my myself no nor not now of off on once only or other
    ought our ours ourselves out over own please re s same shall she should so some such t than that the
    their theirs them themselves then there these they this those through to too under until up upon us ve
    very was we were what when where whether which while who whom whose why will with would you your yours
    yourself yourselves
    """
)

#: Characters that are particles wherever they stand in a question: a bigram with one of them says nothing.
CHINESE_STOP_CHARACTERS = frozenset("的了吗吧呢啊呀嘛么麼嗎")

#: Pronouns, question words and fillers of two characters, simplified and traditional.
CHINESE_STOP_BIGRAMS = _words(
    """
    什么 什麼 怎么 怎麼 怎样 怎樣 如何 为何 為何 为什 為什 哪里 哪裡 哪裏 哪儿 哪些 哪个 哪個 哪一 多少 几个 幾個
    是否 有没 有沒 没有 沒有 可以 我们 我們 你们 你們 他们 他們 她们 她們 它们 它們 这个 這個 那个 那個 这些 這些
    那些 这样 這樣 那样 那樣 一个 一個 一下 一些 以及 或者 还是 還是 因为 因為 所以 但是 如果 请问 請問 告诉 告訴
    关于 關於 对于 對於 其中 就是 不是 是什 是怎 是哪 是谁 是誰 在哪 有什 有哪 谁是 誰是 何时 何時
    """
)
