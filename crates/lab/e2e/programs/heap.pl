# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
# Hashes of arrays, sorted and joined.
use strict;
use warnings;
use Digest::SHA qw(sha256_hex);
sub value { my ($key, $turn) = @_; return [$key, $turn, "$key/$turn " x 10]; }
my ($keys, $state, $wrong, %store) = ($ARGV[0], 1, 0);
for my $turn (0 .. 2) {
    for (1 .. $keys) {
        $state = ($state * 1664525 + 1013904223) % 4294967296;
        my $key = int($state / 4294967296 * $keys);
        my $found = $store{$key};
        $wrong++ if $found && $found->[2] ne value($key, $found->[1])->[2];
        $store{$key} = value($key, $turn);
    }
}
my $text = join ',', map { join '/', @{$store{$_}} } sort { $a <=> $b } keys %store;
print scalar(keys %store), " $wrong ", sha256_hex($text), "\n";
exit($wrong ? 3 : 0);
