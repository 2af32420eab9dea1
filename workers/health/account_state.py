"""State of a provider's account in the broker: one hash, changed by scripts on the server's clock.

    cool, throttles       cool-down of the whole account: its end, and the 429 answers in a row
    requests, tokens      time at which all sent requests are within the limits per minute again
    error:M, closed:M     circuit breaker of model M: the provider's message, and the end of the pause
    failures:M, failed:M  passing failures in a row, and the time of the last one
    probe:M, prober:M     the one request that tests if M is back: the end of its lease, and its name

Times are Unix seconds. A model that is unknown or down does not stop requests to other models.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import redis

from memory.embedding.gate import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, OUTAGE_FAILURES, PROBE_LEASE_SECONDS
from schemas.ports import EndpointCondition, EndpointStatus
from workers.queue.names import account_key

#: Seconds after which an unused account is forgotten.
KEPT_SECONDS: Final = 86_400

#: Seconds for which status shows a passing failure without later requests.
FAILED_LATELY_SECONDS: Final = 30

_READ: Final = """
-- KEYS: account; ARGV: model, seconds on the caller's clock (empty: the server's), ...
local key, model = KEYS[1], ARGV[1]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local found = redis.call('HMGET', key, 'cool', 'throttles', 'requests', 'tokens', 'error:' .. model, 'closed:' .. model,
  'failures:' .. model, 'probe:' .. model, 'prober:' .. model, 'failed:' .. model)
local cool, throttles = tonumber(found[1] or 0), tonumber(found[2] or 0)
local requests, tokens = tonumber(found[3] or 0), tonumber(found[4] or 0)
local sentence, closed = found[5], tonumber(found[6] or 0)
local failures, probe, prober = tonumber(found[7] or 0), tonumber(found[8] or 0), found[9]
local failed = tonumber(found[10] or 0)
local function state(verdict, wait)
  return {verdict, string.format('%.6f', wait), sentence or '',
    string.format('%.6f', math.max(0, math.max(cool, closed) - now)),
    (sentence or failures >= OUTAGE_FAILURES) and 1 or 0,
    failures > 0 and now - failed < FAILED_LATELY and 1 or 0}
end
""".replace("OUTAGE_FAILURES", str(OUTAGE_FAILURES)).replace("FAILED_LATELY", str(FAILED_LATELY_SECONDS))

#: Acquire the right to send one request; see `Gate.enter`.
ENTER: Final = (
    _READ
    + """
-- ARGV: ..., name of this request, tokens, waits (0 or 1), request rate (0: no limit) and room, token rate and room
local not_before = math.max(cool, closed)
if now < not_before then return state(sentence and 'refused' or 'waiting', not_before - now) end
local probing = sentence or failures >= OUTAGE_FAILURES
if probing and now < probe and prober ~= ARGV[3] then return state(sentence and 'refused' or 'out', FIRST_PAUSE) end
local function wait(busy_until, cost, rate, room)
  if rate == 0 then return 0 end
  local backlog = math.max(0, busy_until - now)
  return math.max(0, math.min(backlog, backlog + (cost - room) / rate))
end
local cost, request_rate, token_rate = tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[8])
if ARGV[5] == '1' then
  local seconds = math.max(wait(requests, 1, request_rate, tonumber(ARGV[7])),
    wait(tokens, cost, token_rate, tonumber(ARGV[9])))
  if seconds > 0 then return state('paced', seconds) end
end
if request_rate > 0 then
  redis.call('HSET', key, 'requests', string.format('%.6f', math.max(requests, now) + 1 / request_rate))
end
if token_rate > 0 then
  redis.call('HSET', key, 'tokens', string.format('%.6f', math.max(tokens, now) + cost / token_rate))
end
if probing then
  redis.call('HSET', key, 'probe:' .. model, string.format('%.6f', now + PROBE_LEASE), 'prober:' .. model, ARGV[3])
end
redis.call('EXPIRE', key, KEPT_SECONDS)
return state(probing and 'probe' or 'normal', 0)
""".replace("OUTAGE_FAILURES", str(OUTAGE_FAILURES))
    .replace("FIRST_PAUSE", str(FIRST_PAUSE_SECONDS))
    .replace("PROBE_LEASE", str(PROBE_LEASE_SECONDS))
    .replace("KEPT_SECONDS", str(KEPT_SECONDS))
)

#: Record the outcome of a request; see `Gate.leave`.
LEAVE: Final = (
    _READ
    + """
