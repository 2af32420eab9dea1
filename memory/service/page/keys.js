// The keyboard: everything can be reached by Tab, and what is done often has a key of its own.

import { byId } from "./elements.js";
import { go, isReading } from "./reader.js";

const results = () => [...document.querySelectorAll("#found .result .open")];

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const done = isReading() ? inReader(event) : onPage(event);
    if (done) event.preventDefault();
  });
}

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

function inReader(event) {
  if (isTyping(event.target)) return false;
  if (event.key === "n" || event.key === "j") go("next");
  else if (event.key === "p" || event.key === "k") go("previous");
  else return false;
  return true;
}

function onPage(event) {
  const query = byId("query");
  if (event.target === query) {
    if (event.key === "ArrowDown") return move(0);
    if (event.key === "Escape") return clear(query);
    return false;
  }
  if (isTyping(event.target)) return false;
  if (event.key === "/") return toQuery(query);
  const at = results().indexOf(event.target);
  const among = event.target.closest("#results") !== null;
  if (event.key === "j" || (event.key === "ArrowDown" && among)) return move(at + 1);
  if (event.key === "k") return move(Math.max(0, at - 1));
  if ((event.key === "ArrowUp" && among && at <= 0) || (event.key === "Escape" && among)) return toQuery(query);
  if (event.key === "ArrowUp" && among) return move(at - 1);
  return false;
}

function toQuery(query) {
  query.focus();
  query.select();
  return true;
}

/** Focus a result. */
function move(index) {
  const buttons = results();
  const target = buttons[Math.min(index, buttons.length - 1)];
  if (!target) return false;
  target.focus();
  target.closest(".result").scrollIntoView({ block: "nearest" });
  return true;
}

function clear(query) {
  if (query.value === "") query.blur();
  query.value = "";
  return true;
}
