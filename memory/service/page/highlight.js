// Marking what a query found. The service says which terms it looked for; here they are found in the text again.

import { make } from "./elements.js";

/** Scripts without spaces, whose terms are pairs of characters. */
const PAIRED = ["Han", "Hiragana", "Katakana", "Hangul", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar"];
const CJK = new RegExp(`[${PAIRED.map((name) => `\\p{Script=${name}}`).join("")}]`, "u");
const WORD = /[\p{L}\p{N}\p{M}]/u;
/** "And", prepositions and the article in Arabic and Hebrew, at the end of what is before a term. */
const PREFIX = /(?<![א-ת\u0621-\u06d3])(?:[وف]?(?:[بكل]?ال|لل)?[بل]?|ו?(?:כש|[בכלמש])?ה?)$/;
const LETTERS = /^\p{L}{3,}$/u;
const PIECE_OF_HASH = /^(?=.*\d)[0-9a-f]{6,}$/;
/** What English puts at the end of a word whose stem was looked for. */
const ENDING = /^(?:s|e|y|es|ed|er|ing|ings|ly|edly|ingly|ies|ied|ation|ations|ment|ments)$/;

const isWord = (sign) => sign !== undefined && WORD.test(sign) && !CJK.test(sign);
const isUpper = (sign) => sign !== sign.toLowerCase();

/** The text as it is compared, and for each of its places the place in the text; the last one is the end. */
export function folded(text) {
  let out = "";
  const places = [];
  let at = 0;
  for (const sign of text) {
    const low = sign < "\x80" ? sign.toLowerCase() : fold(sign);
    for (let unit = 0; unit < low.length; unit++) places.push(at);
    out += low;
    at += sign.length;
  }
  places.push(at);
  return { out, places };
}

// Full-width and half-width forms become narrow ones, letters lose their accents and points, as in the index
// (`memory/chunking/folding.py`).
const ACCENTS = /[\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670\u093c\u00ad\u200c\u200d]/g;
const PAIRS = "ßss ςσ ıi łl øo æae œoe ىي یي ٱا کك ةه ँं".split(" ");
const ALIKE = new Map(PAIRS.map((pair) => [pair[0], pair.slice(1)]));
const plain = (sign) => sign.normalize("NFKD").replace(ACCENTS, "").normalize("NFC").toLowerCase();
const fold = (sign) => ALIKE.get(plain(sign)) ?? plain(sign);

/** Places [from, to) of a text that a query's terms match, ascending, without overlaps. A term ends in * if a word may go on. */
export function matches(text, terms) {
  const { out, places } = folded(text);
  const found = [];
  for (const raw of terms) {
    const isForm = raw.endsWith("*");
    const term = folded(isForm ? raw.slice(0, -1) : raw).out;
    if (!term) continue;
    for (let at = out.indexOf(term); at >= 0; at = out.indexOf(term, at + 1)) {
      const prefix = isWord(out[at - 1]) ? (PREFIX.exec(out.slice(Math.max(0, at - 6), at))?.[0].length ?? 0) : 0;
      const end = CJK.test(term) ? at + term.length : endOfWord(text, out, places, { term, isForm, prefix }, at);
      if (end > at) found.push([places[at - prefix], places[end]]);
    }
  }
  found.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  const merged = [];
  for (const [from, to] of found) {
    const last = merged[merged.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else merged.push([from, to]);
  }
  return merged;
}

/** Where the word ends that this term is, with or without an ending; `at` when the term is only a part of it. */
function endOfWord(text, out, places, { term, isForm, prefix }, at) {
  const hump = (place) =>
    place > 0 && place < out.length && isUpper(text[places[place]]) && !isUpper(text[places[place - 1]]);
  if (isWord(out[at]) && isWord(out[at - 1]) && !prefix && !hump(at)) return at;
  const end = at + term.length;
  if (!isWord(out[end - 1]) || !isWord(out[end]) || hump(end)) return end;
  let last = end;
  while (isWord(out[last]) && !hump(last)) last++;
  const rest = out.slice(end, last);
  if (isForm || PIECE_OF_HASH.test(term)) return last;
  if (!LETTERS.test(term)) return at;
  // "run" is also in "running".
  const doubled = rest[0] === out[end - 1] && ENDING.test(rest.slice(1));
  return ENDING.test(rest) || doubled ? last : at;
}

/** Characters and lines of an excerpt, characters before its first match, and the longest word that is not cut in two. */
const EXCERPT = 280;
const LINES = 6;
const LEAD = 60;
const LONGEST = 40;

/** Marks of Markdown, and the text that stays of them. No two of their repeats can match the same text. */
const MARKS = [
  [/^---\n[^]*?\n---\n/, ""],
  [/!?\[([^[\]]*)\]\([^()\s]*\)/g, "$1"],
  [/\*\*|~~|`/g, ""],
  [/\*(\w[^*\n]{0,60})\*/g, "$1"],
  [/^ *[-*+] (?:\[.\] )?/gm, "• "],
  [/^ *(#{1,6}|>) (.*)$/gm, "$2\n"],
  [/^[-=*_|: ]+$/gm, ""],
];

/** The part of a snippet where most words matched, cut at words, without the marks of Markdown. */
export function excerpt(snippet, terms, title) {
  const plain = MARKS.reduce((text, [pattern, by]) => text.replace(pattern, by), snippet);
  // A line goes on in the next one, up to an empty one or an entry of a list.
  const lines = plain.split(/\n\s*\n|\n(?=•|\d+\. |\|)/).map((line) => line.replaceAll("\n", " ").trim());
  const shown = lines.filter((line, index) => line && (index > 0 || line !== title || lines.length === 1));
  const text = shown.join("\n");
  if (text.length <= EXCERPT && shown.length <= LINES) return text;
  const starts = matches(text, terms).map(([from]) => Math.max(0, Math.min(from - LEAD, text.length - EXCERPT)));
  const ranked = starts.map((start, index) => [starts.filter((other) => other >= start && other < start + EXCERPT).length, -index, start]);
  const best = ranked.sort((one, other) => other[0] - one[0] || other[1] - one[1])[0]?.[2] ?? 0;
  const line = text.slice(best, best + LEAD).lastIndexOf("\n");
  const begin = best > 0 && line >= 0 ? best + line + 1 : wordEdge(text, best, 1);
  const end = wordEdge(text, Math.min(text.length, best + EXCERPT), -1);
  const excerpted = text.slice(begin, end).trim().split("\n").slice(0, LINES).join("\n");
  return `${begin > 0 ? "… " : ""}${excerpted}${text.endsWith(excerpted) ? "" : " …"}`;
}

/** The nearest place in a direction that splits neither a word nor a character. */
function wordEdge(text, place, step) {
  let at = place;
  const splits = () => /[\udc00-\udfff]/.test(text[at]) || (isWord(text[at - 1]) && isWord(text[at]));
  while (at > 0 && at < text.length && Math.abs(at - place) < LONGEST && splits()) at += step;
  return at;
}

/** The text as nodes, with its matches in <mark>. */
export function marked(text, terms) {
  const nodes = [];
  let done = 0;
  for (const [from, to] of matches(text, terms)) {
    if (from > done) nodes.push(text.slice(done, from));
    nodes.push(make("mark", {}, text.slice(from, to)));
    done = to;
  }
  nodes.push(text.slice(done));
  return nodes;
}
