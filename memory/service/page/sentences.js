// Sentences of the service in Chinese. What is not known here is shown as it is: reasons may be anybody's words.

const KEYWORDS_ONLY = ": keywords only";

const SENTENCES = [
  [/^there is no index yet: nothing was searched$/, () => "还没有索引：没有进行搜索"],
  [/^the search did not finish within (.+) s$/, (seconds) => `搜索未能在 ${seconds} 秒内完成`],
  [/^the index has vectors of another embedding model and is waiting to be rebuilt$/, () => "索引中的向量来自另一个模型，等待重建"],
  [/^the queue does not answer, so changes may be missing from the index$/, () => "队列没有应答：不知道索引落后多少"],
  [/^(.+) at (.+) has not answered a request$/, (name, address) => `${name}（${address}）有请求尚未应答`],
  [
    /^(.+) at (.+) has not answered a request; recalld tries again, and keywords work meanwhile; `recalld doctor --online` tries it now$/,
    (name, address) => `${name}（${address}）有请求尚未应答；关键词搜索照常，会自动重试（recalld doctor --online 可立即询问）`,
  ],
  [/^memory search is unavailable$/, () => "无法搜索记忆"],
  [/^this question was not searched for$/, () => "没有搜索这个问题"],
  [
    /^pattern (\d+) of redaction\.patterns needs too much for this question \((.+)\), so nothing was searched$/,
    (place, cost) => `redaction.patterns 的第 ${place} 个模式处理这个问题开销过大（${cost}），所以没有搜索`,
  ],
  [
    /^ask in other words, or rewrite the pattern without parts that fit a text in many ways, such as (.+) or (.+)$/,
    (one, other) => `请换个说法，或改写该模式，去掉能以多种方式匹配同一文本的部分，如 ${one} 或 ${other}`,
  ],
  [/^ask again$/, () => "请再问一次"],
  [/^the search failed: (.+)$/, (reason) => `搜索失败：${reason}`],
  [/^run `recalld status`$/, () => "请运行 recalld status"],
  [/^see `recalld config show`$/, () => "请看 recalld config show"],
  [/^look into the log$/, () => "请查看日志"],
  [/^wait until the index is rebuilt, or run `recalld rebuild`$/, () => "请等待索引重建，或运行 recalld rebuild"],
  [/^the memory of agent '(.+)' is switched off \(enabled = false\)$/, (agent) => `智能体 ${agent} 的记忆已关闭（enabled = false）`],
  [/^not found: there is no such document \(any more\)$/, () => "没有找到：没有这个文档（或已不在）"],
  [/^path required: .+$/, () => "需要路径：只能读这份记忆里的文档（MEMORY.md、memory/**/*.md 或额外路径）"],
  [/^the file is gone; these lines come from the index$/, () => "文件已不在；这是索引保留的这几行"],
  [/^line (\d+) has (\d+) characters; the first (\d+) are shown$/, (line, all, shown) => `第 ${line} 行有 ${all} 个字符；只显示前 ${shown} 个`],
  [/^a token is needed: .+$/, () => "需要令牌：它在 <home>/run/tokens/<agent> 中"],
  [/^this token is not known here$/, () => "这里不认识这个令牌"],
  [/^this token does not open the memory of that agent$/, () => "这个令牌打不开那个智能体的记忆"],
  [/^no agent is called '(.+)' \(known: .+\)$/, (agent) => `没有名为 ${agent} 的智能体`],
  [/^the request failed; the service's log says why$/, () => "请求失败；服务的日志说明了原因"],
];

/** The sentence in Chinese, null when it is not a known one. */
export function translated(text) {
  if (text.endsWith(KEYWORDS_ONLY)) {
    const reason = text.slice(0, -KEYWORDS_ONLY.length);
    return `${translated(reason) ?? reason}：仅按关键词`;
  }
  for (const [pattern, words] of SENTENCES) {
    const match = pattern.exec(text);
    if (match) return words(...match.slice(1));
  }
  return null;
}
