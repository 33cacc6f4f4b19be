-- A script for wrk that posts bodies in turn. Arguments: "none", "same" or "different" (the ids of successive requests),
-- the number of bodies, their files, then headers ("Name: value"). Without ids, wrk itself repeats a single body.
function init(args)
  local ids, count, requests = args[1], tonumber(args[2]), {}
  for i = 3 + count, #args do
    local name, value = args[i]:match("^(.-): (.*)$")
    wrk.headers[name] = value
  end
  for i = 1, count do
    local file = assert(io.open(args[2 + i], "rb"))
    wrk.method, wrk.body = "POST", file:read("*a")
    file:close()
    requests[i] = wrk.format()
  end
  local sent = 0
  if ids ~= "none" then
    local at = assert(requests[1]:find('"id":"00000000"', 1, true)) + 5
    local head, tail = requests[1]:sub(1, at), requests[1]:sub(at + 9)
    request = function()
      sent = sent + 1
      return head .. string.format("%08d", ids == "same" and 1 or sent) .. tail
    end
  elseif count > 1 then
    request = function()
      sent = sent + 1
      return requests[(sent - 1) % count + 1]
    end
  end
end

function done(summary, latency)
  local counts = {}
  for i = 1, #latency do
    counts[i] = string.format("[%d,%d]", latency(i))
  end
  local e = summary.errors
  io.write(string.format(
    'RESULT {"microseconds": %d, "requests": %d, "latencies": [%s], "errors": '
    .. '{"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\n',
    summary.duration, summary.requests, table.concat(counts, ","), e.connect, e.read, e.write, e.status, e.timeout))
end
