-- Steps of the pending set; each call is one step, and atomic.
--
-- ARGV: JSON of the step's named arguments, then documents. `keys` names the KEYS in their order:
--   since, live, backfill, running, crashes, alone, agents, moved (see `Keys`), and those of the step.
-- Times and places come as strings: a number of JSON has too few digits for them.

local args, key = cjson.decode(ARGV[1]), {}
for i, name in ipairs(args.keys) do key[name] = KEYS[i] end
local documents = {unpack(ARGV, 2)}

-- The claim of a document, in `running`: job, lane, crashes ('' for none), lane of a mark made meanwhile ('' for none).
local function parts(claim)
  return string.match(claim, '^([^|]*)|([^|]*)|([^|]*)|(.*)$')
end

local function claim_of(job, lane, crashes, again)
  return table.concat({job, lane, crashes, again}, '|')
end

local function wait(document, lane, place)
  redis.call('ZADD', lane == 'live' and key.live or key.backfill, 'NX', place, document)
end

-- Gives back the documents of jobs that are over, and counts their crashes. Returns the number of documents.
local function give_back(is_over, place, crashed)
  local claims, back = redis.call('HGETALL', key.running), 0
  for i = 1, #claims, 2 do
    local document = claims[i]
    local job, lane, _, again = parts(claims[i + 1])
    if is_over(job) then
      redis.call('HDEL', key.running, document)
      wait(document, again == 'live' and again or lane, place + i)
      if crashed and tonumber(redis.call('HGET', key.crashes, document) or 0) then
        redis.call('HINCRBY', key.crashes, document, 1)
      end
      if redis.call('GET', key.alone) == job then redis.call('DEL', key.alone) end
      back = back + 1
    end
  end
  return back
end

