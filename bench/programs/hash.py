# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
"""A dictionary that is filled, read and changed by a law like Zipf's, and walked through in the end."""
import random
import sys


def value(key, turn):
    return [turn, f"{key}/{turn} " * 10]


keys, wrong = int(sys.argv[1]), 0
random.seed(1)
store = {f"key:{key}": value(key, 0) for key in range(keys)}
for number in range(keys):
    # The logarithm of the rank is uniform, and the ranks lie anywhere.
    key = int(keys ** random.random()) * 7919 % keys
    turn, _ = found = store[f"key:{key}"]
    wrong += found != value(key, turn)
    if number % 4 == 0:
        store[f"key:{key}"] = value(key, turn + 1)
if sum(len(text) for _, text in store.values()) == 0 or wrong:
    sys.exit(3)
