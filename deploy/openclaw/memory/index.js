/**
 * recalld as OpenClaw's memory: the plug-in of the memory slot.
 */
import { readFileSync } from "node:fs";

import { Recalld, addMemoryToPrompts, isTranscript, reasonOf } from "../service.js";

/** Definitions of memory_search and memory_get, as recalld serves them. */
const TOOLS = JSON.parse(readFileSync(new URL("./tools.json", import.meta.url), "utf8"));

/** What OpenClaw keeps free of a context window, in tokens; at most a quarter of it. */
const RESERVE_TOKENS = 20_000;

/** Defaults of OpenClaw's `agents.defaults.compaction.memoryFlush`. */
const SOFT_THRESHOLD_TOKENS = 4_000;
const TRANSCRIPT_BYTES = 2 * 1024 * 1024;

/** Age at which a plan is no longer followed: it names today's note. */
const PLAN_MILLISECONDS = 10 * 60_000;

export default {
  id: "recalld-memory",
  name: "recalld memory",
  description: "Answers memory_search and memory_get from a running recalld",

  register(api) {
    const recalld = new Recalld(api.pluginConfig);
    addMemoryToPrompts(api, recalld);
    api.registerMemoryCapability({
      promptBuilder: promptSection,
      flushPlanResolver: flushPlans(recalld),
      runtime: runtime(recalld),
    });
    for (const tool of TOOLS) {
      api.registerTool((context) => memoryTool(recalld, tool, context), { names: [tool.name] });
    }
  },
};

/** Return a tool for one conversation. The model reads the reason of an answer without memory. */
function memoryTool(recalld, { name, title, description, inputSchema }, { agentId, sessionKey, sandboxed }) {
  return {
    name,
    label: title,
    description,
    parameters: inputSchema,
    async execute(_callId, given, signal) {
      if (sandboxed && isTranscript(given.path ?? "")) return shown({ path: given.path, status: "not_found", text: "" });
      const args = sandboxed && name === "memory_search" ? { ...given, corpus: "memory" } : given;
      const { answer, error } = await recalld.ask("/v1/tools", { agentId, sessionKey, signal, name, arguments: args });
      if (!error) return shown(answer);
      const empty = name === "memory_search" ? { results: [] } : { path: given.path, status: "error", text: "" };
      return shown({ ...empty, disabled: true, unavailable: true, error });
    },
  };
}

function shown(answer) {
  return { content: [{ type: "text", text: JSON.stringify(answer, null, 2) }], details: answer };
}

function promptSection({ availableTools, citationsMode }) {
  if (!availableTools.has("memory_search")) return [];
  return [
    "## Memory",
    "Notes and earlier conversations are in memory. Call memory_search before you answer what depends on them" +
      (availableTools.has("memory_get") ? ", and read on around a passage with memory_get." : "."),
    "Tell the user what an answer of these tools says of missing, stale or unavailable memory.",
    citationsMode === "off" ? "Name no file and no line of memory unless asked." : "Name a passage's path and lines.",
    "",
  ];
}

/** Return the resolver of flush plans. The host does not wait: it gets the latest plan, and each call asks for a newer. */
function flushPlans(recalld) {
  let latest;
  // recalld takes 10,000 characters of a user's own text; without one it has its own.
  const own = (text) => (text?.length <= 10_000 ? text : undefined);
  const refresh = async (agentId, windowTokens, { prompt, systemPrompt }) => {
    const texts = { prompt: own(prompt), systemPrompt: own(systemPrompt) };
    const state = { agentId, windowTokens, tokens: windowTokens, ...texts };
    const { answer } = await recalld.ask("/v1/context/flush", state);
    latest = answer?.due ? { ...answer, at: Date.now() } : undefined;
  };
  return ({ cfg, contextWindowTokens }) => {
    const settings = cfg?.agents?.defaults?.compaction?.memoryFlush ?? {};
    if (settings.enabled === false || !contextWindowTokens) return null;
    const agents = Object.entries(cfg?.agents?.entries ?? {});
    const [agentId] = agents.find(([, agent]) => agent.default) ?? agents[0] ?? [undefined];
    void refresh(agentId, contextWindowTokens, settings);
    if (!latest || Date.now() - latest.at > PLAN_MILLISECONDS) return null;
    const bytes = settings.forceFlushTranscriptBytes;
    return {
      softThresholdTokens: settings.softThresholdTokens ?? SOFT_THRESHOLD_TOKENS,
      forceFlushTranscriptBytes: typeof bytes === "number" ? bytes : TRANSCRIPT_BYTES,
      reserveTokensFloor: Math.min(RESERVE_TOKENS, Math.floor(contextWindowTokens / 4)),
      model: settings.model ?? latest.model,
      prompt: latest.prompt,
      systemPrompt: latest.systemPrompt,
      relativePath: latest.path,
    };
  };
}