-- Claims up to `limit` documents for a job, or a single one with `alone_from` crashes, which stays alone for
-- `alone_seconds`. Returns the rest of the lane ('', 'more', 'alone: <crashes>' or 'busy'), then documents.
local function claim()
  local waiting = args.lane == 'live' and key.live or key.backfill
  local first = redis.call('ZRANGE', waiting, 0, args.limit - 1)
  if #first == 0 then return {''} end
  local crashes = redis.call('HMGET', key.crashes, unpack(first))
  local rest, taken, claims = #first == args.limit and 'more' or '', {}, {}
  local function take(i)
    taken[#taken + 1] = first[i]
    claims[#claims + 1] = first[i]
    claims[#claims + 1] = claim_of(args.job, args.lane, crashes[i] and '1' or '', '')
  end
  for i = 1, #first do
    if not crashes[i] or (tonumber(crashes[i]) or args.alone_from) < args.alone_from then
      take(i)
    elseif #taken > 0 then
      rest = 'more'
    elseif rest ~= 'busy' then
      if redis.call('SET', key.alone, args.job, 'NX', 'EX', args.alone_seconds)
        or redis.call('GET', key.alone) == args.job then
        rest = 'alone: ' .. crashes[i]
        take(i)
        break
      end
      rest = 'busy'
    end
  end
  if #taken == 0 then return {rest} end
  redis.call('ZREM', waiting, unpack(taken))
  redis.call('HSET', key.running, unpack(claims))
  return {rest == 'busy' and 'more' or rest, unpack(taken)}
end

-- Queues the message of a `Post` for a lane unless one of its kind waits.
local function post(message, lane)
  if redis.call('SET', key['queued:' .. lane], '1', 'NX', 'EX', message.kept_seconds) then
    redis.call('HSET', key['messages:' .. lane], message.name, message.body)
    -- Tenants take turns: one message of each is in the queue, and brings the next one when it is taken.
    local turns = key['turns:' .. lane]
    if turns and redis.call('RPUSH', turns, message.name) > 1 then return end
    redis.call('RPUSH', key['queue:' .. lane], message.name)
    if redis.call('RPUSH', key['bell:' .. lane], 1) > 16 then redis.call('LTRIM', key['bell:' .. lane], -16, -1) end
  end
end

local steps = {}

-- now, lane, agent, place, most_live, posts (by lane; may be absent). Returns the lane in which the documents wait.
function steps.mark()
  local lane = args.lane
  if lane == 'live' and redis.call('ZCARD', key.live) + #documents > args.most_live then lane = 'backfill' end
  for i, document in ipairs(documents) do
    local fresh = redis.call('ZADD', key.since, 'NX', args.now, document) == 1
    local running = not fresh and redis.call('HGET', key.running, document)
    if running then
      local job, before, crashes, again = parts(running)
      if again ~= 'live' then redis.call('HSET', key.running, document, claim_of(job, before, crashes, lane)) end
    elseif lane == 'live' then
      if not fresh then redis.call('ZREM', key.backfill, document) end
      wait(document, lane, args.place + i)
    elseif fresh or not redis.call('ZSCORE', key.live, document) then
      wait(document, lane, args.place + i)
    end
  end
  redis.call('SADD', key.agents, args.agent)
  if args.posts then
    redis.call('HINCRBY', key.counters, args.posts[lane].counter, #documents)
    post(args.posts[lane], lane)
  end
  return lane
end

-- message, lane
function steps.post()
  post(args.message, args.lane)
end

-- job, only_seconds (0: others of its kind may run, too), retried, lane, limit (0: no claim), alone_from,
-- alone_seconds, now; keys: queued, retrying, live_jobs. Returns the claim; nothing when another job is the only one of
-- its kind.
function steps.begin()
  give_back(function(job) return job == args.job end, 0, true)
  local name = 'job:' .. args.job
  if args.retried and redis.call('GET', key.retrying) == args.job then redis.call('DEL', key.retrying) end
  if args.only_seconds == 0 then
    redis.call('DEL', key.queued)
  else
    local holder = redis.call('GET', key.queued)
    if holder and holder ~= name and string.sub(holder, 1, 4) == 'job:' then return false end
    redis.call('SET', key.queued, name, 'EX', args.only_seconds)
    redis.call('ZREMRANGEBYSCORE', key.live_jobs, '-inf', args.now - args.only_seconds)  -- those of crashed workers
    redis.call('ZADD', key.live_jobs, args.now, args.job)
  end
  if args.limit == 0 then return {''} end
  return claim()
end

-- job, lane, limit, alone_from, alone_seconds
steps.claim = claim

-- now, job, back (give back) or done, place, moved_seconds. Returns the times of the marks that are over, as strings.
function steps.finish()
  local over = {}
  for i, document in ipairs(documents) do
    local job, lane, crashes, again = parts(redis.call('HGET', key.running, document) or '|||')
    if job == args.job then
      redis.call('HDEL', key.running, document)
      if again == '' and not args.back then
        over[#over + 1] = redis.call('ZSCORE', key.since, document)
        redis.call('ZREM', key.since, document)
      else
        wait(document, again == 'live' and again or lane, args.place + i)
      end
      if crashes ~= '' and not args.back then redis.call('HDEL', key.crashes, document) end
    elseif not args.back then
      -- Another job has it. That one may have read the document before this one committed an earlier state.
      if job ~= '' then
        redis.call('HSET', key.running, document, claim_of(job, lane, crashes, again == '' and lane or again))
      elseif redis.call('ZADD', key.since, 'NX', args.now, document) == 1 then
        wait(document, 'live', args.place + i)
      end
    end
  end
  if #over > 0 then redis.call('SET', key.moved, '1', 'EX', args.moved_seconds) end
  return over
end

-- Removes the documents of the backfill lane, and their marks. Returns their number.
function steps.drop()
  local waiting = redis.call('ZRANGE', key.backfill, 0, -1)
  for _, document in ipairs(waiting) do redis.call('ZREM', key.since, document) end
  redis.call('DEL', key.backfill)
  return #waiting
end

-- place, alive (jobs; all others are over) or crashed (a job)
function steps.recover()
  if args.crashed then return give_back(function(job) return job == args.crashed end, args.place, true) end
  local alive = {}
  for _, job in ipairs(args.alive) do alive[job] = true end
  return give_back(function(job) return not alive[job] end, args.place, false)
end

return steps[args.step]()
