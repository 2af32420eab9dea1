// Reading: a sheet with the lines around a result, or with the notes of a day, and the way on from there.

import { announce, byId, make, named, show } from "./elements.js";
import { marked } from "./highlight.js";
import { Away, send } from "./service.js";
import { onLanguage, sentence, t } from "./words.js";

/** Lines before a result, lines of a page, and pages that are asked for to fill a gap of long lines. */
const BEFORE = 8;
const PAGE = 60;
const FILLING = 20;

/** What is read: {agent, path, first?, last?, terms?, heading?, parts?, previous?, next?}, and the lines so far. */
let place = null;
let pages = [];
let opener = null;
let round = 0;

export function startReader() {
  const sheet = byId("reader");
  byId("close").addEventListener("click", () => sheet.close());
  byId("previous").addEventListener("click", () => go("previous"));
  byId("next").addEventListener("click", () => go("next"));
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) sheet.close(); // beside the sheet
  });
  sheet.addEventListener("close", () => {
    place = null;
    backTo(opener)?.focus();
  });
  onLanguage(() => place && render());
}

/** Where the focus came from. The time line may have been drawn anew meanwhile. */
function backTo(button) {
  return button?.isConnected === false ? document.querySelector(`[data-date="${button.dataset.date}"]`) : button;
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
  const from = where.first === undefined ? 1 : Math.max(1, where.first - BEFORE);
  const lines = where.last === undefined ? PAGE : where.last - from + PAGE / 2;
  const page = await fetchPage(from, Math.max(PAGE, lines));
  if (!page) return;
  pages = [page];
  render();
  const best = bestLine();
  if (best) best.scrollIntoView({ block: "center" });
  else byId("text").scrollTop = 0;
  announce(named(where.path), `: ${t("linesOf", page.from, lastOf(page), page.totalLines)}`);
}

/** Of the lines that were meant, the one where most was found. */
function bestLine() {
  const marks = (line) => line.querySelectorAll("mark").length;
  const meant = [...byId("lines").querySelectorAll(".meant")];
  return meant.reduce((best, line) => (best && marks(best) >= marks(line) ? best : line), undefined);
}

/** One page, or undefined: then somebody went elsewhere, or the reason is shown. */
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
  const found = [];
  // A page holds so many characters at most: long lines may take several.
  for (let next = from; next !== undefined && next < before && found.length < FILLING; ) {
    const page = await fetchPage(next, before - next);
    if (!page) return;
    found.push(page);
    next = page.nextFrom;
  }
  const height = byId("text").scrollHeight;
  pages.unshift(...found);
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
  show(byId("reading"), place.heading ? place.heading() : named(place.path));
  byId("previous").hidden = byId("next").hidden = !place.previous && !place.next;
  byId("previous").disabled = !place.previous;
  byId("next").disabled = !place.next;
  renderParts();
  if (pages.length === 0) {
    show(byId("extent"));
    return;
  }
  const [first, last] = [pages[0], pages.at(-1)];
  const extent = [place.heading ? named(place.path) : null, first.totalLines ? t("linesOf", first.from, lastOf(last), first.totalLines) : null];
  show(byId("extent"), ...extent.filter(Boolean).flatMap((part, index) => (index ? [" · ", part] : [part])));
  const warnings = pages.flatMap((page) => [page.error, page.warning]).filter(Boolean);
  show(
    byId("lines"),
    ...warnings.map((text) => make("div", { className: "notice warn" }, sentence(text))),
    first.from > 1 ? step("earlier", readBefore) : null,
    ...pages.map(pageLines),
    last.nextFrom !== undefined ? step("later", readOn) : make("p", { className: "faint edge" }, t(first.totalLines ? "end" : "empty")),
  );
}

function step(name, action) {
  return make("p", { className: "step" }, make("button", { type: "button", className: name, onclick: action }, t(name)));
}

function pageLines(page, index) {
  const texts = page.text.split("\n");
  // What an index kept of a file that is gone has no lines of its own.
  const numbered = texts.length === page.lines;
  const box = make("div", { className: "page", data: { page: index } });
  if (page.lines === 0) return box;
  texts.forEach((text, offset) => {
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
  byId("parts").hidden = parts.length < 2;
  show(
    byId("parts"),
    ...parts.map(({ name, enter: other }) => {
      const current = name === path ? "true" : undefined;
      return make("li", {}, make("button", { type: "button", "aria-current": current, onclick: () => enter(other()) }, named(name)));
    }),
    rest ? make("li", {}, make("button", { type: "button", onclick: () => enter(rest.enter()) }, t("allNotes", rest.count))) : null,
  );
}
