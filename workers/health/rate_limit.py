"""State of a provider's account in the broker: one hash, changed by one script on the server's clock.

    cool                  end of the cool-down of the whole account
    until:M               end of the cool-down of model M alone
    error:M               the provider's refusal for good of model M, until it answers
    failures:M, failed:M  failures in a row, and the time of the last one
    requests, tokens      time at which all sent requests are within the limits a minute again
    live, old             until then (2 s) live texts, or old ones whose share is due, wait for the next request
    due                   from then on an old text may leave in any case

Times are Unix seconds. A model that is unknown or down does not stop requests to other models.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from memory.embedding.rate_limit import REFUSED_SECONDS, AccountState
from schemas.status import EndpointCondition, EndpointStatus
from workers.queue.connection import BrokerClient
from workers.queue.names import account_key

#: Seconds after which an unused account is forgotten.
KEPT_SECONDS: Final = 86_400

#: Seconds that no time of an account is ahead: the longest wait that a provider may name
#: (`memory.embedding.providers.endpoint`), and a minute by which clocks may differ.
LONGEST_SECONDS: Final = 3_660

#: Seconds for which status shows a passing failure without later requests.
FAILED_LATELY_SECONDS: Final = 30

#: Of so many requests at least one is of old texts, where some wait.
_OLD_SHARE: Final = 10

_SCRIPT: Final = f"""
-- KEYS: account; ARGV: model, seconds on the caller's clock (empty: the server's), step, arguments of the step
local key, model, step = KEYS[1], ARGV[1], ARGV[3]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
-- A time ahead of the longest that its rule allows counts as now: the clock was set back.
local function time_of(field, longest)
  local seconds = tonumber(field or 0)
  return seconds - now > longest and now or seconds
end
local found = redis.call('HMGET', key, 'cool', 'until:' .. model, 'failures:' .. model, 'failed:' .. model,
  'requests', 'tokens', 'error:' .. model, 'live', 'old', 'due')
local live, old, due = time_of(found[8], 2), time_of(found[9], 2), time_of(found[10], {LONGEST_SECONDS})
local cool, own, failures, failed, requests, tokens =
  time_of(found[1], {LONGEST_SECONDS}), time_of(found[2], {LONGEST_SECONDS}), tonumber(found[3] or 0),
  time_of(found[4], 0), time_of(found[5], {LONGEST_SECONDS}), time_of(found[6], {LONGEST_SECONDS})
local refusal, wait, changes = found[7], 0, {{}}
local hold = math.max(cool, own) - now
local function set(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = type(value) == 'number' and string.format('%.6f', value) or value
end

-- Acquire: 0 (query, never waits), 1 (live) or 2 (old texts), rate and room of requests, tokens, rate and room of
-- tokens. A rate of 0 is no limit.
if step == 'acquire' and hold <= 0 then
  local function left(busy_until, cost, rate, room)
    if rate == 0 then return 0 end
    local ahead = math.max(0, busy_until - now)
    return math.max(0, math.min(ahead, ahead + (cost - room) / rate))
  end
  local request_rate, cost, token_rate = tonumber(ARGV[5]), tonumber(ARGV[7]), tonumber(ARGV[8])
  local turn = math.max(request_rate > 0 and 1 / request_rate or 0, token_rate > 0 and cost / token_rate or 0)
  if ARGV[4] ~= '0' and turn > 0 then
    wait = math.max(left(requests, 1, request_rate, tonumber(ARGV[6])),
      left(tokens, cost, token_rate, tonumber(ARGV[9])))
    -- Live texts that wait leave before old ones, except for the share of these.
    if ARGV[4] == '1' then
      wait = math.max(wait, old - now)
      if wait > 0 then set('live', now + 2) end
    elseif now < due - turn then
      wait = math.max(wait, math.min(live, due - turn) - now)
    elseif wait > 0 then
      if old <= now then
        due = math.max(due, now + turn)
        set('due', due)
      end
      set('old', now + 2)
      wait = math.min(wait, math.max(0, due - now))
    end
  end
  -- Less than the reply can say is no wait.
  if wait < 0.000001 then wait = 0 end
  if wait == 0 then
    if request_rate > 0 then set('requests', math.max(requests, now) + 1 / request_rate) end
    if token_rate > 0 then set('tokens', math.max(tokens, now) + cost / token_rate) end
    if ARGV[4] == '2' and turn > 0 then
      set('old', 0)
      set('due', now + {_OLD_SHARE} * turn)
    end
  end

-- Report of a good answer. One of a request that left before the cool-down ends nothing.
elseif step == 'answered' and hold <= 0 then
  redis.call('HDEL', key, 'until:' .. model, 'error:' .. model, 'failures:' .. model, 'failed:' .. model)
  refusal, failures = false, 0

-- Report of a refusal for good: its words.
elseif step == 'refused' then
  own, refusal = now + {REFUSED_SECONDS}, ARGV[4]
  set('until:' .. model, own)
  set('error:' .. model, refusal)

-- Report of a failure: seconds and field of the cool-down.
elseif step == 'failed' then
  if hold <= 0 then failures = failures + 1 end
  local until_time = now + tonumber(ARGV[4])
  if ARGV[5] == 'cool' then
    cool = math.max(cool, until_time)
    set('cool', cool)
  else
    own = math.max(own, until_time)
    set('until:' .. model, own)
  end
  failed = now
  set('failures:' .. model, failures)
  set('failed:' .. model, failed)

-- Forget the backoff, but no time that the provider named.
elseif step == 'forget' then
  redis.call('HDEL', key, 'until:' .. model)
  own = 0
end

if #changes > 0 then
  redis.call('HSET', key, unpack(changes))
  redis.call('EXPIRE', key, {KEPT_SECONDS})
end
local failing = failures > 0 and (own > now or now - failed < {FAILED_LATELY_SECONDS})
return {{string.format('%.6f', math.max(0, math.max(cool, own) - now)), refusal or '', string.format('%.6f', wait),
  failures, failing and cool <= now and 1 or 0}}
"""


class Account:
    """State of one account and model in the broker. `clock` replaces the server's, for tests.

    Raises BrokerUnavailable.
    """

    def __init__(
        self, client: BrokerClient, account: str, model: str, *, clock: Callable[[], float] | None = None
    ) -> None:
        self._script: Any = client.register_script(_SCRIPT)
        self._keys = [account_key(account)]
        self._model = model
        self._clock = clock

    def step(self, name: str, *arguments: object) -> AccountState:
        """Return the state after a step of the script; "look" changes nothing."""
        now = "" if self._clock is None else self._clock()
        seconds, refusal, paced, failures, failing = self._script(
            keys=self._keys, args=[self._model, now, name, *arguments]
        )
        words = refusal.decode("utf-8", "replace") or None
        return AccountState(float(seconds), words, float(paced), failures, failing == 1)

    def status(self) -> EndpointStatus:
        """Return the state for status."""
        state = self.step("look")
        until = time.time() + state.seconds if state.seconds > 0 else None
        if state.refusal is not None:
            return EndpointStatus(EndpointCondition.STOPPED, until, state.refusal)
        if state.failing:
            return EndpointStatus(EndpointCondition.FAILING, until)
        return EndpointStatus(EndpointCondition.COOLING_DOWN if until is not None else EndpointCondition.OK, until)
