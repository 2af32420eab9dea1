/**
 * recalld beside OpenClaw's own memory: a corpus of memory_search and memory_get, whichever plug-in has the memory slot.
 */
import { Recalld, addMemoryToPrompts, isTranscript, reasonOf } from "./service.js";

const CORPUS = "recalld";

/** Highest number of results that the service takes. */
const MOST_RESULTS = 100;

export default {
  id: "recalld",
  name: "recalld",
  description: "Adds passages of a running recalld to memory_search and memory_get",

  register(api) {
    const recalld = new Recalld(api.pluginConfig);
    addMemoryToPrompts(api, recalld);
    api.registerMemoryCorpusSupplement({
      async search({ query, maxResults, agentId, agentSessionKey, sandboxed }) {
        const found = await recalld.ask("/v1/search", {
          agentId,
          sessionKey: agentSessionKey,
          query,
          maxResults: maxResults && Math.min(maxResults, MOST_RESULTS),
          corpus: sandboxed ? "memory" : undefined,
        });
        return answered(found).results.map((result) => ({ ...result, corpus: CORPUS }));
      },

      async get({ lookup, fromLine, lineCount, agentId, agentSessionKey, sandboxed }) {
        if (sandboxed && isTranscript(lookup)) return null;
        const range = { path: lookup, from: fromLine, lines: lineCount };
        const read = answered(await recalld.ask("/v1/get", { agentId, sessionKey: agentSessionKey, ...range }));
        if (read.status !== "ok") return null;
        return { corpus: CORPUS, path: read.path, content: read.text, fromLine: read.from, lineCount: read.lines };
      },
    });

    api.registerMemoryPromptSupplement(({ availableTools }) =>
      availableTools.has("memory_search")
        ? [
            "## recalld",
            'More notes and earlier sessions are in recalld: pass `corpus: "all"` to memory_search, and to memory_get ' +
              `for hits whose corpus is ${CORPUS}.`,
            "",
          ]
        : [],
    );
  },
};

/** Return the answer. A supplement gives its reason by a rejection: the host shows it as a warning beside its own results. */
function answered(outcome) {
  const reason = reasonOf(outcome);
  if (reason) throw new Error(reason);
  return outcome.answer;
}
