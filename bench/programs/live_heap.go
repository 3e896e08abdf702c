// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A live heap of maps and slices that changes while the collector works.
package main

import "C" // So that the program is linked dynamically.

import (
	"fmt"
	"math"
	"math/rand"
	"os"
)

type record struct {
	turn int
	text string
	next *record
}

const (
	keys  = 300_000
	steps = 300_000
)

func text(key, turn int) string {
	return fmt.Sprintf("%d/%d %0120d", key, turn, key)
}

func main() {
	random := rand.New(rand.NewSource(1))
	store := make(map[int]*record)
	for key := 0; key < keys; key++ {
		store[key] = &record{text: text(key, 0)}
	}
	wrong := 0
	// The logarithm of the rank is uniform, and the ranks lie anywhere.
	for step := 0; step < steps; step++ {
		key := int(math.Pow(keys, random.Float64())) * 7919 % keys
		found := store[key]
		if found.text != text(key, found.turn) {
			wrong++
		}
		if step%4 == 0 {
			// The one before stays reachable, and the one before that becomes garbage.
			before := &record{turn: found.turn, text: found.text}
			store[key] = &record{turn: found.turn + 1, text: text(key, found.turn+1), next: before}
		}
	}
	if wrong != 0 {
		fmt.Fprintln(os.Stderr, wrong, "records are wrong")
		os.Exit(3)
	}
}
