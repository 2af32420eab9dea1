// Asking the service. Every failure is one of two: it is away (and will come back), or it refuses with a sentence.

const KEPT = "recalld.token";

/** Milliseconds that an answer may take; a search has 15 s by default. */
const PATIENCE = 30_000;

/** Nobody answers, or somebody else does. */
export class Away extends Error {}

/** The service said no; the message is its sentence. */
export class Refused extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

let token = kept();

function kept() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

export const hasToken = () => token !== "";

/** Use this token from now on, for as long as the tab is open; an empty one forgets it. */
export function useToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // Then it holds until the page is left.
  }
}

/** GET with parameters. */
export function ask(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return call(query ? `${path}?${query}` : path, {}, signal);
}

/** POST a JSON object. */
export function send(path, body, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body) }, signal);
}

async function call(path, options, signal) {
  const headers = { ...options.headers };
  // A header holds nothing else; the service would not know such a token anyway.
  if (/^[\x21-\x7e]+$/.test(token)) headers.Authorization = `Bearer ${token}`;
  const limit = AbortSignal.timeout(PATIENCE);
  const signals = signal ? AbortSignal.any([signal, limit]) : limit;
  let response;
  let answer;
  try {
    response = await fetch(path, { ...options, headers, signal: signals, cache: "no-store" });
    answer = await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Away(String(error));
  }
  if (response.ok) return answer;
  if ([502, 503, 504].includes(response.status)) throw new Away(response.statusText);
  throw new Refused(answer.error ?? response.statusText, response.status);
}