-- ARGV: ..., was the probe (0 or 1), outcome, retry_after (or ''), sentence, seconds between probes
local was_probe, outcome, asked = ARGV[3] == '1', ARGV[4], tonumber(ARGV[5])
local function pause_after(times) return math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ^ math.min(times - 1, 10)) end
if was_probe then redis.call('HDEL', key, 'probe:' .. model, 'prober:' .. model) end
if outcome == 'answered' then
  if was_probe then sentence, closed = false, 0 end
  if not sentence then failures, throttles = 0, 0 end
elseif outcome == 'refused' then
  sentence, closed = ARGV[6], now + ARGV[7]
elseif outcome == 'throttled' or outcome == 'failed' then
  local account, own = asked or 0, 0
  if outcome == 'throttled' then
    throttles = throttles + 1
    if not asked then account = pause_after(throttles) end
  elseif not asked then
    failures, failed = failures + 1, now
    if failures >= OUTAGE_FAILURES then own = pause_after(failures - OUTAGE_FAILURES + 1) end
  end
  if sentence then own = math.max(own, FIRST_PAUSE) end
  if account > 0 then cool = math.max(cool, now + account) end
  if own > 0 then closed = math.max(closed, now + own) end
end
redis.call('HSET', key, 'cool', string.format('%.6f', cool), 'throttles', throttles,
  'closed:' .. model, string.format('%.6f', closed), 'failures:' .. model, failures,
  'failed:' .. model, string.format('%.6f', failed))
if sentence then redis.call('HSET', key, 'error:' .. model, sentence)
else redis.call('HDEL', key, 'error:' .. model) end
redis.call('EXPIRE', key, KEPT_SECONDS)
return state('', 0)
""".replace("OUTAGE_FAILURES", str(OUTAGE_FAILURES))
    .replace("FIRST_PAUSE", str(FIRST_PAUSE_SECONDS))
    .replace("LONGEST_PAUSE", str(LONGEST_PAUSE_SECONDS))
    .replace("KEPT_SECONDS", str(KEPT_SECONDS))
)

#: Read the state without a change.
LOOK: Final = _READ + "return state('', 0)"

#: Forget the pauses after failures: a probe may leave at once, and the backoff starts anew.
FORGET_PAUSES: Final = (
    _READ
    + """
redis.call('HDEL', key, 'closed:' .. model, 'probe:' .. model, 'prober:' .. model)
if failures > OUTAGE_FAILURES then redis.call('HSET', key, 'failures:' .. model, OUTAGE_FAILURES) end
return state('', 0)
""".replace("OUTAGE_FAILURES", str(OUTAGE_FAILURES))
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Reply of a script: its verdict, the seconds to wait, and the state afterwards.

    `sentence`: the provider's permanent refusal. No request leaves for `delay` seconds. `careful`: the next request is
    a probe. `failing`: a request failed in passing not long ago.
    """

    verdict: str
    wait: float
    sentence: str | None
    delay: float
    careful: bool
    failing: bool

    @classmethod
    def of(cls, raw: Any) -> Answer:
        """Read a script's reply."""
        verdict, wait, sentence, delay, careful, failing = raw
        return cls(
            verdict=verdict.decode(),
            wait=float(wait),
            sentence=sentence.decode("utf-8", "replace") or None,
            delay=float(delay),
            careful=careful == 1,
            failing=failing == 1,
        )


def forget_pauses(client: redis.Redis, account: str, model: str) -> None:
    """Let one request to an account and model leave at once, unless the provider named a time.

    The request is a probe, and others wait for its answer: failures still count. Raises `redis.RedisError`.
    """
    client.register_script(FORGET_PAUSES)(keys=[account_key(account)], args=[model, 0])


def endpoint_state(client: redis.Redis, account: str, model: str) -> EndpointStatus:
    """Return the state of an account and model for status. Raises `redis.RedisError`."""
    known = Answer.of(client.register_script(LOOK)(keys=[account_key(account)], args=[model, ""]))
    until = time.time() + known.delay if known.delay > 0 else None
    if known.sentence is not None:
        return EndpointStatus(EndpointCondition.STOPPED, until, known.sentence)
    if known.careful or (known.failing and until is None):
        return EndpointStatus(EndpointCondition.FAILING, until)
    return EndpointStatus(EndpointCondition.COOLING_DOWN if until is not None else EndpointCondition.OK, until)