function runtime(recalld) {
  return {
    /** Return the manager, for a status as of now: the host does not wait when it asks the manager for it. */
    async getMemorySearchManager({ agentId, purpose }) {
      if (purpose !== "status") return { manager: manager(recalld, agentId) };
      const { answer, error } = await recalld.ask("/v1/status", { method: "GET", agentId });
      return error ? { manager: null, error } : { manager: manager(recalld, agentId, providerStatus(answer)) };
    },
    resolveMemoryBackendConfig: () => ({ backend: "builtin" }),

    /** Keep the hits that recalld shows to this session; of a transcript only with a session that asks, outside a sandbox. */
    async authorizeSearchHits({ agentId, requesterSessionKey: sessionKey, sandboxed, hits }) {
      const readable = async ({ path, startLine, source }) => {
        if (source === "sessions" && (sandboxed || !sessionKey)) return false;
        const { answer } = await recalld.ask("/v1/get", { agentId, sessionKey, path, from: startLine, lines: 1 });
        return answer?.status === "ok";
      };
      const allowed = await Promise.all(hits.map(readable));
      return hits.filter((_hit, index) => allowed[index]);
    },
  };
}

/** Return an agent's manager. Without recalld it finds nothing, and its status has the reason. */
function manager(recalld, agentId, status = { backend: "builtin", provider: "recalld" }) {
  let reason;
  const ask = async (path, body) => {
    const outcome = await recalld.ask(path, { agentId, ...body });
    reason = reasonOf(outcome);
    return reason ? undefined : outcome.answer;
  };
  const findsByVectors = async () => {
    const answer = await ask("/v1/search", { query: "probe", maxResults: 1 });
    return answer?.mode === "hybrid" || answer?.mode === "vector";
  };
  return {
    async search(query, { maxResults, minScore, sessionKey, sources, signal, onDebug } = {}) {
      const answer = await ask("/v1/search", { query, maxResults, minScore, sessionKey, sources, signal });
      onDebug?.({ backend: "builtin", effectiveMode: answer?.mode, fallback: reason });
      return answer?.results ?? [];
    },
    async readFile({ relPath, from, lines }) {
      const answer = await ask("/v1/get", { path: relPath, from, lines });
      return answer?.status === "ok" ? answer : { path: relPath, status: "not_found", text: "" };
    },
    status: () => ({ ...status, lastSyncError: reason }),
    async probeEmbeddingAvailability() {
      const ok = await findsByVectors();
      return ok ? { ok } : { ok, error: reason ?? "recalld searches by keywords only: see `recalld status`" };
    },
    probeVectorAvailability: findsByVectors,
  };
}

/** Return an answer of recalld's status as OpenClaw's MemoryProviderStatus, without the facts that recalld does not give. */
function providerStatus({ agents: [agent], cache }) {
  const { disk, index, provider, requestedProvider, textSearch, vectorSearch } = agent;
  const isComplete = index.vectorsPending + index.vectorsHeld + index.vectorsRefused === 0;
  const isReplaced = requestedProvider !== "auto" && requestedProvider !== provider;
  return {
    backend: "builtin",
    provider,
    requestedProvider,
    model: agent.model,
    files: index.files,
    chunks: index.chunks,
    dirty: disk.files === undefined ? undefined : disk.missing + disk.stale + disk.vanished > 0,
    workspaceDir: agent.workspace,
    sources: index.sourceCounts.map(({ source }) => source),
    sourceCounts: index.sourceCounts,
    cache: { enabled: cache.enabled, entries: cache.entries },
    fts: { enabled: true, available: textSearch.available, error: textSearch.reason },
    fallback: isReplaced ? { from: requestedProvider, reason: agent.providerReason } : undefined,
    vector: {
      enabled: requestedProvider !== "none",
      index: { state: index.vectorsReady === 0 && isComplete ? "empty" : isComplete ? "complete" : "incomplete" },
      available: vectorSearch.available,
      semanticAvailable: vectorSearch.available,
      loadError: vectorSearch.reason,
    },
    custom: { searchMode: agent.mode, degraded: agent.degraded },
  };
}
