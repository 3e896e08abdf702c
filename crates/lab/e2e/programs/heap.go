// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Maps and strings of a live heap, which goroutines change while the collector works.
package main

import "C" // So that the program is linked dynamically.

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
)

const workers = 4

type record struct {
	turn int
	text string
}

func text(key, turn int) string {
	return fmt.Sprintf("%d/%d %0100d", key, turn, key)
}

// Each goroutine has keys of its own.
func work(keys, worker int) (map[int]*record, int) {
	store, state, wrong := map[int]*record{}, uint32(worker+1), 0
	for turn := 0; turn < 3; turn++ {
		for step := 0; step < keys; step++ {
			state = state*1664525 + 1013904223
			key := int(uint64(state) * uint64(keys) >> 32)
			if found := store[key]; found != nil && found.text != text(key, found.turn) {
				wrong++
			}
			store[key] = &record{turn, text(key, turn)}
		}
		if worker == 0 {
			runtime.GC()
		}
	}
	return store, wrong
}

func main() {
	keys, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	// Each collection touches the whole heap, most of which is far.
	debug.SetGCPercent(300)
	stores, wrongs := make([]map[int]*record, workers), make([]int, workers)
	var group sync.WaitGroup
	for worker := range stores {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			stores[worker], wrongs[worker] = work(keys/workers, worker)
		}(worker)
	}
	group.Wait()
	hash, wrong := sha256.New(), 0
	for worker, store := range stores {
		for key := 0; key < keys/workers; key++ {
			if found := store[key]; found != nil {
				fmt.Fprintln(hash, key, found.turn, found.text)
			}
		}
		wrong += wrongs[worker]
	}
	fmt.Printf("%d %x\n", wrong, hash.Sum(nil))
	if wrong != 0 {
		os.Exit(3)
	}
}
