# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
# Lines in random order, of 20 to 60 bytes.
use strict;
use warnings;
srand 1;
for (1 .. $ARGV[0]) {
    printf "%08x%08x %s\n", rand 2**32, rand 2**32, 'x' x (3 + int rand 40);
}
