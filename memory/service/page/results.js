// The list of results: title, place and excerpt of each passage, and behind a click the reasons why it came.

import { announce, copier, make, named, show } from "./elements.js";
import { excerpt, marked, matches } from "./highlight.js";
import { agentNamed, agents } from "./live.js";
import { number, score, sentence, span, t } from "./words.js";

const MODES = { hybrid: "modeHybrid", vector: "modeVector", keyword: "modeKeyword" };

/** Words of a passage that are named as its reasons. */
const MOST_WORDS = 8;

/** Show an answer.
 *
 * `found` is {answer, terms, agent}; `actions` are {open(result, button), more, again}: more is undefined where there
 * cannot be any.
 */
export function showResults(box, found, actions) {
  const { answer, terms, agent } = found;
  const list = make("ol", { className: "results", role: "list" });
  for (const result of answer.results) list.append(item(result, terms, actions.open));
  const parts = [about(answer, agent, actions.again)];
  if (answer.results.length > 0) parts.push(list);
  else parts.push(nothing(answer, agent));
  if (actions.more) {
    parts.push(make("p", { className: "more" }, make("button", { type: "button", onclick: actions.more }, t("more"))));
  }
  show(box, ...parts);
}

/** What a screen reader says of an answer. */
export function announceResults(answer) {
  announce(answer.results.length > 0 ? t("found", answer.results.length) : t("nothing"));
}

function about(answer, agent, again) {
  const facts = make("p", { className: "about" });
  facts.append(
    make("strong", {}, t("found", answer.results.length)),
    MODES[answer.mode] ? make("span", { className: "mode" }, t("mode", t(MODES[answer.mode]))) : "",
    make("span", {}, t("took", number(Math.round(answer.tookMs)))),
  );
  const box = make("div", { className: "answer" }, facts);
  if (answer.unavailable || answer.disabled) {
    const trouble = notice("bad", make("strong", {}, t(answer.disabled ? "unavailable" : "unanswered")));
    if (answer.error) trouble.append(" ", sentence(answer.error));
    if (answer.action) trouble.append(" ", sentence(answer.action));
    box.append(trouble);
  } else if (answer.error) box.append(notice("bad", sentence(answer.error)));
  const missing = answer.degraded ?? [];
  if (missing.length > 0 && !isEmptyIndex(agent)) {
    const reasons = make("ul", {}, ...missing.map((reason) => make("li", {}, sentence(reason))));
    box.append(notice("warn", make("strong", {}, t("degraded")), reasons));
  }
  const { documents = 0, oldestSeconds, vectors = 0 } = answer.pending ?? {};
  if (documents > 0) {
    const age = oldestSeconds === undefined ? "" : span(oldestSeconds);
    box.append(notice("busy", t("pendingDocuments", documents, age)));
  }
  // Where vectors cannot be had, the reasons above say so.
  if (vectors > 0 && missing.length === 0) box.append(notice("busy", t("pendingVectors", vectors)));
  const changed = make("button", { type: "button", onclick: again }, t("searchAgain"));
  const hint = make("p", { className: "notice busy changed", hidden: true }, `${t("changedSince")} `, changed);
  box.append(hint);
  return box;
}

function notice(kind, ...children) {
  return make("div", { className: `notice ${kind}` }, ...children);
}

const isEmptyIndex = (agent) => {
  const known = agentNamed(agent);
  return known !== undefined && !known.counts && !known.error;
};

function nothing(answer, agent) {
  const box = make("div", { className: "nothing" });
  if (answer.unavailable || answer.disabled) return box;
  const empty = isEmptyIndex(agent);
  box.append(
    make("p", { className: "headline" }, t(empty ? "nothingYet" : "nothing")),
    make("p", { className: "faint" }, t(empty ? "nothingYetHint" : "nothingHint")),
  );
  return box;
}

function item(result, terms, open) {
  const button = make("button", { type: "button", className: "open", title: t("open") }, named(result.title ?? result.path));
  button.addEventListener("click", () => open(result, button));
  const snippet = make("p", { className: "snippet", dir: "auto" }, ...marked(excerpt(result.snippet, terms, result.title), terms));
  const { agent, path, startLine, endLine } = result;
  const place = make(
    "p",
    { className: "place" },
    make("span", { className: "kind" }, t(result.source === "sessions" ? "kindSession" : "kindNote")),
    agent && agents().length > 1 ? make("span", { className: "kind whose" }, named(agent)) : null,
    make("span", { className: "where" }, result.title ? named(path) : null, result.title ? " · " : null, t("lines", startLine, endLine)),
  );
  const card = make(
    "article",
    { className: "result" },
    make("header", {}, make("h3", {}, button), total(result.score)),
    place,
    snippet,
    make("div", { className: "foot" }, why(result, terms), ...copiers(result)),
  );
  card.addEventListener("click", (event) => {
    // The whole card opens, but for what is a control by itself, and for who selects text.
    if (event.target.closest("button, details") || !getSelection().isCollapsed) return;
    open(result, button);
  });
  return make("li", {}, card);
}

const copiers = ({ citation, resume }) => [
  citation ? copier(`Source: ${citation}`, { label: t("copy"), done: t("copied") }) : null,
  resume ? copier(resume, { label: t("copyResume"), done: t("copied") }) : null,
].filter(Boolean);

/** The reasons why a result came, in words. */
function why(result, terms) {
  const { vectorScore, textScore, snippet, alsoIn } = result;
  const words = new Set(matches(snippet, terms).map(([from, to]) => snippet.slice(from, to).toLowerCase()));
  const quoted = [...words].slice(0, MOST_WORDS).flatMap((word, index) => [index ? ", “" : " “", make("bdi", {}, word), "”"]);
  const reasons = [
    vectorScore === undefined ? [t("whyNotMeaning")] : [t("whyMeaning"), ` (${score(vectorScore)})`, faint("whyMeaningMeans")],
    textScore === undefined ? [t("whyNotWords")] : [t("whyWords"), ...quoted, ` (${score(textScore)})`, faint("whyWordsMeans")],
    alsoIn ? [t("whyNewest", alsoIn.count + 1), ...alsoIn.paths.flatMap((path, index) => [index ? ", " : t("colon"), named(path)])] : null,
    [t("scoreTotal"), ` ${score(result.score)}`, faint("scoreTotalMeans")],
  ];
  const list = make("ul", {}, ...reasons.filter(Boolean).map((parts) => make("li", {}, ...parts)));
  return make("details", { className: "why" }, make("summary", {}, t("why")), list);
}

const faint = (key) => make("span", { className: "faint" }, t("colon"), t(key));

function total(value) {
  const bar = make("span", { className: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.min(1, Math.max(0, value)));
  return make("p", { className: "score", title: t("scoreTotalMeans") }, t("scoreTotal"), " ", make("strong", {}, score(value)), bar);
}
