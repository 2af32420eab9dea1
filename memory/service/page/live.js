// What moves: asked for every two seconds while somebody looks, and told to whoever shows it.

import { Away, ask } from "./service.js";

const EVERY = 2_000;
/** With thousands of agents an answer takes longer; looking must not keep the service busy. */
const REST_TIMES = 10;

/** `answer` is the last one of /v1/queue, `at` when it came; `away` while nobody answers; `refused` is a sentence. */
export const state = { answer: null, at: 0, away: false, refused: null };

const listeners = [];
let timer = 0;
let round = 0;

/** Call this after every look. */
export const onLook = (listener) => listeners.push(listener);

export const agents = () => state.answer?.agents ?? [];

/** What is known of one agent. */
export const agentNamed = (name) => agents().find((agent) => agent.agent === name);

/** Look now, and again from then on. */
export async function look() {
  clearTimeout(timer);
  const mine = ++round;
  const started = performance.now();
  let next = state;
  try {
    next = { answer: await ask("/v1/queue"), at: Date.now() / 1000, away: false, refused: null };
  } catch (error) {
    const away = error instanceof Away;
    // Without permission nothing is shown any longer; while it is away, what was there last.
    next = { answer: away ? state.answer : null, at: state.at, away, refused: away ? null : error };
  }
  if (mine !== round) return; // somebody looked again meanwhile
  Object.assign(state, next);
  for (const listener of listeners) listener();
  if (state.refused === null && !document.hidden) {
    timer = setTimeout(look, Math.max(EVERY, REST_TIMES * (performance.now() - started)));
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (state.refused === null) look();
});
