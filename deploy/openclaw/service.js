/**
 * Requests to a running recalld over HTTP. Each has a deadline; a failure is a reason in words, never an exception.
 */
import { createHmac, randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { setTimeout as wait } from "node:timers/promises";

const DEFAULT_URL = "http://127.0.0.1:7373";

/** Milliseconds for a whole answer. The service gives up a search after 15 s. */
const DEFAULT_TIMEOUT_MS = 16_000;

/** Milliseconds that a prompt waits for its memory, characters of it that are searched, and projects that it may name. */
const PROMPT_TIMEOUT_MS = 1_000;
const PROMPT_CHARACTERS = 20_000;
const MOST_PROJECTS = 4;

/** Service of one plug-in configuration: `baseUrl` and `token`, or the `home` folder that names both. */
export class Recalld {
  #config;

  constructor(config = {}) {
    this.#config = config;
  }

  /**
   * Send a body for an agent of OpenClaw and return `{ answer }` or `{ error }`.
   *
   * `sessionKey` names the conversation that asks; `signal` ends the request before its deadline. GET sends no body.
   */
  async ask(path, { method = "POST", agentId, sessionKey, signal, ...body }) {
    const agent = this.#agent(agentId ?? agentOf(sessionKey));
    const timeout = AbortSignal.timeout(this.#config.timeoutMs ?? DEFAULT_TIMEOUT_MS);
    const ends = signal ? AbortSignal.any([signal, timeout]) : timeout;
    let url = this.#config.home;
    try {
      const entry = await this.#entry();
      url = entry.url;
      if (entry.secret) await prove(entry, ends);
      const token = this.#config.token ?? (await tokenOf(entry, agent));
      const sent = { ...body, agent, sessionKey: this.#sessionKey(sessionKey, agentId) };
      const query = method === "GET" && agent ? `?agent=${encodeURIComponent(agent)}` : "";
      const response = await fetch(url + path + query, {
        method,
        headers: {
          "Content-Type": "application/json",
          ...(token && { Authorization: `Bearer ${token}` }),
        },
        body: method === "GET" ? undefined : JSON.stringify(sent),
        redirect: "error",
        signal: ends,
      });
      const answer = await response.json();
      return response.ok ? { answer } : { error: `recalld refused the request: ${answer.error ?? response.status}` };
    } catch (error) {
      if (timeout.aborted) return { error: `recalld at ${url} did not answer in time` };
      if (signal?.aborted) return { error: "the request to recalld was cancelled" };
      if (error instanceof Unproven) return { error: error.message };
      return { error: `recalld does not answer at ${url}: start it with \`recalld up\`` };
    }
  }

  /** Return false if the service that runs for the home adds memory to no agent's prompts. */
  async givesContext() {
    const { tokens, givesContext } = await this.#entry();
    return !tokens || givesContext === true;
  }

  #agent(agentId) {
    return (agentId && this.#config.agents?.[agentId]) || agentId;
  }

  /** Return the session key in the name of recalld's agent: a key of another agent is out of scope there. */
  #sessionKey(key, agentId) {
    const owner = agentOf(key);
    if (!owner || (agentId && owner !== agentId)) return key;
    return `agent:${this.#agent(owner)}${key.slice("agent:".length + owner.length)}`;
  }

  /** Return the service's URL, and for a home its secret and the folder of its tokens. */
  async #entry() {
    const { baseUrl = DEFAULT_URL, home } = this.#config;
    if (!home) return { url: baseUrl.replace(/\/+$/, "") };
    const run = join(home.replace(/^~(?=\/|$)/, homedir()), "run");
    const text = await readOr(join(run, "service.json"), "");
    if (!text) throw new Unproven(`no recalld runs for ${home}: start it with \`recalld up\``);
    const { host: bound, port, secret, givesContext } = JSON.parse(text);
    const host = { "0.0.0.0": "127.0.0.1", "::": "::1" }[bound] ?? bound;
    const url = `http://${host.includes(":") ? `[${host}]` : host}:${port}`;
    return { url, secret, givesContext, tokens: join(run, "tokens") };
  }
}

/** Have a home's service answer a challenge: another program may have its port by now, and gets no token. */
async function prove({ url, secret }, signal) {
  const nonce = randomBytes(16).toString("hex");
  const response = await fetch(`${url}/v1/proof/${nonce}`, { redirect: "error", signal });
  const { proof } = response.ok ? await response.json() : {};
  if (proof !== createHmac("sha256", secret).update(nonce).digest("hex")) {
    throw new Unproven(`another program is at ${url}: restart recalld`);
  }
}

async function tokenOf({ secret, tokens }, agent) {
  if (!secret || !/^[\w.-]+$/.test(agent ?? "") || agent.startsWith(".")) return undefined;
  return (await readOr(join(tokens, agent), "")).trim();
}

/**
 * Put recalld's memory before a user's prompts. A turn goes on without it if there is none within the deadline.
 *
 * The host shows such a text to the model for one turn and keeps it nowhere, so each prompt asks for all of it.
 */
export function addMemoryToPrompts(api, recalld) {
  const memoryFor = async ({ prompt, currentUserMessage = prompt, messages }, turn) => {
    const { agentId, sessionKey, sessionId, trigger, inputProvenance, activeProjectKeys = [] } = turn;
    const isPersons = (inputProvenance?.kind ?? "external_user") === "external_user";
    if (trigger !== "user" || !isPersons || !(await recalld.givesContext())) return undefined;
    const { resolveSandboxRuntimeStatus } = await import("openclaw/plugin-sdk/sandbox");
    const cfg = api.runtime?.config?.current?.() ?? api.config;
    if (resolveSandboxRuntimeStatus({ cfg, agentId, sessionKey }).sandboxed) return undefined;
    const { answer } = await recalld.ask("/v1/context/prompt", {
      agentId,
      sessionKey,
      session: sessionId,
      prompt: currentUserMessage.slice(0, PROMPT_CHARACTERS),
      projects: activeProjectKeys.slice(0, MOST_PROJECTS),
      begins: messages.length === 0 || messages.some(({ role }) => role === "compactionSummary"),
      repeats: true,
      signal: AbortSignal.timeout(PROMPT_TIMEOUT_MS),
    });
    return answer?.text ? { prependContext: answer.text } : undefined;
  };
  api.on("before_prompt_build", (event, turn) => {
    const late = wait(PROMPT_TIMEOUT_MS, undefined, { ref: false });
    return Promise.race([memoryFor(event, turn).catch(() => undefined), late]);
  });
}

/** Return the reason of an answer without memory, undefined if there is memory. */
export function reasonOf({ error, answer }) {
  if (error || !answer.unavailable) return error;
  return [answer.error, answer.action].filter(Boolean).join("; ");
}

/** Return true if the path names a transcript: sandboxed conversations see none. */
export function isTranscript(path) {
  return path.startsWith("sessions/") || path.includes(".jsonl");
}

class Unproven extends Error {}

function agentOf(sessionKey) {
  return /^agent:([^:]+):/i.exec(sessionKey ?? "")?.[1];
}

async function readOr(path, otherwise) {
  try {
    return await readFile(path, "utf8");
  } catch {
    return otherwise;
  }
}
