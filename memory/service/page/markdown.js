// Markdown as elements. markdown-it finds its parts; elements are made here, from the lists below and from text alone.

import { make } from "./elements.js";
import { marked } from "./highlight.js";
import MarkdownIt from "./vendor/markdown-it.esm.min.mjs";
import { t } from "./words.js";

/** Characters, parts, and parts of one paragraph at most: no text makes the tab wait for seconds. */
const MOST_CHARACTERS = 200_000;
const MOST_PARTS = 20_000;
const MOST_INLINE = 1_500;

/** markdown-it leaves out what is nested deeper. Such a text is shown as written. */
const DEEPEST = 40;

const parser = new MarkdownIt({ html: false, linkify: false, maxNesting: DEEPEST + 1 });

/** Elements of Markdown. Headings stand two levels lower, below those of the page. */
const TAGS = new Set(["p", "blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s"]);
const SCHEMES = new Set(["http", "https", "mailto"]);
/** Blocks that a passage consists of. */
const BLOCKS = new Set(["paragraph_open", "heading_open", "tr_open", "fence", "code_block", "hr"]);

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/gm;
const FRONT = /^---\n([\w-]+:[^]*?)\n(?:---|\.\.\.)(?:\n|$)/;
const TASK = /^\[([ xX])\] /;

/** The elements of a text that begins at line `from` of its document; undefined where they would not be the whole text.
 *
 * Blocks on the lines `first` to `last` have the class `meant`.
 */
export function rendered(text, { from, first = Infinity, last = -Infinity, terms = [] }) {
  if (text.length > MOST_CHARACTERS) return undefined;
  let body = text.replaceAll("\r\n", "\n").replaceAll("\r", " ");
  const front = from === 1 ? FRONT.exec(body) : null;
  const fence = from > 1 ? openFence(body) : "";
  if (front) body = "\n".repeat(front[0].split("\n").length - 1) + body.slice(front[0].length);
  if (fence) body = `${fence}\n${body}`;
  const tokens = parser.parse(body, {});
  if (!isHarmless(tokens)) return undefined;
  const begin = from - (fence ? 1 : 0);
  const isMeant = ({ type, map }) => BLOCKS.has(type) && map && map[0] + begin <= last && map[1] + begin > first;
  const box = make("div", { className: "rendered" });
  if (front) box.append(code(front[1], terms, from <= last && front[0].split("\n").length > first ? "front meant" : "front"));
  build(box, tokens, { terms, isMeant });
  return box;
}

function isHarmless(tokens) {
  const inline = tokens.map(({ children }) => children?.length ?? 0);
  const parts = inline.reduce((total, length) => total + length, tokens.length);
  const isDeep = ({ level, children }) => level >= DEEPEST || children?.some(isDeep);
  return parts <= MOST_PARTS && !inline.some((length) => length > MOST_INLINE) && !tokens.some(isDeep);
}

/** The fence that a text from the middle of a document begins in. A fence with a language can only be an opening one. */
function openFence(text) {
  const fences = [...text.matchAll(FENCE)];
  return fences.findIndex(([, , language]) => language.trim()) % 2 === 1 ? fences[0][1] : "";
}

function build(box, tokens, context) {
  const stack = [box];
  for (const token of tokens) {
    const top = stack.at(-1);
    if (token.nesting === -1) stack.pop();
    else if (token.nesting === 1) {
      const node = opened(token);
      node.classList.toggle("meant", context.isMeant(token));
      top.append(node);
      stack.push(node);
    } else if (token.type === "inline") inline(top, token.children, context);
    else top.append(...leaf(token, context));
  }
}

function opened(token) {
  const level = /^h([1-6])$/.exec(token.tag)?.[1];
  if (level) return make(`h${Math.min(6, Number(level) + 2)}`, { className: `level${level}` });
  if (token.type === "link_open") return link(token.attrGet("href"));
  // The paragraphs of a list without blank lines.
  const tag = TAGS.has(token.tag) && !token.hidden ? token.tag : "span";
  const node = make(tag, { className: token.hidden ? "tight" : "" });
  if (tag === "ol") node.start = token.attrGet("start") ?? 1;
  const align = token.attrGet("style")?.match(/^text-align:(center|right)$/)?.[1];
  if (align) node.classList.add(align);
  return node;
}

function leaf(token, { terms, isMeant }) {
  const { type, content } = token;
  const className = isMeant(token) ? "meant" : "";
  if (type === "fence" || type === "code_block") return [code(content.replace(/\n$/, ""), terms, className)];
  if (type === "code_inline") return [make("code", {}, ...marked(content, terms))];
  if (type === "image") return [picture(token)];
  if (type === "hr") return [make("hr", { className })];
  if (type === "hardbreak") return [make("br")];
  return type === "softbreak" ? ["\n"] : marked(content, terms);
}

function inline(box, children, context) {
  const [task, mark] = TASK.exec(children[0]?.content ?? "") ?? [];
  if (task) {
    box.append(make("span", { className: "task" }, mark === " " ? "☐ " : "☑ "));
    children[0].content = children[0].content.slice(task.length);
  }
  build(box, children, { ...context, isMeant: () => false });
}

const code = (text, terms, className = "") => make("pre", { className }, make("code", {}, ...marked(text, terms)));

/** A link, where it leads out of the memory. */
function link(address) {
  if (!URL.canParse(address) || !SCHEMES.has(new URL(address).protocol.slice(0, -1))) return make("span", { className: "nowhere", title: address });
  return make("a", { href: address, title: address, target: "_blank", rel: "noreferrer noopener" });
}

/** A picture is never loaded: whoever it comes from would learn who reads the note, and when. */
function picture(token) {
  const node = link(token.attrGet("src"));
  node.append(make("span", { className: "kind" }, t("picture")), " ", token.content || token.attrGet("src"));
  return node;
}
