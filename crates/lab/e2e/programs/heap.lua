-- SPDX-License-Identifier: Apache-2.0
-- Copyright the Aquifer authors
-- Tables, strings and arrays of its foreign-function interface, in compiled code.
local ffi = require("ffi")
local keys, state, wrong, store = tonumber(arg[1]), 1, 0, {}
local function below(limit)
    state = (state * 16807) % 2147483647
    return state % limit
end
local function value(key, turn) return { key, turn, ("%d/%d "):format(key, turn):rep(10) } end
for turn = 1, 3 do
    for _ = 1, keys do
        local key = below(keys)
        local found = store[key]
        if found and found[3] ~= value(key, found[2])[3] then wrong = wrong + 1 end
        store[key] = value(key, turn)
    end
end
local count, sum = 0, 0
for key = 0, keys - 1 do
    local found = store[key]
    if found then
        count, sum = count + 1, (sum * 31 + key * found[2] + #found[3]) % 1000000007
    end
end
local numbers = ffi.new("double[?]", keys * 20)
for at = 0, keys * 20 - 1 do numbers[at] = at * 0.5 end
for turn = 1, 3 do
    local total = 0
    for at = 0, keys * 20 - 1 do total = total + numbers[at] * turn end
    sum = (sum + total) % 1000000007
end
print(count, wrong, ("%.3f"):format(sum))
os.exit(wrong == 0 and 0 or 3)
