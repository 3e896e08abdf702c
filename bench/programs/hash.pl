# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
# A hash of arrays that is filled, in part read and changed by a law like Zipf's, and walked through in the end.
use strict;
use warnings;
my ($keys, $wrong, %store) = ($ARGV[0], 0);
srand 1;
sub value { my ($key, $turn) = @_; return "$key/$turn " x 10; }
$store{"key:$_"} = [0, value($_, 0)] for 1 .. $keys;
for (1 .. $keys) {
    # The logarithm of the rank is uniform, and the ranks lie anywhere.
    my $key = 1 + int($keys ** rand) * 7919 % $keys;
    my $found = $store{"key:$key"};
    $wrong++ if $found->[1] ne value($key, $found->[0]);
    $store{"key:$key"} = [$found->[0] + 1, value($key, $found->[0] + 1)] if $_ % 4 == 0;
}
my $bytes = 0;
$bytes += length $_->[1] for values %store;
exit($wrong || !$bytes ? 3 : 0);
