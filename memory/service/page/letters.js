// Dead letters: what could not be indexed, and why. Asked for again only when some index has changed.

import { byId, copier, make, named, show, unfold } from "./elements.js";
import { agents, onLook, state } from "./live.js";
import { openReader } from "./reader.js";
import { ask } from "./service.js";
import { ago, moment, number, onLanguage, sentence, t } from "./words.js";

const FIRST = 5;
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;
const NAMED = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

let answer = null;
let known = "";
let asking = false;
let all = false;

export function startLetters() {
  onLook(refresh);
  onLanguage(render);
}

/** What a list is true for: any commit of an agent with letters, before or after, makes it old. */
const signature = () =>
  agents()
    .filter((agent) => agent.deadLetters > 0)
    .map((agent) => `${agent.agent} ${agent.revision}`)
    .join("\n");

async function refresh() {
  const now = signature();
  if (state.away || asking) return;
  if (now === "") {
    answer = null;
    known = "";
    render();
  } else if (now !== known) {
    asking = true;
    try {
      answer = await ask("/v1/dead-letters");
      known = now;
    } catch {
      // The next look tries again.
    }
    asking = false;
    render();
  }
}

function render() {
  const letters = answer?.deadLetters ?? [];
  const total = answer?.total ?? 0;
  byId("lettercount").textContent = total > 0 ? number(total) : "";
  unfold(byId("lettersbox"), total > 0);
  if (total === 0) {
    const indexed = agents().some((agent) => agent.counts);
    show(byId("letters"), make("p", { className: "calm" }, t(indexed ? "lettersNone" : "noIndexWord")));
    return;
  }
  const shown = all ? letters : letters.slice(0, FIRST);
  const list = make("ul", { className: all ? "letters all" : "letters", role: "list" }, ...shown.map(item));
  const parts = [list];
  if (shown.length < letters.length) {
    const more = make("button", { type: "button", className: "quiet" }, t("lettersMore", number(letters.length - shown.length)));
    more.addEventListener("click", () => {
      all = true;
      render();
    });
    parts.push(make("p", {}, more));
  } else if (total > letters.length) parts.push(make("p", { className: "faint" }, t("lettersRest", number(total - letters.length))));
  parts.push(make("p", { className: "faint" }, t("letterAdvice")));
  show(byId("letters"), ...parts);
}

function item(letter) {
  const open = make("button", { type: "button", className: "open" }, named(letter.path));
  open.addEventListener("click", () => openReader({ agent: letter.agent, path: letter.path, source: letter.source }, open));
  const facts = [
    agents().length > 1 ? letter.agent : null,
    letter.errorClass,
    t("letterTried", letter.attempts),
    ago(Math.max(0, state.answer.at - letter.lastAt)),
  ];
  return make(
    "li",
    {},
    open,
    make("p", { className: "reason" }, sentence(letter.reason)),
    make("p", { className: "faint", title: moment(letter.lastAt) }, facts.filter(Boolean).join(" · ")),
    ...["retry", "drop"].map((action) => command(letter, action)),
  );
}

/** A command to copy: this page changes nothing. */
function command({ agent, path }, action) {
  const whose = agents().length > 1 ? ` --agent ${agent}` : "";
  const text = `recalld dead ${action}${whose} ${quoted(path)}`;
  return make("p", { className: "command" }, make("code", {}, text), copier(text, { label: t("copyCommand"), done: t("copied") }) ?? "");
}

/** A path as a shell takes it, with its control characters as `recalld dead list` prints them. */
function quoted(path) {
  const hex = (sign, digits) => sign.charCodeAt(0).toString(16).padStart(digits, "0");
  const printed = path.replace(CONTROL, (sign) => NAMED[sign] ?? (sign < "\u0100" ? `\\x${hex(sign, 2)}` : `\\u${hex(sign, 4)}`));
  return /^[\w.\/][\w.\/-]*$/.test(printed) ? printed : `'${printed.replaceAll("'", "'\\''")}'`;
}
