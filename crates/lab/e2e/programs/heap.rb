# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
# Strings and arrays in a hash, several threads, and a child that sees them as they were.
require 'digest'
def value(key, turn) = [key, "#{key}/#{turn} " * 10, turn]
keys = ARGV[0].to_i
random = Random.new(7)
store = {}
wrong = 0
3.times do |turn|
  keys.times do
    key = random.rand(keys)
    found = store[key]
    wrong += 1 if found && found != value(key, found[2])
    store[key] = value(key, turn)
  end
end
threads = 4.times.map { |number| Thread.new { store.sum { |key, found| found[1].size * (number + 1) + key } } }
sums = threads.map(&:value)
child = fork { exit!(store.all? { |key, found| found == value(key, found[2]) } ? 0 : 9) }
Process.wait(child)
wrong += 1 unless $?.success?
puts [store.size, wrong, sums, Digest::SHA256.hexdigest(store.sort.inspect)].inspect
exit(wrong.zero?)
