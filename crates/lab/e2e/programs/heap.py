# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
import os
import random
import subprocess
import sys


def value(key):
    return [key, str(key) * 20, (key, key + 1)]


keys = int(sys.argv[1])
random.seed(3)
store, wrong = {}, 0
for turn in range(3 * keys):
    key = random.randrange(keys)
    if key in store and store[key] != value(key):
        wrong += 1
    store[key] = value(key)
array = bytearray(500 * keys)
for at in range(0, len(array), 4096):
    array[at] = at >> 12 & 255
for at in range(0, len(array), 4096):
    wrong += array[at] != at >> 12 & 255
child = os.fork()
if child == 0:
    # As it was at the fork, whatever the parent does meanwhile.
    os._exit(0 if all(store[key] == value(key) for key in store) else 9)
for key in store:
    store[key] = [key, "changed", 0]
_, status = os.waitpid(child, 0)
print(len(store), wrong, status, subprocess.check_output(["echo", "started"]))
sys.exit(1 if wrong or status else 0)
