// Reading: a sheet with a note, or with the lines around a result, and the way on from there.

import { announce, byId, make, named, show } from "./elements.js";
import { marked } from "./highlight.js";
import { Away, send } from "./service.js";
import { onLanguage, sentence, t } from "./words.js";

/** Lines before a passage, lines of a page, and pages that are fetched at most to fill a gap of long lines. */
const BEFORE = 60;
const PAGE = 120;
const FILLING = 20;
const MARKDOWN = /\.(?:md|markdown)$/i;

/** The place that is read: {agent, path, title?, source?, first?, last?, terms?, heading?, parts?, previous?, next?}, and its lines so far. */
let place = null;
let pages = [];
let opener = null;
let round = 0;
/** The module that renders notes, once it is there, and if they are shown as written instead. */
let markdown;
let asWritten = false;

export function startReader() {
  const sheet = byId("reader");
  byId("close").addEventListener("click", () => sheet.close());
  byId("previous").addEventListener("click", () => go("previous"));
  byId("next").addEventListener("click", () => go("next"));
  byId("written").addEventListener("click", () => {
    asWritten = !asWritten;
    render();
    toBest();
  });
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) sheet.close(); // beside the sheet
  });
  sheet.addEventListener("close", () => {
    place = null;
    backTo(opener)?.focus();
  });
  onLanguage(() => place && (isTalk() ? enter(place) : render()));
}

/** Where the focus came from. The list may have been drawn anew meanwhile. */
function backTo(button) {
  return button?.isConnected === false ? document.querySelector(`[data-place="${CSS.escape(button.dataset.place ?? "")}"]`) : button;
}

export const isReading = () => byId("reader").open;

/** Open a place; `from` gets the focus back. */
export function openReader(where, from) {
  opener = from;
  enter(where);
  if (!isReading()) byId("reader").showModal();
  byId("text").focus();
}

/** Go to the result, or the day, before or after this one. */
export function go(direction) {
  const where = place?.[direction]?.();
  if (where) enter(where);
}

async function enter(where) {
  place = where;
  pages = [];
  render();
  show(byId("lines"), make("p", { className: "faint" }, t("reading")));
  // Most of the page is there without the renderer; if it cannot be had, notes are shown as written.
  markdown ??= await import("./markdown.js").catch(() => undefined);
  if (where !== place) return;
  if (isTalk() && markdown) {
    const { showTurns } = await import("./turns.js");
    const passage = { startLine: where.first, endLine: where.last, agent: where.agent, isCurrent: () => where === place };
    await showTurns(byId("lines"), where, passage);
    return;
  }
  const { first = 1, last = 1 } = where;
  const from = Math.max(1, first - BEFORE);
  let fetched = await fetchPages(from, Math.max(from + PAGE, last + PAGE / 2));
  // Long lines may have taken all the pages.
  if (fetched && lastOf(fetched.at(-1)) < first && fetched.at(-1).nextFrom) fetched = await fetchPages(first, first + PAGE);
  if (!fetched) return;
  pages = fetched;
  render();
  toBest();
  const end = pages.at(-1);
  announce(named(where.path), `: ${t("linesOf", pages[0].from, lastOf(end), end.totalLines)}`);
}

function toBest() {
  const best = bestBlock();
  if (best) best.scrollIntoView({ block: "center" });
  else byId("text").scrollTop = 0;
}

/** Of the lines or blocks of the passage, the one where most words matched. */
function bestBlock() {
  const marks = (block) => block.querySelectorAll("mark").length;
  const meant = [...byId("lines").querySelectorAll(".meant")];
  return meant.reduce((best, block) => (best && marks(best) >= marks(block) ? best : block), undefined);
}

/** The pages from one line up to another, or undefined: then the reader went elsewhere, or the reason is shown. */
async function fetchPages(from, end) {
  const fetched = [];
  // A page holds so many characters at most: long lines may take several.
  for (let next = from; next !== undefined && next < end && fetched.length < FILLING; ) {
    const page = await fetchPage(next, end - next);
    if (!page) return undefined;
    fetched.push(page);
    next = page.nextFrom;
  }
  return fetched;
}

/** One page, or undefined as in `fetchPages`. */
async function fetchPage(from, lines) {
  const mine = ++round;
  const { agent, path } = place;
  try {
    const page = await send("/v1/get", { agent, path, from, lines });
    return mine === round && place ? page : undefined;
  } catch (error) {
    if (mine === round && place) {
      const reason = error instanceof Away ? t("awaySentence") : sentence(error.message);
      byId("lines").prepend(make("div", { className: "notice bad" }, reason));
    }
    return undefined;
  }
}

