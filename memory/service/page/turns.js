// A conversation: who said what and when, the passage marked, and the command that resumes it in its program.

import { announce, make, show } from "./elements.js";
import { marked } from "./highlight.js";
import { rendered } from "./markdown.js";
import { Away, ask } from "./service.js";
import { moment, sentence, t } from "./words.js";

/** Turns above a passage, and turns of a page. */
const ABOVE = 6;
const PAGE = 40;

const SPEAKERS = { User: "speakerUser", Assistant: "speakerAssistant", Agent: "speakerAgent", Subagent: "speakerSubagent" };

/** Show the turns of a document, {path, terms?}, around its lines `startLine` to `endLine` or from its beginning.
 *
 * Returns the answer of the service, undefined if there is none; `isCurrent()` tells whether the reader still wants it.
 */
export async function showTurns(container, document, { startLine, endLine, agent, isCurrent = () => true }) {
  const { path, terms = [] } = document;
  const list = make("ol", { className: "turns", role: "list" });
  const turns = (parameters) => ask("/v1/turns", { agent, path, ...parameters });
  const isMeant = ({ line }) => startLine !== undefined && line >= startLine && line <= endLine;
  const items = (answer) => answer.turns.map((turn) => item(turn, terms, isMeant(turn)));
  let answer;
  try {
    answer = await turns(startLine === undefined ? { count: PAGE } : { line: startLine, before: ABOVE, count: PAGE });
  } catch (error) {
    if (isCurrent()) show(container, make("div", { className: "notice bad" }, error instanceof Away ? t("awaySentence") : sentence(error.message)));
    return undefined;
  }
  if (!isCurrent()) return undefined;
  const above = step("earlierTurns", async (button) => {
    const more = await turns({ line: Number(list.firstChild.dataset.line), before: PAGE, count: 0 });
    const scrolled = container.parentElement;
    const height = scrolled.scrollHeight;
    list.prepend(...items(more));
    scrolled.scrollTop += scrolled.scrollHeight - height;
    button.parentElement.hidden = !more.earlier;
  });
  let next = answer.nextFrom;
  const below = step("laterTurns", async (button) => {
    const more = await turns({ line: next, count: PAGE });
    list.append(...items(more));
    next = more.nextFrom;
    button.parentElement.hidden = next === undefined;
  });
  above.hidden = !answer.earlier;
  below.hidden = next === undefined;
  list.append(...items(answer));
  const notes = [answer.error, answer.warning].filter(Boolean);
  show(
    container,
    ...notes.map((text) => make("div", { className: "notice warn" }, sentence(text))),
    answer.resume ? resume(answer.resume) : null,
    above,
    list,
    below,
    answer.turns.length === 0 && notes.length === 0 ? make("p", { className: "faint edge" }, t("noTurns")) : null,
  );
  list.querySelector(".meant")?.scrollIntoView({ block: "center" });
  return answer;
}

function item({ line, speaker, at, text }, terms, isMeant) {
  const time = at === undefined ? null : make("time", { dateTime: new Date(at * 1000).toISOString() }, moment(at));
  const who = SPEAKERS[speaker] ? t(SPEAKERS[speaker]) : speaker;
  const words = rendered(text, { from: 1, terms }) ?? make("p", { className: "words", dir: "auto" }, ...marked(text, terms));
  return make(
    "li",
    { className: isMeant ? "turn meant" : "turn", data: { line, speaker: speaker.toLowerCase() } },
    make("header", {}, make("strong", { dir: "auto" }, who), time),
    isMeant ? make("span", { className: "unseen" }, t("passageHere")) : null,
    words,
  );
}

function resume(command) {
  const button = make("button", { type: "button", className: "quiet" }, t("resumeCopy"));
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command).catch(() => undefined);
    announce(t("copied"));
    button.textContent = t("copied");
  });
  return make("div", { className: "resume" }, make("span", { className: "faint" }, t("resumeHow")), make("code", {}, command), button);
}

function step(name, action) {
  const button = make("button", { type: "button", className: name }, t(name));
  button.addEventListener("click", () => {
    button.disabled = true;
    action(button)
      .catch(() => announce(t("awaySentence")))
      .finally(() => (button.disabled = false));
  });
  return make("p", { className: "step" }, button);
}