const lastOf = (page) => page.from + Math.max(page.lines, 1) - 1;

async function readOn() {
  const page = await fetchPage(pages.at(-1).nextFrom, PAGE);
  if (!page) return;
  pages.push(page);
  render();
  focusOn("later");
}

async function readBefore() {
  const before = pages[0].from;
  const from = Math.max(1, before - PAGE);
  const fetched = await fetchPages(from, before);
  if (!fetched) return;
  const height = byId("text").scrollHeight;
  pages.unshift(...fetched);
  render();
  // What was read stays where it was.
  byId("text").scrollTop += byId("text").scrollHeight - height;
  focusOn("earlier");
}

/** The button stays in hand; at the end of the document the text is. */
function focusOn(name) {
  (byId("lines").querySelector(`.${name}`) ?? byId("text")).focus({ preventScroll: true });
}

function render() {
  const heading = place.heading?.() ?? place.title;
  show(byId("reading"), heading ? named(heading) : named(place.path));
  byId("previous").hidden = byId("next").hidden = !place.previous && !place.next;
  byId("previous").disabled = !place.previous;
  byId("next").disabled = !place.next;
  renderParts();
  const note = asWritten ? undefined : renderedNote();
  byId("written").hidden = !isNote() || pages.length === 0 || (!note && !asWritten);
  byId("written").setAttribute("aria-pressed", String(asWritten));
  if (pages.length === 0) {
    show(byId("extent"));
    return;
  }
  const [first, last] = [pages[0], pages.at(-1)];
  const extent = [heading ? named(place.path) : null, first.totalLines ? t("linesOf", first.from, lastOf(last), first.totalLines) : null];
  show(byId("extent"), ...extent.filter(Boolean).flatMap((part, index) => (index ? [" · ", part] : [part])));
  const warnings = pages.flatMap((page) => [page.error, page.warning]).filter(Boolean);
  show(
    byId("lines"),
    ...warnings.map((text) => make("div", { className: "notice warn" }, sentence(text))),
    first.from > 1 ? step("earlier", readBefore) : null,
    ...(note ? [note] : pages.map(pageLines)),
    last.nextFrom !== undefined ? step("later", readOn) : make("p", { className: "faint edge" }, t(first.totalLines ? "end" : "empty")),
  );
}

const isTalk = () => place.source === "sessions";
const isNote = () => place.source !== "sessions" && MARKDOWN.test(place.path);

/** Lines of a page, undefined where it is not known which they are: an index keeps none of a file that is gone. */
const linesOf = (page) => {
  const texts = page.lines === 0 ? [] : page.text.split("\n");
  return texts.length === page.lines ? texts : undefined;
};

/** The note as its Markdown means it; undefined where it can only be shown as written. */
function renderedNote() {
  const texts = pages.map(linesOf);
  if (!markdown || !isNote() || pages.length === 0 || texts.includes(undefined)) return undefined;
  return markdown.rendered(texts.flat().join("\n"), { ...place, from: pages[0].from });
}

function step(name, action) {
  return make("p", { className: "step" }, make("button", { type: "button", className: name, onclick: action }, t(name)));
}

function pageLines(page, index) {
  const numbered = linesOf(page) !== undefined;
  const box = make("div", { className: "page", data: { page: index } });
  if (page.lines === 0) return box;
  page.text.split("\n").forEach((text, offset) => {
    const line = page.from + offset;
    const meant = numbered && place.first !== undefined && line >= place.first && line <= place.last;
    box.append(
      make(
        "div",
        { className: meant ? "line meant" : "line" },
        make("span", { className: "no", "aria-hidden": "true" }, numbered ? String(line) : ""),
        make("span", { className: "words", dir: "auto" }, ...marked(text, place.terms ?? [])),
      ),
    );
  });
  return box;
}

/** The notes of a day, to choose from. */
function renderParts() {
  const { parts = [], path, rest } = place;
  byId("parts").parentElement.hidden = parts.length < 2;
  show(
    byId("parts"),
    ...parts.map(({ name, enter: other }) => {
      const current = name === path ? "true" : undefined;
      return make("li", {}, make("button", { type: "button", "aria-current": current, onclick: () => enter(other()) }, named(name)));
    }),
    rest ? make("li", {}, make("button", { type: "button", onclick: () => enter(rest.enter()) }, t("allNotes", rest.count))) : null,
  );
}
